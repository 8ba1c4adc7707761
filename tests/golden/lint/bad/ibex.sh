#!/bin/bash

#SBATCH --gpus=4
#SBATCH --gpus-per-node=2
#SBATCH --constraint=v100
#SBATCH --ntasks=2
#SBATCH --tasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --time=00:10:00

source /ibex/user/$USER/miniconda3/bin/activate torch
export NCCL_DEBUG=INFO
export PYTHONFAULTHANDLER=1
nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
nodes_array=($nodes)
first="${nodes_array[0]}"
ip=$(srun -n 1 -N 1 --gpus=1 -w ${first} /bin/hostname -I | cut -d " " -f 2)
port=$(python -c 'import socket; s=socket.socket(); s.bind(("", 0)); print(s.getsockname()[1]); s.close()')
export OMP_NUM_THREADS=1
for (( i=0; i< ${SLURM_NNODES}; i++ ))
do
    srun -n 1 -N 1 -c ${SLURM_CPUS_PER_TASK} -w ${nodes_array[i]} --gpus=${SLURM_GPUS_PER_NODE}  \
    python -m torch.distributed.launch --use_env \
    --nproc_per_node=${SLURM_GPUS_PER_NODE} --nnodes=${SLURM_NNODES} --node_rank=${i} \
    --master_addr=${ip} --master_port=${port} \
    ibex_ddp.py --epochs=10 --num-workers=${SLURM_CPUS_PER_TASK} --batch-size=64 &
done
wait
# expect E507 at line 22 of ibex.sh
