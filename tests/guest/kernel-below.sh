# The kernel's own NVMe/TCP host below us, over nvmet: namespaces as nvme-ng: and as a block device.
# Replies that are damaged on the way, and zeroes over more than 65,536 blocks.
# vm: --cpus 4 --memory 2048 --limit 900
. ./lib.sh
# A device file for each controller, not one for both.
modprobe nvme_core multipath=N
. ./ng.sh
. ./target.sh
. ./run.sh
load_target
for module in nvme-tcp nbd; do
    modprobe "$module"
done
modprobe brd rd_nr=2 rd_size=73728
make_subsystem
namespace 1 /dev/ram0 10000000-0000-4000-8000-000000000001 2
namespace 2 /dev/ram1 20000000-0000-4000-8000-000000000002 2
port 1
port 2
host=0b5d0e4e-3f1c-4f63-9d9b-0d5c2f6f7a11
for service in 4420 4421; do
    check "connect_$service" nvme connect -t tcp -a 127.0.0.1 -s $service -n "$nqn" --data-digest \
        --hostnqn "nqn.2014-08.org.nvmexpress:uuid:$host" --hostid $host
done
for at in "0 1" "1 1" "0 2"; do
    reaches "device_$at" 60 ng $at
done
start_run <<EOF
[[volume]]
name = "v0"
policy = "round-robin"
[[volume.path]]
uri = "nvme-ng:$(ng 0 1)"
[[volume.path]]
uri = "nvme-ng:$(ng 1 1)"
[[volume.export]]
nbd = "unix:/run/v0.sock"
[[volume]]
name = "v1"
[[volume.path]]
uri = "file:/dev/$(disk 0 2)"
[[volume.export]]
nbd = "unix:/run/v1.sock"
EOF
for number in 0 1; do
    check "attach_$number" nbd-client -unix /run/v$number.sock -N v$number -b 512 /dev/nbd$number
done

# Zeroes: 98,305 blocks of 512 bytes, from 1 MiB and one block on.
dd if=/dev/urandom of=/tmp/piece bs=1M count=1 2>/dev/null
piece=/tmp/piece
cat $piece $piece $piece $piece $piece $piece $piece $piece >/tmp/pieces
for _ in $(seq 8); do cat /tmp/pieces; done >/tmp/reference
fill() { dd if=/tmp/reference of="$1" bs=1M oflag=direct 2>/dev/null; }
start=$((1048576 + 512))
length=$((98305 * 512))
after=$((start + length))
zeroed() {
    blockdev --flushbufs "$1"
    cmp -n $length -i $start:0 "$1" /dev/zero && cmp -n $start "$1" /tmp/reference &&
        cmp -n $((67108864 - after)) -i $after "$1" /tmp/reference
}
for number in 0 1; do
    fill /dev/ram$number
    check "zeroes_$number" blkdiscard -z -o $start -l $length /dev/nbd$number
    check "zeroed_$number" zeroed /dev/ram$number
done
# What the kernel makes of it without us, to know whether there is still something to split.
fill /dev/ram0
blkdiscard -z -o $start -l $length "/dev/$(disk 0 1)"
if said=$(zeroed /dev/ram0 2>&1); then echo "the kernel zeroes all by itself"; else
    echo "the kernel by itself: $said"
fi
fill /dev/ram0
fill /dev/ram1

can_damage
same_as_written() { dd if="$1" bs=64k count=64 iflag=direct 2>/tmp/dd | cmp -n 4194304 - /tmp/reference; }
check whole_before same_as_written /dev/nbd0
check damage damage 4420
check one_way_damages same_as_written /dev/nbd0
check one_way_is_hit is_hit
stat() { braid stat --socket $control -o json | jq -r ".volumes[$1].paths[0].$2"; }
damaged=$(stat 0 damaged_in)
echo "hits $(hits), damaged $damaged"
check damage_is_counted [ "$damaged" -gt 0 ]
check damage_is_told grep -q 'damaged' /tmp/run.log
refused kernel_cannot_read dd if="/dev/$(disk 0 1)" of=/dev/null bs=4096 count=1 iflag=direct
reaches degraded 60 is degraded
heal
# The only way: repeated, and then an error of the way, not of the request (EINVAL).
damage 4420
timeout -s KILL 300 fio --name=one --ioengine=nbd --uri="nbd+unix:///?socket=/run/v1.sock" --rw=read \
    --bs=4k --size=4k --offset=1m --output=/tmp/fio.out --eta=never 2>/tmp/fio.err
check only_way_is_hit is_hit
check only_way_ends_in_an_io_error grep -q 'Input/output error' /tmp/fio.err
check only_way_is_repeated [ "$(stat 1 damaged_in)" -gt 1 ]
heal
check healed same_as_written /dev/nbd1
for number in 0 1; do
    nbd-client -d /dev/nbd$number >/dev/null 2>&1
done
kill "$run"
wait "$run"
same ends_well $? 0
[ $failures -eq 0 ] || cat /tmp/run.log
finish
