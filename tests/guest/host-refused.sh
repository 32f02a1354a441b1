# A host that is not on the target's list is refused, and told nothing.
. ./lib.sh
. ./host.sh
load_host
target <<EOF
nqn = "$nqn"
hosts = ["$hostnqn"]

[[namespace]]
backend = "mem:16MiB"

[[port]]
listen = "127.0.0.1:4420"
EOF
other="--hostnqn nqn.2026-01.org.example:other --hostid 11111111-3f1c-4f63-9d9b-0d5c2f6f7a11"
nvme discover -t tcp -a 127.0.0.1 -s 4420 $other -o json >/tmp/d
same told_nothing "$(jq '.records | length' /tmp/d)" 0
refused other_host nvme connect -t tcp -a 127.0.0.1 -s 4420 -n "$nqn" $other
# The kernel's words for the status Connect Invalid Host.
check reason_is_the_host sh -c 'dmesg | grep -q "is not allowed, hostnqn: .*:other"'
refused other_subsystem nvme connect -t tcp -a 127.0.0.1 -s 4420 -n "$nqn-x" \
    --hostnqn "$hostnqn" --hostid "$hostid"
check allowed_host connect 4420
reaches disk 60 disk 1
refused allowed_host_again connect 4420
# The same host NQN under another host identifier is another association, and the kernel refuses
# it itself; nothing of it reaches the target.
check disconnect nvme disconnect -n "$nqn"
finish
