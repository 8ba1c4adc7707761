"""Workdirs on a login host: files that are sent, replaced, kept and removed."""

import itertools
import os
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echelon.client.code.code_listing import Kind, find_kind
from echelon.client.code.project import LINK, Project, ProjectFile
from echelon.client.code.tree import Tree
from echelon.client.code.workdir_record import Found, find_record
from echelon.client.remote import workdir as workdir_module
from echelon.client.remote.workdir import Workdir, find_changes
from echelon.core import files
from echelon.errors import ConflictError, UnavailableError
from workdirs import content, describe, make_project, send, write


def test_a_workdir_becomes_equal_to_the_project(project, workdir):
    done = send(project, workdir).check()
    assert (done.laptop.files, done.laptop.warnings) == (5, ())
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


def test_only_changed_files_are_sent(project, workdir):
    send(project, workdir).check()
    write(project, {"pkg/a.py": "edited\n", "new/n.py": "n\n"})
    (project / "pkg" / "sub" / "b.py").unlink()
    (project / "alias.py").unlink()
    (project / "alias.py").symlink_to("pkg/a.py")
    (project / "train.py").chmod(0o755)
    assert send(project, workdir).check().laptop.files == 2
    assert content(workdir) == content(project)
    assert not (workdir / "pkg" / "sub").exists()
    assert (workdir / "train.py").stat().st_mode & 0o100


def test_each_content_is_sent_once(project, workdir):
    """Also if files are copied, renamed or become executable."""
    write(project, {f"copies/{n}": "the same\n" for n in range(3)})
    assert send(project, workdir).check().laptop.files == 6
    (project / "copies" / "0").rename(project / "renamed")
    (project / "copies" / "1").chmod(0o755)
    (project / "train.py").rename(project / "pkg" / "a.py")
    write(project, {"train.py": "a\n"})
    assert send(project, workdir).check().laptop.files == 0
    assert content(workdir) == content(project)


def test_files_folders_and_links_replace_each_other(project, workdir):
    send(project, workdir).check()
    for path in ("pkg/sub/b.py", "pkg/a.py", "train.py", "empty", "alias.py"):
        (project / path).unlink()
    (project / "pkg" / "sub").rmdir()
    (project / "pkg").rmdir()
    write(project, {"pkg": "a file\n", "train.py/x.py": "x\n", "alias.py/y.py": "y\n"})
    (project / "empty").symlink_to("pkg")
    send(project, workdir).check()
    assert content(workdir) == content(project)


# --- lost connections -------------------------------------------------------------------------


def test_a_submission_continues_after_a_connection_lost_at_any_byte(project, workdir):
    """Nothing is lost or doubled, and the second time less is sent."""
    described = describe(project)
    whole = send(project, workdir).check()
    total, before = whole.up, len(whole_contents(project))
    saved = []
    for number, cut in enumerate([*range(0, total - before, 61), *range(total - before, total)]):
        place = workdir.with_name(f"cut-{number}")
        done = send(project, place, described, cut_up=cut)
        assert isinstance(done.laptop, UnavailableError)
        assert isinstance(done.host, UnavailableError)
        assert content(place) == {}
        again = send(project, place, described).check()
        assert content(place) == content(project)
        assert {path.name for path in (place / ".echelon").iterdir()} == {"lock", "mirror.json"}
        saved.append(whole.laptop.files - again.laptop.files)
        assert find_record(place).theirs == ()
    assert saved == sorted(saved)
    assert set(saved) >= {0, 4}


def whole_contents(project):
    return b"".join(set(content(project).values()) - {"-> train.py"})


def test_a_submission_continues_after_an_answer_lost_at_any_byte(project, workdir):
    whole = send(project, workdir).check()
    for cut in (*range(0, whole.down, 5), whole.down - 1):
        place = workdir.with_name(f"cut-{cut}")
        done = send(project, place, cut_down=cut)
        assert isinstance(done.laptop, UnavailableError), cut
        send(project, place).check()
        assert content(place) == content(project)


def test_received_contents_are_not_sent_again(project, workdir):
    write(project, {f"big/{n}": f"{n}" * 50_000 for n in range(10)})
    described = describe(project)
    done = send(project, workdir, described, cut_up=400_000)
    assert isinstance(done.laptop, UnavailableError)
    again = send(project, workdir, described).check()
    assert again.up < 200_000
    assert content(workdir) == content(project)


def test_received_contents_that_are_not_needed_any_more_are_removed(project, workdir):
    write(project, {f"big/{n}": f"{n}" * 50_000 for n in range(10)})
    send(project, workdir, cut_up=400_000)
    assert list(workdir.glob(".echelon/incoming/*"))
    for path in (project / "big").iterdir():
        path.write_text("edited\n")
    send(project, workdir, cut_up=3000)
    assert not [path for path in workdir.glob(".echelon/incoming/*") if path.stat().st_size > 100]
    send(project, workdir).check()
    assert content(workdir) == content(project)


