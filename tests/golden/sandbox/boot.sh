# Turns the namespaces it runs in into the host $1, then holds them.
set -e
mount --bind '/var/lib/echelon/sandbox/demo/hosts' /etc/hosts
# A job submitted with --export=NONE has no SLURM_CONF: it must find its cluster as on a real one.
[ ! -d /etc/slurm ] || mount --bind '/var/lib/echelon/sandbox/demo/etc' /etc/slurm
mount -t tmpfs tmpfs /dev/shm
hostname "$1"
ip link set lo up
touch '/var/lib/echelon/sandbox/demo/run'/"$1.booted"
# As process 1 of a node it also has to collect whatever is left without a parent.
sleep infinity &
wait
