#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --exclusive
export MASTER_ADDR=$(hostname) MASTER_PORT=29500
cat > node_run.sh <<'EOF'
#!/bin/bash
export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS
python ddp.py
EOF
chmod +x node_run.sh
srun ./node_run.sh
