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
[[namespace]]
backend = "mem:64MiB"
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
# configuration NSID NSID: the data that v0 and v1 lead to.
configuration() {
    printf 'keep_alive_tmo = "1s"\ncores = 2\n'
    volume v0 "${1:-1}"
    node 0
    volume v1 "${2:-2}"
    node 7
    printf '[[volume]]\nname = "m0"\nkind = "mirror"\n'
    for leg in 0 1; do printf '[[volume.leg]]\nuri = "file:/tmp/leg%s"\n' $leg; done
    node '"auto"'
    [ "$memory" ] || return 0
    printf '[[volume]]\nname = "r0"\n[[volume.path]]\nuri = "mem:16MiB"\n'
    node 5
}
# without NUMBER: that configuration, without a node.
without() { left_out=$1 && configuration && left_out=; }
# begin ARGUMENTS: an engine with that configuration.
begin() {
    lines=$(cat /tmp/run.log 2>/dev/null | wc -l)
    braid run -c /tmp/braid.toml --socket $control "$@" >>/tmp/run.log 2>&1 9<&- &
    run=$!
}
# ended PID: ends well.
ended() { wait "$1"; }
# died: the engine is killed.
died() {
    kill -9 "$run"
    wait "$run" 2>/dev/null
}
# killed: another one takes its place.
killed() {
    died
    begin
}
# says VOLUME WORDS: the volume's trouble.
says() { braid check "$1" --socket $control -o json | jq -r '.volumes[0].why' | grep -q "$2"; }
# flushers: threads of the engine that are not kept waiting for memory (PF_MEMALLOC_NOIO).
flushers() {
    for task in /proc/"$run"/task/*; do
        # Threads come and go.
        set -- $(sed 's/.*) //' "$task/stat" 2>/dev/null)
        [ $((${7:-0} & 0x80000)) = 0 ] || cat "$task/comm"
    done
}
# later NUMBER: the engine took the node over.
later() { tail -n "+$((lines + 1))" /tmp/run.log | grep -q "took over /dev/ublkb$1"; }
# all_later: it took over those that are always there. A kill before that may lose one.
all_later() { later 0 && later 7 && later 1; }
live() { [ "$(dmesg | grep -c 'I/O error')" = 0 ] && grep -q "took over /dev/ublkb$1" /tmp/run.log; }

memory=yes
configuration >/tmp/braid.toml
check mirror_is_made braid mirror create --force m0 file:/tmp/leg0 file:/tmp/leg1
begin
ended "$run" && fail no_driver "it started" || ok no_driver
same driver_is_named "$(grep -c 'modprobe ublk_drv' /tmp/run.log)" 1
printf '[[volume]]\nname = "r0"\n[[volume.path]]\nuri = "mem:16MiB"\n' >/tmp/braid.toml
printf '[[volume.export]]\nnbd = "unix:/tmp/r0.sock"\n' >>/tmp/braid.toml
begin
reaches engine_without_nodes 60 braid check r0 --socket $control
refused attach_without_driver braid attach r0 --socket $control
same other_ways_are_named "$(grep -c 'nbd-client -unix /tmp/r0.sock -N r0' /tmp/said)" 1
kill "$run"
wait "$run"
configuration >/tmp/braid.toml
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
fewer() { [ "$(cat $queue/nr_requests)" -le 127 ] && [ "$(cat $queue/io_timeout)" -le 2000 ]; }
reaches settings_in_force 30 fewer
echo mq-deadline >$queue/scheduler
reaches settings_after_scheduler 30 fewer
echo none >$queue/scheduler
reaches settings_after_scheduler_again 30 fewer
same cores_are_flushers "$(flushers | grep -c '^braid-[01]$')" 2

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
    until_true 60 all_later || fail nodes_are_back "$(tail -5 /tmp/run.log)"
    kills=$((kills - 1))
done
copied_well load_under_kills
rm -f /tmp/stop
reaches node_was_taken_over 60 live 0
check tree_is_whole checked

# A node is bound to its data: not to a name, nor to a number in the file.
cp /tmp/braid.toml /tmp/kept.toml
died
configuration 2 1 >/tmp/braid.toml
begin --accept v0 --accept v1
reaches other_data_is_refused 60 says v0 "/dev/ublkb7 is its node"
reaches its_own_is_named 60 says v1 "say ublk = 0"
reaches mirror_is_served 60 later 1
died
sed 's/^ublk = 0/ublk = 3/' /tmp/kept.toml >/tmp/braid.toml
begin --accept v0 --accept v1
reaches other_number_is_refused 60 says v0 "/dev/ublkb0 is its node"
same no_second_node "$(ls /dev/ublkb3 2>/dev/null)" ""
reaches memory_ends_with_its_engine 60 says r0 "waits for the data of volume r0"
reaches others_are_served 60 sh -c "tail -n +$((lines + 1)) /tmp/run.log | grep -c 'took over' | grep -q 2"
died
cp /tmp/kept.toml /tmp/braid.toml
begin
reaches goes_on_with_its_data 60 all_later
check data_is_the_same checked
memory=
configuration >/tmp/braid.toml
check node_that_waits_unused_is_removed braid reload --socket $control
same no_node_of_memory "$(ls /dev/ublkb5 2>/dev/null)" ""

# What would take data away.
without 0 >/tmp/braid.toml
refused reload_spares_a_mount braid reload --socket $control
same mount_is_named "$(grep -c 'mounted on /mnt/ext4' /tmp/said)" 1
without 7 >/tmp/braid.toml
exec 9</dev/ublkb7
refused reload_spares_an_open_node braid reload --socket $control
same process_is_named "$(grep -c "process $$ " /tmp/said)" 1
exec 9<&-
configuration >/tmp/braid.toml
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
full() { [ "$(awk '{print $1 + $2}' /sys/block/ublkb7/inflight)" -ge 250 ]; }
reaches all_tags_are_in_flight 60 full
killed
reaches nodes_with_all_tags_are_taken_over 60 all_later
ended "$load" && ok load_under_a_kill || fail load_under_a_kill "$(cat /tmp/tags.json)"
echo "longest pause: $(jq '[.jobs[].write.clat_ns.max] | max / 1e9' /tmp/tags.json) s"
check umount_xfs umount /mnt/xfs
check repair_xfs xfs_repair -n /dev/ublkb7

# Kills of engines about the time when they take a node over: it is served at last, or said to be
# lost. Others could be lost as well: there are none.
{
    printf 'keep_alive_tmo = "1s"\ncores = 2\n'
    volume v2 3
    node 9
} >/tmp/braid.toml
check others_leave braid reload --socket $control
reaches node_of_the_third 60 test -b /dev/ublkb9
for hundredths in 0 1 2 3 4 5 6 7 8 9; do
    killed
    until_true 60 sh -c "tail -n +$((lines + 1)) /tmp/run.log | grep -q 'v2: ready'"
    sleep 0.0$hundredths
done
killed
served_or_lost() { later 9 || says v2 "beyond repair"; }
reaches take_over_ends_or_is_said 60 served_or_lost
later 9 && echo "it was taken over" || echo "it is beyond repair"
same no_bug_of_the_kernel "$(dmesg | grep -c 'BUG:')" 0
configuration >/tmp/braid.toml
check unused_one_leaves braid reload --socket $control
same it_is_gone "$(ls /dev/ublkb9 2>/dev/null)" ""
for id in 0 1 7; do reaches node_${id}_is_back 60 test -b /dev/ublkb$id; done

# No path is there: settings wait for I/O, and the engine can be killed nevertheless.
queue=/sys/block/ublkb7/queue
reaches settings_of_the_second 30 fewer
(while [ ! -e /tmp/lowered ] && echo 128 >$queue/nr_requests; do sleep 1; done) &
for port in 1 2; do lose $port; done
reaches no_path 60 sh -c "braid check v1 --socket $control -o json | jq -r .state | grep -q down"
fio --name=waits --filename=/dev/ublkb7 --direct=1 --rw=randwrite --bs=4k --ioengine=libaio \
    --iodepth=16 --size=1m --eta=never --output=/tmp/waits.out &
load=$!
reaches settings_wait 180 says v1 "not set yet"
touch /tmp/lowered
killed
for port in 1 2; do restore $port; done
reaches taken_over_while_settings_wait 60 all_later
ended "$load" && ok load_that_waited || fail load_that_waited "$(cat /tmp/waits.out)"
reaches settings_in_force_at_last 120 fewer
same no_error_of_the_kernel "$(dmesg | grep -c 'I/O error')" 0

# Removed by force while its I/O waits: the engine goes on.
for port in 1 2; do lose $port; done
reaches no_path_again 60 sh -c "braid check v1 --socket $control -o json | jq -r .state | grep -q down"
fio --name=lost --filename=/dev/ublkb7 --direct=1 --rw=randwrite --bs=4k --ioengine=libaio \
    --iodepth=16 --size=1m --eta=never --output=/tmp/lost.out 2>/dev/null &
load=$!
reaches io_waits 60 sh -c "[ \$(awk '{print \$1 + \$2}' /sys/block/ublkb7/inflight) -gt 0 ]"
without 7 >/tmp/braid.toml
refused forced_stop_waits braid reload --force --socket $control
same forced_stop_says_so "$(grep -c 'its I/O does not end' /tmp/said)" 1
check engine_answers braid list --socket $control
for port in 1 2; do restore $port; done
wait "$load"
reaches reload_goes_through 60 braid reload --socket $control
same node_is_gone "$(ls /dev/ublkb7 2>/dev/null)" ""
# By verb.
refused node_of_the_file_is_not_detached braid detach v0 --socket $control
node=$(braid attach v1 --socket $control)
check node_is_attached test -b "$node"
same attached_once "$(braid attach v1 --socket $control)" "$node"
exec 9<"$node"
refused detach_spares_an_open_node braid detach v1 --socket $control
same process_is_named_again "$(grep -c "process $$ " /tmp/said)" 1
killed
reaches attached_node_is_taken_over 60 later "${node#/dev/ublkb}"
reaches others_are_taken_over 60 sh -c "tail -n +$((lines + 1)) /tmp/run.log | grep -c 'took over' | grep -q 3"
check attached_node_is_read dd if="$node" of=/dev/null bs=4k count=1 iflag=direct
exec 9<&-
check detaches braid detach v1 --socket $control
same detached_node_is_gone "$(ls "$node" 2>/dev/null)" ""
# One whose volume has left the file while it waited.
node=$(braid attach v1 --socket $control)
died
volume v0 1 >/tmp/braid.toml
node 0 >>/tmp/braid.toml
begin
reaches node_without_a_volume_is_named 60 grep -q "braid detach $node removes it" /tmp/run.log
reaches detaches_by_path 60 braid detach "$node" --socket $control
same node_of_no_volume_is_gone "$(ls "$node" 2>/dev/null)" ""
check node_of_an_earlier_file_too braid detach /dev/ublkb1 --socket $control
refused detach_of_no_node braid detach "$node" --socket $control
reaches first_is_served 60 sh -c "braid list --socket $control | grep -q /dev/ublkb0"
kill "$run"
wait "$run"
same ends_well $? 0
same no_node_is_left "$(ls /dev/ublkb* 2>/dev/null)" ""
finish
