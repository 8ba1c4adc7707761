"""Commands about runs on a host: the choice of the host, and the command line there."""

import os
import threading
from pathlib import Path

import pytest
import typer

from echelon.cli import main, remote
from echelon.cli.remote import There
from echelon.cli.run_commands import NEEDED, ask_hosts
from echelon.cli.run_options import render_line
from echelon.client.remote import remote_calls as hosts
from echelon.client.remote.host_files import claim_folder
from echelon.client.remote.register import read_register, record_run
from echelon.client.submit.host_submission import place_request
from echelon.clusters.ssh.failures import CutError, UnreachableError
from echelon.clusters.ssh.host import LostConnectionError
from echelon.clusters.ssh.site import Site
from echelon.errors import ConflictError, NotPermittedError, UnavailableError, UsageError
from echelon.spec.job_spec import JobSpec
from fake_clock import FakeClock

SITE = Site(host="me@login", workdir="~/echelon/project")


@pytest.fixture
def sent(tmp_path, monkeypatch):
    """A project with a run on a host; returns the command lines that are executed there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("ECHELON_RUNS_DIR", raising=False)
    calls = []

    def forward(site, argv, **_options):
        calls.append((site, list(argv)))
        return 7

    monkeypatch.setattr(remote, "forward", forward)
    record_run("train-abcd", tmp_path, SITE, os.environ)
    return calls


def test_a_command_about_a_run_on_a_host_is_executed_there(sent):
    assert main.run(["status", "--json", "train-ab"]) == 7
    assert sent == [(SITE, ["status", "--json", "--", "train-abcd"])]


def test_last_may_be_a_run_on_a_host(sent):
    assert main.run(["why"]) == 7
    assert sent == [(SITE, ["why", "--", "train-abcd"])]


def test_runs_dir_names_a_directory_of_this_machine(sent, tmp_path, capsys):
    assert main.run(["status", "--runs-dir", str(tmp_path), "train-abcd"]) == 66
    assert not sent
    assert "no run 'train-abcd'" in capsys.readouterr().err


def test_options_are_sent_to_the_host_unchanged(sent):
    main.run(["logs", "--tail=5", "--rank", "3", "--raw"])
    assert sent[-1][1] == ["logs", "--tail=5", "--rank=3", "--raw", "--", "train-abcd"]


def test_the_host_option_selects_a_host(sent, tmp_path):
    main.run(["stop", "--host", "you@other", "last"])
    site, words = sent[-1]
    assert (site.host, site.workdir) == ("you@other", f"~/echelon/{tmp_path.name}")
    assert words == ["stop", "--", "last"]


def test_a_cluster_profile_sets_host_folder_and_python(sent, tmp_path):
    (tmp_path / "echelon.toml").write_text(
        '[clusters.alps]\nhost = "me@alps"\nworkdir = "/scratch/me/x"\nvenv = "~/env"\n'
        'partition = "a100"\n'
    )
    main.run(["cancel", "--cluster", "alps", "train-x"])
    assert sent[-1][0] == Site(
        host="me@alps", workdir="/scratch/me/x", python="~/env/bin/python", cluster="alps"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[clusters.a]\nhost = "-oProxyCommand=x"\n', "is not a host that ssh can connect to"),
        ("[clusters.a]\nhost = 3\n", "host: '3' is not text"),
        ('host = "x"\n', "unknown key 'host'"),
    ],
)
def test_an_invalid_cluster_profile_is_one_error(sent, tmp_path, capsys, text, message):
    (tmp_path / "echelon.toml").write_text(text)
    words = ["status", "--cluster=a"] if "clusters" in text else ["config"]
    assert main.run(words) == 2
    assert message in capsys.readouterr().err
    assert not sent


def test_run_on_slurm_refuses_a_host(sent, capsys):
    Path("train.py").write_text("pass\n")
    assert main.run(["run", "--on", "slurm", "--host", "login", "train.py"]) == 2
    assert "echelon submit --follow" in capsys.readouterr().err


def test_a_command_without_a_run_is_local_unless_a_host_is_named(sent):
    assert main.run(["clean", "--dry-run"]) == 0
    assert not sent
    main.run(["clean", "--dry-run", "--host", "login"])
    assert sent[-1][1] == ["clean", "--dry-run", "--"]


def test_the_doctor_runs_on_the_host(sent, tmp_path):
    (tmp_path / "echelon.toml").write_text(
        'nodes = 8\n[clusters.a]\nhost = "h"\npartition = "p"\n[clusters.a.slurm.extra]\nx = "1"\n'
    )
    main.run(["doctor", "--cluster", "a", "--short"])
    settings = ["--set=partition=p", "--set=slurm.extra.x=1"]
    assert sent[-1][1] == ["doctor", "--config=/dev/null", *settings, "--short"]
    main.run(["doctor", "--cluster", "a", "--nodes", "2"])
    assert "--set=nodes=2" in sent[-1][1]


def test_repeated_and_negated_flags_are_rendered_for_the_host():
    app = typer.Typer()
    seen = []

    @app.command()
    def show(
        context: typer.Context,
        run: str = "last",
        env: list[str] = typer.Option([]),  # noqa: B008
        fast: bool = typer.Option(True, "--fast/--no-fast"),
        args: list[str] = typer.Argument(None),  # noqa: B008
    ) -> None:
        seen.append(render_line(context))

    app(["--env=A=1", "--env", "B=2 3", "--no-fast", "--", "-x", "y"], standalone_mode=False)
    assert seen == [["--env=A=1", "--env=B=2 3", "--no-fast", "--", "-x", "y"]]


def test_the_run_is_the_first_argument_on_the_host():
    line = ["rerun", "--wait", "--", "--lr", "--wait"]
    there = There(site=SITE, run="r", values={}, line=line, command=print)
    assert there.words("--wait") == ["rerun", "--", "r", "--lr", "--wait"]


# --- the request --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("folder", "script", "there", "name"),
    [
        ("", "train.py", ".", "train.py"),
        ("sub", "train.py", "sub", "train.py"),
        ("sub", "../train.py", "sub", "../train.py"),
        ("sub", "{root}/train.py", "sub", "../train.py"),
        ("..", "p/sub/train.py", ".", "sub/train.py"),
    ],
)
def test_paths_on_the_host_are_relative_to_the_project(tmp_path, folder, script, there, name):
    root = tmp_path / "p"
    (root / "sub").mkdir(parents=True)
    spec = JobSpec(script=script.format(root=root), chdir=str(tmp_path))
    placed = place_request(spec, root / folder, root)
    assert placed["folder"] == there
    assert f'script = "{name}"' in placed["request"]
    assert str(tmp_path) not in placed["request"]


# --- connections that break ---------------------------------------------------------------------


def test_a_lost_connection_is_made_again(capsys):
    steps = [LostConnectionError("cut"), UnreachableError("refused"), LostConnectionError("cut"), 3]

    def step():
        found = steps.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    assert hosts.keep_trying(step, hosts.Retries(FakeClock())) == 3
    assert capsys.readouterr().err == "cut; connecting again\n"


@pytest.mark.parametrize(
    "first", [UnavailableError("no network"), NotPermittedError("key refused")]
)
def test_a_failed_first_connection_is_an_error(first):
    def step():
        raise first

    with pytest.raises(type(first)):
        hosts.keep_trying(step, hosts.Retries(FakeClock()))


def test_a_cut_shared_connection_is_made_again_a_few_times():
    steps = [CutError("cut"), CutError("cut"), 3]

    def step():
        found = steps.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    assert hosts.keep_trying(step, hosts.Retries(FakeClock())) == 3
    steps[:] = [CutError("cut")] * 9
    with pytest.raises(CutError):
        hosts.keep_trying(step, hosts.Retries(FakeClock()))
    assert len(steps) == 6


@pytest.mark.parametrize("later", [NotPermittedError("key refused"), UnavailableError("disk full")])
def test_an_error_that_is_not_about_the_connection_is_not_retried(later):
    steps = [LostConnectionError("cut"), later]

    def step():
        raise steps.pop(0)

    with pytest.raises(type(later)):
        hosts.keep_trying(step, hosts.Retries(FakeClock()))


@pytest.fixture
def submission(tmp_path, monkeypatch):
    """Submit a run with one error after the other; return the ids that are registered then."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(hosts.Clock, "sleep", lambda _clock, _length_s: None)

    def submit(*errors):
        left = list(errors)

        def step():
            if left:
                raise left.pop(0)
            return "queued"

        try:
            return hosts.submit_once("train-abcd", tmp_path, SITE, step)
        finally:
            submit.registered = [one.run for one in read_register(os.environ)]

    return submit


