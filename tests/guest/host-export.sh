# The kernel as host of exports of `braid run`: a volume over two paths and a mirror, namespaces of
# one subsystem. File systems, discard, verified load, a path and then all paths lost, a new size, a
# second engine, and a stop of ours.
# vm: --cpus 4
. ./lib.sh
. ./host.sh
. ./run.sh
load_host
modprobe ext4
truncate -s 128M /tmp/disk
target <<EOF
nqn = "$nqn"
[[namespace]]
backend = "file:/tmp/disk"
[[port]]
listen = "127.0.0.1:4420"
[[port]]
listen = "127.0.0.1:4421"
EOF
for leg in a b; do truncate -s 96M /tmp/$leg.img; done
check mirror_made braid mirror create --force m0 file:/tmp/a.img file:/tmp/b.img
exported=nqn.2026-01.org.example:exported
start_run <<EOF
keep_alive_tmo = "2s"
[[volume]]
name = "v0"
reconnect_delay_min = "200ms"
reconnect_delay = "500ms"
[[volume.path]]
uri = "nvme-tcp://127.0.0.1:4420/$nqn?nsid=1"
[[volume.path]]
uri = "nvme-tcp://127.0.0.1:4421/$nqn?nsid=1"
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

dd if=/dev/urandom of=/tmp/random bs=1M count=8 2>/dev/null
for disk in volume mirror; do
    eval "device=\$$disk"
    check write_$disk dd if=/tmp/random of="$device" bs=1M oflag=direct
    check read_$disk sh -c "dd if=$device bs=1M count=8 iflag=direct 2>/dev/null | cmp - /tmp/random"
    zeroes_and_discards "$device" "$device" $disk
done

verify() {
    fio --name="$1" --filename="$2" --direct=1 --rw=randrw --bsrange=4k-256k --blockalign=4k \
        --ioengine=libaio --iodepth=32 --size=24m --verify=crc32c --verify_fatal=1 \
        --verify_backlog=64 --eta=never --output=/tmp/fio.out
}
check verify_volume verify volume "$volume"
check verify_mirror verify mirror "$mirror"
for disk in volume mirror; do
    eval "device=\$$disk"
    check mkfs_$disk mkfs.ext4 -q -F "$device"
    mkdir -p /mnt/$disk
    check mount_$disk mount -t ext4 "$device" /mnt/$disk
    cp /tmp/random /mnt/$disk/a
done
(while [ ! -e /tmp/stop ]; do
    for disk in volume mirror; do
        cp /tmp/random /mnt/$disk/b && sync && echo 1 >/proc/sys/vm/drop_caches &&
            cmp /tmp/random /mnt/$disk/b || exit 1
    done
done) >/tmp/load.out 2>&1 &
load=$!
drop() {
    shape --port "$1" refuse=10m >/dev/null
    braid target drop --socket "$socket" --port "$1" >/dev/null
}
drop 1
reaches path_lost 60 is degraded
drop 2
reaches volume_down 60 is down
reaches inaccessible 60 paths_are inaccessible 1
same mirror_accessible "$(paths optimized)" 1
same still_connected "$(cat "/sys/class/nvme/$(controller 4430)/state")" live
for port in 1 2; do shape --port $port refuse=0 >/dev/null; done
reaches paths_back 60 is ok
reaches accessible_again 60 paths_are optimized 2
touch /tmp/stop
if wait "$load"; then ok load_while_paths_die; else fail load_while_paths_die "$(cat /tmp/load.out)"; fi
for disk in volume mirror; do
    eval "device=\$$disk"
    check same_data_$disk cmp /tmp/random /mnt/$disk/a
    check umount_$disk umount /mnt/$disk
    check fsck_$disk fsck.ext4 -f -n "$device"
done

check grow braid target resize --socket "$socket" 1 160MiB
grown() { [ "$(cat "/sys/block/$(disk 1)/size")" = 327680 ]; }
reaches new_size 60 grown

same no_error_of_the_kernel "$(dmesg | grep -c 'I/O error')" 0
check disconnect nvme disconnect -n "$exported"
kill "$run"
wait "$run"
same ends_well $? 0
finish
