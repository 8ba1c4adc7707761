"""The description of a project, and sending its contents to a host."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echelon.client.code.project import (
    Commit,
    Project,
    ProjectFile,
    check_project,
    parse_project,
    render_project,
)
from echelon.client.remote import sending
from echelon.client.remote.sending import describe_project
from echelon.core import files
from echelon.core.shell import LocalShell
from echelon.errors import UsageError
from workdirs import content, describe, send, write


def test_links_are_sent_with_targets_that_work_on_the_host(project, workdir, tmp_path):
    (project / "absolute.py").symlink_to(project / "pkg" / "a.py")
    (project / "pkg" / "away").symlink_to("../../elsewhere")
    (project / "gone").symlink_to("/scratch/data")
    send(project, workdir).check()
    targets = {
        name: str((workdir / name).readlink()) for name in ("absolute.py", "pkg/away", "gone")
    }
    assert targets == {
        "absolute.py": "pkg/a.py",
        "pkg/away": "../../elsewhere",
        "gone": "/scratch/data",
    }


def test_the_runs_and_records_of_this_machine_are_not_sent(project, workdir):
    write(project, {"runs/a-1/spec.toml": "", ".echelon/mirror.json.old": "x"})
    assert {path.partition("/")[0] for path in describe(project).files} == {
        *("train.py", "pkg", "empty", "tool.sh"),
    }
    write(project, {"runs/code.py": "x"})
    with pytest.raises(UsageError, match="where a cluster keeps its runs"):
        describe_project(project, LocalShell(), runs=project / "elsewhere", state=None)


def test_a_project_that_is_too_large_is_an_error(project, monkeypatch):
    monkeypatch.setattr("echelon.client.code.snapshot.MOST_BYTES", 10)
    with pytest.raises(UsageError) as caught:
        describe(project)
    assert "copy it to the cluster" in caught.value.hint
    assert "--no-snapshot" not in caught.value.hint


# --- digests ----------------------------------------------------------------------------------


def test_unchanged_files_are_not_read_again(project, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "RECENT_NS", -(10**18))
    first = describe(project, tmp_path / "state")
    monkeypatch.setattr(sending, "read_settled", lambda _root, entry: pytest.fail(entry.path))
    assert describe(project, tmp_path / "state") == first
    monkeypatch.undo()
    write(project, {"train.py": "trAin\n"})
    assert describe(project, tmp_path / "state").files["train.py"] != first.files["train.py"]


def test_a_file_changed_a_moment_ago_is_read_again(project, tmp_path, monkeypatch):
    describe(project, tmp_path / "state")
    seen = []
    original = sending.read_settled
    monkeypatch.setattr(
        sending,
        "read_settled",
        lambda root, entry: seen.append(entry.path) or original(root, entry),
    )
    describe(project, tmp_path / "state")
    assert len(seen) == 5


@pytest.mark.parametrize("text", ["", "[]", '{"files": 3}', '{"files": {"train.py": [1]}}'])
def test_damaged_digests_are_ignored(project, tmp_path, monkeypatch, text):
    monkeypatch.setattr(files, "RECENT_NS", -(10**18))
    expected = describe(project, tmp_path / "state")
    (stored,) = (tmp_path / "state" / "projects").iterdir()
    stored.write_text(text)
    assert describe(project, tmp_path / "state") == expected


def test_a_file_that_changes_after_it_was_described_is_an_error(project, workdir):
    for text in ("trAin\n", "longer than before\n", "", None):
        described = describe(project)
        if text is None:
            (project / "train.py").unlink()
        else:
            write(project, {"train.py": text})
        done = send(project, workdir, described)
        assert isinstance(done.laptop, UsageError), done
        assert "train.py changed while the project was sent" in done.laptop.message
        assert not (workdir / "train.py").exists()
        write(project, {"train.py": "train\n"})
    send(project, workdir).check()
    assert content(workdir) == content(project)


TEXT = st.text('ab ä\n"\\\udcff', min_size=1, max_size=9)


@given(
    files=st.sets(TEXT),
    links=st.dictionaries(TEXT.map("links/{}".format), TEXT),
    commit=st.builds(Commit, commit=TEXT, branch=TEXT, dirty=st.booleans()),
)
def test_a_described_project_can_be_parsed_and_checked(files, links, commit):
    known = Project(
        files={path: ProjectFile("0" * 64, len(path), executable=True) for path in files},
        links=links,
        commit=commit,
    )
    check_project(known)
    assert parse_project(json.loads(json.dumps(render_project(known)))) == known
