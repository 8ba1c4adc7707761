"""Descriptions of environment variables for docs/reference/environment.md.

The names of the variables, for ranks and for Echelon itself, come from the code. Tests check that
neither side has a name that the other lacks.
"""

USERS = {
    "ECHELON_RUNS_DIR": "where runs are kept, as `--runs-dir` says; `runs` in the folder one is in",
    "ECHELON_CONFIG": "the project file, as `--config` names it; else one is searched for",
    "ECHELON_DEBUG": "`1`: a traceback with every error, as `--debug`",
    "ECHELON_SHARE_GPU": "`1`, for tests: ranks that share a GPU use NCCL (2.30 or newer)",
    "ECHELON_SSH": "the ssh command for `host` and `--host`, such as `ssh -F FILE`; `ssh`",
    "ECHELON_SANDBOX_DIR": "where sandboxes are kept: a short path of letters, digits, `._-`",
    "XDG_CONFIG_HOME": "its `echelon/config.toml` is read before a project's; `~/.config`",
    "XDG_STATE_HOME": "its `echelon/` keeps which nodes are bad, which scripts you have submitted, "
    "which Ray addresses you gave and which runs are on other hosts; `~/.local/state`",
    "VIRTUAL_ENV": "the Python of ranks, where the request names none",
    "CONDA_PREFIX": "likewise",
    "CONDA_EXE": "the conda with which `--conda` activates; conda itself sets it",
    "SHELL": "what `echelon sandbox shell` starts",
}
"""Set by users, read by the `echelon` command."""

RANKS = {
    "RANK": "which rank it is, of all",
    "LOCAL_RANK": "which one on its node",
    "WORLD_SIZE": "how many ranks there are",
    "LOCAL_WORLD_SIZE": "how many on its node",
    "GROUP_RANK": "which node it is on, counted from 0",
    "GROUP_WORLD_SIZE": "how many nodes take part",
    "ROLE_RANK": "as `RANK`",
    "ROLE_WORLD_SIZE": "as `WORLD_SIZE`",
    "ROLE_NAME": "`default`",
    "MASTER_ADDR": "the address at which ranks meet; one that every node has reached",
    "MASTER_PORT": "the port; a new one for each set of ranks",
    "TORCHELASTIC_RUN_ID": "the run's id",
    "TORCHELASTIC_RESTART_COUNT": "how many sets of ranks were before, as `ECHELON_GENERATION`",
    "TORCHELASTIC_MAX_RESTARTS": "what `--restarts` says, or its default for the script",
    "TORCHELASTIC_USE_AGENT_STORE": (
        "`True` where the store is served already, and rank 0 need not listen"
    ),
    "TORCHELASTIC_ERROR_FILE": "where the record of an exception goes",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "`1`, unless it is set",
    "OMP_NUM_THREADS": "half of a rank's CPUs, unless it is set",
    "PYTHONUNBUFFERED": "`1`, unless it is set: what was printed before a crash is not lost",
    "GLOO_SOCKET_IFNAME": "the interface of `MASTER_ADDR`, unless it is set",
    "NCCL_SOCKET_IFNAME": "likewise",
    "ECHELON_RUN_DIR": "the run's directory",
    "ECHELON_TRACKER_ID": "the run's name for trackers: the same in all its jobs and restarts",
    "WANDB_RUN_ID": "the same, on rank 0 alone, unless it is set: W&B continues one curve",
    "WANDB_RESUME": "`allow`, likewise",
    "MLFLOW_RUN_ID": "the run in MLflow, likewise, once an integration or the Trainer has kept it",
    "ECHELON_LAST_SAVED": "step and path of the newest checkpoint that the script has reported; "
    "empty if there is none: `echelon.last_saved()` reads it",
    "ECHELON_GENERATION": "which set of ranks this is, counted from 0 in each job",
    "ECHELON_BEACON": "the file through which a rank of the library and its agent speak",
    "SLURM_PROCID": "as `RANK`",
    "SLURM_LOCALID": "as `LOCAL_RANK`",
    "SLURM_NODEID": "as `GROUP_RANK`",
    "SLURM_NTASKS": "as `WORLD_SIZE`",
    "SLURM_NPROCS": "as `WORLD_SIZE`",
    "SLURM_NTASKS_PER_NODE": "as `LOCAL_WORLD_SIZE`",
    "SLURM_TASKS_PER_NODE": "ranks per node, in Slurm's way of writing it",
    "SLURM_CPUS_PER_TASK": "CPUs per rank, where the request has `cpus_per_task`",
    "SLURM_TRES_PER_TASK": "the same, as newer versions of Slurm write it: `cpu=4`",
    "SLURM_NNODES": "as `GROUP_WORLD_SIZE`",
    "SLURM_STEP_NUM_TASKS": "as `WORLD_SIZE`",
    "SLURM_STEP_NUM_NODES": "as `GROUP_WORLD_SIZE`",
    "SLURM_STEP_TASKS_PER_NODE": "as `SLURM_TASKS_PER_NODE`",
}
"""Set for ranks in the style `echelon`; Slurm's only in a job."""

STYLES = {
    "ECHELON_INIT_METHOD": "in the style `file`: the address of the file in which ranks meet",
}
"""Additionally set for ranks in the plain styles."""

COMMANDS = {
    "ECHELON_RUN": "`--notify`: the run's id",
    "ECHELON_STATE": "`--notify`: `COMPLETED`, `FAILED`, `CANCELLED`, `TIMEOUT`, `PREEMPTED`",
    "ECHELON_REASON": "`--notify`: why, in one line; empty when it completed",
    "ECHELON_NODE": "`--node-check`: which node it is, counted from 0",
}
"""Set for commands of the user that Echelon runs."""

PRIVATE = {
    "ECHELON_SANDBOX": "marks the processes of a sandbox",
}
"""Set for Echelon's own processes, besides those in protocol/rank_environment.py; internal."""
