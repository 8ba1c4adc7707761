"""What every rank sees: torchrun's variables, and Slurm's rewritten to be the rank's own."""

import io
from dataclasses import replace
from pathlib import Path

import pytest

from echelon.errors import UsageError
from echelon.launch.protocol.messages import Start
from echelon.launch.protocol.rank_environment import (
    KEY_SIZE,
    PRIVATE,
    common_environment,
    rank_environment,
    rank_files,
    receive_key,
    render_key,
)

FILES = rank_files(Path("/run/logs/1.2/rank-00005.log"), Path("/dev/shm/e"), 5)  # noqa: S108
START = Start(
    generation=2,
    node_rank=1,
    nodes=2,
    first_rank=4,
    count=4,
    world_size=8,
    address="10.0.0.1",
    port=4711,
    served=True,
)


def common_variables(*, cpus=0, **environ):
    return common_environment(
        environ,
        run_id="x",
        run_dir=Path("/runs/x"),
        threads=2,
        cpus=cpus,
        restarts=3,
        tracker="x-ab12",
    )


def rank_variables(start=START, interface="eth0", **environ):
    return rank_environment(start, 1, FILES, interface=interface, environ=environ)


def test_the_files_of_a_rank_lie_beside_its_log():
    assert FILES.error == Path("/run/logs/1.2/rank-00005.error.json")
    assert FILES.stacks == Path("/run/logs/1.2/rank-00005.stacks")
    assert FILES.rank_shm == Path("/dev/shm/e/beacon-5")  # noqa: S108


def test_what_all_ranks_of_a_node_share():
    assert common_variables(HOME="/root") == {
        "HOME": "/root",
        "OMP_NUM_THREADS": "2",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "PYTHONUNBUFFERED": "1",
        "ECHELON_RUN_DIR": "/runs/x",
        "ROLE_NAME": "default",
        "TORCHELASTIC_RUN_ID": "x",
        "TORCHELASTIC_MAX_RESTARTS": "3",
        "ECHELON_TRACKER_ID": "x-ab12",
    }


def test_the_users_own_choice_stands_where_it_is_his():
    assert common_variables(OMP_NUM_THREADS="9")["OMP_NUM_THREADS"] == "9"
    assert common_variables(ROLE_NAME="mine", ECHELON_RUN_DIR="/else")["ROLE_NAME"] == "default"


def test_no_rank_sees_what_is_between_our_own_processes():
    found = common_variables(**dict.fromkeys(PRIVATE, "secret"))
    assert "secret" not in found.values()


@pytest.mark.parametrize("said", [b"", b"\n", b"00\n", b"k" * 64 + b"\n", b"\xff" * 64])
def test_what_is_no_key_is_refused(said):
    with pytest.raises(UsageError, match="the key of the run is missing"):
        receive_key(io.BytesIO(said))


def test_a_key_is_read_and_nothing_beyond_it():
    key = bytes(range(KEY_SIZE))
    stdin = io.BytesIO(render_key(key) + b"more")
    assert receive_key(stdin) == key
    assert stdin.read() == b"more"


def test_what_is_a_ranks_own():
    assert rank_variables() == {
        "RANK": "5",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "8",
        "LOCAL_WORLD_SIZE": "4",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_RANK": "5",
        "ROLE_WORLD_SIZE": "8",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "4711",
        "TORCHELASTIC_RESTART_COUNT": "2",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_ERROR_FILE": "/run/logs/1.2/rank-00005.error.json",
        "ECHELON_GENERATION": "2",
        "ECHELON_LAST_SAVED": "",
        "ECHELON_BEACON": str(FILES.rank_shm),
        "GLOO_SOCKET_IFNAME": "eth0",
        "NCCL_SOCKET_IFNAME": "eth0",
    }


def test_where_no_store_is_served_the_first_rank_opens_its_own():
    assert rank_variables(replace(START, served=False))["TORCHELASTIC_USE_AGENT_STORE"] == "False"


def test_interfaces_are_the_users_if_he_named_one_and_nobodys_if_none_is_known():
    assert rank_variables(NCCL_SOCKET_IFNAME="ib0")["NCCL_SOCKET_IFNAME"] == "ib0"
    assert rank_variables(NCCL_SOCKET_IFNAME="ib0")["GLOO_SOCKET_IFNAME"] == "eth0"
    assert "GLOO_SOCKET_IFNAME" not in rank_variables(interface="")


def test_in_a_job_slurms_variables_are_the_ranks_own():
    found = rank_variables(SLURM_JOB_ID="42", SLURM_PROCID="1", SLURM_NTASKS="2")
    slurms = {name: value for name, value in found.items() if name.startswith("SLURM")}
    assert slurms == {
        "SLURM_PROCID": "5",
        "SLURM_LOCALID": "1",
        "SLURM_NODEID": "1",
        "SLURM_NTASKS": "8",
        "SLURM_NPROCS": "8",
        "SLURM_NTASKS_PER_NODE": "4",
        "SLURM_TASKS_PER_NODE": "4(x2)",
        "SLURM_NNODES": "2",
        "SLURM_STEP_NUM_TASKS": "8",
        "SLURM_STEP_NUM_NODES": "2",
        "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
    }


def test_in_a_job_a_rank_knows_how_many_cpus_were_asked_for_it():
    """Scripts size their loaders by it, and without it end with a KeyError."""
    told = common_variables(cpus=4, SLURM_JOB_ID="42")
    assert (told["SLURM_CPUS_PER_TASK"], told["SLURM_TRES_PER_TASK"]) == ("4", "cpu=4")
    assert "SLURM_CPUS_PER_TASK" not in common_variables(SLURM_JOB_ID="42")
    assert "SLURM_CPUS_PER_TASK" not in common_variables(cpus=4)


def test_only_the_first_rank_continues_the_run_of_a_tracker():
    first = replace(START, first_rank=0)
    tracker = {"ECHELON_TRACKER_ID": "x-ab12"}
    zero = rank_environment(first, 0, FILES, interface="", environ=tracker)
    assert (zero["WANDB_RUN_ID"], zero["WANDB_RESUME"]) == ("x-ab12", "allow")
    one = rank_environment(first, 1, FILES, interface="", environ=tracker)
    assert not [name for name in one if name.startswith("WANDB")]
    own = {**tracker, "WANDB_RUN_ID": "mine"}  # the user's
    zero = rank_environment(first, 0, FILES, interface="", environ=own)
    assert not [name for name in zero if name.startswith("WANDB")]


def test_only_the_first_rank_continues_the_run_in_mlflow():
    first = replace(START, first_rank=0)
    common = {"ECHELON_TRACKER_ID": "x-ab12"}

    def told(rank=0, mlflow="f00d", **own):
        environ = {**common, **own}
        found = rank_environment(first, rank, FILES, interface="", environ=environ, mlflow=mlflow)
        return found.get("MLFLOW_RUN_ID")

    assert told() == "f00d"
    assert told(rank=1) is None
    assert told(mlflow="") is None
    assert told(MLFLOW_RUN_ID="mine") is None  # the user's
