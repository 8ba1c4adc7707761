import pytest

from echelon.errors import UsageError
from echelon.world import World, detect

# As recorded from tasks of `srun --nodes=2 --ntasks-per-node=2` on Slurm 22.05, rank 3.
SRUN = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_NTASKS": "4",
    "SLURM_NPROCS": "4",
    "SLURM_NNODES": "2",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
}
TORCHRUN = {
    "RANK": "5",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "8",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "TORCHELASTIC_RUN_ID": "x",
}


def test_without_a_launcher_there_is_one_rank():
    assert detect({}) == World()


def test_the_place_of_a_rank_under_torchrun_is_read_from_its_variables():
    assert detect(TORCHRUN) == World(
        rank=5,
        local_rank=1,
        node_rank=1,
        world_size=8,
        local_world_size=4,
        nodes=2,
        source="torchrun",
    )


def test_the_place_of_an_srun_task_is_read_from_slurms_variables():
    assert detect(SRUN) == World(
        rank=3,
        local_rank=1,
        node_rank=1,
        world_size=4,
        local_world_size=2,
        nodes=2,
        source="slurm",
    )


def test_torchrun_inside_an_srun_step_is_torchruns():
    """The agent is one task; its workers inherit the task's variables."""
    world = detect({**SRUN, **TORCHRUN, "SLURM_PROCID": "0"})
    assert (world.source, world.rank) == ("torchrun", 5)


def test_a_wrapper_that_exports_some_of_them_keeps_slurms_place():
    """As in `export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS` before the script."""
    visible = {"CUDA_VISIBLE_DEVICES": "0,1"}
    plain = detect({**SRUN, **visible})
    for exported in ({"RANK": "3", "WORLD_SIZE": "4"}, {"LOCAL_RANK": "1", "WORLD_SIZE": "4"}):
        world = detect({**SRUN, **visible, **exported})
        assert (world.rank, world.local_rank, world.node_rank, world.nodes, world.gpu) == (
            plain.rank,
            plain.local_rank,
            plain.node_rank,
            plain.nodes,
            plain.gpu,
        )


def test_lightnings_children():
    world = detect({"LOCAL_RANK": "2", "NODE_RANK": "0", "WORLD_SIZE": "4"})
    assert (world.source, world.rank, world.local_world_size) == ("lightning", 2, 4)


def test_accelerates_children_have_no_local_world_size():
    world = detect({"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"})
    assert (world.rank, world.local_rank, world.world_size, world.nodes) == (1, 1, 2, 1)


@pytest.mark.parametrize(
    ("visible", "gpu"),
    [("0,1,2,3", 1), ("3", 0), ("GPU-a,GPU-b", 1), ("", None), ("-1", None), ("NoDevFiles", None)],
)
def test_the_gpu_is_counted_among_those_visible(visible, gpu):
    assert detect({**SRUN, "CUDA_VISIBLE_DEVICES": visible}).gpu == gpu


@pytest.mark.parametrize(
    ("per_node", "node", "here"), [("2(x2)", 1, 2), ("3,1", 0, 3), ("3,1", 1, 1), ("4", 0, 4)]
)
def test_nodes_may_have_different_numbers_of_tasks(per_node, node, here):
    environ = {**SRUN, "SLURM_STEP_TASKS_PER_NODE": per_node, "SLURM_NODEID": str(node)}
    assert detect(environ).local_world_size == here


@pytest.mark.parametrize(
    "changes",
    [
        {"SLURM_STEP_ID": ""},  # a batch script
        {"SLURM_STEP_ID": "4294967291"},  # the batch step, by its number
        {"SLURM_STEP_ID": "4294967290"},  # an interactive step of salloc
        {"SLURM_PTY_PORT": "40000"},  # srun --pty
    ],
)
def test_a_shell_in_an_allocation_is_one_process(changes):
    environ = {**SRUN, "SLURM_PROCID": "0", **changes}
    assert detect(environ) == World()


def test_a_spawned_child_is_told_its_local_rank():
    environ = {
        **SRUN,
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
        "SLURM_PROCID": "1",
        "LOCAL_WORLD_SIZE": "4",
    }
    assert detect(environ, local_rank=2) == World(
        rank=6,
        local_rank=2,
        node_rank=1,
        world_size=8,
        local_world_size=4,
        nodes=2,
        source="spawn",
    )


def test_a_spawned_child_counts_the_gpus_it_sees():
    world = detect({"CUDA_VISIBLE_DEVICES": "0,1"}, local_rank=1)
    assert (world.rank, world.world_size, world.gpu) == (1, 2, 1)


@pytest.mark.parametrize(
    ("environ", "local_rank", "words"),
    [
        ({"RANK": "4", "WORLD_SIZE": "4"}, None, ["RANK=4", "WORLD_SIZE=4"]),
        ({"RANK": "x", "WORLD_SIZE": "4"}, None, ["RANK='x'", "not a number"]),
        ({"RANK": "-1", "WORLD_SIZE": "4"}, None, ["RANK='-1'", "not a number"]),
        (
            {**TORCHRUN, "LOCAL_RANK": "4"},
            None,
            ["LOCAL_RANK=4", "LOCAL_WORLD_SIZE=4"],
        ),
        ({**SRUN, "WORLD_SIZE": "8"}, None, ["WORLD_SIZE=8", "SLURM_NTASKS=4"]),
        ({**SRUN, "RANK": "0", "WORLD_SIZE": "4"}, None, ["SLURM_PROCID=3", "RANK=0"]),
        ({**SRUN, "RANK": "0"}, None, ["RANK=0", "SLURM_PROCID=3"]),
        ({**SRUN, "SLURM_PROCID": "4"}, None, ["SLURM_PROCID=4", "SLURM_NTASKS=4"]),
        ({"LOCAL_RANK": "0", "NODE_RANK": "1", "WORLD_SIZE": "4"}, None, ["NODE_RANK=1"]),
        ({"LOCAL_WORLD_SIZE": "2"}, -1, ["local_rank=-1"]),
        ({}, 0, ["LOCAL_WORLD_SIZE", "CUDA_VISIBLE_DEVICES"]),
        ({"LOCAL_WORLD_SIZE": "2"}, 2, ["local_rank=2", "LOCAL_WORLD_SIZE=2"]),
        ({**SRUN, "LOCAL_WORLD_SIZE": "2"}, 0, ["4 tasks on 2 nodes", "same 2 ranks"]),
    ],
)
def test_contradictions_name_both_sides(environ, local_rank, words):
    with pytest.raises(UsageError) as caught:
        detect(environ, local_rank=local_rank)
    for word in words:
        assert word in caught.value.message
    assert caught.value.hint
