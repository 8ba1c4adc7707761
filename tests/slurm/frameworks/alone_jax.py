"""Trains with JAX, without Echelon's library: alone_jax.py STEPS PACE_S [SAVE_EVERY]."""

import os
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.multihost_utils import process_allgather

STEPS, PACE_S = int(sys.argv[1]), float(sys.argv[2])
SAVE_EVERY = int(sys.argv[3]) if sys.argv[3:] else 5
CHECKPOINT = Path("checkpoint.npz")

# The port itself belongs to the launcher's store, also under torchrun.
port = int(os.environ["MASTER_PORT"]) + 1
jax.distributed.initialize(
    f"{os.environ['MASTER_ADDR']}:{port}",
    num_processes=int(os.environ["WORLD_SIZE"]),
    process_id=int(os.environ["RANK"]),
)
weights, first = jnp.zeros(8), 0
if CHECKPOINT.exists():
    saved = np.load(CHECKPOINT)
    weights, first = jnp.asarray(saved["weights"]), int(saved["step"])
gradient = jax.jit(jax.grad(lambda weights, x: jnp.mean((x @ weights - x.sum(1)) ** 2)))
for step in range(first + 1, STEPS + 1):
    time.sleep(PACE_S)
    x = jax.random.normal(jax.random.key(step * 100 + jax.process_index()), (4, 8))
    weights -= 0.1 * process_allgather(gradient(weights, x)).mean(0)
    if jax.process_index() == 0:
        sys.stdout.write(f"step {step}\n")
        sys.stdout.flush()
        if step % SAVE_EVERY == 0:
            with Path("checkpoint.tmp").open("wb") as file:
                np.savez(file, weights=weights, step=step)
            Path("checkpoint.tmp").replace(CHECKPOINT)
if jax.process_index() == 0:
    Path("trained").write_text(str(step))
