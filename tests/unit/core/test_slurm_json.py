"""What is under `seen` was recorded; what is under `read` was only read about (see its README)."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echelon.clusters.slurm.cluster import SlurmCluster
from echelon.core.jobs import Job
from echelon.core.shell import FakeShell, Result
from echelon.core.slurm_json import (
    parse_accounting_json,
    parse_comment_json,
    parse_job_json,
    read_jobs,
)
from echelon.core.slurm_text import parse_job
from echelon.errors import UnavailableError

GOLDEN = Path(__file__).parents[2] / "golden" / "slurm-json"
OUTPUT = "/home/you/runs/r-1/logs/job-4242.out"
CANCELLED = Job(id="4242", state="CANCELLED", nodes="gpu[01-02]", output=OUTPUT, exit_code=128 + 15)
JSON, TEXT = "scontrol --json show job", "scontrol --oneliner show job"


def failed(stderr):
    return Result(argv=("scontrol",), code=1, stderr=stderr)


NO_OPTION = failed((GOLDEN / "seen" / "scontrol-22.05-json.stderr").read_text())
INVALID = failed("slurm_load_jobs error: Invalid job id specified\n")
AWAY = failed("slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n")


NEWER = ("24.11", "26.05")


def read(name):
    return (GOLDEN / "read" / f"{name}.json").read_text()


def cluster(shell, slept=None):
    slept = [] if slept is None else slept
    return SlurmCluster(shell, {}, sleep=slept.append, clock=lambda: sum(slept))


def alone(job):
    return json.dumps({"jobs": [job]})


def texts(version):
    """What scontrol said of each job."""
    said = (GOLDEN / "seen" / f"scontrol-{version}.txt").read_text()
    return re.split("^(?=JobId=)", said, flags=re.MULTILINE)[1:]


TEXTS = texts("22.05")
JOBS = json.loads((GOLDEN / "seen" / "squeue-22.05.json").read_text())["jobs"]
SEEN = [(parse_job(text), text, job) for text, job in zip(TEXTS, JOBS, strict=True)]


# --- one job --------------------------------------------------------------------------------


@pytest.mark.parametrize(("said", "text", "job"), SEEN, ids=[said.id for said, _, _ in SEEN])
def test_json_says_what_text_says(said, text, job):
    if "%" in job["standard_output"]:
        assert (
            parse_job_json(alone(job), str(job["job_id"])) is None
        )  # only text has the pattern filled in
        job = {**job, "standard_output": said.output}
    assert parse_job_json(alone(job), str(job["job_id"])) == said
    ours = re.search(r"Comment=(echelon:\S+)", text)[1]
    assert (parse_comment_json(alone(job), str(job["job_id"])) == ours) == (said.id != "7")


@pytest.mark.parametrize("version", NEWER)
def test_a_newer_slurm_says_in_json_what_it_says_in_text(version):
    jobs = json.loads((GOLDEN / "seen" / f"scontrol-{version}.json").read_text())["jobs"]
    said = [parse_job(text) for text in texts(version)]
    assert [parse_job_json(alone(job), str(job["job_id"])) for job in jobs] == said
    assert [job.state for job in said][:5] == [
        *("FAILED", "COMPLETED", "CANCELLED", "RUNNING", "PENDING")
    ]
    comments = [parse_comment_json(alone(job), str(job["job_id"])) for job in jobs]
    assert comments == [f"echelon:r-{job.id}/1" for job in said]


@pytest.mark.parametrize("version", NEWER)
def test_a_task_of_an_array_is_found_among_all_its_tasks(version):
    shown = (GOLDEN / "seen" / f"scontrol-array-{version}.json").read_text()
    assert [_state(shown, f"1_{task}") for task in range(6)] == [
        *("RUNNING", "RUNNING", "RUNNING", "RUNNING", None, None)  # text has those that wait
    ]
    assert _state(shown, "2_3") is None
    assert parse_job_json(shown, "1_3").id == "5"
    assert parse_comment_json(shown, "1_3") == "echelon:r-*/1"
    kept = (GOLDEN / "seen" / f"sacct-array-{version}.json").read_text()
    assert parse_accounting_json(kept, "1_3").state == "RUNNING"
    assert parse_accounting_json(kept, "1_2") is None


def _state(text, job_id):
    job = parse_job_json(text, job_id)
    return job and job.state


@pytest.mark.parametrize("version", NEWER)
def test_a_newer_slurm_has_no_job_to_show_for_an_unknown_id(version):
    shown = (GOLDEN / "seen" / f"scontrol-{version}-nothing.json").read_text()
    assert read_jobs(shown) == []


@pytest.mark.parametrize(
    ("name", "job"),
    [
        (
            "scontrol-v0.0.39",
            Job(
                id="4242",
                state="FAILED",
                reason="NonZeroExitCode",
                nodes="gpu[01-02]",
                output=OUTPUT,
                exit_code=3,
            ),
        ),
        ("scontrol-v0.0.40", CANCELLED),
        (
            "scontrol-v0.0.41",
            Job(
                id="4242",
                state="COMPLETING",
                reason="NonZeroExitCode",
                nodes="gpu[01-02]",
                output=OUTPUT,
                exit_code=3,
            ),
        ),
        (
            "scontrol-v0.0.42",
            Job(
                id="4242",
                state="PENDING",
                reason="ReqNodeNotAvail,_UnavailableNodes:gpu[01-02]",
                output=OUTPUT,
            ),
        ),
        ("scontrol-v0.0.43", Job(id="4242", state="RUNNING", nodes="gpu[01-02]", output=OUTPUT)),
    ],
)
def test_every_layout_is_read(name, job):
    assert parse_job_json(read(name), "4242") == job
    assert parse_comment_json(read(name), "4242") == "echelon:r-1"


@pytest.mark.parametrize(
    ("states", "state"),
    [
        ("RUNNING", "RUNNING"),
        (["RUNNING"], "RUNNING"),
        (["RUNNING", "COMPLETING"], "COMPLETING"),
        (["PENDING", "REQUEUED", "COMPLETING"], "COMPLETING"),
        (["PENDING", "SPECIAL_EXIT", "REQUEUE_HOLD"], "REQUEUE_HOLD"),
        (["RUNNING", "POWER_UP_NODE"], "RUNNING"),
        (["CANCELLED by 0"], "CANCELLED"),
    ],
)
def test_the_state_is_the_one_that_text_would_show(states, state):
    job = parse_job_json(alone({"job_id": 1, "job_state": states}), "1")
    assert job == Job(id="1", state=state)


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (0, 0),
        (768, 3),
        (9, 128 + 9),
        (9 | 0x80, 128 + 9),
        ({"set": True, "infinite": False, "number": 256}, 1),
        ({"set": False, "infinite": False, "number": 256}, 0),
        ({"return_code": 2}, 2),
        ({"return_code": {"set": True, "number": 2}, "signal": {"id": {"set": False}}}, 2),
        ({"return_code": None, "signal": {"signal_id": 9, "name": "Killed"}}, 128 + 9),
        (None, 0),
        ("3", 0),
    ],
)
def test_exit_codes_of_every_kind(given, code):
    assert parse_job_json(alone({"job_id": 1, "job_state": "X", "exit_code": given}), "1") == Job(
        id="1", state="X", exit_code=code
    )


@pytest.mark.parametrize(
    ("nodes", "host_list"),
    [
        ("n[1-2]", "n[1-2]"),
        ("None assigned", ""),
        (None, ""),
        (["n1", "n2"], "n1,n2"),
        ({"count": 2, "range": "n[1-2]", "list": ["n1", "n2"]}, "n[1-2]"),
    ],
)
def test_nodes_of_every_kind(nodes, host_list):
    job = parse_job_json(alone({"job_id": 1, "job_state": "X", "nodes": nodes}), "1")
    assert job == Job(id="1", state="X", nodes=host_list)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["set", "number", "return_code", "signal", "id", "status", "job"])
            | st.text(max_size=3),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)
fields = ["job_id", "job_state", "state", "state_reason", "state_description", "nodes"]
fields += ["standard_output", "stdout_expanded", "exit_code", "comment"]
arrays = ["array", "array_job_id", "array_task_id"]


def named(job):
    return {**job, "job_id": 1, "array_job_id": 1, "array_task_id": 0}


@given(
    st.dictionaries(st.sampled_from(fields), values).map(named)
    | st.dictionaries(st.sampled_from(fields + arrays), values)
    | values
)
def test_no_value_is_too_strange(job):
    for text in (alone(job), json.dumps({"jobs": job}), json.dumps(job)):
        for job_id in ("1", "1_0"):
            assert isinstance(parse_comment_json(text, job_id), str)
            for found in (parse_job_json(text, job_id), parse_accounting_json(text, job_id)):
                assert found is None or (found.id and found.state)


@pytest.mark.parametrize("text", ["", "JobId=1 JobState=RUNNING", "[]", "{}", '{"jobs": {}}'])
def test_text_without_jobs_has_no_job_and_no_comment(text):
    assert read_jobs(text) is None
    assert parse_job_json(text, "1") is None
    assert parse_comment_json(text, "1") == ""


# --- accounting -----------------------------------------------------------------------------


def test_accounting_of_every_layout():
    assert parse_accounting_json(read("sacct-v0.0.40"), "4242") == Job(
        id="4242", state="FAILED", reason="NonZeroExitCode", nodes="gpu[01-02]", exit_code=3
    )
    assert parse_accounting_json(read("sacct-v0.0.43"), "4242") == CANCELLED
    assert parse_comment_json(read("sacct-v0.0.40"), "4242") == "echelon:r-1"


@pytest.mark.parametrize("version", NEWER)
def test_accounting_of_a_newer_slurm_tells_failures_from_successes(version):
    jobs = json.loads((GOLDEN / "seen" / f"sacct-{version}.json").read_text())["jobs"]
    found = [parse_accounting_json(alone(job), str(job["job_id"])) for job in jobs]
    assert [(job.id, job.state, job.nodes, job.exit_code) for job in found] == [
        ("1", "FAILED", "node[1-2]", 3),
        ("2", "COMPLETED", "node1", 0),
        ("3", "CANCELLED", "node[1-2]", 0),
        ("4", "RUNNING", "node[1-2]", 0),
    ]


@pytest.mark.parametrize(
    "text",
    [
        (GOLDEN / "seen" / "sacct-22.05.json").read_text(),
        (GOLDEN / "seen" / "sacct-22.05-nothing.json").read_text(),
        read("sacct-v0.0.39"),
    ],
)
def test_accounting_that_takes_failures_for_successes_is_not_relied_on(text):
    for job in read_jobs(text):
        assert parse_accounting_json(text, str(job["job_id"])) is None


# --- the cluster ----------------------------------------------------------------------------


def test_a_job_is_read_from_json_alone_where_there_is_json():
    shell = FakeShell(answers={JSON: read("scontrol-v0.0.40")})
    assert cluster(shell).job("4242", run_id="r-1") == CANCELLED
    assert shell.calls == [("scontrol", "--json", "show", "job", "4242")]


def test_a_scontrol_without_json_is_asked_for_it_once():
    said, text, _ = SEEN[4]
    shell, slept = FakeShell(answers={JSON: NO_OPTION, TEXT: text}), []
    asked = cluster(shell, slept)
    assert [asked.job("5", run_id="r-5") for _ in range(2)] == [said, said]
    assert [call[1] for call in shell.calls] == ["--json", "--oneliner", "--oneliner"]
    assert slept == []


@pytest.mark.parametrize(
    "stderr",
    [
        "scontrol: fatal: JSON plugin load failure\n",
        "scontrol: error: Invalid data_parser plugin\n",
        "",
    ],
)
def test_whatever_keeps_json_away_text_is_read(stderr):
    said, text, _ = SEEN[4]
    shell = FakeShell(answers={JSON: failed(stderr), TEXT: text})
    assert cluster(shell).job("5", run_id="r-5") == said


def test_a_controller_that_is_away_says_nothing_about_json():
    """Neither way: as an error, or as an answer without jobs."""
    answers = [AWAY, Result(argv=(), stdout=read("scontrol-nothing"))]
    for answer in answers:
        shell, slept = FakeShell(answers={JSON: answer, TEXT: AWAY}), []
        asked = cluster(shell, slept)
        with pytest.raises(UnavailableError):
            asked.job("4242", run_id="r-1")
        assert sum(slept) > 30
        shell.answers = {JSON: read("scontrol-v0.0.40")}
        assert asked.job("4242", run_id="r-1") == CANCELLED


def test_a_pattern_that_json_leaves_open_is_asked_of_text():
    said, text, job = SEEN[0]
    shell = FakeShell(answers={JSON: alone(job), TEXT: text})
    assert cluster(shell).job("1", run_id="r-1") == said


@pytest.mark.parametrize(
    "comment",
    [
        "",
        "echelon:r-10",
        "echelon:r-1 ",
        " echelon:r-1",
        "x Comment=echelon:r-1 y",
        '"echelon:r-1"',
        '", "comment": "echelon:r-1',
        "echelon:r-1\n",
        "echelon:r-1\0",
        {"job": "echelon:r-2", "system": "echelon:r-1"},
        ["echelon:r-1"],
        None,
    ],
)
def test_only_the_very_comment_makes_a_job_ours(comment):
    job = {**read_jobs(read("scontrol-v0.0.43"))[0], "comment": comment}
    shell = FakeShell(answers={JSON: alone(job)})
    asked = cluster(shell)
    assert asked.job("4242", run_id="r-1").state == "UNKNOWN"
    asked.cancel("4242", run_id="r-1")
    assert {call[0] for call in shell.calls} == {"scontrol"}


def test_a_forgotten_job_is_read_from_accounting_in_json():
    answers = {JSON: read("scontrol-nothing"), TEXT: INVALID, "sacct": read("sacct-v0.0.43")}
    shell = FakeShell(answers=answers)
    assert cluster(shell).job("4242", run_id="r-1") == CANCELLED
    assert shell.calls[-1] == ("sacct", "--json", "--jobs=4242")
    assert cluster(shell).job("4242", run_id="r-2").state == "UNKNOWN"


def test_accounting_that_kept_no_comment_is_believed():
    job = {**read_jobs(read("sacct-v0.0.43"))[0], "comment": {"job": ""}}
    answers = {JSON: read("scontrol-nothing"), TEXT: INVALID, "sacct": alone(job)}
    assert cluster(FakeShell(answers=answers)).job("4242", run_id="r-1") == CANCELLED


def test_accounting_in_text_corrects_what_json_says_wrongly():
    answers = {
        JSON: read("scontrol-nothing"),
        TEXT: INVALID,
        "sacct --json": read("sacct-v0.0.39"),
        "sacct --noheader": "4242|FAILED|gpu[01-02]|3:0\n",
    }
    assert cluster(FakeShell(answers=answers)).job("4242", run_id="r-1") == Job(
        id="4242", state="FAILED", nodes="gpu[01-02]", exit_code=3
    )


def test_without_json_in_scontrol_accounting_is_not_asked_for_it():
    answers = {JSON: NO_OPTION, TEXT: INVALID, "sacct --noheader": "7|FAILED|node1|3:0\n"}
    shell = FakeShell(answers=answers)
    assert cluster(shell).job("7", run_id="r-1").exit_code == 3
    assert "--json" not in shell.calls[-1]
