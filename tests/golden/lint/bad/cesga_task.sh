#!/bin/bash
module load miniconda3
source $STORE/torch/bin/activate
python cesga_mnist.py --epochs=2
