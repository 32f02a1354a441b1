# For scripts in which the kernel uses exports of a volume over both ports of our target.

# two_paths KEY…: the configuration of the engine and of volume v0 with these keys, to which exports
# are added.
two_paths() {
    echo 'keep_alive_tmo = "2s"'
    echo '[[volume]]'
    echo 'name = "v0"'
    echo 'reconnect_delay_min = "200ms"'
    echo 'reconnect_delay = "500ms"'
    for key in "$@"; do echo "$key"; done
    for port in 4420 4421; do
        echo '[[volume.path]]'
        echo "uri = \"nvme-tcp://127.0.0.1:$port/$nqn?nsid=1\""
    done
}

# lose PORT, restore PORT: of the target; 1 and 2.
lose() {
    shape --port "$1" refuse=10m >/dev/null
    braid target drop --socket "$socket" --port "$1" >/dev/null
}
restore() { shape --port "$1" refuse=0 >/dev/null; }

# writes_and_reads TAG DEVICE: 8 MiB, kept in /tmp/random; then discards and zeroes.
writes_and_reads() {
    [ -e /tmp/random ] || dd if=/dev/urandom of=/tmp/random bs=1M count=8 2>/dev/null
    check "write_$1" dd if=/tmp/random of="$2" bs=1M oflag=direct
    check "read_$1" sh -c "dd if=$2 bs=1M count=8 iflag=direct 2>/dev/null | cmp - /tmp/random"
    zeroes_and_discards "$2" "$2" "$1"
}

# verified TAG DEVICE BLOCK: fio with requests from one block to 256 KiB.
verified() {
    check "verify_$1" fio --name="$1" --filename="$2" --direct=1 --rw=randrw --bsrange="$3-256k" \
        --blockalign="$3" --ioengine=libaio --iodepth=32 --size=24m --verify=crc32c \
        --verify_fatal=1 --verify_backlog=64 --eta=never --output=/tmp/fio.out
}

# mount_new TAG DEVICE: an ext4 on /mnt/TAG with a file.
mount_new() {
    check "mkfs_$1" mkfs.ext4 -q -F "$2"
    mkdir -p "/mnt/$1"
    check "mount_$1" mount -t ext4 "$2" "/mnt/$1"
    cp /tmp/random "/mnt/$1/a"
}

# copies TAG…: copies files there, and compares them with what the device has, until copied_well.
copies() {
    (while [ ! -e /tmp/stop ]; do
        for tag in "$@"; do
            cp /tmp/random "/mnt/$tag/b" && sync && echo 1 >/proc/sys/vm/drop_caches &&
                cmp /tmp/random "/mnt/$tag/b" || exit 1
        done
    done) >/tmp/load.out 2>&1 &
    load=$!
}
copied_well() {
    touch /tmp/stop
    if wait "$load"; then ok "$1"; else fail "$1" "$(cat /tmp/load.out)"; fi
}

# umount_checked TAG DEVICE: the file is there, and fsck finds nothing.
umount_checked() {
    check "same_data_$1" cmp /tmp/random "/mnt/$1/a"
    check "umount_$1" umount "/mnt/$1"
    check "fsck_$1" fsck.ext4 -f -n "$2"
}
