# For scripts in which the kernel's driver is below us.

# ng CONTROLLER NSID: the character device of a namespace.
ng() {
    for path in /sys/class/nvme/nvme"$1"/ng*; do
        disk=/sys/block/nvme${path##*/ng}
        [ "$(cat "$disk/nsid" 2>/dev/null)" = "$2" ] && echo "/dev/${path##*/}" && return
    done
    return 1
}

# disk CONTROLLER NSID: the name of its block device.
disk() { echo "nvme$(ng "$@" | sed 's/.*ng//')"; }

# damage PORT: of each reply from there that begins with C2HData one byte is another; TCP on the
# loopback has no checksum to notice it, the data digest does.
damage() {
    tc filter add dev lo egress pref 1 protocol ip u32 match ip sport "$1" 0xffff \
        match u8 0x07 0xff at 52 action pedit munge offset 176 u8 invert
}
heal() { tc filter del dev lo egress pref 1; }
hits() {
    tc -s filter show dev lo egress | sed -n 's/.*Sent [0-9]* bytes \([0-9]*\) pkt.*/\1/p' | head -1
}
is_hit() { [ "$(hits)" -gt 0 ]; }
# damage needs this once.
can_damage() {
    modprobe -a sch_ingress cls_u32 act_pedit
    tc qdisc add dev lo clsact
}
