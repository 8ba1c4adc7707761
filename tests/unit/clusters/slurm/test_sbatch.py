from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echelon.clusters.slurm.sbatch import parse_directives, render_directives, render_options
from echelon.errors import UsageError
from echelon.spec.job_spec import GPU_OPTIONS, JobSpec
from echelon.spec.merging import Layer, merge
from echelon.spec.readers import MAIL_TYPES

SEEDS = Path(__file__).parents[3] / "golden" / "directives"

texts = st.text(st.characters(codec="utf-8", exclude_characters="\n\0"), min_size=1)
sizes = st.integers(1, 10**6).map(lambda mib: f"{mib}M")
counts = st.integers(1, 64)


@st.composite
def requests(draw):
    """Requests of every kind, valid by construction."""
    gpus = draw(st.integers(0, 8))
    # One task beside several GPUs is left out: in a script it mostly means that a launcher starts
    # a rank for each, and is read so.
    fitting = [n for n in range(1, 9) if not gpus or (gpus % n == 0 and (n > 1 or gpus == 1))]
    values = {
        "name": draw(texts),
        "nodes": draw(counts),
        "procs": draw(st.sampled_from(fitting)),
    }
    optional = {
        "partition": texts,
        "account": texts,
        "qos": texts,
        "constraint": texts,
        "dependency": texts,
        "chdir": texts,
        "output": texts,
        "mail_user": texts,
        "mail_type": st.lists(st.sampled_from(MAIL_TYPES), min_size=1),
        "nodelist": st.just("n[1-3],gpu7"),
        "exclude": st.just("rack[1-2]n[01-16]"),
        "time": st.integers(30, 10**6).map(str) | st.just("UNLIMITED"),
        "wait_all_nodes": st.just(True),
        "signal_lead": st.integers(1, 600),  # at most half of the time
        "slurm.extra": st.dictionaries(
            st.sampled_from(["reservation", "comment", "exclusive", "licenses"]),
            texts | st.just(""),
        ),
    }
    for key, strategy in optional.items():
        if draw(st.booleans()):
            values[key] = draw(strategy)
    values |= draw(st.sampled_from([{}, {"cpus_per_task": draw(counts)}]))
    memory = draw(st.sampled_from(["", "mem", "mem_per_cpu"]))
    if memory:
        values[memory] = draw(sizes)
    if gpus:
        values |= {"gpus": gpus, "gpu_option": draw(st.sampled_from(GPU_OPTIONS))}
        if draw(st.booleans()):
            values["gpu_type"] = draw(st.sampled_from(["a100", "v100", "h100-80"]))
        if "slurm.extra" in values and draw(st.booleans()):
            values["slurm.extra"] = {**values["slurm.extra"], "gres": "nvme:1"}
    return merge([Layer(source="x", values=values)]).spec


