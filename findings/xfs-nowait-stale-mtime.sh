#!/usr/bin/env bash
# XFS: a direct overwrite with RWF_NOWAIT fails with EAGAIN as soon as the file's mtime is a few
# milliseconds old, and goes on failing for ever: only a write that may wait updates the mtime.
# ext4 updates it in such a write, so there all of them succeed.
#
# A program that tries each write with RWF_NOWAIT first (io_uring does so by itself) therefore hands
# almost every write to a file on XFS to a worker thread, although nothing has to be allocated or
# read: the blocks are written, the file does not grow, and no page of it is cached.
#
# Seen with: Linux 6.18, xfsprogs 6.1.0-1, e2fsprogs 1.47.0-2+b2 (Debian 12).
# Needs: root, loop devices, Linux with xfs and ext4, python3, apt-get. Exits with 1 if the behaviour
# is another one, and with 2 if it can't be tried here.
set -euo pipefail

work=$(mktemp -d)
trap 'umount "$work/mnt" 2>/dev/null || true; rm -rf "$work"' EXIT
cd "$work"
for fs in xfs ext4; do
    grep -qw "$fs" /proc/filesystems || { echo "this kernel has no $fs" >&2; exit 2; }
done

packages=(xfsprogs=6.1.0-1 libinih1=55-1 liburcu8=0.13.2-1 e2fsprogs=1.47.0-2+b2)
apt-get download -q "${packages[@]}" >/dev/null 2>&1 || { echo "no ${packages[*]} here" >&2; exit 2; }
for package in *.deb; do dpkg -x "$package" tools; done
export LD_LIBRARY_PATH=$work/tools/usr/lib/x86_64-linux-gnu:$work/tools/lib/x86_64-linux-gnu

cat > overwrite.py <<'PY'
import errno, mmap, os, sys, time

BLOCK, BLOCKS, TRIES = 4096, 256, 1000
data = mmap.mmap(-1, BLOCK)
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT | os.O_DIRECT)
for block in range(BLOCKS):
    os.pwritev(file, [data], block * BLOCK)
os.fsync(file)

def overwrite(block):
    try:
        os.pwritev(file, [data], block * BLOCK, os.RWF_NOWAIT)
        return True
    except OSError as error:
        assert error.errno == errno.EAGAIN, error
        return False

time.sleep(0.1)
before = os.fstat(file).st_mtime_ns
alone = sum(overwrite(n % BLOCKS) for n in range(TRIES))
updated = os.fstat(file).st_mtime_ns != before
after_ordinary = 0
for n in range(100):
    os.pwritev(file, [data], 0)
    after_ordinary += overwrite(1)
print(f"{alone} of {TRIES} done, mtime {'updated' if updated else 'not updated'};",
      f"{after_ordinary} of 100 done directly after an ordinary write")
PY

seen() { # file system, the program that makes it
    truncate -s 512M image
    "$2" -q image
    mkdir -p mnt
    mount -o loop image mnt
    python3 overwrite.py mnt/file
    umount mnt
    rm image
}
xfs=$(seen xfs tools/sbin/mkfs.xfs)
ext4=$(seen ext4 tools/sbin/mkfs.ext4)
echo "Linux $(uname -r)"
echo "xfs:  $xfs"
echo "ext4: $ext4"
[[ $xfs == "0 of 1000 done, mtime not updated; "* && $xfs != *"; 0 of 100 done"* ]] || exit 1
[[ $ext4 == "1000 of 1000 done, mtime updated; 100 of 100 done"* ]] || exit 1
