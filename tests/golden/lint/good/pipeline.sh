#!/bin/bash
#SBATCH --ntasks=1
#SBATCH --output=/scratch/ada/logs/%x.%j
set -euo pipefail
for sample in data/*.fastq.gz; do
    name=$(basename "$sample" .fastq.gz)
    zcat "$sample" | head -n 4000 | wc -l
    bwa mem ref.fa "$sample" | samtools sort -o "$name.bam" -
done
python summarise.py *.bam > summary.tsv
