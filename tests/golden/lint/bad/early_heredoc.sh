#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --exclusive
export MASTER_ADDR=$(hostname) MASTER_PORT=29500
cat <<EOF > task.sh
#!/bin/bash
export RANK=$SLURM_PROCID  # expect: E308
python train.py
EOF
srun bash task.sh
