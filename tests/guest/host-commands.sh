# The kernel as host: digests, discard, write zeroes, compare, resize, large and odd transfers.
# vm: --cpus 4
. ./lib.sh
. ./host.sh
load_host
target <<EOF
nqn = "$nqn"
[[namespace]]
backend = "mem:128MiB"
size = "64MiB"
[[namespace]]
backend = "mem:64MiB"
block_size = 512
[[port]]
listen = "127.0.0.1:4420"
[[port]]
listen = "127.0.0.1:4421"
EOF
dd if=/dev/urandom of=/tmp/random bs=1M count=8 2>/dev/null
for digests in "" --hdr-digest --data-digest "--hdr-digest --data-digest"; do
    tag=$(echo "plain$digests" | tr -d ' -')
    check "connect_$tag" connect 4420 $digests
    for nsid in 1 2; do
        reaches "disk_${tag}_$nsid" 60 disk "$nsid"
        disk=$(disk "$nsid")
        check "write_${tag}_$nsid" dd if=/tmp/random of="/dev/$disk" bs=1M oflag=direct
        # The guest's page cache must not answer for the target.
        check "read_${tag}_$nsid" sh -c \
            "dd if=/dev/$disk bs=1M count=8 iflag=direct 2>/dev/null | cmp - /tmp/random"
        [ "$nsid" = 2 ] || check "fio_$tag" fio --name=v --filename="/dev/$disk" --direct=1 --rw=randrw \
            --bsrange=4k-1m --ioengine=libaio --iodepth=32 --size=8m --offset=16m --verify=crc32c \
            --verify_fatal=1 --eta=never --output=/tmp/fio.out

        dd if=/tmp/random of="/dev/$disk" bs=1M count=4 oflag=direct 2>/dev/null
        zeroes_and_discards "/dev/$disk" "/dev/$disk" "${tag}_$nsid"
        check "flush_${tag}_$nsid" nvme flush "/dev/$disk"
    done
    check "disconnect_$tag" nvme disconnect -n "$nqn"
done

# Without SQ flow control, with queues for polling, small queues, and more queues than are granted.
for options in "--disable-sqflow" "--nr-poll-queues=1 --nr-write-queues=1" "--queue-size=16" "--nr-io-queues=64"; do
    tag=$(echo "$options" | tr -d ' =-')
    check "connect_$tag" connect 4420 $options
    reaches "disk_$tag" 60 disk 1
    disk=$(disk 1)
    check "fio_$tag" fio --name=v --filename="/dev/$disk" --direct=1 --rw=randrw --bsrange=4k-256k \
        --ioengine=libaio --iodepth=32 --size=8m --verify=crc32c --verify_fatal=1 --eta=never \
        --output=/tmp/fio.out
    check "disconnect_$tag" nvme disconnect -n "$nqn"
done

check connect connect 4420
check connect_2 connect 4421
reaches disk 60 disk 1
disk=$(disk 1)
c0=$(controller 4420)
head -c 4096 /tmp/random >/tmp/block
head -c 4096 /dev/zero >/tmp/zeroes
check nvme_write nvme write "/dev/$disk" -s 5 -c 0 -z 4096 -d /tmp/block
check compare_same nvme compare "/dev/$disk" -s 5 -c 0 -z 4096 -d /tmp/block
refused compare_other nvme compare "/dev/$disk" -s 5 -c 0 -z 4096 -d /tmp/zeroes
check compare_failure_named sh -c \
    "nvme compare /dev/$disk -s 5 -c 0 -z 4096 -d /tmp/zeroes 2>&1 | grep -i 'compare failure'"
check nvme_write_zeroes nvme write-zeroes "/dev/$disk" -s 5 -c 0
check zeroes_compare nvme compare "/dev/$disk" -s 5 -c 0 -z 4096 -d /tmp/zeroes
check dsm nvme dsm "/dev/$disk" -n 1 -d -s 5,9 -b 1,2
refused beyond_the_end nvme read "/dev/$disk" -s 16384 -c 0 -z 4096
refused across_the_end nvme read "/dev/$disk" -s 16383 -c 1 -z 8192
refused write_uncorrectable nvme write-uncor "/dev/$disk" -s 5 -c 0
refused verify nvme verify "/dev/$disk" -s 5 -c 0
refused copy nvme copy "/dev/$disk" -d 1 -s 5 -b 0
refused reservations nvme resv-report "/dev/$disk" -n 1
refused unknown_io nvme io-passthru "/dev/$disk" -O 0x7f -n 1
refused unknown_admin nvme admin-passthru "/dev/$c0" -O 0x3f
refused format nvme format "/dev/$disk" -n 1 -f
refused create_namespace nvme create-ns "/dev/$c0" -s 16 -c 16
refused firmware nvme fw-commit "/dev/$c0" -s 1 -a 1
refused self_test nvme device-self-test "/dev/$c0" -s 1
refused sanitize nvme sanitize "/dev/$c0" -a 2
refused subsystem_reset nvme subsystem-reset "/dev/$c0"
refused directives nvme dir-receive "/dev/$c0" -n 1 -D 0 -O 1 -H
check still_live is_live "$c0"
check still_reads nvme read "/dev/$disk" -s 0 -c 0 -z 4096 -d /tmp/out

# Grow, then shrink: the kernel hears of it by an event.
size_is() { [ "$(cat /sys/block/"$disk"/size)" = "$1" ]; }
check grow braid target resize --socket "$socket" 1 128MiB
reaches grown 60 size_is 262144
check read_grown sh -c "dd if=/dev/$disk of=/dev/null bs=1M skip=100 count=20 iflag=direct"
check shrink braid target resize --socket "$socket" 1 32MiB
reaches shrunk 60 size_is 65536
refused read_shrunk nvme read "/dev/$disk" -s 8192 -c 0 -z 4096
# Ports with an error for every write say it, and the kernel tells the program.
for port in 1 2; do
    shape --port "$port" error=media-write:dnr:op=write >/dev/null
done
refused media_error dd if=/tmp/random of="/dev/$disk" bs=4096 count=1 oflag=direct
finish
