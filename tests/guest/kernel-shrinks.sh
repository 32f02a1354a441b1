# Namespaces of nvmet shrink below the kernel's own host and us. Behind the new end nvmet says
# Internal Error (6006h) where it serves a block device, Capacity Exceeded (6081h) where it serves a
# file: by our own check of the range neither is an error of the path or of the medium, nor damage.
# vm: --cpus 4 --memory 1024 --limit 900
. ./lib.sh
# A device file for each controller, not one for both.
modprobe nvme_core multipath=N
. ./ng.sh
. ./target.sh
. ./run.sh
load_target
for module in loop nvme-tcp; do
    modprobe "$module"
done
for number in 1 2 3; do
    truncate -s 64M /tmp/back$number
done
losetup /dev/loop0 /tmp/back1
losetup /dev/loop1 /tmp/back3
make_subsystem
namespace 1 /dev/loop0 10000000-0000-4000-8000-000000000001 2
namespace 2 /tmp/back2 20000000-0000-4000-8000-000000000002 2
namespace 3 /dev/loop1 30000000-0000-4000-8000-000000000003 2
port 1
host=0b5d0e4e-3f1c-4f63-9d9b-0d5c2f6f7a11
check connect nvme connect -t tcp -a 127.0.0.1 -s 4420 -n "$nqn" --data-digest \
    --hostnqn "nqn.2014-08.org.nvmexpress:uuid:$host" --hostid $host
for number in 1 2 3; do
    reaches device_$number 60 ng 0 $number
done
start_run <<EOF
[[volume]]
name = "v0"
[[volume.path]]
uri = "nvme-ng:$(ng 0 1)"
[[volume.export]]
nbd = "unix:/run/v0.sock"
[[volume]]
name = "v1"
[[volume.path]]
uri = "nvme-ng:$(ng 0 2)"
[[volume.export]]
nbd = "unix:/run/v1.sock"
[[volume]]
name = "v2"
[[volume.path]]
uri = "file:/dev/$(disk 0 3)"
[[volume.export]]
nbd = "unix:/run/v2.sock"
EOF
# at VOLUME MIB read|write: how one block there ends.
at() {
    timeout -s KILL 300 fio --name=one --ioengine=nbd --uri="nbd+unix:///?socket=/run/v$1.sock" \
        --rw="$3" --bs=4k --size=4k --offset="$2m" --output=/tmp/fio.out --eta=never 2>/tmp/fio.err &&
        echo "done" || sed -n 's/.*0\.0: \([^:]*\):.*/\1/p' /tmp/fio.err
}
stat() { braid stat --socket $control -o json | jq -r ".volumes[$1].paths[0].$2"; }
errors() { echo "$(stat "$1" device_errors) $(stat "$1" damaged_in) $(stat "$1" damaged_out)"; }
for volume in 0 1 2; do
    same whole_before_$volume "$(at $volume 48 read)" "done"
done

for number in 1 2 3; do
    truncate -s 32M /tmp/back$number
done
losetup -c /dev/loop0
losetup -c /dev/loop1
# Only the target knows: nothing tells this from another internal error.
same before_the_host_knows "$(at 0 48 read)" "Input/output error"
same is_an_error_of_the_device "$(errors 0)" "1 0 0"
for number in 1 2 3; do
    echo 1 >"$subsystem/namespaces/$number/revalidate_size"
done
is_small() { [ "$(cat "/sys/block/$(disk 0 "$1")/size")" = 65536 ]; }
for number in 1 2 3; do
    reaches host_knows_$number 60 is_small $number
done

# The statuses themselves, through the same device files.
status() {
    nvme read "$(ng 0 "$1")" -s "$2" -c "$3" -z 4096 -d /tmp/data 2>&1 | grep -o '0x[0-9a-f]*'
}
same status_of_a_block_device "$(status 1 98304 7)" 0x6006
same status_of_a_file "$(status 2 12288 0)" 0x6081

for volume in 0 1; do
    before=$(errors $volume)
    same read_$volume "$(at $volume 48 read)" "Invalid argument"
    same write_$volume "$(at $volume 48 write)" "No space left on device"
    same before_the_end_$volume "$(at $volume 16 read)" "done"
    same no_error_of_the_device_$volume "$(errors $volume)" "$before"
    same is_live_$volume "$(stat $volume state)" live
    check is_told_$volume grep -q "v$volume: .* are beyond the end of the namespace" /tmp/run.log
done
# The kernel's block layer checks the range itself.
same read_2 "$(at 2 48 read)" "Input/output error"
same write_2 "$(at 2 48 write)" "No space left on device"
same before_the_end_2 "$(at 2 16 read)" "done"
check is_told_2 grep -q "$(disk 0 3) was cut short" /tmp/run.log

# Damage within the range is repeated, and then an I/O error; a range error stays one.
can_damage
damage 4420
same damaged "$(at 0 16 read)" "Input/output error"
check is_hit is_hit
check is_repeated [ "$(stat 0 damaged_in)" -gt 1 ]
same read_behind_the_end "$(at 0 48 read)" "Invalid argument"
heal
same healed "$(at 0 16 read)" "done"
kill "$run"
wait "$run"
same ends_well $? 0
[ $failures -eq 0 ] || cat /tmp/run.log
finish
