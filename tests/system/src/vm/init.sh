#!/bin/sh
# The guest's first process: makes the world, runs the script, says its exit status, powers off.
export PATH=/usr/bin HOME=/tmp TERM=dumb
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmp /tmp
mount -t tmpfs run /run
mount -t configfs config /sys/kernel/config 2>/dev/null
mount -t debugfs debug /sys/kernel/debug 2>/dev/null
ln -s /proc/self/fd /dev/fd
hostname guest
ip link set lo up
case " $(cat /proc/cmdline) " in
*" braid.net "*)
    modprobe virtio_net
    ip link set eth0 up && ip address add 10.0.2.15/24 dev eth0 && ip route add default via 10.0.2.2
    ;;
esac
limit=$(sed -n 's/.*braid.limit=\([0-9]*\).*/\1/p' /proc/cmdline)
if [ -e /guest/shell ]; then
    setsid -c sh -i </dev/ttyS1 >/dev/ttyS1 2>&1
    poweroff -f
fi
stty -F /dev/ttyS1 raw -echo
{
    cd /guest
    # If the one who started us is gone, nothing else would end a script that hangs.
    timeout -k 5 "${limit:-600}" sh /guest/script
    echo "vm-exit: $?"
} </dev/null >/dev/ttyS1 2>&1
# Lets the last line leave the serial port.
sync
poweroff -f
