# The kernel zeroes and discards ranges of our target, around 65,536 blocks and beyond (what NLB can
# say): all that was asked for reads as zeroes, and nothing beside it changed. Every byte is compared.
# vm: --cpus 4 --memory 2048 --limit 900
. ./lib.sh
. ./host.sh
load_host
modprobe loop
dd if=/dev/urandom of=/tmp/piece bs=1M count=1 2>/dev/null
piece=/tmp/piece
cat $piece $piece $piece $piece $piece $piece $piece $piece >/tmp/pieces
for _ in $(seq 34); do cat /tmp/pieces; done >/tmp/reference
# Behind a loop device, whose smallest block has 512 bytes. What is deallocated need not read as
# zeroes there: that is for a file and memory.
truncate -s 64M /tmp/small
truncate -s 272M /tmp/large
losetup /dev/loop0 /tmp/small
target <<EOF
nqn = "$nqn"
[[namespace]]
backend = "file:/dev/loop0"
block_size = 512
[[namespace]]
backend = "file:/tmp/large"
block_size = 4096
[[namespace]]
backend = "mem:64MiB"
block_size = 512
[[port]]
listen = "127.0.0.1:4420"
EOF
check connect connect 4420
reaches disk_small 60 disk 1
reaches disk_large 60 disk 2
reaches disk_memory 60 disk 3

# emptied NAME FILE SIZE FIRST BLOCKS COMMAND…: COMMAND is given the first byte and the length of that
# many blocks of SIZE bytes.
emptied() {
    local name file start length size direct
    name=$1
    file=$2
    start=$(($3 * $4))
    length=$(($3 * $5))
    shift 5
    direct=
    size=$(stat -c %s "$file")
    if [ -b "$file" ]; then
        direct=oflag=direct
        size=67108864
    fi
    dd if=/tmp/reference of="$file" bs=1M count=$((size / 1048576)) conv=notrunc $direct 2>/dev/null
    check "$name" "$@" -o "$start" -l "$length"
    [ -z "$direct" ] || blockdev --flushbufs "$file"
    check "${name}_inside" cmp -n "$length" -i "$start:0" "$file" /dev/zero
    check "${name}_before" cmp -n "$start" "$file" /tmp/reference
    check "${name}_after" cmp -n $((size - start - length)) -i $((start + length)) "$file" /tmp/reference
}

small=/dev/$(disk 1)
large=/dev/$(disk 2)
memory=/dev/$(disk 3)
# The kernel is told a limit that NLB can say.
limit() { cat "/sys/block/${1#/dev/}/queue/write_zeroes_max_bytes"; }
echo "write_zeroes_max_bytes $(limit "$small") and $(limit "$large")"
check limit_small [ "$(limit "$small")" -gt 0 ] && check limit_small_most [ "$(limit "$small")" -le 33554432 ]
check limit_large [ "$(limit "$large")" -gt 0 ] && check limit_large_most [ "$(limit "$large")" -le 268435456 ]
emptied discard_large_65537 /tmp/large 4096 257 65537 blkdiscard "$large"
emptied discard_98305 "$memory" 512 2049 98305 blkdiscard "$memory"
for blocks in 65535 65536 65537 98305; do
    emptied "zeroes_$blocks" /tmp/small 512 2049 $blocks blkdiscard -z "$small"
done
emptied zero_range_98305 /tmp/small 512 2049 98305 fallocate -z "$small"
emptied punch_hole_98305 /tmp/small 512 2049 98305 fallocate -p "$small"
check read_back sh -c "dd if=$small bs=1M iflag=direct 2>/dev/null | cmp - /tmp/small"
emptied zeroes_large_65537 /tmp/large 4096 257 65537 blkdiscard -z "$large"
finish
