#!/usr/bin/env bash
# QEMU's FUSE export: fallocate(FALLOC_FL_PUNCH_HOLE) returns success and the old data stay, unless
# the block node was given discard=unmap, which is not the default. FALLOC_FL_ZERO_RANGE of the same
# range gives zeroes either way.
#
# fallocate(2) says of a punched range that reads return zeroes. A copier that punches where its
# source has zeroes (a mirror that is rebuilt onto such a file, `cp --sparse`-like tools, a guest's
# discard that is trusted to read as zeroes) leaves whatever was there before, with no error.
#
# Seen with: qemu-storage-daemon 7.2 (Debian 12, qemu-system-common 1:7.2+dfsg-7+deb12u18+b3), a raw
# and a qcow2 node, Linux 6.18.
# Needs: root or fusermount3, /dev/fuse, the libraries that qemu-system-common depends on, python3,
# apt-get. Exits with 1 if the behaviour is another one, and with 2 if it can't be tried here.
set -euo pipefail

work=$(mktemp -d)
daemon=
trap '[[ -z $daemon ]] || kill "$daemon" 2>/dev/null || true; sleep 0.3; rm -rf "$work"' EXIT
cd "$work"
[[ -c /dev/fuse ]] || { echo "there is no /dev/fuse" >&2; exit 2; }
for package in qemu-system-common=1:7.2+dfsg-7+deb12u18+b3 qemu-utils=1:7.2+dfsg-7+deb12u18+b3; do
    apt-get download -q "$package" >/dev/null 2>&1 || { echo "no $package here" >&2; exit 2; }
done
for file in ./*.deb; do
    dpkg -x "$file" tools
done
tools/usr/bin/qemu-storage-daemon --version >/dev/null ||
    { echo "its libraries are not installed" >&2; exit 2; }

cat > punch.py <<'PY'
import ctypes, os, sys

KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE, BYTES = 1, 2, 16, 65536
libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
file = os.open(sys.argv[1], os.O_RDWR)
for name, mode in (("punched", PUNCH_HOLE), ("zeroed", ZERO_RANGE)):
    os.pwrite(file, b"\xaa" * BYTES, 0)
    os.fsync(file)
    if libc.fallocate(file, mode | KEEP_SIZE, 0, BYTES) != 0:
        sys.exit(f"{name}: {os.strerror(ctypes.get_errno())}")
    print(name, "old" if any(os.pread(file, BYTES, 0)) else "zeroes", end=" ")
PY

touch mount
for format in raw qcow2; do
    tools/usr/bin/qemu-img create -q -f "$format" "image.$format" 1M
    for discard in ignore unmap; do
        tools/usr/bin/qemu-storage-daemon \
            --blockdev "file,node-name=file,filename=image.$format,discard=$discard" \
            --blockdev "$format,node-name=disk,file=file,discard=$discard" \
            --export "fuse,id=e,node-name=disk,mountpoint=$work/mount,writable=on" &
        daemon=$!
        for ((n = 0; n < 100; n++)); do
            grep -qF " $work/mount " /proc/self/mounts && break
            sleep 0.1
        done
        seen+="$format $discard: $(python3 punch.py mount); "
        kill "$daemon"
        wait "$daemon" || true
        daemon=
        while grep -qF " $work/mount " /proc/self/mounts; do sleep 0.1; done
    done
done
echo "Linux $(uname -r): $seen"
old="punched old zeroed zeroes "
new="punched zeroes zeroed zeroes "
[[ $seen == "raw ignore: $old; raw unmap: $new; qcow2 ignore: $old; qcow2 unmap: $new; " ]]
