# For scripts in which the kernel's driver is below us.

# ng CONTROLLER NSID: the character device of a namespace.
ng() {
    for path in /sys/class/nvme/nvme"$1"/ng*; do
        disk=/sys/block/nvme${path##*/ng}
        [ "$(cat "$disk/nsid" 2>/dev/null)" = "$2" ] && echo "/dev/${path##*/}" && return
    done
    return 1
}
