# nvme-cli's own tests against our target, through the kernel's host: `cargo xtask vm peer` puts them
# beside this script. Those that need what the target doesn't claim to have must fail, and are skips
# with their reason.
# vm: --cpus 2
. ./lib.sh
. ./host.sh
load_host
target <<EOF
nqn = "$nqn"
[[namespace]]
backend = "mem:128MiB"
[[port]]
listen = "127.0.0.1:4420"
EOF
check connect connect 4420
reaches disk 60 disk 1
cat >tests/config.json <<EOF
{"controller": "/dev/$(controller 4420)", "ns1": "/dev/$(disk 1)", "log_dir": "/tmp/logs/"}
EOF
# They refuse what is not on PCI before they try anything.
sed -i 's/^        self\.validate_pci_device()$//' tests/nvme_test.py

reason() {
    case $1 in
    attach_detach_ns | create_max_ns) echo "Namespace Management is optional; the target's namespaces are its configuration" ;;
    format) echo "Format NVM is optional" ;;
    copy) echo "Copy is optional" ;;
    verify) echo "Verify is optional" ;;
    writeuncor) echo "Write Uncorrectable is optional" ;;
    get_lba_status | lba_status_log) echo "Get LBA Status is optional" ;;
    get_features) echo "asks for interrupt features, which only PCI has" ;;
    smart_log) echo "cannot read what this nvme-cli prints for id-ctrl" ;;
    esac
}
ran=0
for file in tests/nvme_*_test.py; do
    name=$(basename "$file" _test.py)
    name=${name#nvme_}
    [ "$name" != simple_template ] || continue
    ran=$((ran + 1))
    why=$(reason "$name")
    if (export PYTHONPATH=tests && timeout 120 python3 -m unittest "nvme_${name}_test") >"/tmp/$name.out" 2>&1; then
        if [ -z "$why" ]; then ok "$name"; else fail "$name" "passes now, though: $why"; fi
    elif [ -n "$why" ]; then
        echo "SKIP $name: $why"
    else
        fail "$name" "$(tail -15 "/tmp/$name.out") $(tail -5 /tmp/logs/*/stderr.log 2>/dev/null)"
    fi
done
same tests_there_are "$ran" 19
finish
