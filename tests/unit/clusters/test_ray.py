"""Jobs of a Ray cluster: what we ask of its Jobs API, and what we make of the answers."""

import json
import subprocess

import pytest

from echelon.clusters.ray import (
    DEFAULT,
    RayCluster,
    find_address,
    find_token,
    parse_job,
    parse_job_name,
    render_entrypoint,
)
from echelon.clusters.runs import current_job, name_python, prepare_run, submit_run
from echelon.core.jobs import Job
from echelon.core.rundir import write_atomic
from echelon.core.shell import FakeShell, Result
from echelon.errors import NotPermittedError, UnavailableError, UsageError
from echelon.spec import JobSpec

VERSION = (200, '{"ray_version": "2.60.0"}')


class Api:
    """Answers as a Ray cluster would; keeps what it was asked."""

    def __init__(self):
        self.jobs, self.asked, self.trouble = {}, [], {}

    def __call__(self, method, path, content):
        self.asked.append((method, path, content))
        trouble = self.trouble.pop(method, None)
        if isinstance(trouble, OSError):
            raise trouble
        if path == "/api/version":
            return VERSION
        if method == "POST" and path == "/api/jobs/":
            name = content["submission_id"]
            if trouble == "taken, answer lost" or trouble is None:
                if name in self.jobs:
                    return 500, f"ValueError: Job with submission_id {name} already exists."
                self.jobs[name] = {"status": "PENDING", "metadata": content["metadata"]}
            if trouble:
                raise ConnectionResetError(trouble)
            return 200, json.dumps({"submission_id": name})
        name = path.split("/")[3]
        if name not in self.jobs:
            return 404, f"Job {name} does not exist"
        if path.endswith("/stop"):
            self.jobs[name]["status"] = "STOPPED"
            return 200, '{"stopped": true}'
        return 200, json.dumps(self.jobs[name])


@pytest.fixture
def api():
    return Api()


@pytest.fixture
def cluster(api, tmp_path):
    return RayCluster("http://head:8265", tmp_path, {}, shell=FakeShell(), fetch=api)


@pytest.fixture
def run(tmp_path):
    return prepare_run(JobSpec(script="train.py", grace_s=7), tmp_path, tmp_path)[0]


def test_a_run_is_submitted_as_a_job_that_names_it(api, cluster, run):
    attempt = submit_run(run, cluster, {"SECRET": "x"})
    name = f"{run.run_id}-1"
    assert attempt.job_id == f"ray:{name}@http://head:8265"
    assert attempt.output == str(run.logs / "job-1.out")
    ((_, _, job),) = [asked for asked in api.asked if asked[0] == "POST"]
    assert job["submission_id"] == name
    variables = job["runtime_env"]["env_vars"]
    assert variables["RAY_JOB_STOP_WAIT_TIME_S"] == "97"
    assert variables["ECHELON_ON_RAY"] == name
    assert "SECRET" not in json.dumps(job)
    assert current_job(run, cluster).state == "PENDING"


def test_a_submission_whose_answer_was_lost_is_not_made_twice(api, cluster, run):
    api.trouble["POST"] = "taken, answer lost"
    submit_run(run, cluster, {})
    assert list(api.jobs) == [f"{run.run_id}-1"]
    assert [method for method, *_ in api.asked].count("POST") == 1


def test_a_submission_that_nobody_took_is_none(api, cluster, run):
    api.trouble["POST"] = ConnectionRefusedError("refused")
    with pytest.raises(UnavailableError, match="no Ray cluster answers at http://head:8265"):
        submit_run(run, cluster, {})
    assert not list(run.attempts.iterdir())


def test_what_the_controller_said_counts_once_the_job_is_over(api, cluster, run):
    job_id = submit_run(run, cluster, {}).job_id
    (record,) = api.jobs.values()
    write_atomic(run.outcome(1), '{"state": "CANCELLED", "exit_code": 130}')
    record["status"] = "RUNNING"
    assert cluster.job(job_id, run_id=run.run_id).state == "RUNNING"
    record["status"] = "SUCCEEDED"
    job = cluster.job(job_id, run_id=run.run_id)
    assert (job.state, job.exit_code) == ("CANCELLED", 130)


