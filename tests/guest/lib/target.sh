# For scripts in which the kernel is the target of our host.
nqn=nqn.2026-01.org.example:nvmet
config=/sys/kernel/config/nvmet
subsystem=$config/subsystems/$nqn
one=nvme-tcp://127.0.0.1:4420/$nqn
two=nvme-tcp://127.0.0.1:4421/$nqn

load_target() {
    modprobe nvmet-tcp
    # The first process could not while no module had made the directory.
    [ -d "$config" ] || mount -t configfs config /sys/kernel/config
}

# namespace NSID DEVICE UUID [ANA GROUP]
namespace() {
    mkdir "$subsystem/namespaces/$1"
    echo "$2" >"$subsystem/namespaces/$1/device_path"
    echo "$3" >"$subsystem/namespaces/$1/device_uuid"
    echo "${4:-1}" >"$subsystem/namespaces/$1/ana_grpid"
    echo 1 >"$subsystem/namespaces/$1/enable"
}

remove_namespace() {
    echo 0 >"$subsystem/namespaces/$1/enable"
    rmdir "$subsystem/namespaces/$1"
}

make_subsystem() {
    mkdir "$subsystem"
    echo 1 >"$subsystem/attr_allow_any_host"
    echo S1 >"$subsystem/attr_serial"
}

# port N [INLINE DATA SIZE]: port 1 listens on 4420, port 2 on 4421.
port() {
    mkdir "$config/ports/$1"
    cd "$config/ports/$1" || exit 1
    echo tcp >addr_trtype
    echo ipv4 >addr_adrfam
    echo 127.0.0.1 >addr_traddr
    echo $((4419 + $1)) >addr_trsvcid
    [ -z "${2:-}" ] || echo "$2" >param_inline_data_size
    cd /guest || exit 1
    # The kernel's groups are made inaccessible.
    mkdir "$config/ports/$1/ana_groups/2"
    ana "$1" 2 optimized
    enable_port "$1"
}

enable_port() { ln -s "$subsystem" "$config/ports/$1/subsystems/$nqn"; }
disable_port() { rm "$config/ports/$1/subsystems/$nqn"; }
# ana PORT GROUP STATE
ana() { echo "$3" >"$config/ports/$1/ana_groups/$2/ana_state"; }

remove_all() {
    for number in 1 2; do
        [ -d "$config/ports/$number" ] || continue
        rm -f "$config/ports/$number/subsystems/$nqn"
        rmdir "$config/ports/$number/ana_groups/2" 2>/dev/null
        rmdir "$config/ports/$number"
    done
    for space in "$subsystem"/namespaces/*; do
        [ -d "$space" ] && rmdir "$space"
    done
    rmdir "$subsystem"
}
