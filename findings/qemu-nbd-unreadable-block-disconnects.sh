#!/usr/bin/env bash
# qemu-nbd, structured replies: a read of a block that can't be read ends the connection instead of
# that request, and with it all requests under way. With NBD_CMD_FLAG_DF ("don't fragment") on the
# read, or with simple replies, the same block is EIO for that request and the connection goes on.
#
# The protocol has error chunks for this. A client that asks for structured replies, as most do, and
# connects again after a loss meets the same block again, for as long as it tries.
#
# Seen with: qemu-nbd 7.2.22 (Debian 12, qemu-utils 1:7.2+dfsg-7+deb12u18+b3), libnbd 1.14.2.
# Needs: what qemu-utils depends on, Debian 12's python3 (3.11), apt-get. Exits with 1 if the
# behaviour is another one, and with 2 if it can't be tried here.
set -euo pipefail

work=$(mktemp -d)
server=
trap '[[ -z $server ]] || kill "$server" 2>/dev/null || true; rm -rf "$work"' EXIT
cd "$work"
for package in qemu-utils=1:7.2+dfsg-7+deb12u18+b3 libnbd0=1.14.2-1 python3-libnbd=1.14.2-1; do
    apt-get download -q "$package" >/dev/null 2>&1 || { echo "no $package here" >&2; exit 2; }
done
for file in ./*.deb; do
    dpkg -x "$file" tools
done
export PYTHONPATH=$work/tools/usr/lib/python3/dist-packages
export LD_LIBRARY_PATH=$work/tools/usr/lib/x86_64-linux-gnu
/usr/bin/python3.11 -c 'import nbd' && tools/usr/bin/qemu-nbd --version >/dev/null ||
    { echo "libraries are missing" >&2; exit 2; }

# The disk: all of it is data, and the second 4 KiB can't be read.
head -c 1M /dev/urandom > image
cat > rules <<'RULES'
[inject-error]
event = "none"
iotype = "read"
errno = "5"
sector = "8"
once = "off"
RULES

cat > read.py <<'PY'
import nbd, sys

def ask(structured, flags):
    client = nbd.NBD()
    client.set_request_structured_replies(structured)
    client.connect_uri(sys.argv[1])
    said = []
    for at in (4096, 0):
        try:
            client.pread_structured(4096, at, lambda *chunk: 0, flags)
            said.append("data")
        except nbd.Error as error:
            said.append("closed" if client.aio_is_closed() or client.aio_is_dead() else error.errno)
    return " ".join(said)

print("structured:", ask(True, 0), "| with DF:", ask(True, nbd.CMD_FLAG_DF),
      "| simple:", ask(False, 0))
PY

tools/usr/bin/qemu-nbd --persistent --shared=4 --socket="$work/socket" --image-opts \
    "driver=raw,file.driver=blkdebug,file.config=$work/rules,file.image.driver=file,file.image.filename=$work/image" \
    2>log &
server=$!
for ((n = 0; n < 100; n++)); do
    [[ -S socket ]] && break
    sleep 0.1
done
seen=$(/usr/bin/python3.11 read.py "nbd+unix:///?socket=$work/socket")
echo "the unreadable block, then a readable one: $seen"
[[ $seen == "structured: closed closed | with DF: EIO data | simple: EIO data" ]]