def test_a_job_that_ray_has_forgotten_or_gave_to_another_is_unknown(api, cluster, run):
    job_id = submit_run(run, cluster, {}).job_id
    (record,) = api.jobs.values()
    record["metadata"] = {"echelon_run": "other"}
    assert cluster.job(job_id, run_id=run.run_id).state == "UNKNOWN"
    api.jobs.clear()
    assert cluster.job(job_id, run_id=run.run_id).state == "UNKNOWN"


def test_how_a_run_has_ended_is_known_without_the_cluster(api, cluster, run):
    job_id = submit_run(run, cluster, {}).job_id
    api.trouble["GET"] = ConnectionRefusedError("refused")
    with pytest.raises(UnavailableError, match="no Ray cluster answers"):
        cluster.job(job_id, run_id=run.run_id)
    write_atomic(run.outcome(1), '{"state": "COMPLETED", "exit_code": 0}')
    api.trouble["GET"] = ConnectionRefusedError("refused")
    assert cluster.job(job_id, run_id=run.run_id).state == "COMPLETED"


def test_stop_and_cancel(api, cluster, run):
    job_id = submit_run(run, cluster, {}).job_id
    wish = run.attempt(1) / "cancelled"
    cluster.stop(job_id, run_id=run.run_id)
    assert ("POST", f"/api/jobs/{run.run_id}-1/stop", None) in api.asked
    assert not wish.exists()
    count = len(api.asked)
    cluster.cancel(job_id, run_id=run.run_id)
    assert wish.exists()
    assert [method for method, *_ in api.asked[count:]] == ["GET"]  # it is over already


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"status": "PENDING"}, ("PENDING", 0, "")),
        ({"status": "RUNNING", "message": "…"}, ("RUNNING", 0, "")),
        ({"status": "SUCCEEDED", "driver_exit_code": 0}, ("COMPLETED", 0, "")),
        ({"status": "STOPPED"}, ("CANCELLED", 130, "")),
        ({"status": "FAILED", "driver_exit_code": 3, "message": "no\nmore"}, ("FAILED", 3, "no")),
        ({"status": "FAILED", "driver_exit_code": -9}, ("FAILED", 137, "")),
        ({"status": "FAILED", "message": None}, ("FAILED", 1, "")),
        (
            {"status": "FAILED", "driver_exit_code": 69, "message": "logs:\nechelon: blind\n"},
            ("FAILED", 69, "blind"),
        ),
        ({"status": "NEW WORD"}, ("UNKNOWN", 1, "")),
    ],
)
def test_rays_words(record, expected):
    job = parse_job(Job(id="x", state=""), record)
    assert (job.state, job.exit_code, job.reason) == expected


@pytest.mark.parametrize("status", [401, 403])
def test_without_the_token_it_is_said_what_is_missing(tmp_path, status):
    fetch = lambda *_: (status, "Unauthorized")  # noqa: E731
    for environ, words in (({}, "asks for a token$"), ({"RAY_AUTH_TOKEN": "x"}, "refused ours")):
        cluster = RayCluster("http://h:1", tmp_path, environ, shell=FakeShell(), fetch=fetch)
        with pytest.raises(NotPermittedError, match=words):
            cluster.problems(JobSpec(script="x"))


def test_somebody_else_who_answers_is_told_from_ray(tmp_path):
    fetch = lambda *_: (200, "<html>hello</html>")  # noqa: E731
    cluster = RayCluster("http://h:1", tmp_path, {}, shell=FakeShell(), fetch=fetch)
    with pytest.raises(UnavailableError, match="is not Ray's Jobs API"):
        cluster.problems(JobSpec(script="x"))


