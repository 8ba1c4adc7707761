"""Mirrors of projects on a login host: what is sent, kept and removed."""

import json
import os
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echelon.client.code.code_listing import Kind, find_kind
from echelon.client.code.mirror_record import Commit, read_mirror
from echelon.client.remote import project_description
from echelon.client.remote.mirror import Mirror
from echelon.client.remote.mirror_plan import Found, identify_file, identify_link, make_plan
from echelon.client.remote.project_description import (
    Project,
    ProjectFile,
    describe_project,
    parse_project,
    render_project,
)
from echelon.core import files
from echelon.core.shell import LocalShell
from echelon.core.tree import Tree
from echelon.errors import (
    ConflictError,
    UnavailableError,
    UsageError,
)
from mirrors import content, describe, make_project, send, write


@pytest.fixture
def project(tmp_path):
    return make_project(tmp_path / "project")


@pytest.fixture
def workdir(tmp_path):
    return tmp_path / "host" / "project"


def test_a_mirror_is_the_same_as_the_project(project, workdir):
    done = send(project, workdir).check()
    assert (done.laptop.files, done.host.files, done.host.warnings) == (5, 5, ())
    assert content(workdir) == content(project)
    modes = {path.name: stat.S_IMODE(path.lstat().st_mode) for path in workdir.rglob("*.??")}
    assert modes == {
        "train.py": 0o600,
        "a.py": 0o600,
        "b.py": 0o600,
        "tool.sh": 0o700,
        "alias.py": 0o777,
    }
    assert stat.S_IMODE((workdir / "pkg").stat().st_mode) == 0o700
    assert {path.name for path in (workdir / ".echelon").iterdir()} == {"lock", "mirror.json"}
    again = send(project, workdir).check()
    assert (again.laptop.files, again.laptop.size) == (0, 0)


def test_only_what_changed_is_sent(project, workdir):
    send(project, workdir).check()
    write(project, {"pkg/a.py": "edited\n", "new/n.py": "n\n"})
    (project / "pkg" / "sub" / "b.py").unlink()
    (project / "alias.py").unlink()
    (project / "alias.py").symlink_to("pkg/a.py")
    (project / "train.py").chmod(0o755)
    done = send(project, workdir).check()
    assert (done.laptop.files, done.host.removed) == (3, 1)
    assert content(workdir) == content(project)
    assert not (workdir / "pkg" / "sub").exists()
    assert (workdir / "train.py").stat().st_mode & 0o100


def test_files_folders_and_links_take_each_others_place(project, workdir):
    send(project, workdir).check()
    for path in ("pkg/sub/b.py", "pkg/a.py", "train.py", "empty", "alias.py"):
        (project / path).unlink()
    (project / "pkg" / "sub").rmdir()
    (project / "pkg").rmdir()
    write(project, {"pkg": "a file\n", "train.py/x.py": "x\n", "alias.py/y.py": "y\n"})
    (project / "empty").symlink_to("pkg")
    send(project, workdir).check()
    assert content(workdir) == content(project)


def test_links_are_sent_as_they_can_be_used(project, workdir, tmp_path):
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
    monkeypatch.setattr(
        project_description, "read_settled", lambda _root, entry: pytest.fail(entry.path)
    )
    assert describe(project, tmp_path / "state") == first
    monkeypatch.undo()
    write(project, {"train.py": "trAin\n"})
    assert describe(project, tmp_path / "state").files["train.py"] != first.files["train.py"]


