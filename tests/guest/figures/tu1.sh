# What reading through the kernel costs (TU1): io_uring passthrough and the block device, completions
# polled and by interrupt, over QEMU's NVMe controller, in virtual time that counts instructions
# (2 ns each). `cargo xtask vm tu1` makes a table of several runs.
# vm: --icount --cpus 1 --limit 560
# vm-qemu: -drive if=none,id=d0,driver=null-co,size=256M -device nvme,drive=d0,serial=q0
. ./lib.sh
modprobe nvme poll_queues=1
reaches device 60 test -c /dev/ng0n1
reaches disk 60 test -b /dev/nvme0n1
same polled_queues "$(cat /sys/block/nvme0n1/queue/io_poll)" 1

# row WHAT TARGET KIND SIZE DEPTH
row() {
    if ! braid queue bench "$2" --kind "$3" --rw randread --bs "$4" --iodepth "$5" --batch 32 \
        --runtime 200ms -o json >/tmp/row.json 2>/tmp/row.err; then
        fail "row_$1_$3_$4_$5" "$(cat /tmp/row.err)"
        return
    fi
    jq -c --arg read "$1" --arg kind "${3#user_}" --argjson bytes "$4" --argjson depth "$5" '
        {read: $read, bytes: $bytes, outstanding: $depth, completions: $kind,
         cpu_us_per_io: (.cpu_ns_per_io / 1000), iops, p50_us, p99_us, system_calls_per_io,
         polls_per_io, empty_polls_percent: (.empty_polls_share * 100)}' /tmp/row.json |
        sed 's/^/cell: /'
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
