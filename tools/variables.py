"""Descriptions of environment variables for docs/reference/environment.md.

The names of the variables, for ranks and for Echelon itself, come from the code. Tests check that
neither side has a name that the other lacks.
"""

USERS = {
    "ECHELON_RUNS_DIR": "directory of runs, as with `--runs-dir` [default: `runs`]",
    "ECHELON_CONFIG": "project file to use, as with `--config`; replaces the search",
    "ECHELON_DEBUG": "`1` shows a traceback with every error, as `--debug` does",
    "ECHELON_SHARE_GPU": "`1` lets ranks that share a GPU use NCCL 2.30 or newer, for tests",
    "ECHELON_SSH": "ssh command for `host` and `--host`, such as `ssh -F FILE` [default: `ssh`]",
    "ECHELON_SANDBOX_DIR": "directory of sandboxes: a short path of letters, digits, `.`, `_`, `-` "
    "and `/`",
    "XDG_CONFIG_HOME": "the user's settings are in `echelon/config.toml` there "
    "[default: `~/.config`]",
    "XDG_STATE_HOME": "`echelon/` there holds the lists of bad nodes, submitted scripts, Ray "
    "addresses and runs on other hosts [default: `~/.local/state`]",
    "VIRTUAL_ENV": "the active virtual environment: its Python runs the ranks if the request names "
    "none",
    "CONDA_PREFIX": "the active conda environment, likewise",
    "CONDA_EXE": "the `conda` that `--conda` uses; conda sets it",
    "SHELL": "the shell that `echelon sandbox shell` starts",
}
"""Set by users, read by the `echelon` command."""

RANKS = {
    "RANK": "global rank",
    "LOCAL_RANK": "rank on its node",
    "WORLD_SIZE": "number of ranks",
    "LOCAL_WORLD_SIZE": "number of ranks on the node",
    "GROUP_RANK": "index of the node, counted from 0",
    "GROUP_WORLD_SIZE": "number of nodes with ranks",
    "ROLE_RANK": "same as `RANK`",
    "ROLE_WORLD_SIZE": "same as `WORLD_SIZE`",
    "ROLE_NAME": "`default`",
    "MASTER_ADDR": "address for the rendezvous of the ranks; every node has connected to it",
    "MASTER_PORT": "port for the rendezvous; each generation of ranks has a new one",
    "TORCHELASTIC_RUN_ID": "id of the run",
    "TORCHELASTIC_RESTART_COUNT": "number of earlier generations, as `ECHELON_GENERATION`",
    "TORCHELASTIC_MAX_RESTARTS": "value of `--restarts`, or its default for the script",
    "TORCHELASTIC_USE_AGENT_STORE": "`True` if the store is served already, so rank 0 starts none",
    "TORCHELASTIC_ERROR_FILE": "file for the record of an exception",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "`1`, unless you set it",
    "OMP_NUM_THREADS": "half of the rank's CPUs, unless you set it",
    "PYTHONUNBUFFERED": "`1`, unless you set it, so that output before a crash is not lost",
    "GLOO_SOCKET_IFNAME": "network interface of `MASTER_ADDR`, unless you set it",
    "NCCL_SOCKET_IFNAME": "network interface of `MASTER_ADDR`, unless you set it",
    "ECHELON_RUN_DIR": "directory of the run",
    "ECHELON_TRACKER_ID": "id of the run for trackers; the same in all its jobs and restarts",
    "WANDB_RUN_ID": "on rank 0 only: the same id, unless you set it, so that W&B continues the run",
    "WANDB_RESUME": "on rank 0 only: `allow`, unless you set it",
    "MLFLOW_RUN_ID": "on rank 0 only: id of the run in MLflow, unless you set it; once an "
    "integration or the Trainer has recorded it",
    "ECHELON_LAST_SAVED": "step and path of the newest checkpoint that the script reported, for "
    "`echelon.last_saved()`; empty if there is none",
    "ECHELON_GENERATION": "number of the generation of ranks, counted from 0 in each job",
    "ECHELON_BEACON": "file through which the library and the node's agent exchange progress",
    "SLURM_PROCID": "same as `RANK`",
    "SLURM_LOCALID": "same as `LOCAL_RANK`",
    "SLURM_NODEID": "same as `GROUP_RANK`",
    "SLURM_NTASKS": "same as `WORLD_SIZE`",
    "SLURM_NPROCS": "same as `WORLD_SIZE`",
    "SLURM_NTASKS_PER_NODE": "same as `LOCAL_WORLD_SIZE`",
    "SLURM_TASKS_PER_NODE": "ranks per node, in Slurm's notation: `4(x2)`",
    "SLURM_CPUS_PER_TASK": "CPUs per rank, if the request sets `cpus_per_task`",
    "SLURM_TRES_PER_TASK": "the same in the notation of newer Slurm versions: `cpu=4`",
    "SLURM_NNODES": "same as `GROUP_WORLD_SIZE`",
    "SLURM_STEP_NUM_TASKS": "same as `WORLD_SIZE`",
    "SLURM_STEP_NUM_NODES": "same as `GROUP_WORLD_SIZE`",
    "SLURM_STEP_TASKS_PER_NODE": "same as `SLURM_TASKS_PER_NODE`",
}
"""Set for ranks in the style `echelon`; Slurm's only in a job."""

STYLES = {
    "ECHELON_INIT_METHOD": "with the style `file`: address of the file for the rendezvous of the "
    "ranks",
}
"""Additionally set for ranks in the plain styles."""

COMMANDS = {
    "ECHELON_RUN": "`--notify`: id of the run",
    "ECHELON_STATE": "`--notify`: `COMPLETED`, `FAILED`, `CANCELLED`, `TIMEOUT` or `PREEMPTED`",
    "ECHELON_REASON": "`--notify`: the reason in one line; empty if the run completed",
    "ECHELON_NODE": "`--node-check`: index of the node, counted from 0",
}
"""Set for commands of the user that Echelon runs."""

PRIVATE = {
    "ECHELON_SANDBOX": "marks the processes of a sandbox",
}
"""Set for Echelon's own processes, besides those in protocol/rank_environment.py; internal."""
