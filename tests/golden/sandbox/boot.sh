# Sets up the current namespaces as the host $1 and keeps them alive.
set -e
mount --bind '/var/lib/echelon/sandbox/demo/hosts' /etc/hosts
# A job submitted with --export=NONE has no SLURM_CONF and reads /etc/slurm, as on a real cluster.
[ ! -d /etc/slurm ] || mount --bind '/var/lib/echelon/sandbox/demo/etc' /etc/slurm
mount -t tmpfs tmpfs /dev/shm
hostname "$1"
ip link set lo up
touch '/var/lib/echelon/sandbox/demo/run'/"$1.booted"
# This shell is process 1 of a node: it also has to reap orphaned processes.
sleep infinity &
wait
