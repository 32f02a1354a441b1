# The kernel as target, our load generator as host: every in-capsule size, digests, sizes, both
# kinds of devices; what cannot be right is refused.
# vm: --cpus 4
. ./lib.sh
. ./target.sh
load_target
modprobe brd rd_nr=2 rd_size=65536
modprobe null_blk nr_devices=1 gb=1 bs=4096 memory_backed=1
uuid=10000000-0000-4000-8000-000000000001

# verify NAME OPTIONS…: writes with stamps, reads back, and nothing is wrong.
verify() {
    local name
    name=$1
    shift
    if braid bench "$@" --verify -o json >/tmp/bench.json 2>/tmp/bench.err &&
        [ "$(jq '.errors' /tmp/bench.json)" = 0 ] && [ "$(jq '.verified_bytes' /tmp/bench.json)" -gt 0 ]
    then ok "$name"; else fail "$name" "$(cat /tmp/bench.err) $(head -c 600 /tmp/bench.json)"; fi
}

for inline in 4096 8192 16384 65536; do
    make_subsystem
    namespace 1 /dev/ram0 $uuid
    namespace 2 /dev/nullb0 20000000-0000-4000-8000-000000000002 2
    port 1 $inline
    port 2 $inline
    for nsid in 1 2; do
        verify "inline_${inline}_nsid_$nsid" "$one?nsid=$nsid" "$two?nsid=$nsid" --rw randrw \
            --bssplit 4k/30:8k/20:16k/20:64k/20:1m/10 --iodepth 16 --size 16m --policy round-robin
    done
    remove_all
done

make_subsystem
namespace 1 /dev/ram0 $uuid
namespace 2 /dev/nullb0 20000000-0000-4000-8000-000000000002 2
port 1
port 2
for digests in header data header,data; do
    verify "digests_$digests" "$one?nsid=1" "$two?nsid=1" --digests $digests --rw randrw \
        --bs 64k --iodepth 16 --size 16m --policy queue-depth
done
# More outstanding than a queue of the target has entries: flow control holds.
verify deep_queue "$one?nsid=1" --rw randrw --bs 4k --iodepth 512 --size 8m
verify many_queues "$one?nsid=1" "$two?nsid=1" --cores 4 --rw randwrite --bs 4k --iodepth 32 --size 8m
for policy in numa round-robin queue-depth weighted-latency soonest; do
    verify "policy_$policy" "$one?nsid=2" "$two?nsid=2" --policy "$policy" --rw randrw --bs 16k \
        --iodepth 32 --size 8m
done
verify large "$one?nsid=1" --rw write --bs 1m --iodepth 8 --size 32m

refused two_namespaces_and_no_nsid braid bench "$one" --rw read --size 1m
check which_there_are grep -q 'nsid' /tmp/said
refused no_such_namespace braid bench "$one?nsid=9" --rw read --size 1m
refused no_such_subsystem braid bench "$one-x?nsid=1" --rw read --size 1m
echo 0 >"$subsystem/attr_allow_any_host"
refused host_not_allowed braid bench "$one?nsid=1" --rw read --size 1m
echo 1 >"$subsystem/attr_allow_any_host"
refused different_namespaces braid bench "$one?nsid=1" "$two?nsid=2" --rw read --size 1m
# ANA: group 2 through port 1 only.
ana 2 2 inaccessible
verify ana_one_way "$one?nsid=2" "$two?nsid=2" --policy round-robin --rw randrw --bs 4k --size 4m
same ana_no_io_there "$(jq -c '[.share[]] | sort' /tmp/bench.json)" '[0,1]'
ana 1 2 inaccessible
refused ana_no_way braid bench "$one?nsid=2" "$two?nsid=2" --rw read --size 1m --io-timeout 2s
remove_all
finish
