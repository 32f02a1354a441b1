# Namespaces that the kernel drives as paths (nvme-ng:): two controllers of one subsystem, both
# QEMU's, under one volume; one vanishes under load; what is none is refused.
# vm: --cpus 2 --limit 300
# vm-qemu: -drive if=none,id=d0,driver=null-co,size=64M,read-zeroes=on,snapshot=on,discard=unmap
# vm-qemu: -drive if=none,id=d1,driver=null-co,size=64M,read-zeroes=on,snapshot=on,discard=unmap
# vm-qemu: -device nvme-subsys,id=s0,nqn=q0
# vm-qemu: -device nvme,id=c0,serial=q0,subsys=s0 -device nvme,id=c1,serial=q0,subsys=s0
# vm-qemu: -device nvme-ns,drive=d0,bus=c0,nsid=1,shared=on,uuid=10000000-0000-4000-8000-000000000001
# vm-qemu: -device nvme-ns,drive=d1,bus=c0,nsid=2,shared=on,uuid=20000000-0000-4000-8000-000000000002
. ./lib.sh
. ./ng.sh
# A device file for each controller, not one for both.
modprobe nvme_core multipath=N
modprobe nvme poll_queues=1
same no_native_multipath "$(cat /sys/module/nvme_core/parameters/multipath)" N

for at in "0 1" "1 1" "1 2"; do
    reaches "device_$at" 60 ng $at
done
one=$(ng 0 1)
two=$(ng 1 1)
other=$(ng 1 2)
block=/dev/nvme${one#/dev/ng}
echo "paths $one and $two; $other is another namespace"

# verify NAME PATHS… OPTIONS…: writes with stamps, reads back, and nothing is wrong.
verify() {
    local name
    name=$1
    shift
    if braid bench "$@" --verify -o json >/tmp/bench.json 2>/tmp/bench.err &&
        [ "$(jq '.errors' /tmp/bench.json)" = 0 ] && [ "$(jq '.verified_bytes' /tmp/bench.json)" -gt 0 ]
    then ok "$name"; else fail "$name" "$(cat /tmp/bench.err) $(head -c 600 /tmp/bench.json)"; fi
}
mixed="--rw randrw --bssplit 512/20:4k/50:64k/20:256k/10 --iodepth 16 --size 8m --policy round-robin"
verify two_paths "nvme-ng:$one" "nvme-ng:$two" $mixed
echo "shares $(jq -c '.share' /tmp/bench.json)"
same both_used "$(jq '[.share[]] | map(select(. > 0.2)) | length' /tmp/bench.json)" 2
verify polled "nvme-ng:$one?poll=true" "nvme-ng:$two" $mixed
verify many "nvme-ng:$one" --rw randrw --bs 4k --iodepth 600 --size 4m

refused another_namespace braid bench "nvme-ng:$one" "nvme-ng:$other" --rw read --size 1m
check says_so grep -q "refused beside" /tmp/said
refused beside_a_file braid bench "nvme-ng:$one" "file:$block" --rw read --size 1m
refused the_block_device braid bench "nvme-ng:$block" --rw read --size 1m
check names_the_character_device grep -q "block device" /tmp/said
refused the_controller braid bench nvme-ng:/dev/nvme0 --rw read --size 1m
check says_what_it_is grep -q "isn't the character device" /tmp/said
refused no_device braid bench nvme-ng:/dev/ng9n9 --rw read --size 1m
check says_there_is_none grep -q "there is none" /tmp/said

# Flush, zeroes and trims through an export.
cat >/tmp/run.toml <<TOML
[[volume]]
name = "v0"
policy = "round-robin"
shared_write_cache = true
[[volume.path]]
uri = "nvme-ng:$one"
[[volume.path]]
uri = "nvme-ng:$two"
[[volume.export]]
nbd = "unix:/run/v0.nbd"
TOML
modprobe nbd
braid run -c /tmp/run.toml >/tmp/run.log 2>&1 &
run_pid=$!
if ! until_true 60 test -S /run/v0.nbd; then
    fail engine_starts "$(cat /tmp/run.log)"
    finish
fi
if nbd-client -unix /run/v0.nbd -N v0 -b 512 /dev/nbd0 >/tmp/said 2>&1; then ok attach; else
    fail attach "$(cat /tmp/said) $(cat /tmp/run.log)"
    finish
fi
dd if=/dev/urandom of=/tmp/random bs=1M count=2 2>/dev/null
check written dd if=/tmp/random of=/dev/nbd0 bs=256k oflag=direct conv=fsync
blockdev --flushbufs "$block"
check on_the_device cmp -n 2097152 /tmp/random "$block"
zeroes_and_discards /dev/nbd0 "$block" ng

# One controller vanishes under verified load; the other goes on and nothing is lost.
fio --name=load --filename=/dev/nbd0 --direct=1 --rw=randrw --bsrange=4k-64k --ioengine=libaio \
    --iodepth=16 --offset=16m --size=16m --verify=crc32c --verify_fatal=1 --verify_backlog=64 \
    --eta=never --output=/tmp/fio.out &
load=$!
ios() { awk '{print $1 + $5}' /sys/block/nbd0/stat; }
before=$(ios)
more() { [ "$(ios)" -gt $((before + 200)) ]; }
reaches load_runs 120 more
kill -0 $load 2>/dev/null || fail still_loaded "the load ended too soon"
echo 1 >/sys/class/nvme/nvme1/device/remove
if wait $load; then ok load_survives; else fail load_survives "$(tail -20 /tmp/fio.out)"; fi
reaches loss_is_told 30 grep -q "controller is gone" /tmp/run.log
reaches path_failed 30 sh -c "braid stat -o json | grep -q '\"failed\"'"
check again fio --name=again --filename=/dev/nbd0 --direct=1 --rw=randrw --bs=4k --size=2m \
    --ioengine=libaio --iodepth=8 --verify=crc32c --verify_fatal=1 --eta=never --output=/tmp/fio.out

# It comes back, under whatever name, and is added again.
echo 1 >/sys/bus/pci/rescan
back() { for path in /sys/class/nvme/nvme*; do ng "${path##*/nvme}" 1; done | grep -v "^$one\$"; }
reaches is_back 60 back
again=$(back)
check old_path_leaves braid path remove v0 "nvme-ng:$two" --force
check new_path_joins braid path add v0 "nvme-ng:$again"
check verified_again fio --name=more --filename=/dev/nbd0 --direct=1 --rw=randrw --bs=4k --size=2m \
    --ioengine=libaio --iodepth=8 --verify=crc32c --verify_fatal=1 --eta=never --output=/tmp/fio.out
nbd-client -d /dev/nbd0 >/dev/null 2>&1
kill -TERM $run_pid
if wait $run_pid; then ok stops; else fail stops "$(tail -5 /tmp/run.log)"; fi
[ $failures -eq 0 ] || cat /tmp/run.log
finish
