# A client of a hardware queue that is over its memory limit (`memory.max` of cgroup v2) is killed
# alone: another queue client, an NBD client and the engine go on.
. ./lib.sh
. ./run.sh
truncate -s 16M /tmp/blocks
start_run <<EOF
cores = 2
buffers = "68MiB"
[[volume]]
name = "v0"
[[volume.path]]
uri = "file:/tmp/blocks"
[[volume.export]]
nbd = "unix:/run/v0.sock"
[[volume]]
name = "memory"
[[volume.path]]
uri = "mem:16MiB"
[[queue]]
socket = "/run/q.sock"
[[queue.namespace]]
volume = "v0"
nsid = 1
[[queue.namespace]]
volume = "memory"
nsid = 2
EOF

group=/sys/fs/cgroup/client
[ -e /sys/fs/cgroup/cgroup.controllers ] || mount -t cgroup2 none /sys/fs/cgroup
check memory_is_limited sh -c "echo +memory >/sys/fs/cgroup/cgroup.subtree_control &&
    mkdir $group && echo 24M >$group/memory.max"

load() { braid queue bench --socket /run/q.sock --rw randrw --bs 4k --verify "$@"; }
# beside NAME COMMAND…: loads over NBD and a queue go on while COMMAND is carried out.
beside() {
    local name by_nbd by_queue
    name=$1
    shift
    fio --name=nbd --ioengine=nbd --uri='nbd+unix:///v0?socket=/run/v0.sock' --rw=randrw --bs=4k \
        --iodepth=4 --size=4m --verify=crc32c --verify_fatal=1 --time_based --runtime=20 \
        --output=/tmp/fio.out --eta=never &
    by_nbd=$!
    (until [ -e /tmp/over ]; do load --nsid 1 --offset 8m --size 1m >/tmp/load.out || exit 1; done) &
    by_queue=$!
    "$@"
    touch /tmp/over
    wait $by_queue
    same "queue_client_beside_$name" $? 0
    wait $by_nbd
    same "nbd_client_beside_$name" $? 0
    rm /tmp/over
}
# 64 MiB of buffers, which are populated before there is a queue.
too_much() {
    sh -c "echo \$\$ >$group/cgroup.procs && exec braid queue bench --socket /run/q.sock --nsid 2 \
        --rw randwrite --bs 256k --iodepth 256 --runtime 60" >/tmp/too_much.out 2>&1
    same client_over_its_limit_is_killed $? 137
}
beside client_over_its_limit too_much
check kernel_killed_it grep -q 'oom_kill [1-9]' $group/memory.events
# A running client whose limit becomes too small.
shrinks() {
    echo max >$group/memory.max
    sh -c "echo \$\$ >$group/cgroup.procs && exec braid queue bench --socket /run/q.sock --nsid 2 \
        --rw randwrite --bs 256k --iodepth 64 --runtime 60" >/tmp/shrinks.out 2>&1 &
    client=$!
    reaches client_has_a_queue 20 sh -c \
        "braid stat memory --socket $control -o json | jq -e '.volumes[0].exports[0].clients == 1'"
    # The kernel takes back what it can, and kills for the rest.
    echo 4M >$group/memory.max
    wait $client
    same client_whose_limit_shrinks_is_killed $? 137
}
beside client_whose_limit_shrinks shrinks
nothing_is_left() {
    braid stat memory --socket $control -o json |
        jq -e '.volumes[0].exports[0] | .clients == 0 and .failed == false'
}
reaches nothing_is_left_of_them 20 nothing_is_left
check a_queue_is_served_as_before load --nsid 2 --size 1m
same volumes_are_ok "$(braid check --socket $control -o json | jq -r .state)" ok
kill "$run"
wait "$run"
same ends_well $? 0
finish
