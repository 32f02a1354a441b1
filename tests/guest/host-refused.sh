# A host that is not on the target's list is refused, and told nothing. A refusal that can pass does
# not make the kernel give a lost controller up.
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

# A port that is withdrawn refuses Connect: without Do Not Retry, so the kernel asks again.
check connect_again connect 4420 --reconnect-delay 1 --ctrl-loss-tmo 600
lost=$(controller 4420)
check withdraw shape --port 1 offer=withdrawn
check drop braid target drop --socket "$socket" --port 1
refused_twice() { [ "$(dmesg | grep -c 'Failed reconnect attempt')" -ge 2 ]; }
reaches refused_and_asked_again 120 refused_twice
check is_not_given_up [ -e "/sys/class/nvme/$lost" ]
check offer shape --port 1 offer=subsystem
reaches live_again 120 is_live "$lost"
finish
