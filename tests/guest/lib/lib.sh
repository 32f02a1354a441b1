# For the scripts of guests: one line per check, a status at the end.
failures=0
# Where programs of ours keep sockets and state.
export XDG_RUNTIME_DIR=/run XDG_STATE_HOME=/run

ok() { echo "ok $1"; }

fail() {
    echo "FAIL $1: $2"
    failures=$((failures + 1))
}

# check NAME COMMAND…: the command succeeds.
check() {
    local name said
    name=$1
    shift
    if said=$("$@" 2>&1); then ok "$name"; else fail "$name" "status $? of '$*': $said"; fi
}

# refused NAME COMMAND…: the command fails.
refused() {
    local name said
    name=$1
    shift
    if said=$("$@" 2>&1); then fail "$name" "'$*' succeeded: $said"; else ok "$name"; fi
    echo "$said" >/tmp/said
}

# same NAME FOUND EXPECTED
same() {
    if [ "$2" = "$3" ]; then ok "$1"; else fail "$1" "found '$2', expected '$3'"; fi
}

# until_true SECONDS COMMAND…: waits for an event; the bound is generous.
until_true() {
    local until
    until=$(($(date +%s) + $1))
    shift
    while ! "$@" >/dev/null 2>&1; do
        [ "$(date +%s)" -lt "$until" ] || return 1
        sleep 0.2
    done
}

# reaches NAME SECONDS COMMAND…: the command succeeds at last.
reaches() {
    local name
    name=$1
    shift
    if until_true "$@"; then ok "$name"; else
        shift
        fail "$name" "never: $* ($("$@" 2>&1))"
    fi
}

# What there is of 8 bytes each on standard input, without repetitions.
pages() { od -An -v -tx8 -w8 | sort -u | tr -d ' ' | tr '\n' ' '; }
# part DEVICE SKIP COUNT: blocks of 4 KiB, past the guest's page cache.
part() { dd if="$1" bs=4096 skip="$2" count="$3" iflag=direct 2>/dev/null; }

# zeroes_and_discards DEVICE SEEN TAG: what is discarded and zeroed on DEVICE reads as zeroes on SEEN,
# and around it is what /tmp/random begins with.
zeroes_and_discards() {
    check "discard_$3" blkdiscard -o 65536 -l 131072 "$1"
    same "discarded_$3" "$(part "$2" 16 32 | pages)" "0000000000000000 "
    check "around_discard_$3" sh -c \
        "dd if=$2 bs=4096 count=16 iflag=direct 2>/dev/null | cmp -n 65536 - /tmp/random"
    check "zeroes_$3" blkdiscard -z -o 1048576 -l 131072 "$1"
    same "zeroed_$3" "$(part "$2" 256 32 | pages)" "0000000000000000 "
}

finish() {
    [ "$failures" -eq 0 ] || exit 1
    exit 0
}
