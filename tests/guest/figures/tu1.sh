# What reading through the kernel costs (TU1): io_uring passthrough and the block device, completions
# polled and by interrupt, over QEMU's NVMe controller, in virtual time that counts instructions
# (2 ns each).
# vm: --icount --cpus 1 --limit 560
# vm-qemu: -drive if=none,id=d0,driver=null-co,size=256M -device nvme,drive=d0,serial=q0
. ./lib.sh
modprobe nvme poll_queues=1
reaches device 60 test -c /dev/ng0n1
reaches disk 60 test -b /dev/nvme0n1
same polled_queues "$(cat /sys/block/nvme0n1/queue/io_poll)" 1

echo "| read | bytes | outstanding | completions | CPU µs per I/O | IOPS | p50 µs | p99 µs | system calls per I/O | polls per I/O | of them useless |"
echo "|---|---|---|---|---|---|---|---|---|---|---|"
# row WHAT TARGET KIND SIZE DEPTH
row() {
    if ! braid queue bench "$2" --kind "$3" --rw randread --bs "$4" --iodepth "$5" --batch 32 \
        --runtime 200ms -o json >/tmp/row.json 2>/tmp/row.err; then
        fail "row_$1_$3_$4_$5" "$(cat /tmp/row.err)"
        return
    fi
    jq -r --arg what "$1" --arg kind "${3#user_}" --arg bytes "$4" --arg depth "$5" '
        def three: if . >= 100 then round elif . >= 10 then (. * 10 | round) / 10
            else (. * 100 | round) / 100 end;
        "| \($what) | \($bytes) | \($depth) | \($kind) | \(.cpu_ns_per_io / 1000 | three) | " +
        "\(.iops | round) | " +
        "\(.p50_us | three) | \(.p99_us | three) | \(.system_calls_per_io | three) | " +
        "\(.polls_per_io | three) | \(.empty_polls_share * 100 | three) % |"' /tmp/row.json
}
for bytes in 512 4096; do
    for depth in 1 16 128; do
        for kind in user_irq user_poll; do
            row passthrough nvme-ng:/dev/ng0n1 $kind $bytes $depth
            row block file:/dev/nvme0n1 $kind $bytes $depth
        done
    done
done
finish
