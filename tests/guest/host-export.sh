# The kernel as host of exports of `braid run`: a volume over two paths and a mirror, namespaces of
# one subsystem. File systems, discard, verified load, a path and then all paths lost, a new size, a
# second engine under one NQN, namespaces that come and go by reload, and a stop of ours.
# vm: --cpus 4
. ./lib.sh
. ./host.sh
. ./run.sh
. ./exported.sh
load_host
modprobe ext4
truncate -s 128M /tmp/disk
two_ports file:/tmp/disk
for leg in a b; do truncate -s 96M /tmp/$leg.img; done
check mirror_made braid mirror create --force m0 file:/tmp/a.img file:/tmp/b.img
target_nqn=$nqn
exported=nqn.2026-01.org.example:exported
start_run <<EOF
$(two_paths)
[[volume.export]]
nvme = "127.0.0.1:4430"
nqn = "$exported"
nsid = 1
[[volume.export]]
nbd = "unix:/run/v0.sock"
[[volume]]
name = "m0"
kind = "mirror"
[[volume.leg]]
uri = "file:/tmp/a.img"
[[volume.leg]]
uri = "file:/tmp/b.img"
[[volume.export]]
nvme = "127.0.0.1:4430"
nqn = "$exported"
nsid = 7
EOF

found() { nvme discover -t tcp -a 127.0.0.1 -s 4430 --hostnqn "$hostnqn" --hostid "$hostid" | grep -q "$exported"; }
check discovered found
nqn=$exported
check connect connect 4430 --keep-alive-tmo 5 --reconnect-delay 1 --ctrl-loss-tmo 600
reaches disk_of_volume 60 disk 1
reaches disk_of_mirror 60 disk 7
volume=/dev/$(disk 1)
mirror=/dev/$(disk 7)
reaches accessible 60 paths_are optimized 2
same block_size "$(cat "/sys/block/$(disk 1)/queue/logical_block_size")" 4096
same size "$(cat "/sys/block/$(disk 1)/size")" 262144
same write_back "$(cat "/sys/block/$(disk 1)/queue/write_cache")" "write back"

for disk in volume mirror; do
    eval "device=\$$disk"
    writes_and_reads $disk "$device"
    verified $disk "$device" 4k
    mount_new $disk "$device"
done
copies volume mirror
lose 1
reaches path_lost 60 is degraded
lose 2
reaches volume_down 60 is down
reaches inaccessible 60 paths_are inaccessible 1
same mirror_accessible "$(paths optimized)" 1
same still_connected "$(cat "/sys/class/nvme/$(controller 4430)/state")" live
restore 1
restore 2
reaches paths_back 60 is ok
reaches accessible_again 60 paths_are optimized 2
copied_well load_while_paths_die
for disk in volume mirror; do
    eval "device=\$$disk"
    umount_checked $disk "$device"
done

check grow braid target resize --socket "$socket" 1 160MiB
grown() { [ "$(cat "/sys/block/$(disk 1)/size")" = 327680 ]; }
reaches new_size 60 grown

# A second engine offers the volume under the same NQN, as it should not. The kernel refuses its path
# only where both controllers have one number; engines count these from 1, with each connection.
cat >/tmp/second.toml <<EOF
hostnqn = "nqn.2014-08.org.nvmexpress:uuid:22222222-2222-4222-8222-222222222222"
hostid = "22222222-2222-4222-8222-222222222222"
$(nqn=$target_nqn; two_paths)
[[volume.export]]
nvme = "127.0.0.1:4440"
nqn = "$exported"
nsid = 1
EOF
mkdir -p /run/second
XDG_STATE_HOME=/run/second braid run -c /tmp/second.toml --socket /run/second.sock \
    >/tmp/second.log 2>&1 &
second=$!
reaches second_engine 60 braid check v0 --socket /run/second.sock
number() { cat "/sys/class/nvme/$(controller 4430)/cntlid"; }
for _ in $(seq 2 "$(number)"); do
    nvme discover -t tcp -a 127.0.0.1 -s 4440 --hostnqn "$hostnqn" --hostid "$hostid" >/dev/null
done
refused second_engine_of_same_number connect 4440
same says_why "$(dmesg | grep -c "Duplicate cntlid $(number)")" 1
check second_engine_of_other_number connect 4440
reaches both_engines 60 paths_are optimized 3
check write_over_both dd if=/tmp/random of="$volume" bs=64k oflag=direct
check read_over_both sh -c "dd if=$volume bs=64k iflag=direct count=128 2>/dev/null | cmp - /tmp/random"
check disconnect_second nvme disconnect -d "$(controller 4440)"
kill "$second"
wait "$second"
same second_ends_well $? 0

# A reload takes the mirror's namespace out, and opens a volume as another one; one more takes that
# back. The kernel scans by itself.
cp /tmp/braid.toml /tmp/first.toml
head -n $(($(wc -l </tmp/first.toml) - 4)) /tmp/first.toml >/tmp/braid.toml
cat >>/tmp/braid.toml <<EOF
[[volume]]
name = "v1"
[[volume.path]]
uri = "mem:16MiB"
[[volume.export]]
nvme = "127.0.0.1:4430"
nqn = "$exported"
nsid = 9
EOF
before=$(dd if="$mirror" bs=1M count=8 iflag=direct 2>/dev/null | md5sum)
check reload braid reload --socket $control
is_gone() { ! disk "$1"; }
reaches namespace_gone 60 is_gone 7
reaches namespace_came 60 disk 9
check write_to_new dd if=/tmp/random of="/dev/$(disk 9)" bs=64k oflag=direct
check read_from_new sh -c "dd if=/dev/$(disk 9) bs=64k iflag=direct count=128 2>/dev/null | cmp - /tmp/random"
check write_beside dd if=/tmp/random of="$volume" bs=64k oflag=direct
cp /tmp/first.toml /tmp/braid.toml
refused reload_with_a_host braid reload --socket $control
check reload_by_force braid reload --force --socket $control
reaches new_is_gone 60 is_gone 9
reaches namespace_back 60 disk 7
same same_data "$(dd if="/dev/$(disk 7)" bs=1M count=8 iflag=direct 2>/dev/null | md5sum)" "$before"

same no_error_of_the_kernel "$(dmesg | grep -c 'I/O error')" 0
check disconnect nvme disconnect -n "$exported"
kill "$run"
wait "$run"
same ends_well $? 0
finish
