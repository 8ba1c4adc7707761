#!/bin/bash
# Made by: echelon script --style file train.py --epochs 14 --note 'it'"'"'s a test'
#SBATCH --job-name=train
#SBATCH --partition=gpu
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gres=gpu:a100:4
#SBATCH --cpus-per-task=32
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
# A file in the directory of the job, which all nodes share. Each attempt gets a new one, because
# ranks could join those of an earlier attempt through a stale file.
PEER_ADDR=$(scontrol show node "$(scontrol show hostnames "$SLURM_JOB_NODELIST" | tail -n 1)" |
    sed -n 's/.*NodeAddr=\([^ ]*\).*/\1/p')
MASTER_ADDR=$(scontrol show node "$SLURMD_NODENAME" | sed -n 's/.*NodeAddr=\([^ ]*\).*/\1/p')
export MASTER_ADDR PEER_ADDR
DIST_FILE=$(mktemp -u "$PWD/.rendezvous-$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}-XXXXXX")
trap 'rm -f "$DIST_FILE"' EXIT
export DIST_FILE ECHELON_INIT_METHOD="file://$DIST_FILE"

# Every task runs this before it becomes a rank.
task=$(cat <<'TASK'
# gloo and NCCL need the interface to the other nodes; host names may resolve to another one.
if [ "$SLURM_NODEID" = 0 ]; then towards=$PEER_ADDR; else towards=$MASTER_ADDR; fi
interface=$(ip -o route get "$towards" 2>/dev/null | sed -n 's/.* dev \([^ ]*\).*/\1/p')
if [ -n "$interface" ]; then
    export GLOO_SOCKET_IFNAME="${GLOO_SOCKET_IFNAME:-$interface}"
    export NCCL_SOCKET_IFNAME="${NCCL_SOCKET_IFNAME:-$interface}"
fi
export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS
export GROUP_RANK=$SLURM_NODEID GROUP_WORLD_SIZE=$SLURM_NNODES
export LOCAL_WORLD_SIZE=4
trap : USR1 USR2 HUP  # for the rank, not for this shell
ended=
trap ended=1 TERM
"$@"
code=$?
# When a rank has failed, srun ends the others with SIGTERM, and then exits with the highest code.
# That must not be theirs, which is mostly 143.
if [ "$ended" ] && [ $code -gt 128 ]; then code=1; fi
exit $code
TASK
)

# --- start
srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$((SLURM_JOB_NUM_NODES * 4))" \
    --ntasks-per-node=4 --overlap --kill-on-bad-exit=1 \
    bash -c "$task" bash "$python" train.py --epochs 14 --note 'it'"'"'s a test'
