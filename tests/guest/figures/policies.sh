# Kernel policies and ours over the same two paths of the same target: port 1 capped at 300 MiB/s,
# port 2 30 ms slower. Figures, and one check: their order. The first path is the slow one, so that
# numa takes it.
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

# figure WHO RW FILTER FILE: a line of what is MiB/s and ms in FILE.
figure() {
    jq -r --arg who "$1 $2" "$3 | \"\\(\$who) \\(.[0] * 100 | round / 100) \\(.[1] * 10 | round / 10)\"" "$4" |
        tee -a /tmp/figures
}
echo "who policy rw MiB/s p99-ms"
for name in numa round-robin queue-depth; do
    echo $name >"$policy"
    for rw in randread randwrite; do
        fio --name=f --filename="/dev/$disk" --direct=1 --rw=$rw --bs=4k --ioengine=io_uring --iodepth=16 \
            --numjobs=2 --group_reporting --time_based --runtime=$seconds --size=32m \
            --output-format=json --output=/tmp/f.json --eta=never
        figure "kernel $name" $rw '.jobs[0] | (if .read.bw_bytes > 0 then .read else .write end) |
            [.bw_bytes / 1048576, .clat_ns.percentile["99.000000"] / 1e6]' /tmp/f.json
    done
done
nvme disconnect -n "$nqn" >/dev/null
for name in numa round-robin queue-depth weighted-latency soonest; do
    for rw in randread randwrite; do
        braid bench "nvme-tcp://127.0.0.1:4421/$nqn" "nvme-tcp://127.0.0.1:4420/$nqn" --policy $name \
            --weight-timeout 50ms --rw $rw --bs 4k --iodepth 16 --numjobs 2 --cores 2 --runtime $seconds \
            --size 32m -o json >/tmp/b.json 2>/tmp/b.err || cat /tmp/b.err
        figure "braid $name" $rw '[.mib_s, .p99_us / 1000]' /tmp/b.json
    done
done
# The order is the same on both sides.
for who in kernel braid; do
    for rw in randread randwrite; do
        order=$(grep "^$who .* $rw " /tmp/figures | grep -v 'weighted\|soonest' | sort -k 4 -n | cut -d ' ' -f 2 | tr '\n' ' ')
        same "order_${who}_$rw" "$order" "numa round-robin queue-depth "
    done
done
finish
