# A volume with two paths as a block device of the kernel, in each way that there is, and the kernel's
# own host with native multipath beside them: figures of fio, in virtual time that counts
# instructions. Each path adds 200 us, so the I/Os that are on it can be counted.
# vm: --icount --cpus 2 --memory 1024 --limit 3000
. ./lib.sh
. ./host.sh
. ./run.sh
. ./exported.sh
modprobe nbd nbds_max=1
modprobe loop
modprobe ublk_drv
load_host
two_ports mem:64MiB
shape --port 1 delay=200us >/dev/null
shape --port 2 delay=200us >/dev/null

# begin EXPORT: an engine with that export of v0.
begin() {
    start_run <<EOF
cores = 2
$(two_paths 'policy = "queue-depth"')
[[volume.export]]
$1
EOF
}
end() { kill "$run" && wait "$run"; }

# busy: I/Os on each path now, of the engine or of the kernel.
busy() {
    if [ "$ours" ]; then
        braid stat v0 --socket $control -o json | jq -c '[.volumes[0].paths[].inflight]'
    else
        for path in /sys/block/nvme*c*n1; do cat "$path/inflight"; done |
            awk '{print $1 + $2}' | jq -cs .
    fi
}

echo "way | depth | IOPS | p99 us | CPU us per I/O | most on each path"
echo "---|---|---|---|---|---"
# row WAY DEVICE: fio on DEVICE at both depths.
row() {
    for depth in 1 32; do
        # All processors but idle ones, in hundredths of a second.
        before=$(awk '/^cpu / {print $2 + $3 + $4 + $7 + $8}' /proc/stat)
        fio --name=f --filename="$2" --direct=1 --rw=randread --bs=4k --ioengine=libaio \
            --iodepth=$depth --time_based --runtime=2 --size=48m --output-format=json \
            --output=/tmp/f.json --eta=never &
        fio=$!
        : >/tmp/busy
        while kill -0 $fio 2>/dev/null; do busy >>/tmp/busy; sleep 0.5; done
        if ! wait $fio; then fail "$1_$depth" "$(cat /tmp/f.json)"; continue; fi
        after=$(awk '/^cpu / {print $2 + $3 + $4 + $7 + $8}' /proc/stat)
        most=$(jq -cs 'transpose | map(max)' /tmp/busy)
        jq -r --arg way "$1" --arg depth $depth --arg most "$most" \
            --argjson cpu $(((after - before) * 10000)) '.jobs[0].read |
            [$way, $depth, (.iops | round), (.clat_ns.percentile["99.000000"] / 1000 | round),
             ($cpu / .total_ios * 10 | round / 10), $most] | map(tostring) | join(" | ")' /tmp/f.json
        same "read_$1_$depth" "$(jq '.jobs[0].error' /tmp/f.json)" 0
    done
}

ours=yes
begin 'ublk = 0'
reaches node 60 test -b /dev/ublkb0
row ublk /dev/ublkb0
end

begin 'nbd = "unix:/run/v0.sock"'
check nbd nbd-client -unix /run/v0.sock -N v0 -b 4096 -C 4 /dev/nbd0
row kernel-nbd /dev/nbd0
nbd-client -d /dev/nbd0 >/dev/null
: >/tmp/disk
nbdfuse /tmp/disk 'nbd+unix:///v0?socket=/run/v0.sock' >/tmp/nbdfuse.log 2>&1 &
fuse=$!
reaches fuse 60 test -s /tmp/disk
check loop losetup --direct-io=on /dev/loop0 /tmp/disk
row nbdfuse-loop /dev/loop0
losetup -d /dev/loop0
umount /tmp/disk
wait $fuse
end

ours=
check connect_1 connect 4420
check connect_2 connect 4421
reaches disk 60 disk 1
reaches two_paths 60 paths_are optimized 2
disk=$(disk 1)
echo queue-depth >"/sys/class/nvme-subsystem/$(basename "$(readlink -f /sys/block/"$disk"/device)")/iopolicy"
row kernel-nvme-multipath "/dev/$disk"
finish
