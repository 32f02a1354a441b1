# The kernel as target of `braid run`: ANA, a port that goes, a target that is taken down and set up
# again, another namespace behind our back; all under verified load through the NBD export.
# vm: --cpus 4
. ./lib.sh
. ./target.sh
load_target
modprobe brd rd_nr=2 rd_size=65536
uuid=10000000-0000-4000-8000-000000000001
set_up() {
    make_subsystem
    namespace 1 "${1:-/dev/ram0}" "${2:-$uuid}" 2
    port 1
    port 2
}
set_up
cat >/tmp/braid.toml <<EOF
keep_alive = "2s"
io_timeout = "5s"
connect_timeout = "5s"
[[volume]]
name = "v0"
policy = "round-robin"
quiesce_time = "100ms"
reconnect_delay = "200ms"
reconnect_delay_max = "500ms"
[[volume.path]]
uri = "$one?nsid=1"
[[volume.path]]
uri = "$two?nsid=1"
[[volume.export]]
nbd = "unix:/run/v0.sock"
EOF
control=/run/control.sock
braid run -c /tmp/braid.toml --socket $control >/tmp/run.log 2>&1 &
run=$!
is() { braid check v0 --socket $control -o json | jq -e ".state == \"$1\""; }
reaches starts 60 is ok
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
all_gone() {
    remove_all
    reaches all_lost 60 is down
    set_up
    reaches all_back 60 is ok
}
under torn_down_and_set_up all_gone
check verify_after verify after

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