@given(requests())
def test_rendered_directives_are_parsed_to_the_same_request(spec):
    values = parse_directives(f"#!/bin/bash\n{render_directives(spec)}srun true\n")
    again = merge([Layer(source="y", values=values)]).spec
    assert render_directives(again) == render_directives(spec)
    # Where GPUs decide how many ranks there are, both ways of saying it are the same request.
    assert again.procs_per_node == spec.procs_per_node
    for key in ("gpus", "gpu_type", "gpu_option", "nodes", "mem_mib", "time", "slurm_extra"):
        assert getattr(again, key) == getattr(spec, key)


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("#SBATCH -N2 -p gpu --mem 64gb", {"nodes": "2", "partition": "gpu", "mem": "64gb"}),
        ("#SBATCH -N 2-4", {"nodes": "2:4"}),
        ('#SBATCH --job-name="a b" # why', {"name": "a b"}),
        ("#SBATCH --job-name='a \"b\"'", {"name": 'a "b"'}),
        (r"#SBATCH --job-name=a\ b", {"name": "a b"}),
        ("#SBATCH --comment=a#b", {"slurm.extra": {"comment": "a"}}),
        ("#SBATCH --comment='a#b'", {"slurm.extra": {"comment": "a#b"}}),
        ("#SBATCH --exclusive --time=10", {"time": "10", "slurm.extra": {"exclusive": ""}}),
        ("#SBATCH --constraint=p40&gmem24G", {"constraint": "p40&gmem24G"}),
        ("#SBATCH --gres=gpu:4", {"gpus": 4, "gpu_option": "gres"}),
        ("#SBATCH --gres=gpu", {"gpus": 1, "gpu_option": "gres"}),
        (
            "#SBATCH -G a100:8 -N2",
            {"nodes": "2", "gpus": 4, "gpu_option": "gpus", "gpu_type": "a100"},
        ),
        (
            "#SBATCH --gpus-per-task=a100:1 --ntasks-per-node=4",
            {"gpus": 4, "gpu_option": "gpus-per-task", "gpu_type": "a100", "procs": 4},
        ),
        ("#SBATCH --ntasks=4 --nodes=2", {"nodes": "2", "procs": 2}),
        (
            "#SBATCH --tasks-per-node=1 --gpus-per-node=2",
            {"gpus": 2, "gpu_option": "gpus-per-node"},
        ),
        (
            "#SBATCH --gpus=4 --gpus-per-node=2 --ntasks=2 --tasks-per-node=1",
            {"nodes": "2", "gpus": 2, "gpu_option": "gpus"},
        ),
        ("#SBATCH -n 8 --ntasks-per-node=4", {"nodes": "2", "procs": 4}),
        ("#SBATCH -n 8 --ntasks-per-node=4 -N 1-4", {"nodes": "2", "procs": 4}),
        (
            "#SBATCH -G a100:8 --gpus-per-node=4 -n 2",
            {"nodes": "2", "gpus": 4, "gpu_option": "gpus", "gpu_type": "a100"},
        ),
        (
            "#SBATCH -G 8 --gres=gpu:a100:4 -n 8",
            {"nodes": "2", "gpus": 4, "gpu_option": "gres", "gpu_type": "a100", "procs": 4},
        ),
        ("#SBATCH --signal=USR1@90", {"signal_lead": 90}),
        ("#SBATCH --no-requeue --requeue", {"hand_over": "requeue"}),
        ("#SBATCH --requeue\n#SBATCH --no-requeue", {"hand_over": "never"}),
        ("#SBATCH --requeue --no-requeue\n#SBATCH --requeue", {"hand_over": "requeue"}),
        ("#SBATCH --signal=SIGUSR1@90", {"signal_lead": 90}),
        ("#SBATCH --signal=B:TERM@90", {"slurm.extra": {"signal": "B:TERM@90"}}),
        ("#SBATCH --mem=0", {"slurm.extra": {"mem": "0"}}),
        (
            "#SBATCH --gpus-per-node=4 --ntasks-per-node=1 --cpus-per-task=16",
            {"gpus": 4, "gpu_option": "gpus-per-node", "cpus_per_task": 4},
        ),
        ("#SBATCH --part=gpu --tas 4", {"partition": "gpu", "procs": 4}),
        ("#SBATCH --mem-per-c 1G --mem=0", {"mem_per_cpu": "1G", "slurm.extra": {"mem": "0"}}),
        (
            "#SBATCH --exclusiv --hol -N2",
            {"nodes": "2", "slurm.extra": {"exclusive": "", "hold": ""}},
        ),
        ("#SBATCH --exclusiv=user", {"slurm.extra": {"exclusive": "user"}}),
        ("#SBATCH --extra=a", {"slurm.extra": {"extra": "a"}}),
        ("#SBATCH --container-image a.sqsh", {"slurm.extra": {"container-image": "a.sqsh"}}),
        ("#SBATCH -Q -N2 --verbose --wait", {"nodes": "2"}),
        ("#SBATCH -vvHN2", {"nodes": "2", "slurm.extra": {"hold": ""}}),
        ("#SBATCH -k -N2", {"nodes": "2", "slurm.extra": {"no-kill": ""}}),
        ("#SBATCH -koff -N2", {"nodes": "2", "slurm.extra": {"no-kill": "off"}}),
        ("#SBATCH -N2 --", {"nodes": "2"}),
        (" #SBATCH -N2", {}),
        ("#sbatch -N2", {}),
        ("##SBATCH -N2", {}),
    ],
)
def test_directives_are_parsed_as_slurm_does(line, values):
    assert parse_directives(f"#!/bin/bash\n\n# a comment\n{line}\n") == values


def test_directives_after_the_first_command_are_ignored():
    script = "#!/bin/bash\n#SBATCH -N2\nmodule load x\n#SBATCH -N9\n"
    assert parse_directives(script) == {"nodes": "2"}


def test_the_value_of_a_directive_may_be_on_the_next_line():
    script = "#!/bin/bash\n#SBATCH -p\n#SBATCH gpu\n#SBATCH --qos\n#SBATCH high -N 2\n"
    assert parse_directives(script) == {"partition": "gpu", "qos": "high", "nodes": "2"}
    with pytest.raises(UsageError):
        parse_directives("#!/bin/bash\n#SBATCH -N 2\n#SBATCH gpu\n")