def test_a_file_changed_a_moment_ago_is_read_again(project, tmp_path, monkeypatch):
    describe(project, tmp_path / "state")
    seen = []
    original = project_description.read_settled
    monkeypatch.setattr(
        project_description,
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


# --- lost connections -------------------------------------------------------------------------


def test_a_connection_may_be_lost_at_any_byte(project, workdir):
    """Nothing is lost or doubled, and the second time less is sent."""
    described = describe(project)
    whole = send(project, workdir).check()
    total = whole.up
    saved = []
    for number, cut in enumerate([*range(0, 1200, 61), *range(1200, total, 397), total - 1]):
        place = workdir.with_name(f"cut-{number}")
        done = send(project, place, described, cut_up=cut)
        assert isinstance(done.laptop, UnavailableError)
        assert isinstance(done.host, UnavailableError)
        again = send(project, place, described).check()
        assert content(place) == content(project)
        assert {path.name for path in (place / ".echelon").iterdir()} == {"lock", "mirror.json"}
        saved.append(whole.laptop.files - again.laptop.files)
        assert all(file.own for file in read_mirror(place).files.values())
    assert saved == sorted(saved)
    assert set(saved) >= {0, 5}


def test_an_answer_may_be_lost_at_any_byte(project, workdir):
    whole = send(project, workdir).check()
    for cut in range(whole.down):
        place = workdir.with_name(f"cut-{cut}")
        done = send(project, place, cut_down=cut)
        assert isinstance(done.laptop, UnavailableError), cut
        send(project, place).check()
        assert content(place) == content(project)


def test_bytes_that_arrived_are_not_sent_again(project, workdir):
    write(project, {f"big/{n}": f"{n}" * 50_000 for n in range(10)})
    described = describe(project)
    done = send(project, workdir, described, cut_up=400_000)
    assert isinstance(done.laptop, UnavailableError)
    again = send(project, workdir, described).check()
    assert again.up < 200_000
    assert content(workdir) == content(project)


def test_files_of_an_attempt_that_was_cut_are_ours(project, workdir):
    """They may be overwritten and removed, as if the attempt had been complete."""
    write(project, {f"big/{n}": f"{n}" * 50_000 for n in range(10)})
    send(project, workdir, cut_up=400_000)
    assert (workdir / "big" / "1").exists()
    (project / "big" / "0").unlink()
    write(project, {"big/1": "edited\n"})
    send(project, workdir).check()
    assert content(workdir) == content(project)


def test_a_killed_receiver_leaves_nothing_behind(project, workdir, monkeypatch):
    """Its temporary file has a name that the next one knows."""
    write(project, {"big": "x" * 100_000})
    with monkeypatch.context() as patch:
        patch.setattr("echelon.core.tree._unlink", lambda _name, _folder: None)
        send(project, workdir, cut_up=60_000)
    left = list(workdir.rglob(".echelon-*.tmp"))
    assert len(left) == 1
    (project / "big").unlink()  # so that nothing else takes the name
    send(project, workdir).check()
    assert not list(workdir.rglob(".echelon-*.tmp"))


# --- what others wrote ------------------------------------------------------------------------


def test_a_file_of_somebody_else_is_not_overwritten(project, workdir):
    write(workdir, {"train.py": "mine\n", "pkg/a.py/x": "mine too\n", "data/big": "data\n"})
    before = content(workdir)
    done = send(project, workdir)
    assert isinstance(done.laptop, ConflictError)
    assert "are not from Echelon and differ from the project: " in done.laptop.message
    assert set(done.laptop.message.rpartition(": ")[2].split(", ")) == {"train.py", "pkg/a.py"}
    assert "remove or rename them" in done.laptop.hint
    assert str(done.laptop).endswith(f": {done.host}")
    assert content(workdir) == before


def test_the_same_file_of_somebody_else_is_used_but_stays_theirs(project, workdir):
    write(workdir, {"train.py": "train\n"})
    done = send(project, workdir).check()
    assert done.laptop.files == 4
    (project / "train.py").unlink()
    (project / "alias.py").unlink()
    done = send(project, workdir).check()
    assert (workdir / "train.py").read_text() == "train\n"
    assert done.host.warnings == ()


def test_a_file_that_was_changed_on_the_host_is_not_overwritten(project, workdir):
    send(project, workdir).check()
    write(workdir, {"train.py": "edited there\n"})
    write(project, {"train.py": "edited here\n", "pkg/a.py": "new\n"})
    done = send(project, workdir)
    assert isinstance(done.laptop, ConflictError)
    assert "were changed on the host since they were sent: train.py" in done.laptop.message
    assert (workdir / "train.py").read_text() == "edited there\n"
    assert (workdir / "pkg" / "a.py").read_text() == "a\n"
    (workdir / "train.py").unlink()
    send(project, workdir).check()
    assert content(workdir) == content(project)


def test_a_change_on_the_host_is_an_error_even_if_nothing_changed_here(project, workdir):
    send(project, workdir).check()
    write(workdir, {"train.py": "edited there\n"})
    assert isinstance(send(project, workdir).laptop, ConflictError)
    write(project, {"train.py": "edited there\n"})  # the change was brought here
    send(project, workdir).check()


def test_a_changed_file_is_not_removed(project, workdir):
    send(project, workdir).check()
    write(workdir, {"pkg/a.py": "edited there\n"})
    (project / "pkg" / "a.py").unlink()
    done = send(project, workdir).check()
    (warning,) = done.laptop.warnings
    assert warning.startswith("pkg/a.py is not in the project any more")
    assert (workdir / "pkg" / "a.py").read_text() == "edited there\n"
    assert send(project, workdir).check().laptop.warnings == ()


def test_a_change_while_the_project_is_sent_is_not_lost(project, workdir, monkeypatch):
    send(project, workdir).check()
    write(project, {"train.py": "edited here\n"})
    original = Mirror._unpack

    def edit_first(self, *words):
        write(workdir, {"train.py": "edited there\n"})
        return original(self, *words)

    monkeypatch.setattr(Mirror, "_unpack", edit_first)
    done = send(project, workdir)
    assert isinstance(done.laptop, ConflictError)
    assert (workdir / "train.py").read_text() == "edited there\n"


def test_a_link_in_the_place_of_a_folder_is_not_followed(project, workdir, tmp_path):
    write(tmp_path, {"elsewhere/keep": "keep\n"})
    workdir.mkdir(parents=True)
    (workdir / "pkg").symlink_to(tmp_path / "elsewhere")
    done = send(project, workdir)
    assert isinstance(done.laptop, ConflictError)
    assert content(tmp_path / "elsewhere") == {"keep": b"keep\n"}


def test_a_link_that_appears_meanwhile_is_not_followed(project, workdir, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    original = Mirror._unpack

    def swap_first(self, *words):
        (workdir / "pkg").symlink_to(tmp_path / "elsewhere")
        return original(self, *words)

    monkeypatch.setattr(Mirror, "_unpack", swap_first)
    done = send(project, workdir)
    assert isinstance(done.laptop, ConflictError)
    assert content(tmp_path / "elsewhere") == {}


# --- the plan ---------------------------------------------------------------------------------


NAMES = st.sampled_from(["a", "b", "a/x", "a/y/z", "c/d"])
IDENTITIES = st.sampled_from([identify_file("1"), identify_file("2"), identify_link("t"), ""])


@given(
    wanted=st.dictionaries(NAMES, st.sampled_from("12")),
    ours=st.dictionaries(NAMES, st.sets(IDENTITIES.filter(bool), min_size=1)),
    there=st.dictionaries(NAMES, IDENTITIES),
)
def test_a_plan_loses_nothing_that_is_not_ours(wanted, ours, there):
    files = {path: ProjectFile(digest, 1, executable=False) for path, digest in wanted.items()}
    found = {path: Found(identity=there.get(path, "")) for path in {*wanted, *ours}}
    plan = make_plan(Project(files=files, links={}), ours, found)
    touched = {*plan.files, *plan.first, *plan.last}
    for path in touched:
        identity = found[path].identity
        assert not identity or identity in ours.get(path, ())
    same = {path for path in wanted if found[path].identity == identify_file(wanted[path])}
    assert {*plan.files, *same, *plan.changed, *plan.foreign} == set(wanted)
    assert not set(wanted) & {*plan.first, *plan.last, *plan.kept}


def test_stamps_are_kept_once_files_are_old_enough(project, workdir, monkeypatch):
    send(project, workdir).check()
    assert {file.stamp for file in read_mirror(workdir).files.values()} == {None}
    monkeypatch.setattr(files, "RECENT_NS", -(10**18))
    send(project, workdir).check()
    assert None not in {file.stamp for file in read_mirror(workdir).files.values()}
    described = describe(project)
    monkeypatch.setattr(Tree, "open", lambda _tree, path: pytest.fail(path))
    send(project, workdir, described).check()


@pytest.mark.parametrize("text", ["", "[]", '{"files": {"a": [1]}, "links": {}}', None])
def test_with_a_changed_record_nothing_is_overwritten(project, workdir, text):
    send(project, workdir).check()
    record = workdir / ".echelon" / "mirror.json"
    record.write_text(record.read_text().replace("train", "trAin") if text is None else text)
    assert find_kind(workdir) == Kind.FOLDER
    write(project, {"train.py": "edited\n"})
    assert isinstance(send(project, workdir).laptop, ConflictError)
    write(project, {"train.py": "train\n"})
    send(project, workdir).check()
    assert find_kind(workdir) == Kind.MIRROR


def test_nothing_is_sent_if_the_record_could_not_be_known_again(project, workdir, monkeypatch):
    described = describe(project)
    (workdir.parent.parent / "state").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(workdir.parent.parent / "state"))
    done = send(project, workdir, described)
    assert isinstance(done.laptop, UnavailableError)
    assert "cannot record in the state folder" in done.laptop.message
    assert content(workdir) == {}


TEXT = st.text('ab ä\n"\\\udcff', min_size=1, max_size=9)


@given(
    files=st.sets(TEXT),
    links=st.dictionaries(TEXT.map("links/{}".format), TEXT),
    commit=st.builds(Commit, commit=TEXT, branch=TEXT, dirty=st.booleans()),
)
def test_what_is_described_is_understood(files, links, commit):
    known = Project(
        files={path: ProjectFile("0" * 64, len(path), executable=True) for path in files},
        links=links,
        commit=commit,
    )
    assert parse_project(json.loads(json.dumps(render_project(known)))) == known


def test_another_project_in_the_same_folder_is_told_of(project, workdir, tmp_path):
    assert send(project, workdir).check().laptop.warnings == ()
    other = tmp_path / "other"
    write(other, {"train.py": "another\n"})
    (warning,) = send(other, workdir).check().laptop.warnings
    assert f"held the code of {os.uname().nodename}:{project} until now" in warning
    assert send(other, workdir).check().laptop.warnings == ()