class KilledError(Exception):
    """As SIGKILL: nothing is cleaned up after it."""


def update_and_kill(project, workdir, monkeypatch, calls):
    """Send a project; the host is killed after so many changes of the workdir.

    Returns:
        whether it was.
    """
    left = itertools.count(calls, -1)
    with monkeypatch.context() as patch:
        for owner, name in (
            *((Tree, "remove"), (Tree, "link"), (Workdir, "_write")),
            (workdir_module, "write_record"),
        ):
            original = getattr(owner, name)

            def die_first(*words, original=original, **options):
                if next(left) <= 0:
                    raise KilledError
                return original(*words, **options)

            patch.setattr(owner, name, die_first)
        return isinstance(send(project, workdir).host, KilledError)


@pytest.mark.parametrize("again", [True, False], ids=["twice", "once"])
def test_all_files_are_known_after_the_host_was_killed_during_an_update(
    project, workdir, tmp_path, monkeypatch, again
):
    """Old and new ones, after another kill too: nothing of them is in the way later, or stays."""
    first, second, third = (make_project(tmp_path / name) for name in ("first", "second", "third"))
    write(first, {"old.py": "old\n", "pkg/swapped": "file\n", "train.py": "first\n"})
    write(second, {"new.py": "new\n", "pkg/swapped/inner": "folder\n", "train.py": "second\n"})
    write(third, {"newer.py": "newer\n", "pkg/swapped": "again\n", "train.py": "third\n"})
    (second / "alias.py").unlink()
    (second / "alias.py").symlink_to("new.py")
    killed = 0
    while True:
        place = workdir.with_name(f"killed-{killed}")
        send(first, place).check()
        write(place, {"theirs": "theirs\n"})
        if not update_and_kill(second, place, monkeypatch, killed):
            break
        if again:
            update_and_kill(third, place, monkeypatch, killed)
        for last in (third, first):
            send(last, place).check()
            assert content(place) == {**content(last), "theirs": b"theirs\n"}
        killed += 1
    assert killed > 6


def test_a_half_written_file_is_removed(project, workdir, monkeypatch):
    """The one of a killed process has a name that the next process knows."""
    send(project, workdir).check()
    write(project, {"pkg/a.py": "edited\n", "same.py": "edited\n"})  # one of them is copied

    def stop(*_words):
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr("echelon.client.code.tree._unlink", lambda _name, _folder: None)
        patch.setattr("echelon.client.remote.workdir.shutil.copyfileobj", stop)
        send(project, workdir)
    assert list(workdir.rglob(".echelon-*")) == [workdir / "pkg" / ".echelon-part"]
    write(project, {"pkg/a.py": "a\n"})  # so that nothing else takes the name
    send(project, workdir).check()
    assert content(workdir) == content(project)


# --- what others wrote ------------------------------------------------------------------------


def test_a_file_that_echelon_did_not_write_is_not_overwritten(project, workdir):
    write(workdir, {"train.py": "mine\n", "pkg/a.py/x": "mine too\n", "data/big": "data\n"})
    before = content(workdir)
    done = send(project, workdir)
    assert isinstance(done.laptop, ConflictError)
    assert "were created or changed on the host, and differ from the project: " in str(done.laptop)
    assert set(done.laptop.message.rpartition(": ")[2].split(", ")) == {"train.py", "pkg/a.py/x"}
    assert "rename or remove them there: mv '" in done.laptop.hint
    assert str(done.laptop).endswith(f": {done.host}")
    assert content(workdir) == before


def test_an_identical_file_that_echelon_did_not_write_is_used_but_never_removed(project, workdir):
    write(workdir, {"train.py": "train\n"})
    done = send(project, workdir).check()
    assert done.laptop.files == 4
    assert find_record(workdir).theirs == ("train.py",)
    (project / "train.py").unlink()
    (project / "alias.py").unlink()
    done = send(project, workdir).check()
    assert (workdir / "train.py").read_text() == "train\n"
    assert done.laptop.warnings == ()


def test_a_file_that_was_changed_on_the_host_is_not_overwritten(project, workdir):
    send(project, workdir).check()
    write(workdir, {"train.py": "edited there\n"})
    write(project, {"train.py": "edited here\n", "pkg/a.py": "new\n"})
    done = send(project, workdir)
    assert isinstance(done.laptop, ConflictError)
    assert "changed on the host, and differ from the project: train.py" in done.laptop.message
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


