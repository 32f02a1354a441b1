# The kernel's NBD client on an export of `braid run`: a file system, discard, write zeroes and
# verified load over several connections, while a path of ours dies and returns.
# vm: --cpus 4
. ./lib.sh
. ./host.sh
. ./run.sh
. ./exported.sh
modprobe nbd nbds_max=2
modprobe ext4
two_ports mem:128MiB
start_run <<EOF
$(two_paths 'policy = "queue-depth"')
[[volume.export]]
nbd = "unix:/run/v0.sock"
[[volume.export]]
nbd = "tcp:127.0.0.1:10809"
EOF

check list sh -c "nbd-client -l 127.0.0.1 | grep -qx v0"
refused no_such_export nbd-client -unix /run/v0.sock -N other /dev/nbd0
check connect nbd-client -unix /run/v0.sock -N v0 -C 4 /dev/nbd0
queue=/sys/block/nbd0/queue
same size "$(cat /sys/block/nbd0/size)" 262144
# nbd-client asks for no block sizes, so the kernel writes parts of our blocks.
same block_size "$(cat $queue/logical_block_size)" 512
same writable "$(cat /sys/block/nbd0/ro)" 0
check discards [ "$(cat $queue/discard_max_bytes)" -gt 0 ]
# Whether the kernel flushes: nothing between us and the memory of the target caches.
echo "write_cache: $(cat $queue/write_cache), write_zeroes: $(cat $queue/write_zeroes_max_bytes)"
grep -q nbd0 /proc/partitions && ok partitions_readable || fail partitions_readable "$(cat /proc/partitions)"

writes_and_reads nbd /dev/nbd0
verified nbd /dev/nbd0 512
mount_new nbd /dev/nbd0
copies nbd
for port in 2 1; do
    lose $port
    reaches path_${port}_lost 60 is degraded
    restore $port
    reaches path_${port}_back 60 is ok
done
copied_well load_while_paths_die
umount_checked nbd /dev/nbd0
same no_error_of_the_kernel "$(dmesg | grep -c 'I/O error')" 0
check disconnect nbd-client -d /dev/nbd0
no_clients() { [ "$(braid stat --socket $control -o json | jq '[.. | .clients? // empty] | add')" = 0 ]; }
reaches clients_gone 60 no_clients

# The same over TCP, and a stop of ours while the kernel is a client.
check connect_tcp nbd-client 127.0.0.1 -N v0 -b 4096 /dev/nbd1
same block_size_tcp "$(cat /sys/block/nbd1/queue/logical_block_size)" 4096
check read_tcp sh -c "dd if=/dev/nbd1 of=/dev/null bs=1M count=8 iflag=direct"
kill "$run"
wait "$run"
same ends_well $? 0
refused read_after_stop dd if=/dev/nbd1 of=/dev/null bs=4096 count=1 iflag=direct
finish
