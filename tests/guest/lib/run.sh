# For scripts with an engine of ours.
control=/run/control.sock

# start_run, configuration on stdin: starts an engine and waits until its volume v0 is well.
start_run() {
    cat >/tmp/braid.toml
    braid run -c /tmp/braid.toml --socket $control >/tmp/run.log 2>&1 &
    run=$!
    reaches starts 60 is ok
}

# is STATE: of v0. Paths that these scripts lose again and again flap, which is no fault here.
is() {
    [ "$(braid check v0 --socket $control -o json | jq -r '
        if .state == "degraded" and ([.volumes[0].paths[] | .usable] | all) then "ok"
        else .state end')" = "$1" ]
}