def test_a_change_while_the_project_is_sent_is_not_lost(project, workdir):
    send(project, workdir).check()
    write(project, {"train.py": "edited here\n", "pkg/a.py": "new\n"})
    edit = lambda _sent, _all: write(workdir, {"train.py": "edited there\n"})  # noqa: E731
    done = send(project, workdir, progress=edit)
    assert isinstance(done.laptop, ConflictError)
    assert (workdir / "train.py").read_text() == "edited there\n"
    assert (workdir / "pkg" / "a.py").read_text() == "a\n"


def test_a_link_in_the_place_of_a_folder_is_not_followed(project, workdir, tmp_path):
    write(tmp_path, {"elsewhere/keep": "keep\n"})
    workdir.mkdir(parents=True)
    (workdir / "pkg").symlink_to(tmp_path / "elsewhere")
    done = send(project, workdir)
    assert isinstance(done.laptop, ConflictError)
    assert content(tmp_path / "elsewhere") == {"keep": b"keep\n"}


def test_a_link_that_appears_meanwhile_is_not_followed(project, workdir, tmp_path):
    (tmp_path / "elsewhere").mkdir()

    def swap(_sent, _all):
        if not (workdir / "pkg").is_symlink():
            (workdir / "pkg").symlink_to(tmp_path / "elsewhere")

    done = send(project, workdir, progress=swap)
    assert isinstance(done.laptop, ConflictError)
    assert content(tmp_path / "elsewhere") == {}


# --- what to change ---------------------------------------------------------------------------


NAMES = st.sampled_from(["a", "b", "a/x", "a/y/z", "c/d"])
IDENTITIES = st.sampled_from(["1", "2", f"{LINK}t", ""])


@given(
    wanted=st.dictionaries(NAMES, st.sampled_from("12")),
    ours=st.dictionaries(NAMES, st.sets(IDENTITIES.filter(bool), min_size=1)),
    there=st.dictionaries(NAMES, IDENTITIES),
)
def test_changes_never_remove_files_that_echelon_did_not_write(wanted, ours, there):
    files = {path: ProjectFile(digest, 1, executable=False) for path, digest in wanted.items()}
    found = {path: Found(identity=there.get(path, "")) for path in {*wanted, *ours}}
    changes = find_changes(Project(files=files), ours, found)
    for path in (*changes.written, *changes.removed):
        identity = found[path].identity
        assert not identity or identity in ours.get(path, ())
    same = {path for path in wanted if found[path].identity == wanted[path]}
    assert {*changes.written, *same, *changes.conflicts} == set(wanted)
    assert not set(wanted) & {*changes.removed, *changes.kept}


# --- the record -------------------------------------------------------------------------------


def test_stamps_are_kept_once_files_are_old_enough(project, workdir, monkeypatch):
    send(project, workdir).check()
    assert find_record(workdir).stamps == {}
    monkeypatch.setattr(files, "RECENT_NS", -(10**18))
    send(project, workdir).check()
    assert len(find_record(workdir).stamps) == 5
    described = describe(project)
    monkeypatch.setattr(Tree, "open", lambda _tree, path: pytest.fail(path))
    send(project, workdir, described).check()


@pytest.mark.parametrize(
    "text", ["", "[]", '{"project": {"files": {"a": [1]}, "links": {}}}', None]
)
def test_a_changed_record_prevents_overwriting(project, workdir, text):
    send(project, workdir).check()
    record = workdir / ".echelon" / "mirror.json"
    record.write_text(record.read_text().replace("train", "trAin") if text is None else text)
    assert find_kind(workdir) == Kind.FOLDER
    write(project, {"train.py": "edited\n"})
    assert isinstance(send(project, workdir).laptop, ConflictError)
    write(project, {"train.py": "train\n"})
    send(project, workdir).check()
    assert find_kind(workdir) == Kind.WORKDIR


def test_nothing_is_sent_if_the_record_cannot_be_remembered(project, workdir, monkeypatch):
    described = describe(project)
    (workdir.parent.parent / "state").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(workdir.parent.parent / "state"))
    done = send(project, workdir, described)
    assert isinstance(done.laptop, UnavailableError)
    assert "cannot record in the state folder" in done.laptop.message
    assert content(workdir) == {}


def test_another_project_in_the_same_workdir_is_a_warning(project, workdir, tmp_path):
    assert send(project, workdir).check().laptop.warnings == ()
    other = tmp_path / "other"
    write(other, {"train.py": "another\n"})
    (warning,) = send(other, workdir).check().laptop.warnings
    assert f"held the code of {os.uname().nodename}:{project} until now" in warning
    assert send(other, workdir).check().laptop.warnings == ()
