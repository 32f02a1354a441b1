#!/usr/bin/env bash
# ext4: after a file was read once through the page cache, direct overwrites with RWF_NOWAIT fail
# with EAGAIN for as long as the clean pages stay cached. Without RWF_NOWAIT the same write drops
# the page and succeeds.
#
# A backup, a checksum or a plain `cp` of a disk image is enough: from then on io_uring hands each
# direct write to the image to a worker thread.
#
# Seen with: Linux 6.18, e2fsprogs 1.47.0-2+b2 (Debian 12).
# Needs: root, loop devices, Linux with ext4, python3, apt-get. Exits with 1 if the behaviour is
# another one, and with 2 if it can't be tried here.
set -euo pipefail

work=$(mktemp -d)
trap 'umount "$work/mnt" 2>/dev/null || true; rm -rf "$work"' EXIT
cd "$work"
grep -qw ext4 /proc/filesystems || { echo "this kernel has no ext4" >&2; exit 2; }
package=e2fsprogs=1.47.0-2+b2
apt-get download -q "$package" >/dev/null 2>&1 || { echo "no $package here" >&2; exit 2; }
dpkg -x ./*.deb tools

cat > overwrite.py <<'PY'
import errno, mmap, os, sys

BLOCK, BLOCKS = 4096, 256
data = mmap.mmap(-1, BLOCK)
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT | os.O_DIRECT)
for block in range(BLOCKS):
    os.pwritev(file, [data], block * BLOCK)
os.fsync(file)

def overwrite():
    done = 0
    for block in range(BLOCKS):
        try:
            os.pwritev(file, [data], block * BLOCK, os.RWF_NOWAIT)
            done += 1
        except OSError as error:
            assert error.errno == errno.EAGAIN, error
    return done

before = overwrite()
with open(sys.argv[1], "rb") as cached:
    cached.read()
after_read = overwrite()
again = overwrite()
for block in range(BLOCKS):
    os.pwritev(file, [data], block * BLOCK)
after_ordinary = overwrite()
print(f"of {BLOCKS} done: {before} before a cached read, {after_read} and {again} after it,",
      f"{after_ordinary} after ordinary writes")
PY

truncate -s 512M image
tools/sbin/mkfs.ext4 -q image
mkdir mnt
mount -o loop image mnt
seen=$(python3 overwrite.py mnt/file)
umount mnt
echo "Linux $(uname -r): $seen"
[[ $seen == "of 256 done: 256 before a cached read, 0 and 0 after it, 256 after ordinary writes" ]]
