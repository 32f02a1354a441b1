# For scripts in which the kernel is the host of our target.
nqn=nqn.2026-01.org.example:v0
hostnqn=nqn.2014-08.org.nvmexpress:uuid:0b5d0e4e-3f1c-4f63-9d9b-0d5c2f6f7a11
hostid=0b5d0e4e-3f1c-4f63-9d9b-0d5c2f6f7a11
socket=/run/target.sock

# target NAME=CONFIG lines on stdin: starts a target and waits until it listens.
target() {
    cat >/tmp/target.toml
    braid target -c /tmp/target.toml --socket "$socket" >/tmp/target.log 2>&1 &
    target_pid=$!
    if ! until_true 60 braid target show --socket "$socket"; then
        fail target_starts "$(cat /tmp/target.log)"
        finish
    fi
}

# two_ports BACKEND: a target with one namespace on ports 4420 and 4421.
two_ports() {
    target <<EOF
nqn = "$nqn"
[[namespace]]
backend = "$1"
[[port]]
listen = "127.0.0.1:4420"
[[port]]
listen = "127.0.0.1:4421"
EOF
}

shape() { braid target set --socket "$socket" "$@"; }

load_host() {
    modprobe nvme-tcp
    [ -e /dev/nvme-fabrics ] || modprobe nvme-fabrics
}

# connect PORT OPTIONS…
connect() {
    port=$1
    shift
    nvme connect -t tcp -a 127.0.0.1 -s "$port" -n "$nqn" --hostnqn "$hostnqn" --hostid "$hostid" "$@"
}

# controller PORT: the name of the controller on that port, such as nvme0.
controller() {
    for path in /sys/class/nvme/nvme*; do
        grep -q "trsvcid=$1\$\|trsvcid=$1," "$path/address" 2>/dev/null && basename "$path" && return
    done
    return 1
}

# The block device with the NSID $1 (default 1).
disk() {
    for path in /sys/block/nvme*n*; do
        # Not the paths below it, which are hidden.
        [ -e "$path/nsid" ] && [ "$(cat "$path/hidden")" = 0 ] || continue
        [ "$(cat "$path/nsid" 2>/dev/null)" = "${1:-1}" ] && basename "$path" && return
    done
    return 1
}

# paths_of STATE: how many paths of the disk are in that ANA state.
paths() { cat /sys/class/nvme-subsystem/*/nvme*/nvme*c*n*/ana_state 2>/dev/null | grep -c "^$1\$"; }
paths_are() { [ "$(paths "$1")" = "$2" ]; }
is_live() { [ "$(cat "/sys/class/nvme/$1/state")" = live ]; }

# json FILTER COMMAND…: one value of what the command prints as JSON.
json() {
    filter=$1
    shift
    "$@" -o json 2>/tmp/json.err | jq -r "$filter"
}
