# Volumes as block devices (/dev/ublkbN): file systems and verified load while a path dies and
# returns, kills of the engine under ext4 and xfs, and what is refused.
# vm: --cpus 4 --memory 2048 --limit 1800
. ./lib.sh
. ./host.sh
. ./run.sh
. ./exported.sh
modprobe ext4
modprobe xfs
target <<END
nqn = "$nqn"
[[namespace]]
backend = "mem:256MiB"
[[namespace]]
backend = "mem:320MiB"
[[port]]
listen = "127.0.0.1:4420"
[[port]]
listen = "127.0.0.1:4421"
END
truncate -s 64M /tmp/leg0 /tmp/leg1

# volume NAME NSID: over both ports; its exports follow.
volume() {
    printf '[[volume]]\nname = "%s"\nreconnect_delay_min = "200ms"\nreconnect_delay = "500ms"\n' "$1"
    for port in 4420 4421; do
        printf '[[volume.path]]\nuri = "nvme-tcp://127.0.0.1:%s/%s?nsid=%s"\n' $port $nqn "$2"
    done
}
# node NUMBER: of the volume before it, unless it is left out.
node() { [ "$1" = "$left_out" ] || printf '[[volume.export]]\nublk = %s\n' "$1"; }
configuration() {
    printf 'keep_alive_tmo = "1s"\ncores = 2\n'
    volume v0 1
    node 0
    volume v1 2
    node 7
    printf '[[volume]]\nname = "m0"\nkind = "mirror"\n'
    for leg in 0 1; do printf '[[volume.leg]]\nuri = "file:/tmp/leg%s"\n' $leg; done
    node '"auto"'
}
# without NUMBER: that configuration, without a node.
without() { left_out=$1 && configuration && left_out=; }
# begin: an engine with that configuration.
begin() {
    braid run -c /tmp/braid.toml --socket $control >>/tmp/run.log 2>&1 &
    run=$!
}
# ended PID: ends well.
ended() { wait "$1"; }
# killed: the engine is killed, and another one takes its place.
killed() {
    kill -9 "$run"
    wait "$run" 2>/dev/null
    begin
}
live() { [ "$(dmesg | grep -c 'I/O error')" = 0 ] && grep -q "took over /dev/ublkb$1" /tmp/run.log; }

configuration >/tmp/braid.toml
check mirror_is_made braid mirror create --force m0 file:/tmp/leg0 file:/tmp/leg1
begin
ended "$run" && fail no_driver "it started" || ok no_driver
same driver_is_named "$(grep -c 'modprobe ublk_drv' /tmp/run.log)" 1
modprobe ublk_drv
begin
for id in 0 7; do reaches node_$id 60 test -b /dev/ublkb$id; done
reaches node_of_mirror 60 test -b /dev/ublkb1
reaches nodes_are_shown 60 sh -c "braid list --socket $control | grep -q /dev/ublkb7"

queue=/sys/block/ublkb0/queue
same size "$(cat /sys/block/ublkb0/size)" 524288
same block_size "$(cat $queue/logical_block_size)" 4096
same cache "$(cat $queue/write_cache)" "write back"
same fua "$(cat $queue/fua)" 1
same queues "$(ls /sys/block/ublkb0/mq | wc -l)" 2
reaches spare_tag 30 test "$(cat $queue/nr_requests)" = 127
echo mq-deadline >$queue/scheduler
fewer() { [ "$(cat $queue/nr_requests)" -le 127 ] && [ "$(cat $queue/io_timeout)" -le 2000 ]; }
reaches spare_tag_after_scheduler 30 fewer

writes_and_reads ublk /dev/ublkb0
writes_and_reads mirror /dev/ublkb1
verified ublk /dev/ublkb0 4k
fio --name=paths --filename=/dev/ublkb0 --direct=1 --rw=randrw --bs=4k --ioengine=libaio \
    --iodepth=32 --numjobs=4 --size=16m --offset_increment=16m --verify=crc32c --verify_fatal=1 \
    --time_based --runtime=20 --eta=never --output=/tmp/paths.out &
load=$!
for port in 2 1; do
    lose $port
    reaches path_${port}_lost 60 is degraded
    restore $port
    reaches path_${port}_back 60 is ok
done
ended "$load" && ok load_while_paths_die || fail load_while_paths_die "$(cat /tmp/paths.out)"

# Kills under ext4.
mount_new ext4 /dev/ublkb0
mkdir /mnt/ext4/tree
tree() {
    for at in 0 1 2 3 4 5 6 7; do
        dd if=/dev/urandom of=/mnt/ext4/tree/$at bs=64k count=8 2>/dev/null || return 1
    done
    (cd /mnt/ext4/tree && sha256sum -- * >../sums) && sync
}
checked() { (cd /mnt/ext4/tree && sha256sum -c ../sums >/dev/null); }
check tree tree
(while [ ! -e /tmp/stop ]; do
    tree && echo 1 >/proc/sys/vm/drop_caches && checked || exit 1
done) >/tmp/load.out 2>&1 &
load=$!
kills=20
while [ $kills -gt 0 ]; do
    killed
    until_true 60 is ok || fail volume_is_back "$(tail -5 /tmp/run.log)"
    kills=$((kills - 1))
done
copied_well load_under_kills
rm -f /tmp/stop
reaches node_was_taken_over 60 live 0
check tree_is_whole checked

# What would take data away.
cp /tmp/braid.toml /tmp/kept.toml
without 0 >/tmp/braid.toml
refused reload_spares_a_mount braid reload --socket $control
same mount_is_named "$(grep -c 'mounted on /mnt/ext4' /tmp/said)" 1
cp /tmp/kept.toml /tmp/braid.toml
kill "$run"
wait "$run"
same stops_well $? 0
same stop_names_the_mount "$(grep -c 'mounted on /mnt/ext4.*waits for the next engine' /tmp/run.log)" 1
same unused_node_is_removed "$(ls /dev/ublkb7 2>/dev/null)" ""
begin
reaches ends_after_a_stop 60 checked
umount_checked ext4 /dev/ublkb0

# A kill with all tags in flight, under xfs.
check mkfs_xfs mkfs.xfs -q -f /dev/ublkb7
mkdir -p /mnt/xfs
check mount_xfs mount -t xfs /dev/ublkb7 /mnt/xfs
fio --name=tags --directory=/mnt/xfs --direct=1 --rw=randwrite --bs=4k --ioengine=libaio \
    --iodepth=128 --numjobs=4 --size=16m --time_based --runtime=30 --eta=never \
    --output-format=json --output=/tmp/tags.json &
load=$!
sleep 5
killed
ended "$load" && ok load_under_a_kill || fail load_under_a_kill "$(cat /tmp/tags.json)"
echo "longest pause: $(jq '[.jobs[].write.clat_ns.max] | max / 1e9' /tmp/tags.json) s"
check umount_xfs umount /mnt/xfs
check repair_xfs xfs_repair -n /dev/ublkb7

same no_error_of_the_kernel "$(dmesg | grep -c 'I/O error')" 0
without 7 >/tmp/braid.toml
check reload_removes_a_node braid reload --socket $control
same node_is_gone "$(ls /dev/ublkb7 2>/dev/null)" ""
kill "$run"
wait "$run"
same ends_well $? 0
same no_node_is_left "$(ls /dev/ublkb* 2>/dev/null)" ""
finish
