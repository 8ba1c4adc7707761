#!/bin/bash
# Made by: echelon script --style spawn train.py --epochs 14 --note 'it'"'"'s a test'
#SBATCH --job-name=train
#SBATCH --partition=gpu
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:a100:4
#SBATCH --cpus-per-task=128
#SBATCH --mem=64G
#SBATCH --time=02:00:00
#SBATCH --output=%x-%j.out

# --- environment
if ! module load cuda/12.4; then
    echo 'cannot load the environment modules cuda/12.4' "on $(hostname); list them with: module avail" >&2
    exit 1
fi
source /home/ada/venv/bin/activate || exit 1
export NCCL_DEBUG=INFO
export DATA_DIR='/data/tiny imagenet'
export OMP_NUM_THREADS=16
# Slurm 22.05 to 23.02 does not pass this to srun.
export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"
python=python3

# --- rendezvous
# This script runs on the first node, and so will rank 0. Use the address of the interface that
# leads to the last node: host names may not resolve, and there may be several interfaces.
peer=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | tail -n 1)
PEER_ADDR=$(scontrol show node "$peer" | sed -n 's/.*NodeAddr=\([^ ]*\).*/\1/p')
if [ -z "$PEER_ADDR" ]; then
    echo "scontrol shows no address for the node '$peer'" >&2
    exit 1
fi
address_towards() {
    "$python" -c 'import socket, sys
probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
probe.connect((sys.argv[1], 9))  # sends nothing
print(probe.getsockname()[0])' "$1"
}
if [ "$SLURM_JOB_NUM_NODES" -gt 1 ]; then
    MASTER_ADDR=$(address_towards "$PEER_ADDR")
else
    MASTER_ADDR=127.0.0.1 PEER_ADDR=127.0.0.1
fi
export MASTER_ADDR PEER_ADDR
export -f address_towards
free_port() {
    "$python" -c 'import socket
probe = socket.socket()
probe.bind(("", 0))
print(probe.getsockname()[1])'
}
scratch=$(mktemp -d) || scratch=$(TMPDIR=/tmp mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
export PORT_TAKEN="$scratch/port-taken"

# Every task runs this before it becomes the script that spawns its node's ranks.
task=$(cat <<'TASK'
# gloo and NCCL need the interface to the other nodes; host names may resolve to another one.
if [ "$SLURM_NODEID" = 0 ]; then towards=$PEER_ADDR; else towards=$MASTER_ADDR; fi
interface=$(ip -o route get "$towards" 2>/dev/null | sed -n 's/.* dev \([^ ]*\).*/\1/p')
if [ -n "$interface" ]; then
    export GLOO_SOCKET_IFNAME="${GLOO_SOCKET_IFNAME:-$interface}"
    export NCCL_SOCKET_IFNAME="${NCCL_SOCKET_IFNAME:-$interface}"
fi
# The script starts the ranks itself; these variables give the node and the number of ranks.
export NODE_RANK=$SLURM_NODEID LOCAL_WORLD_SIZE=4
trap : USR1 USR2 HUP  # for the rank, not for this shell
ended=
trap ended=1 TERM
if [ "$SLURM_PROCID" = 0 ]; then
    # The first task listens on the port. If another process took it, the batch script tries
    # another.
    "$@" 2> >(tee "$PORT_TAKEN.stderr" >&2)
    code=$?
    wait
    taken="port: $MASTER_PORT,.*EADDRINUSE"
    if [ $code != 0 ] && [ $SECONDS -lt 600 ] && grep -q "$taken" "$PORT_TAKEN.stderr"; then
        touch "$PORT_TAKEN"
    fi
else
    "$@"
    code=$?
fi
# When a rank has failed, srun ends the others with SIGTERM, and then exits with the highest code.
# That must not be theirs, which is mostly 143.
if [ "$ended" ] && [ $code -gt 128 ]; then code=1; fi
exit $code
TASK
)

# --- start
export python
start_ranks() {
    srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$((SLURM_JOB_NUM_NODES * 1))" \
    --ntasks-per-node=1 --overlap --kill-on-bad-exit=1 \
    bash -c "$task" bash "$python" train.py --epochs 14 --note 'it'"'"'s a test'
}
for try in 1 2 3 4 5; do
    MASTER_PORT=$(free_port)
    export MASTER_PORT
    code=0
    start_ranks || code=$?
    if [ ! -e "$PORT_TAKEN" ]; then break; fi
    rm -f "$PORT_TAKEN"
    echo "port $MASTER_PORT is already in use: trying another" >&2
done
exit "$code"
