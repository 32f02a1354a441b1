# Kernel policies and ours over the same two paths of the same target: port 1 capped at 300 MiB/s,
# port 2 30 ms slower. Figures, no checks; run it with --icount.
# vm: --icount --cpus 2 --limit 3000
. ./lib.sh
. ./host.sh
load_host
target <<EOF
nqn = "$nqn"
[[namespace]]
backend = "mem:64MiB"
[[port]]
listen = "127.0.0.1:4420"
bandwidth = "300MiB/s"
[[port]]
listen = "127.0.0.1:4421"
delay = "30ms"
EOF
seconds=2
check connect_slow connect 4421
check connect_fast connect 4420
reaches disk 60 disk 1
disk=$(disk 1)
reaches two_paths 60 paths_are optimized 2
policy=/sys/class/nvme-subsystem/$(basename "$(readlink -f /sys/block/"$disk"/device)")/iopolicy
for name in numa round-robin queue-depth; do
    echo $name >"$policy"
    for rw in randread randwrite; do
        fio --name=f --filename="/dev/$disk" --direct=1 --rw=$rw --bs=4k --ioengine=io_uring --iodepth=16 \
            --numjobs=2 --group_reporting --time_based --runtime=$seconds --size=32m \
            --output-format=json --output=/tmp/f.json --eta=never
        jq -r --arg who "kernel $name $rw" '.jobs[0] | (if .read.bw_bytes > 0 then .read else .write end) |
            "\($who): \(.bw_bytes / 1048576 * 100 | floor / 100) MiB/s, p99 \(.clat_ns.percentile["99.000000"] / 1e6) ms"' /tmp/f.json
    done
done
nvme disconnect -n "$nqn" >/dev/null
for name in numa round-robin queue-depth weighted-latency; do
    for rw in randread randwrite; do
        braid bench "nvme-tcp://127.0.0.1:4421/$nqn" "nvme-tcp://127.0.0.1:4420/$nqn" --policy $name \
            --weight-timeout 50ms --rw $rw --bs 4k --iodepth 16 --numjobs 2 --cores 2 --runtime $seconds \
            --size 32m -o json >/tmp/b.json 2>/tmp/b.err || cat /tmp/b.err
        jq -r --arg who "braid $name $rw" \
            '"\($who): \(.mib_s * 100 | floor / 100) MiB/s, p99 \(.p99_us / 1000) ms"' /tmp/b.json
    done
done
finish
