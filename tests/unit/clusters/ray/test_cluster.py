"""Jobs of a Ray cluster: the calls of its Jobs API, and the reading of its answers."""

import http.server
import json
import os
import socket
import subprocess
import threading
import time

import pytest

from echelon.client.manage.run_status import current_job
from echelon.client.submit.target import choose_python
from echelon.clusters.base import queue_attempt
from echelon.clusters.ray.address import (
    HttpFetch,
    JobName,
    find_address,
    find_token,
    given_addresses,
    parse_job_name,
    remember_address,
)
from echelon.clusters.ray.cluster import (
    RayCluster,
    drop_slurm_only_keys,
    parse_job,
    render_entrypoint,
)
from echelon.core.atomic_file import write_atomic
from echelon.core.jobs import Job
from echelon.core.shell import FakeShell, Result
from echelon.errors import NotPermittedError, UnavailableError, UsageError
from echelon.launch.backends.ray.status import NODES, Status
from echelon.spec.job_spec import JobSpec
from echelon.spec.merging import Layer, merge
from prepared import prepare_run

VERSION = (200, '{"ray_version": "2.60.0"}')


class Api:
    """A fake Jobs API, which records its calls."""

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
    return prepare_run(JobSpec(script="train.py", grace_s=7), tmp_path, tmp_path)


def test_a_run_is_submitted_as_a_ray_job_with_its_name(api, cluster, run):
    attempt = queue_attempt(run, cluster, {"SECRET": "x"}, run.script.read_bytes())
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


def test_a_ray_submission_with_a_lost_answer_is_not_repeated(api, cluster, run):
    api.trouble["POST"] = "taken, answer lost"
    queue_attempt(run, cluster, {}, run.script.read_bytes())
    assert list(api.jobs) == [f"{run.run_id}-1"]
    assert [method for method, *_ in api.asked].count("POST") == 1


def test_a_ray_submission_without_a_cluster_leaves_no_attempt(api, cluster, run):
    api.trouble["POST"] = ConnectionRefusedError("refused")
    with pytest.raises(UnavailableError, match="no Ray cluster responds at http://head:8265"):
        queue_attempt(run, cluster, {}, run.script.read_bytes())
    assert not list(run.attempts.iterdir())


def test_the_controllers_outcome_applies_once_the_ray_job_has_ended(api, cluster, run):
    job_id = queue_attempt(run, cluster, {}, run.script.read_bytes()).job_id
    (record,) = api.jobs.values()
    write_atomic(run.outcome(1), '{"state": "CANCELLED", "exit_code": 130}')
    record["status"] = "RUNNING"
    assert cluster.job(job_id, run_id=run.run_id).state == "RUNNING"
    record["status"] = "SUCCEEDED"
    job = cluster.job(job_id, run_id=run.run_id)
    assert (job.state, job.exit_code) == ("CANCELLED", 130)


def test_a_ray_job_that_is_missing_or_of_another_run_is_unknown(api, cluster, run):
    job_id = queue_attempt(run, cluster, {}, run.script.read_bytes()).job_id
    (record,) = api.jobs.values()
    record["metadata"] = {"echelon_run": "other"}
    assert cluster.job(job_id, run_id=run.run_id).state == "UNKNOWN"
    api.jobs.clear()
    assert cluster.job(job_id, run_id=run.run_id).state == "UNKNOWN"


def test_the_recorded_outcome_needs_no_ray_cluster(api, cluster, run):
    job_id = queue_attempt(run, cluster, {}, run.script.read_bytes()).job_id
    api.trouble["GET"] = ConnectionRefusedError("refused")
    with pytest.raises(UnavailableError, match="no Ray cluster responds"):
        cluster.job(job_id, run_id=run.run_id)
    write_atomic(run.outcome(1), '{"state": "COMPLETED", "exit_code": 0}')
    api.trouble["GET"] = ConnectionRefusedError("refused")
    assert cluster.job(job_id, run_id=run.run_id).state == "COMPLETED"


