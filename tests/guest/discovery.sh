# Discovery between the kernel and us, both ways: nvme-cli asks our target and connects to all that
# is told, and our host asks the kernel's, with a referral, and connects what is told.
# vm: --cpus 4
. ./lib.sh
. ./host.sh
load_host
target <<EOF
nqn = "$nqn"
[[namespace]]
backend = "mem:64MiB"
[[port]]
listen = "127.0.0.1:4420"
[[port]]
listen = "127.0.0.1:4421"
[[port]]
listen = "127.0.0.1:8009"
offer = "discovery"
EOF
who="--hostnqn $hostnqn --hostid $hostid"
ask() { nvme discover -t tcp -a 127.0.0.1 -s 8009 $who -o json >/tmp/log.json; }
told() { ask && [ "$(jq -r "[.records[] | select(.subnqn == \"$nqn\")] | length" /tmp/log.json)" = "$1" ]; }
check nvme_discover ask
same told_ports "$(jq -r "[.records[] | select(.subnqn == \"$nqn\") | .trsvcid] | sort | join(\" \")" /tmp/log.json)" \
    "4420 4421"
check withdraw shape --port 2 offer=withdrawn
check told_one_less told 1
check offer shape --port 2 offer=subsystem
check told_again told 2

check connect_all nvme connect-all -t tcp -a 127.0.0.1 -s 8009 $who
reaches both_live 60 sh -c '[ "$(cat /sys/class/nvme/*/transport /dev/null | grep -c tcp)" -ge 2 ]'
reaches disk 60 disk 1
reaches two_paths 60 paths_are optimized 2
disk=$(disk 1)
check io dd if=/dev/zero of="/dev/$disk" bs=1M count=8 oflag=direct
check disconnect nvme disconnect -n "$nqn"

# A referral is told.
braid target referrals --socket "$socket" 127.0.0.1:8010 >/dev/null
ask
same referral_told "$(jq -r '[.records[] | select(.subtype | test("referral"))] | length' /tmp/log.json)" 1

# The other way round: the kernel's discovery subsystem, which refers to ours.
. ./target.sh
load_target
modprobe brd rd_nr=1 rd_size=65536
make_subsystem
namespace 1 /dev/ram0 10000000-0000-4000-8000-000000000001 2
at_port() {
    mkdir "$config/ports/$1"
    echo tcp >"$config/ports/$1/addr_trtype"
    echo ipv4 >"$config/ports/$1/addr_adrfam"
    echo 127.0.0.1 >"$config/ports/$1/addr_traddr"
    echo "$2" >"$config/ports/$1/addr_trsvcid"
}
at_port 3 4430
mkdir "$config/ports/3/ana_groups/2"
ana 3 2 optimized
enable_port 3
# refer NAME PORT: the kernel's port 3 refers to another; a port of the kernel tells of itself only.
refer() {
    refers="$config/ports/3/referrals/$1"
    mkdir "$refers"
    echo tcp >"$refers/addr_trtype"
    echo ipv4 >"$refers/addr_adrfam"
    echo 127.0.0.1 >"$refers/addr_traddr"
    echo "$2" >"$refers/addr_trsvcid"
    echo 1 >"$refers/enable"
}
refer ours 8009
braid target referrals --socket "$socket" >/dev/null
check braid_discover sh -c 'braid discover -t tcp -a 127.0.0.1 -s 4430 -o json >/tmp/ours.json'
same kernel_told "$(jq -r "[.records[] | select(.subnqn == \"$nqn\") | .trsvcid] | join(\" \")" /tmp/ours.json)" 4430
same by_referral "$(jq -r '[.records[] | select(.subnqn == "nqn.2026-01.org.example:v0") | .trsvcid] | sort | join(" ")' \
    /tmp/ours.json)" "4420 4421"
same all_usable "$(jq -r '[.records[] | select(.subtype == "nvme subsystem" and (.usable | not))] | length' /tmp/ours.json)" 0

# An engine that knows its volume by the subsystem only, and the kernel's port that comes and goes.
. ./run.sh
start_run <<EOF
keep_alive_tmo = "2s"
connect_timeout = "5s"
discovery_keep_alive_tmo = "2s"
[[discovery]]
uri = "nvme-tcp://127.0.0.1:4430"
[[volume]]
name = "v0"
subsystem = "$nqn"
quiesce_time = "100ms"
gone = "remove"
[[volume.export]]
nbd = "unix:/run/v0.sock"
EOF
uris() { braid stat --socket $control -o json | jq -r '[.volumes[0].paths[].uri | split("/")[2]] | sort | join(" ")'; }
uris_are() { [ "$(uris)" = "$1" ]; }
reaches first_path 60 uris_are 127.0.0.1:4430
verify() {
    fio --name=v --ioengine=nbd --uri='nbd+unix:///?socket=/run/v0.sock' --rw=randrw --bs=64k \
        --iodepth=8 --size=16m --verify=crc32c --verify_fatal=1 --output=/tmp/fio.out --eta=never
}
check verify verify
at_port 4 4431
mkdir "$config/ports/4/ana_groups/2"
ana 4 2 optimized
enable_port 4
refer second 4431
reaches second_path_by_notice 60 uris_are "127.0.0.1:4430 127.0.0.1:4431"
check verify_two verify
rmdir "$config/ports/3/referrals/second"
reaches gone_by_notice 60 uris_are 127.0.0.1:4430
check verify_one verify
finish