def test_a_submission_is_repeated_after_a_lost_connection(submission):
    assert submission(LostConnectionError("cut"), UnreachableError("refused")) == "queued"
    assert submission.registered == ["train-abcd"]


@pytest.mark.parametrize("why", [UsageError("no", hint="x"), UnreachableError("no network")])
def test_a_refused_submission_is_not_registered(submission, why):
    with pytest.raises(type(why), match=why.message):
        submission(why)
    assert submission.registered == []


def test_a_submission_that_the_cluster_did_not_answer_stays_registered(submission):
    with pytest.raises(UnavailableError, match="no answer"):
        submission(UnavailableError("no answer"))
    assert submission.registered == ["train-abcd"]


@pytest.mark.parametrize(
    "errors",
    [
        [LostConnectionError("cut"), UsageError("no", hint="x")],
        [LostConnectionError("cut")] * 9,
    ],
)
def test_after_a_lost_connection_it_is_not_known_whether_a_run_was_queued(submission, errors):
    with pytest.raises(LostConnectionError, match="not known whether train-abcd") as caught:
        submission(*errors)
    assert "echelon status train-abcd" in caught.value.hint
    assert submission.registered == ["train-abcd"]


def test_an_interrupted_submission_names_the_run(submission, capsys):
    with pytest.raises(KeyboardInterrupt):
        submission(KeyboardInterrupt())
    assert "train-abcd may be queued nevertheless" in capsys.readouterr().err


