# The kernel as host: a file system and verified I/O over two paths, one with digests, while paths
# change and fail.
# vm: --cpus 4
. ./lib.sh
. ./host.sh
load_host
modprobe ext4
two_ports mem:128MiB
quick="--keep-alive-tmo 5 --reconnect-delay 1 --ctrl-loss-tmo 600"
check connect_4420 connect 4420 $quick
check connect_4421 connect 4421 $quick --hdr-digest --data-digest
reaches disk 60 disk 1
disk=$(disk 1)
reaches two_paths 60 paths_are optimized 2
policy=/sys/class/nvme-subsystem/$(basename "$(readlink -f /sys/block/"$disk"/device)")/iopolicy

verify() {
    fio --name="$1" --filename="/dev/$disk" --direct=1 --rw=randrw --bsrange=4k-256k --bs_unaligned=0 \
        --ioengine=libaio --iodepth=16 --size=24m --offset="${2:-0}" --verify=crc32c --verify_fatal=1 \
        --verify_backlog=64 --eta=never --output=/tmp/fio.out --max_latency=120s
}

# Every policy of the kernel: data is right, and both paths are used where it says so.
for name in numa round-robin queue-depth; do
    check "policy_$name" sh -c "echo $name >$policy && grep -q $name $policy"
    check "verify_$name" verify "$name"
done
used() { awk '{print $1 + $5}' "/sys/class/nvme/$1"/nvme*c*n*/stat; }
one=$(used "$(controller 4420)")
two=$(used "$(controller 4421)")
echo "I/Os on the paths: $one $two"
check both_paths_used [ "$one" -gt 50 ] && check both_paths_used_2 [ "$two" -gt 50 ]

check mkfs mkfs.ext4 -q -F -E nodiscard "/dev/$disk"
mkdir -p /mnt/d
check mount mount -t ext4 "/dev/$disk" /mnt/d
dd if=/dev/urandom of=/tmp/random bs=1M count=16 2>/dev/null
check copy sh -c 'cp /tmp/random /mnt/d/a && sync && echo 3 >/proc/sys/vm/drop_caches'
check same_data cmp /tmp/random /mnt/d/a
check umount umount /mnt/d
check fsck fsck.ext4 -f -n "/dev/$disk"

# under NAME COMMAND…: verified load runs while COMMAND is carried out, and ends well.
under() {
    local name load
    name=$1
    shift
    verify "$name" 32m &
    load=$!
    "$@"
    if wait "$load"; then ok "$name"; else fail "$name" "$(tail -20 /tmp/fio.out)"; fi
    kill -0 "$target_pid" 2>/dev/null || fail "${name}_target" "$(tail /tmp/target.log)"
}
flip() {
    for state in inaccessible non-optimized change optimized persistent-loss optimized; do
        shape --port 1 ana="$state" >/dev/null
        reaches "seen_$state" 60 paths_are "$state" "$([ "$state" = optimized ] && echo 2 || echo 1)"
    done
}
under ana_flips flip
lose() {
    shape --port 2 refuse=10m >/dev/null
    braid target drop --socket "$socket" --port 2 >/dev/null
    reaches path_lost 60 not_live "$(controller 4421)"
    shape --port 2 refuse=0 >/dev/null
    reaches path_back 120 is_live "$(controller 4421)"
}
not_live() { ! is_live "$1"; }
under port_killed_and_returned lose
silent() {
    shape --port 2 mute=10m >/dev/null
    reaches keep_alive_noticed 120 not_live "$(controller 4421)"
    shape --port 2 mute=0 >/dev/null
    reaches keep_alive_back 120 is_live "$(controller 4421)"
}
under keep_alive_time_out silent
reset() {
    for port in 4420 4421; do
        reset=$(controller "$port")
        before=$(cat "/sys/class/nvme/$reset/cntlid")
        check "reset_$port" nvme reset "/dev/$reset"
        reaches "reset_${port}_live" 60 is_live "$reset"
        # Another association: the target gives numbers in turn.
        check "reset_${port}_new" [ "$(cat "/sys/class/nvme/$reset/cntlid")" != "$before" ]
    done
}
under controller_reset reset
check fsck_at_last sh -c "mkfs.ext4 -q -F /dev/$disk && fsck.ext4 -f -n /dev/$disk"
finish