def test_a_glance_queries_ray_only_once(monkeypatch):
    monkeypatch.setattr("echelon.clusters.ray.address._GLANCE_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        fetch = HttpFetch(f"http://127.0.0.1:{deaf.getsockname()[1]}", "", hasty=True)
        began_s = time.monotonic()
        for _ in range(10):
            with pytest.raises(OSError, match="timed out"):
                fetch("GET", "/", None)
        assert time.monotonic() - began_s < 3


def test_the_reason_of_a_waiting_ray_job_is_its_status(api, cluster, run):
    job_id = queue_attempt(run, cluster, {}, run.script.read_bytes()).job_id
    (record,) = api.jobs.values()
    record["status"] = "RUNNING"
    status = Status(pid=1, waits="waiting for 3 nodes")
    write_atomic(run.attempt(1) / NODES, status.render())
    assert cluster.job(job_id, run_id=run.run_id).reason == "waiting for 3 nodes"


def test_stop_and_cancel_stop_the_ray_job_and_cancel_is_recorded(api, cluster, run):
    job_id = queue_attempt(run, cluster, {}, run.script.read_bytes()).job_id
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
def test_states_of_ray_are_translated(record, expected):
    job = parse_job(Job(id="x", state=""), record)
    assert (job.state, job.exit_code, job.reason) == expected


@pytest.mark.parametrize("status", [401, 403])
def test_a_missing_ray_token_is_an_error_with_a_hint(tmp_path, status):
    fetch = lambda *_: (status, "Unauthorized")  # noqa: E731
    for environ, words in (
        ({}, "requires a token$"),
        ({"RAY_AUTH_TOKEN": "x"}, "rejects your token"),
    ):
        cluster = RayCluster("http://h:1", tmp_path, environ, shell=FakeShell(), fetch=fetch)
        with pytest.raises(NotPermittedError, match=words):
            cluster.problems(JobSpec(script="x"))


def test_the_ray_token_is_sent_only_to_an_address_that_was_given(tmp_path):
    seen = []

    class Asks(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            seen.append(self.headers["Authorization"])
            self.send_response(401)
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Asks) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("echelon.clusters.ray.cluster.DEFAULT", url)
            for address, shown in (("", [None]), (url, [None, "Bearer x"])):
                seen.clear()
                environ = {"RAY_AUTH_TOKEN": "x"}
                cluster = RayCluster(address, tmp_path, environ, shell=FakeShell())
                with pytest.raises(NotPermittedError) as refused:
                    cluster.problems(JobSpec(script="x"))
                assert seen == shown
                assert address or f"--address {url}" in refused.value.hint
        server.shutdown()


@pytest.mark.parametrize("text", ["<html>hello</html>", "[]", '{"version": "1.2"}'])
def test_an_answer_that_is_not_from_ray_is_an_error(tmp_path, text):
    fetch = lambda *_: (200, text)  # noqa: E731
    cluster = RayCluster("http://h:1", tmp_path, {}, shell=FakeShell(), fetch=fetch)
    with pytest.raises(UnavailableError, match="is not Ray's Jobs API"):
        cluster.problems(JobSpec(script="x"))


def test_a_ray_version_that_is_too_old_is_an_error(tmp_path):
    fetch = lambda *_: (200, '{"ray_version": "2.54.0"}')  # noqa: E731
    cluster = RayCluster("http://h:1", tmp_path, {}, shell=FakeShell(), fetch=fetch)
    (problem,) = cluster.problems(JobSpec(script="x"))
    assert problem == "the cluster at http://h:1 has ray 2.54.0, but Echelon needs 2.56"


def test_options_unknown_to_ray_are_refused_without_a_query(api, cluster):
    spec = JobSpec(script="x", partition="gpu", time="1:00:00", style="srun", hand_over="requeue")
    found = "; ".join(cluster.problems(spec))
    for word in ("partition (gpu)", "time (1:00:00)", "style 'srun'", "hand_over 'requeue'"):
        assert word in found
    assert not api.asked
    assert cluster.problems(JobSpec(script="x", nodes=JobSpec().nodes, gpus=2, mem_mib=5)) == []


SLURMS = {
    "partition": "gpu",
    "time": "1h",
    "preflight": True,
    "output": "x",
    "mail": "a@b.c",
    "wait_all_nodes": True,
    "gpu_option": "gpus",
    "slurm.extra": {"reservation": "r"},
}


@pytest.mark.parametrize("key", SLURMS)
def test_slurm_keys_are_ignored_in_files_and_refused_as_flags_on_ray(key):
    layer = lambda source: Layer(source=source, values={"script": "x", key: SLURMS[key]})  # noqa: E731
    spec, dropped = drop_slurm_only_keys(merge([layer("echelon.toml")]))
    assert spec == JobSpec(script="x")
    assert dropped == [f"{key} (echelon.toml)"]
    for source in ("flags", "--set"):
        with pytest.raises(UsageError, match=rf"not supported on Ray: {key} \(") as refused:
            drop_slurm_only_keys(merge([layer(source)]))
        assert refused.value.hint


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (Result(argv=(), stdout="2.60.0\n"), []),
        (
            Result(argv=(), stdout="2.59.1\n"),
            [
                (
                    "the Python '/p' has ray 2.59.1, but the cluster has 2.60.0: "
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
def test_a_python_without_ray_has_a_hint_to_install_it(api, tmp_path, shown, expected):
    shell = FakeShell(answers={"/p": shown})
    cluster = RayCluster("http://h:1", tmp_path, {}, shell=shell, fetch=api)
    assert cluster.problems(JobSpec(script="x", python="/p")) == expected


# --- which addresses may be contacted -----------------------------------------------------------


def test_a_submission_records_the_ray_address_privately(api, run, tmp_path):
    environ = {"XDG_STATE_HOME": str(tmp_path / "state")}
    for _ in range(2):
        cluster = RayCluster("http://head:1", tmp_path, environ, shell=FakeShell(), fetch=api)
        queue_attempt(run, cluster, {}, run.script.read_bytes())
    record = tmp_path / "state" / "echelon" / "ray-addresses"
    assert record.read_text() == "http://head:1\n"
    assert record.stat().st_mode & 0o777 == 0o600
    assert record.parent.stat().st_mode & 0o777 == 0o700
    assert given_addresses(environ) == {"http://head:1"}


def test_the_default_ray_address_is_not_recorded_as_given(api, run, tmp_path):
    environ = {"XDG_STATE_HOME": str(tmp_path / "state")}
    cluster = RayCluster("", tmp_path, environ, shell=FakeShell(), fetch=api)
    queue_attempt(run, cluster, {}, run.script.read_bytes())
    assert given_addresses(environ) == set()


def test_a_ray_address_that_was_not_given_is_not_contacted(api, run, tmp_path):
    cluster = RayCluster("http://h:1", tmp_path, {}, shell=FakeShell(), fetch=api, given=False)
    with pytest.raises(NotPermittedError, match="you never gave it"):
        cluster.job(f"ray:{run.run_id}-1@http://h:1", run_id=run.run_id)
    assert not api.asked


def test_variables_give_ray_addresses():
    variables = {"RAY_API_SERVER_ADDRESS": "a:1", "RAY_ADDRESS": "https://b/"}
    assert given_addresses(variables) == {"http://a:1", "https://b"}
    assert given_addresses({"RAY_ADDRESS": "10.0.0.1:6379"}) == set()
    assert given_addresses({"RAY_ADDRESS": "auto", "RAY_API_SERVER_ADDRESS": "file:///x"}) == set()


def test_a_record_of_addresses_that_others_can_write_is_ignored(tmp_path):
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    remember_address("http://head:1", environ)
    record = tmp_path / "echelon" / "ray-addresses"
    record.write_text("http://head:1\nfile:///etc\nhttp://u:p@h:1\n\xff\n")
    assert given_addresses(environ) == {"http://head:1"}
    record.chmod(0o620)
    assert given_addresses(environ) == set()
    record.unlink()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("http://head:1\n")
    elsewhere.chmod(0o600)
    record.symlink_to(elsewhere)
    assert given_addresses(environ) == set()
    record.unlink()
    os.mkfifo(record, 0o600)
    assert given_addresses(environ) == set()
    assert given_addresses({}) == set()


def test_a_job_id_is_quoted_in_the_path_of_the_ray_api(api, cluster, run):
    cluster.job(f"ray:../../api/version?x-1@{cluster.address}", run_id=run.run_id)
    assert api.asked[-1][1] == "/api/jobs/..%2F..%2Fapi%2Fversion%3Fx-1"


# --- names --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "environ", "expected"),
    [
        ("", {}, ""),
        ("", {"RAY_ADDRESS": "auto"}, ""),
        ("head:8265", {}, "http://head:8265"),
        ("https://head/", {}, "https://head"),
        ("", {"RAY_ADDRESS": "http://a:1"}, "http://a:1"),
        ("", {"RAY_API_SERVER_ADDRESS": "10.0.0.1:8265"}, "http://10.0.0.1:8265"),
        ("[::1]:8265", {}, "http://[::1]:8265"),
        ("https://proxy/ray/", {}, "https://proxy/ray"),
        ("", {"RAY_ADDRESS": "http://a:1", "RAY_API_SERVER_ADDRESS": "http://b:2"}, "http://b:2"),
        ("c:3", {"RAY_ADDRESS": "http://a:1"}, "http://c:3"),
    ],
)
def test_the_ray_address_is_found(asked, environ, expected):
    assert find_address(asked, environ) == expected


@pytest.mark.parametrize(
    "asked",
    [
        *("ray://head:10001", "http://", "http://user:pass@head:1", "http://[::1", "http://x:port"),
        *("http://bad host:1", "?x=1", "http://h:1?x=1", "http://h:1\n", "http://h:0", "h:1#a"),
    ],
)
def test_an_invalid_ray_address_is_an_error(asked):
    with pytest.raises(UsageError, match="not a valid address of Ray's Jobs API"):
        find_address(asked, {})
    with pytest.raises(UsageError, match="not a valid address of Ray's Jobs API"):
        find_address("", {"RAY_API_SERVER_ADDRESS": asked})


@pytest.mark.parametrize("known", ["10.0.0.1:6379", "ray://head:10001"])
def test_a_ray_address_without_the_jobs_api_is_an_error(known):
    with pytest.raises(UsageError, match=r"is an address for ray\.init"):
        find_address("", {"RAY_ADDRESS": known})
    assert find_address("http://h:1", {"RAY_ADDRESS": known}) == "http://h:1"


def test_the_ray_token_is_found_as_ray_does(tmp_path):
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("usual\n")
    (tmp_path / "other").write_text("named\n")
    environ = {"HOME": str(tmp_path)}
    assert find_token(environ) == "usual"
    assert find_token({**environ, "RAY_AUTH_TOKEN_PATH": str(tmp_path / "other")}) == "named"
    assert find_token({**environ, "RAY_AUTH_TOKEN": "said"}) == "said"
    assert find_token({"HOME": "/nowhere"}) == ""


def test_the_name_of_a_ray_job_contains_its_address():
    name = parse_job_name("ray:train-abcd-2@http://head:8265")
    assert (name.submission, name.address) == ("train-abcd-2", "http://head:8265")
    assert str(name) == "ray:train-abcd-2@http://head:8265"
    nowhere = JobName(submission="train-abcd-2")
    assert parse_job_name(str(nowhere)) == nowhere


@pytest.mark.parametrize("name", ["plain", "a b", "a'; echo foo", 'q"`$(echo foo)\\', "ü\n2"])
def test_the_ray_command_quotes_the_folder_of_the_script(tmp_path, name):
    folder = tmp_path / name
    folder.mkdir()
    script = "echo attempt $1 of ${0##*/}\n"
    command = render_entrypoint(folder, 3, folder / "out", script.encode())
    missing = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert missing.returncode == 69
    head = f"echelon: the head of the Ray cluster, {os.uname().nodename}, cannot access"
    assert missing.stderr.startswith(head)
    assert str(folder) in missing.stderr
    (folder / "job.sbatch").write_text(f"{script}echo more\n")
    changed = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert changed.returncode == 77
    assert "job.sbatch is not what was submitted" in changed.stderr
    assert not (folder / "out").exists()
    (folder / "job.sbatch").write_text(script)
    assert subprocess.run(command, shell=True, check=False).returncode == 0
    assert (folder / "out").read_text() == "attempt 3 of job.sbatch\n"


def test_the_active_environment_is_set_for_a_ray_job():
    active = {"VIRTUAL_ENV": "/venv"}
    assert choose_python(JobSpec(), active, inherits=False).python == "/venv/bin/python"
    assert choose_python(JobSpec(), active, inherits=True).python == ""
    assert choose_python(JobSpec(venv="v"), active, inherits=False).python == ""