# --- fetched files ------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", ["/etc/x", "../x", "", ".ssh", "train-zzzz", "train-abcd/../x"])
def test_a_host_cannot_choose_the_folder_of_fetched_files(tmp_path, answer):
    with pytest.raises(NotPermittedError, match="the host answered with the run"):
        claim_folder(lambda run_id: tmp_path / run_id, "train-ab", answer)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("answer", ["torch", "src", "build-lib", "conftest.py", "a-1"])
def test_a_host_cannot_answer_with_a_name_that_is_not_a_run(tmp_path, answer):
    for asked in ("last", "12"):
        with pytest.raises(NotPermittedError, match="the host answered with the run"):
            claim_folder(lambda run_id: tmp_path / run_id, asked, answer)
    assert not list(tmp_path.iterdir())


def test_files_are_not_fetched_into_a_folder_with_other_files(tmp_path):
    folder = tmp_path / "results"
    assert claim_folder(lambda _id: folder, "train-ab", "train-abcd") == folder
    assert claim_folder(lambda _id: folder, "last", "train-abcd") == folder  # again
    with pytest.raises(ConflictError, match="does not hold train-efgh"):
        claim_folder(lambda _id: folder, "last", "train-efgh")
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(ConflictError, match="is not empty"):
        claim_folder(lambda _id: tmp_path, "last", "train-abcd")


