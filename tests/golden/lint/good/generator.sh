#!/bin/bash
# Queues one job per learning rate.
mkdir -p logs
for lr in 0.1 0.01; do
    cat > "job-$lr.sh" <<EOF
#!/bin/bash
#SBATCH --job-name=sweep-$lr
#SBATCH --gres=gpu:1
python train.py --lr $lr
EOF
    sbatch "job-$lr.sh"
done