@pytest.mark.parametrize(
    "line",
    [
        '#SBATCH --job-name="a',
        "#SBATCH gpu",
        "#SBATCH -n x",
        "#SBATCH -N 3 -n 8",
        "#SBATCH -N2 --gpus=3",
        "#SBATCH --nodes=",
        "#SBATCH --gres=gpu:a100:2,gpu:v100:1",
        "#SBATCH --gpus-per-node=a100:2,v100:1",
        "#SBATCH -Hy",
        "#SBATCH -- gpu",
        "#SBATCH --test-only",
        "#SBATCH -V",
    ],
)
def test_a_directive_that_slurm_refuses_is_an_error(line):
    with pytest.raises(UsageError):
        parse_directives(line)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "-n 2 --tasks-per-node=1 --gpus=8 --gpus-per-node=2",
            "--ntasks-per-node=1 requires 2, but --gpus=8 with --gpus-per-node=2 requires 4",
        ),
        (
            "-N 3 -n 4 --ntasks-per-node=2",
            "--nodes=3, but --ntasks=4 with --ntasks-per-node=2 requires 2",
        ),
        ("-N 3-4 -G 4 --gpus-per-node=2", "--nodes=3-4, but --gpus=4 with"),
        ("-n 3 --ntasks-per-node=2", "with --ntasks-per-node=2 would give some node less"),
        ("-n x --ntasks-per-node=2", "--ntasks=x is not a number"),
    ],
)
def test_conflicting_totals_and_shares_are_an_error(line, message):
    with pytest.raises(UsageError) as caught:
        parse_directives(f"#SBATCH {line}")
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("name", "candidates"),
    [
        ("nod", "--nodefile, --nodelist, --nodes"),
        ("mem-per", "--mem-per-cpu, --mem-per-gpu"),
        ("ntasks-per-", "--ntasks-per-core, --ntasks-per-gpu, --ntasks-per-node, "),
    ],
)
def test_an_ambiguous_abbreviation_lists_the_options(name, candidates):
    with pytest.raises(UsageError, match=f"--{name} is ambiguous: {candidates}"):
        parse_directives(f"#SBATCH --{name}=2")


def test_a_line_break_in_a_value_names_the_key():
    spec = merge([Layer(source="x", values={"name": "a\nb"})]).spec
    with pytest.raises(UsageError, match="--job-name has a line break"):
        render_directives(spec)


def test_mail_is_sent_for_every_end_of_a_job():
    spec = merge([Layer(source="x", values={"mail": "me@example.org"})]).spec
    lines = render_directives(spec).splitlines()
    assert "#SBATCH --mail-user=me@example.org" in lines
    assert "#SBATCH --mail-type=END,FAIL" in lines


@pytest.mark.parametrize(
    ("name", "values"),
    [
        (
            "tests-4x1",
            {
                "name": "tests",
                "mail_type": ("ALL",),
                "nodes": "4",
                "gpus": 1,
                "time": "01:00:00",
                "cpus_per_task": 1,
                "output": "output.txt",
            },
        ),
        (
            "gpu-constraint",
            {
                "partition": "gpu",
                "time": "3-00:00:00",
                "nodes": "4",
                "constraint": "p40&gmem24G",
                "mem_mib": 65536,
                "output": "/scratch/you/%x-%j.out",
            },
        ),
        (
            "gpus-and-per-node",
            {"gpus": 2, "gpu_option": "gpus", "procs_per_node": 2, "nodes": "2"},
        ),
        ("torchrun-3x4", {"gpus": 4, "nodes": "3", "cpus_per_gpu": 4, "wait_all_nodes": True}),
    ],
)
def test_scripts_from_documentation_of_sites_are_parsed(name, values):
    script = (SEEDS / f"{name}.sh").read_text()
    spec = merge([Layer(source="script", values=parse_directives(script))]).spec
    seen = {key: getattr(spec, key) for key in values}
    seen["nodes"] = str(spec.nodes)
    assert seen == {"nodes": "1", **values}


@pytest.mark.parametrize("style", ["echelon", "torchrun", "srun"])
@pytest.mark.parametrize(("mode", "word"), [("never", "--no-requeue"), ("requeue", "--requeue")])
def test_the_script_states_whether_slurm_may_requeue(style, mode, word):
    """Without an option, clusters that requeue by default would requeue the job."""
    lines = render_directives(JobSpec(script="a.py", style=style, hand_over=mode)).split("\n")
    assert f"#SBATCH {word}" in lines


@pytest.mark.parametrize("option", ["B:TERM@90", "SIGTERM@90", "B:USR2@90", "HUP@90"])
def test_the_signal_before_the_limit_is_not_sent_to_the_controller(option):
    """The controller would take the signal for a user's request to stop; it knows the limit."""
    values = parse_directives(f"#!/bin/bash\n#SBATCH --signal={option} --licenses=a\n")
    ours = merge([Layer(source="test", values=values)]).spec
    assert render_options(ours)["licenses"] == "a"
    assert "signal" not in render_options(ours)
    plain = merge([Layer(source="test", values={**values, "style": "srun"})]).spec
    assert render_options(plain)["signal"] == option


def test_the_reservation_flag_of_signal_is_kept():
    spec = merge([Layer(source="test", values={"slurm.extra": {"signal": "R:TERM@90"}})]).spec
    assert render_options(spec)["signal"] == "RB:USR1@90"
