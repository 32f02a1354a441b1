# The kernel as host: discovery, connecting, and what the target says of itself, field by field.
# vm: --cpus 4
. ./lib.sh
. ./host.sh
load_host
target <<EOF
nqn = "$nqn"
serial = "S1"
model = "Model of a test"
cntlid = [100, 199]
transfer_size = "128KiB"
in_capsule = "16KiB"
queue_entries = 64
io_queues = 8
cqt = "3s"

[[namespace]]
backend = "mem:64MiB"
uuid = "5a1c2a3e-7e0f-4c0a-9d54-0d1c6c1f0a77"
nguid = "00112233445566778899aabbccddeeff"

[[namespace]]
nsid = 7
backend = "null:1GiB"
block_size = 512
read_only = true

[[port]]
listen = "127.0.0.1:4420"

[[port]]
listen = "127.0.0.1:4421"
ana = "non-optimized"
EOF

# fields NAME FILE 'key=value …': each key of the JSON in FILE has that value.
fields() {
    jq -r 'to_entries[] | "\(.key)=\(.value)"' "$2" | sed 's/ *$//; s/ /_/g' >/tmp/fields
    for field in $3; do
        found=$(grep "^${field%%=*}=" /tmp/fields)
        same "$1_${field%%=*}" "$found" "$field"
    done
}

host="--hostnqn $hostnqn --hostid $hostid"
nvme discover -t tcp -a 127.0.0.1 -s 4420 $host -o json >/tmp/d
same discover_records "$(jq '.records | length' /tmp/d)" 2
same discover_ports "$(jq -r '[.records[].trsvcid] | sort | join(" ")' /tmp/d)" "4420 4421"
jq '.records[0]' /tmp/d >/tmp/r
fields discover /tmp/r "trtype=tcp adrfam=ipv4 subtype=nvme_subsystem portid=1 traddr=127.0.0.1
    subnqn=$nqn sectype=none treq=not_specified,_sq_flow_control_disable_supported"
# Another host is told nothing: see host-refused.

check connect_all nvme connect-all -t tcp -a 127.0.0.1 -s 4420 $host
reaches controller_4420 60 controller 4420
reaches controller_4421 60 controller 4421
reaches disk_1 60 disk 1
reaches disk_7 60 disk 7
refused connect_again connect 4420
same controllers "$(ls -d /sys/class/nvme/nvme* | wc -l)" 2
# nvme-cli 2.3 loses --duplicate-connect on its way to the kernel.
check connect_duplicate sh -c "echo transport=tcp,traddr=127.0.0.1,trsvcid=4421,nqn=$nqn,hostnqn=$hostnqn,\
hostid=$hostid,duplicate_connect >/dev/nvme-fabrics"
same controllers_with_duplicate "$(ls -d /sys/class/nvme/nvme* | wc -l)" 3
c0=$(controller 4420)
c1=$(controller 4421)
disk=$(disk 1)
small=$(disk 7)
reaches optimized 60 paths_are optimized 2
reaches non_optimized_twice 60 paths_are non-optimized 4

nvme id-ctrl "/dev/$c0" -o json >/tmp/c
fields ctrl /tmp/c "sn=S1 mn=Model_of_a_test cmic=11 mdts=5 ver=131072 oaes=2304 ctratt=1 cntrltype=1
    acl=3 aerl=3 frmw=3 lpa=6 elpe=63 kas=1 anatt=10 anacap=95 anagrpmax=1 nanagrpid=1 sqes=102
    cqes=68 maxcmd=64 nn=7 mnan=2 oncs=13 vwc=6 sgls=3145729 subnqn=$nqn ioccsz=1028 iorcsz=1
    icdoff=0 msdbd=1 vid=0"
# Given out in turn; discovery controllers have some too.
cntlid=$(jq .cntlid /tmp/c)
check cntlid_in_range [ "$cntlid" -ge 100 ] && check cntlid_below [ "$cntlid" -le 199 ]
same cntlid_sysfs "$(cat /sys/class/nvme/"$c0"/cntlid)" "$cntlid"
same cqt "$(nvme id-ctrl "/dev/$c0" -b | od -An -tu2 -j 386 -N 2 | tr -d ' ')" 3000

nvme id-ns "/dev/$disk" -o json >/tmp/n
fields ns1 /tmp/n "nsze=16384 ncap=16384 nuse=16384 nlbaf=0 flbas=0 nmic=1 dlfeat=9 anagrpid=1
    nsattr=0 nguid=00112233445566778899aabbccddeeff eui64=0000000000000000"