# --- findings: what must not be ignored, lost or sent -------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["status", "--runs-dir=x", "--host=h"], "--runs-dir names a directory of this machine"),
        (["ps", "--runs-dir=x", "--host=h"], "--runs-dir names a directory of this machine"),
        (["status", "--host", "", "train-abcd"], "--host is empty"),
        (["ps", "--cluster="], "--cluster is empty"),
        (["dash", "--host=h", "--token-file=x"], "--token-file names a file of this machine"),
        (["submit", "--host=h", "--runs-dir=x", "train.py"], "--runs-dir names a directory of"),
        (["sweep", "--host=h", "--runs-dir=x", "--grid=a=1", "train.py"], "--runs-dir names a"),
        (["submit", "--host=", "train.py"], "--host is empty"),
        (["submit", "--cluster=", "train.py"], "--cluster is empty"),
    ],
)
def test_options_that_conflict_with_a_host_are_refused(sent, capsys, words, message):
    Path("train.py").write_text("pass\n")
    assert main.run(words) == 2
    assert message in capsys.readouterr().err
    assert not sent


def test_ps_asks_all_hosts_at_the_same_time(capsys):
    other = Site(host="me@other", workdir="~/x")
    both = threading.Barrier(2)
    row = dict.fromkeys(NEEDED, "x")

    def ask(site):
        both.wait(timeout=60)  # one after another, it would break
        if site == other:
            raise UnavailableError("cannot connect", hint="x")
        return [row]

    assert ask_hosts([SITE, other], ask, 60) == [(SITE, [row])]
    assert "me@other: the runs there are unknown: cannot connect" in capsys.readouterr().err


@pytest.mark.parametrize("answer", [None, {}, [1], [{"run": "x"}]])
def test_ps_notes_a_host_with_an_invalid_answer(capsys, answer):
    assert ask_hosts([SITE], lambda _site: answer, 60) == []
    assert "me@login: the runs there are unknown: unexpected answer" in capsys.readouterr().err


def test_ps_does_not_wait_for_a_host_that_does_not_answer(capsys):
    never = threading.Event()
    assert ask_hosts([SITE], lambda _site: never.wait(), 0.1) == []
    assert "no answer within" in capsys.readouterr().err
    never.set()


@pytest.fixture
def no_pause(monkeypatch):
    monkeypatch.setattr(hosts.time, "sleep", lambda _s: None)


def test_a_rerun_is_requested_again_with_the_same_id(sent, monkeypatch, no_pause):
    asked = []

    def ask(_site, argv, _keys):
        asked.append(argv)
        if len(asked) == 1:
            raise LostConnectionError("lost", hint="x")
        return {"run": argv[2].partition("=")[2], "job_id": "7", "directory": "/x"}

    monkeypatch.setattr(remote, "ask", ask)
    assert main.run(["rerun", "train-abcd"]) == 0
    assert asked[0] == asked[1]
    (new_id,) = {one.run for one in read_register(os.environ)} - {"train-abcd"}
    assert asked[0] == ["rerun", "--json", f"--new-id={new_id}", "--", "train-abcd"]


def test_a_refused_rerun_is_not_recorded(sent, monkeypatch):
    def ask(_site, _argv, _keys):
        raise ConflictError("no", hint="x")

    monkeypatch.setattr(remote, "ask", ask)
    assert main.run(["rerun", "train-abcd"]) == 73
    assert [one.run for one in read_register(os.environ)] == ["train-abcd"]


def test_a_whole_home_directory_is_not_sent(sent, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    Path("train.py").write_text("pass\n")
    assert main.run(["submit", "--host=h", "train.py"]) == 2
    assert "with all of your home directory: nothing was sent" in capsys.readouterr().err
    assert [one.run for one in read_register(os.environ)] == ["train-abcd"]


@pytest.mark.parametrize("ssh", ["shh -F x", "'", "ssh -F /nonexistent"])
def test_an_invalid_ssh_command_records_no_run(sent, monkeypatch, capsys, tmp_path, ssh):
    monkeypatch.setenv("ECHELON_SSH", ssh)
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    Path("train.py").write_text("pass\n")
    assert main.run(["submit", "--host=h", "train.py"])
    assert "this is a bug" not in capsys.readouterr().err
    assert [one.run for one in read_register(os.environ)] == ["train-abcd"]
