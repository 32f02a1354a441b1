# The guest itself: kernel, modules, our program.
. ./lib.sh
check kernel_is_known grep -q '^6[.]12[.]\|^6[.]1[.]0-' /proc/sys/kernel/osrelease
check braid_starts braid --version
for module in nvme-tcp nvmet-tcp brd null_blk ext4 sch_netem nbd; do
    check "module_$module" modprobe "$module"
done
finish