same ns1_block "$(jq '.lbafs[0].ds' /tmp/n)" 12
nvme id-ns "/dev/$small" -o json >/tmp/n
fields ns7 /tmp/n "nsze=2097152 nsattr=1 nmic=1 anagrpid=1"
same ns7_block "$(jq '.lbafs[0].ds' /tmp/n)" 9
same ns7_read_only "$(cat /sys/block/"$small"/ro)" 1
same ns1_uuid "$(cat /sys/block/"$disk"/uuid)" 5a1c2a3e-7e0f-4c0a-9d54-0d1c6c1f0a77
same ns1_size "$(cat /sys/block/"$disk"/size)" 131072
same ns1_wwid "$(cat /sys/block/"$disk"/wwid)" uuid.5a1c2a3e-7e0f-4c0a-9d54-0d1c6c1f0a77
# 128 KiB of MDTS. Where WZSL is 0 the kernel limits write-zeroes to MDTS as well, but not discard.
same ns1_transfer "$(cat /sys/block/"$disk"/queue/max_hw_sectors_kb)" 128
same ns1_cache "$(cat /sys/block/"$disk"/queue/write_cache)" "write through"
check ns1_discards [ "$(cat /sys/block/"$disk"/queue/discard_max_bytes)" -gt 0 ]
check ns1_zeroes [ "$(cat /sys/block/"$disk"/queue/write_zeroes_max_bytes)" -gt 0 ]
same descriptors "$(nvme ns-descs "/dev/$disk" -o json | jq -r '.["ns-descs"][] | .nguid // .uuid // .csi' |
    tr '\n' ' ')" "00112233445566778899aabbccddeeff 5a1c2a3e-7e0f-4c0a-9d54-0d1c6c1f0a77 0 "
same list_ns "$(nvme list-ns "/dev/$c0" -o json | jq -c '[.nsid_list[].nsid]')" '[1,7]'
nvme cmdset-ind-id-ns "/dev/$c0" -n 1 -o json >/tmp/n
fields independent /tmp/n "nmic=1 anagrpid=1 nsattr=0 nstat=1"

# nvme-cli 2.3 prints namespaces of the ANA log wrongly: its bytes are read instead.
ana() { nvme get-log "/dev/$1" -i 0xc -l 56 -b | od -An -v -tu1 -w1 | tr -d ' ' | tr '\n' ' '; }
# log STATE CHANGES
log() {
    echo "$2 0 0 0 0 0 0 0 1 0 0 0 0 0 0 0 1 0 0 0 2 0 0 0 $2 0 0 0 0 0 0 0 $1" \
        "0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 1 0 0 0 7 0 0 0 "
}
same ana_optimized "$(ana "$c0")" "$(log 1 0)"
same ana_non_optimized "$(ana "$c1")" "$(log 2 0)"
check ana_set shape --port 1 ana=inaccessible
reaches ana_seen 60 paths_are inaccessible 2
same ana_inaccessible "$(ana "$c0")" "$(log 3 1)"
shape --port 1 ana=optimized
reaches ana_back 60 paths_are optimized 2

# Errors are logged: what failed, and how.
refused no_such_log nvme get-log "/dev/$c0" -i 0xd -l 512
nvme error-log "/dev/$c0" -e 4 -o json | jq '.errors[0]' >/tmp/e
fields error /tmp/e "sqid=0 status_field=16649 nsid=-1 trtype=3 parm_error_location=65535"
nvme smart-log "/dev/$c0" -o json >/tmp/s
fields smart /tmp/s "critical_warning=0 temperature=303 avail_spare=100 media_errors=0"
check smart_errors [ "$(jq -r .num_err_log_entries /tmp/s)" -gt 0 ]
reads=$(jq -r .host_read_commands /tmp/s)
nvme read "/dev/$disk" -z 4096 -c 0 >/dev/null 2>/tmp/e || fail nvme_read "$(cat /tmp/e)"
now=$(nvme smart-log "/dev/$c0" -o json | jq -r .host_read_commands)
check smart_counts [ "$now" -gt "$reads" ]
same firmware "$(nvme fw-log "/dev/$c0" -o json | jq '.[]["Active Firmware Slot (afi)"]')" 1
check effects nvme effects-log "/dev/$c0"
check supported_logs nvme supported-log-pages "/dev/$c0"
check rescan nvme ns-rescan "/dev/$c0"

# Features and properties.
feature() { nvme get-feature "/dev/$c0" -f "$1" | sed 's/.*value://; s/^0x//; s/^0*//'; }
same feature_queues "$(feature 7)" 30003
same feature_events "$(feature 0xb)" 900
same feature_keep_alive "$(feature 0xf)" 1388
same feature_arbitration "$(feature 1)" 7
same feature_power "$(feature 2)" ""
same feature_temperature "$(feature 4)" ffff
same feature_error_recovery "$(feature 5)" ""
same feature_atomicity "$(feature 0xa)" ""
refused feature_unknown nvme get-feature "/dev/$c0" -f 0x3
property() { nvme get-property "/dev/$c0" --offset "$1" | sed 's/.*value: *//'; }
same property_version "$(property 0x8)" 20000
same property_enabled "$(property 0x14)" 460001
same property_ready "$(property 0x1c)" 1
# One per CPU and the admin queue; of 64 entries, counted from 0.
same every_queue "$(cat /sys/class/nvme/"$c0"/queue_count)" 5
same queue_entries "$(cat /sys/class/nvme/"$c0"/sqsize)" 63
check disconnect_all nvme disconnect-all
same none_left "$(ls /sys/class/nvme | wc -l)" 0
finish
