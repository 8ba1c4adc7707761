import asyncio
import threading

import pytest

from echelon.core.shell import FakeShell, Result
from echelon.launch.agent import staging as module
from echelon.launch.agent.staging import NodeStage, choose_folder
from echelon.launch.protocol.messages import Stage, Staged
from echelon.launch.stage.manifest import describe_folder
from echelon.run.request import Environment
from echelon.spec.job_spec import JobSpec

pytestmark = pytest.mark.leaves_threads  # whoever serves ends with its process

KEY = b"k" * 32
ALLOWED = {"unshare": ""}


@pytest.fixture
def original(tmp_path):
    place = tmp_path / "venv"
    (place / "lib").mkdir(parents=True)
    (place / "lib" / "a.py").write_text("a = 1\n")
    (place / "lib" / "b.py").write_text("b = 1\n")
    return place


@pytest.fixture
def make(tmp_path, original):
    made = []

    def build(node="node0", *, answers=ALLOWED, digest=None, prefix=None, limit_mib=100):
        recorded = describe_folder(original).digest if digest is None else digest
        stage = NodeStage(
            JobSpec(stage=True, stage_dir=f"{tmp_path}/stages/%N", stage_limit_mib=limit_mib),
            recorded=Environment(prefix=str(original), digest=recorded),
            node=node,
            environ={},
            shell=FakeShell(answers),
            key=KEY,
            prefix=prefix or str(original),
        )
        asyncio.run(stage.look())
        made.append(stage)
        return stage

    yield build
    for one in made:
        one.close()


def fill(stage, *orders):
    for order in orders:
        stage.order(order)
    return asyncio.run(stage.fill())


def read():
    return Stage(sources=[])


def follow(*ports):
    return Stage(sources=[["127.0.0.1", port] for port in ports])


def test_the_reader_copies_and_the_next_job_finds_it(make, original):
    first = make()
    assert (first.state, first.mount) == ("part", None)
    assert fill(first, read()) == Staged(copied=12)
    copy, place = first.mount
    assert place == str(original)
    assert describe_folder(module.Path(copy)).digest == describe_folder(original).digest
    first.close()
    assert make().state == "whole"


def test_another_node_gets_it_from_there(make):
    first, second = make("node0"), make("node1")
    port = first.listen("127.0.0.1")
    fill(first, read())
    assert fill(second, follow(port)) == Staged(copied=12)
    assert second.mount[0] != first.mount[0]


def test_it_follows_a_better_order_when_the_first_node_is_lost(make, monkeypatch):
    monkeypatch.setattr(module, "_PAUSE_S", 0.01)
    first, second = make("node0"), make("node1")
    port = first.listen("127.0.0.1")
    fill(first, read())
    second.order(follow(1))  # nothing listens there
    timer = threading.Timer(0.2, second.order, [follow(port)])
    timer.start()
    assert asyncio.run(second.fill()) == Staged(copied=12)
    timer.join()


def test_without_a_better_order_it_goes_on_without(make, monkeypatch):
    monkeypatch.setattr(module, "_PAUSE_S", 0.01)
    monkeypatch.setattr(module, "_ORDER_S", 0.1)
    stage = make()
    staged = fill(stage, follow(1))
    assert "refused" in staged.error
    assert (stage.state, stage.mount) == ("", None)


def test_storage_that_does_not_respond_is_not_waited_for(make, monkeypatch):
    never = threading.Event()
    monkeypatch.setattr(module, "STALL_S", 0.1)
    monkeypatch.setattr(module, "describe_folder", lambda *_: never.wait(20))
    stage = make(digest="0" * 64)
    staged = fill(stage, read())
    never.set()
    assert staged.error == "no data came for 0.1 s"


def test_a_changed_environment_is_told(make, original):
    stage = make()
    (original / "lib" / "a.py").write_text("a = 'later'\n")
    staged = fill(stage, read())
    assert staged.changed
    assert describe_folder(module.Path(stage.mount[0])).digest == describe_folder(original).digest


def test_a_file_that_cannot_be_read_is_named(make, original, monkeypatch):
    stage = make()

    def fail(*_):
        raise PermissionError(13, "Permission denied", str(original / "lib" / "a.py"))

    monkeypatch.setattr(module, "read_all", fail)
    assert fill(stage, read()).error.endswith("Permission denied: '%s'" % (original / "lib/a.py"))


def test_an_error_of_ours_is_no_reason_to_end(make, monkeypatch):
    stage = make()
    monkeypatch.setattr(module, "read_all", lambda *_: 1 / 0)
    assert fill(stage, read()).error.startswith("internal error: ZeroDivisionError")


def test_only_damaged_files_are_copied_again(make):
    first = make()
    fill(first, read())
    (module.Path(first.mount[0]) / "lib" / "a.py").unlink()
    first.close()
    again = make()
    assert again.state == "part"
    assert fill(again, read()) == Staged(copied=6, repaired=1)


@pytest.mark.parametrize("prefix", ["/usr", "/usr/local"])
def test_the_system_s_python_is_not_staged(make, prefix):
    stage = make(prefix=prefix)
    assert stage.state == ""
    assert "is the system's" in stage.unstaged
    assert "hint: " in stage.unstaged


def test_a_kernel_without_namespaces_is_named(make):
    refused = Result(argv=("unshare",), code=1, stderr="unshare failed: Operation not permitted\n")
    stage = make(answers={"unshare": refused})
    assert stage.state == ""
    assert "no mount namespace here: unshare failed: Operation not permitted" in stage.unstaged


def test_what_is_too_large_goes_on_without_and_leaves_nothing(make, tmp_path):
    stage = make(limit_mib=0)
    staged = fill(stage, read())
    assert "--stage-limit" in staged.error
    assert list((tmp_path / "stages" / "node0").iterdir()) == []


def test_the_digest_of_another_environment_does_not_count(make, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    first = make()
    fill(first, read())
    assert make(prefix=str(other)).state == "part"


def test_the_folder_is_the_user_s_own():
    assert str(choose_folder("", "n1")).startswith("/var/tmp/echelon-stage-")  # noqa: S108
    assert str(choose_folder("/local/%N/x", "n1")) == "/local/n1/x"