def test_what_ray_does_not_know_is_refused_and_not_forgotten(cluster):
    spec = JobSpec(script="x", partition="gpu", time="1:00:00", style="srun", hand_over="requeue")
    found = "; ".join(cluster.problems(spec))
    for word in ("partition (gpu)", "time (1:00:00)", "style 'srun'", "hand_over 'requeue'"):
        assert word in found
    assert cluster.problems(JobSpec(script="x", nodes=JobSpec().nodes, gpus=2, mem_mib=5)) == []


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (Result(argv=(), stdout="2.60.0\n"), []),
        (
            Result(argv=(), stdout="2.59.1\n"),
            [
                (
                    "the Python '/p' has ray 2.59.1, and the cluster 2.60.0: "
                    "/p -m pip install 'ray[default]==2.60.0'"
                )
            ],
        ),
        (
            Result(argv=(), code=1),
            ["the Python '/p' has no ray: /p -m pip install 'ray[default]==2.60.0'"],
        ),
    ],
)
def test_a_python_without_the_clusters_ray_gets_the_command_that_installs_it(
    api, tmp_path, shown, expected
):
    shell = FakeShell(answers={"/p": shown})
    cluster = RayCluster("http://h:1", tmp_path, {}, shell=shell, fetch=api)
    assert cluster.problems(JobSpec(script="x", python="/p")) == expected


# --- names --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "environ", "expected"),
    [
        ("", {}, DEFAULT),
        ("head:8265", {}, "http://head:8265"),
        ("https://head/", {}, "https://head"),
        ("", {"RAY_ADDRESS": "http://a:1"}, "http://a:1"),
        ("", {"RAY_ADDRESS": "10.0.0.1:6379"}, DEFAULT),
        ("", {"RAY_ADDRESS": "http://a:1", "RAY_API_SERVER_ADDRESS": "http://b:2"}, "http://b:2"),
        ("c:3", {"RAY_ADDRESS": "http://a:1"}, "http://c:3"),
    ],
)
def test_where_the_cluster_is(asked, environ, expected):
    assert find_address(asked, environ) == expected


@pytest.mark.parametrize("asked", ["ray://head:10001", "http://", "http://user:pass@head:1"])
def test_what_is_no_address(asked):
    with pytest.raises(UsageError, match="no address of Ray's Jobs API"):
        find_address(asked, {})


def test_the_token_is_found_where_ray_itself_looks(tmp_path):
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("usual\n")
    (tmp_path / "other").write_text("named\n")
    environ = {"HOME": str(tmp_path)}
    assert find_token(environ) == "usual"
    assert find_token({**environ, "RAY_AUTH_TOKEN_PATH": str(tmp_path / "other")}) == "named"
    assert find_token({**environ, "RAY_AUTH_TOKEN": "said"}) == "said"
    assert find_token({"HOME": "/nowhere"}) == ""


def test_a_jobs_name_says_where_to_ask():
    name = parse_job_name("ray:train-abcd-2@http://head:8265")
    assert (name.submission, name.address) == ("train-abcd-2", "http://head:8265")
    assert str(name) == "ray:train-abcd-2@http://head:8265"


@pytest.mark.parametrize("name", ["plain", "a b", "a'; echo foo", 'q"`$(echo foo)\\', "ü\n2"])
def test_the_command_runs_the_script_whatever_its_folder_is_called(tmp_path, name):
    folder = tmp_path / name
    folder.mkdir()
    command = render_entrypoint(folder, 3, folder / "out")
    missing = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert missing.returncode == 69
    assert missing.stderr.startswith("echelon: the head of the Ray cluster, ")
    assert str(folder) in missing.stderr
    (folder / "job.sbatch").write_text("echo attempt $1\n")
    assert subprocess.run(command, shell=True, check=False).returncode == 0
    assert (folder / "out").read_text() == "attempt 3\n"


def test_an_activated_environment_is_named_for_a_job_that_will_not_have_it():
    spec = JobSpec(script="x")
    assert name_python(spec, {"VIRTUAL_ENV": "/venv"}).python == "/venv/bin/python"
    assert name_python(JobSpec(venv="v"), {"VIRTUAL_ENV": "/venv"}).python == ""
