# Number of nodes  # expect: E101
#SBATCH --nodes=3

#SBATCH --ntasks=3
#SBATCH --gres=gpu:4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-gpu=4
# 16Go per node
#SBATCH --mem=16Go  # expect: E104
#SBATCH --wait-all-nodes=1

ADDRESS=$(hostname)
WORLD_SIZE=$SLURM_JOB_NUM_NODES
srun -l torchrun \
    --nproc_per_node=$SLURM_GPUS_PER_NODE\
    --nnodes=$WORLD_SIZE\
    --rdzv_id=$SLURM_JOB_ID\
    --rdzv_backend=c10d\
    --rdzv_endpoint=$ADDRESS\
    mila_training.py
