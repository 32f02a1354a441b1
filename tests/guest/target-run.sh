# The kernel as target of `braid run`: ANA, a port that goes, a target that is taken down and set up
# again, keep-alive that ran out, a resize, another namespace behind our back; all under verified
# load through the NBD export. Discard and write zeroes by the kernel's NBD client.
# vm: --cpus 4
. ./lib.sh
. ./target.sh
. ./run.sh
load_target
modprobe brd rd_nr=2 rd_size=65536
modprobe nbd nbds_max=1
truncate -s 32M /tmp/resized
uuid=10000000-0000-4000-8000-000000000001
set_up() {
    make_subsystem
    namespace 1 "${1:-/dev/ram0}" "${2:-$uuid}" 2
    namespace 2 /tmp/resized 30000000-0000-4000-8000-000000000003 2
    port 1
    port 2
}
set_up
start_run <<EOF
keep_alive_tmo = "2s"
io_timeout = "5s"
connect_timeout = "5s"
[[volume]]
name = "v0"
policy = "round-robin"
quiesce_time = "100ms"
reconnect_delay_min = "200ms"
reconnect_delay = "500ms"
[[volume.path]]
uri = "$one?nsid=1"
[[volume.path]]
uri = "$two?nsid=1"
[[volume.export]]
nbd = "unix:/run/v0.sock"
[[volume]]
name = "v1"
[[volume.path]]
uri = "$one?nsid=2"
[[volume.path]]
uri = "$two?nsid=2"
[[volume.export]]
nbd = "unix:/run/v1.sock"
EOF
path() { braid stat --socket $control -o json | jq -r ".volumes[0].paths[$1].$2"; }
path_is() { [ "$(path "$1" "$2")" = "$3" ]; }
reaches ana_at_first_1 60 path_is 0 ana_state optimized
reaches ana_at_first_2 60 path_is 1 ana_state optimized

verify() {
    fio --name="$1" --ioengine=nbd --uri='nbd+unix:///?socket=/run/v0.sock' --rw=randrw \
        --bsrange=4k-256k --iodepth=16 --size=16m --offset="${2:-0}" --verify=crc32c --verify_fatal=1 \
        --verify_backlog=64 --output=/tmp/fio.out --eta=never
}
check verify verify plain

# under NAME COMMAND…: verified load goes on while COMMAND is carried out.
under() {
    local name load stop
    name=$1
    shift
    rm -f /tmp/stop
    (while [ ! -e /tmp/stop ]; do verify "$name" 32m || exit 1; done) &
    load=$!
    "$@"
    touch /tmp/stop
    if wait "$load"; then ok "$name"; else
        fail "$name" "$(tail -20 /tmp/fio.out) $(tail /tmp/run.log)"
    fi
}
flips() {
    for state in inaccessible non-optimized change optimized persistent-loss optimized; do
        ana 1 2 "$state"
        reaches "seen_$state" 60 path_is 0 ana_state "$state"
    done
}
under ana_flips flips
port_gone() {
    disable_port 2
    reaches port_lost 60 is degraded
    enable_port 2
    reaches port_back 60 is ok
}
under port_disabled port_gone
# We stand still for longer than the keep-alive timer of nvmet runs.
still() {
    kill -STOP "$run"
    reaches keep_alive_expired 120 sh -c "dmesg | grep -q 'keep-alive timer (2 seconds) expired'"
    kill -CONT "$run"
    reaches keep_alive_back 60 is ok
}
under keep_alive_time_out still
all_gone() {
    remove_all
    reaches all_lost 60 is down
    set_up
    reaches all_back 60 is ok
}
under torn_down_and_set_up all_gone
check verify_after verify after

# Discard and write zeroes, from the kernel's block layer through us to the kernel's target.
check nbd_client nbd-client -unix /run/v0.sock -N v0 /dev/nbd0
head -c 4194304 /dev/urandom >/tmp/random
dd if=/tmp/random of=/dev/nbd0 bs=1M oflag=direct 2>/dev/null
zeroes_and_discards /dev/nbd0 /dev/ram0 nbd
check nbd_disconnect nbd-client -d /dev/nbd0

# A namespace that grows, and shrinks.
size_is() { [ "$(braid list --socket $control -o json | jq '.volumes[1].bytes')" = "$1" ]; }
reaches size_at_first 60 size_is 33554432
truncate -s 48M /tmp/resized
echo 1 >"$subsystem/namespaces/2/revalidate_size"
reaches grown 60 size_is 50331648
truncate -s 16M /tmp/resized
echo 1 >"$subsystem/namespaces/2/revalidate_size"
reaches shrunk 60 size_is 16777216

# Another namespace under the old name and number: never used.
remove_all
reaches lost 60 is down
dd if=/dev/urandom of=/dev/ram1 bs=1M count=4 2>/dev/null
before=$(md5sum </dev/ram1)
set_up /dev/ram1 20000000-0000-4000-8000-000000000002
told() { grep -qi 'refused\|identi\|another' /tmp/run.log; }
reaches other_namespace_told 60 told
check other_namespace_unused is down
same other_namespace_untouched "$(md5sum </dev/ram1)" "$before"
remove_all
set_up
reaches old_namespace_back 60 is ok
check verify_at_last verify last
kill "$run"
wait "$run"
same ends_well $? 0
finish
