# For the scripts of guests: one line per check, a status at the end.
failures=0

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

finish() {
    [ "$failures" -eq 0 ] || exit 1
    exit 0
}
