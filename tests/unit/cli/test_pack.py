"""`echelon pack`, as a user meets it."""

import io
import json
import os
import signal
import subprocess
import sys
import threading

import pytest

from echelon.cli import main
from echelon.cli.pack import ProgressLines, name_targets, parse_size
from echelon.errors import UsageError
from echelon.train.images import packfile
from image_folders import class_folders, save

ECHELON = [sys.executable, "-m", "echelon"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys, *arguments):
    """Return the exit code, the JSON output and the messages."""
    code = main.run(["pack", "--workers", "1", *arguments])
    return code, *capsys.readouterr()


def two_splits(folder):
    class_folders(folder / "train")
    class_folders(folder / "val", per_class=2)
    save(folder / "test" / "images" / "x.jpg", 1)
    return folder


def test_each_split_is_packed_into_one_file(here, capsys):
    two_splits(here / "tiny")
    code, out, err = run(capsys, "tiny", "--json")
    assert code == 0
    train, val = json.loads(out)
    assert (train["file"], train["state"], train["images"]) == ("tiny/train.packed", "packed", 12)
    assert (val["file"], val["images"], val["classes"]) == ("tiny/val.packed", 6, 3)
    assert "skipping tiny/test: no labels" in err
    assert packfile.verify(here / "tiny" / "val.packed").count == 6
    assert run(capsys, "--verify", "tiny/train.packed")[0] == 0


def test_a_folder_without_splits_is_packed_beside_it(here, capsys):
    class_folders(here / "flowers")
    assert run(capsys, "flowers")[0] == 0
    assert sorted(path.name for path in here.iterdir()) == ["flowers", "flowers.packed"]
    code, out, _ = run(capsys, "flowers", "--json")
    assert (code, json.loads(out)[0]["state"]) == (0, "up to date")


def test_an_existing_file_is_replaced_only_with_force(here, capsys):
    class_folders(here / "flowers")
    assert run(capsys, "flowers")[0] == 0
    before = (here / "flowers.packed").read_bytes()
    code, _, err = run(capsys, "flowers", "--size", "4")
    assert (code, "--force" in err) == (73, True)
    assert (here / "flowers.packed").read_bytes() == before
    assert run(capsys, "flowers", "--size", "4", "--force")[0] == 0
    assert packfile.verify(here / "flowers.packed").height == 4


def test_pack_dry_run_writes_no_file(here, capsys):
    two_splits(here / "tiny")
    code, out, _ = run(capsys, "tiny", "out", "--dry-run", "--split", "val", "--json")
    assert code == 0
    assert [(fact["file"], fact["state"]) for fact in json.loads(out)] == [
        ("out/val.packed", "to be packed")
    ]
    assert [path.name for path in here.iterdir()] == ["tiny"]


def test_broken_images_are_listed(here, capsys):
    folder = class_folders(here / "flowers")
    (folder / "bee" / "0001.png").write_text("no image")
    code, _, err = run(capsys, "flowers")
    assert (code, "flowers/bee/0001.png is broken" in err) == (2, True)
    code, out, err = run(capsys, "flowers", "--skip-broken", "--json")
    assert code == 0
    assert json.loads(out)[0]["skipped"] == {"bee/0001.png": "not an image"}
    assert "bee/0001.png: not an image" in err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nowhere"], 66, "there is no directory nowhere"),
        (["empty"], 2, "there are no images in empty"),
        (["flat"], 2, "the images in flat have no classes"),
        (["file"], 2, "file is not a directory"),
        (["x.packed"], 2, "x.packed is not a directory"),
        (["flowers", "file"], 2, "file is not a directory"),
        (["flowers", "file/below"], 69, "file/below: Not a directory"),
        (["flowers", "/proc/self"], 69, "/proc/self/flowers.packed.partial: "),
        (["flowers", "folder.packed"], 2, "folder.packed is a directory"),
        (["flowers", "--size", "big"], 2, "invalid value for --size: 'big'"),
        (["flowers", "--split", "val"], 66, "flowers has no split 'val' (available: none)"),
        (["--verify", "file"], 2, "file is not a packed file"),
        (["--verify", "y.packed"], 66, "there is no packed file y.packed"),
    ],
)
def test_an_invalid_pack_call_is_one_error_with_a_hint(here, capsys, arguments, code, message):
    class_folders(here / "flowers")
    save(here / "flat" / "x.png", 1)
    (here / "empty").mkdir()
    (here / "folder.packed").mkdir()
    (here / "file").touch()
    (here / "x.packed").touch()
    got, out, err = run(capsys, *arguments)
    assert (got, out) == (code, "")
    first, second = err.splitlines()
    assert message in first
    assert second.startswith("hint: ")


@pytest.mark.parametrize(
    ("source", "target", "splits", "expected"),
    [
        ("set", None, [""], ["set.packed"]),
        ("set", "out", [""], ["out/set.packed"]),
        ("set", "y.packed", [""], ["y.packed"]),
        (".", "out", [""], ["out/HERE.packed"]),
        ("set", None, ["train", "val"], ["set/train.packed", "set/val.packed"]),
        ("set", "out", ["train", "val"], ["out/train.packed", "out/val.packed"]),
        ("set", "y.packed", ["val"], ["y.packed"]),
    ],
)
def test_packed_files_are_named_after_their_split_or_folder(here, source, target, splits, expected):
    path = type(here)
    named = name_targets(path(source), path(target) if target else None, splits)
    assert [str(named[split]) for split in splits] == [
        name.replace("HERE", here.name) for name in expected
    ]


def test_two_splits_are_not_packed_into_one_file(here):
    with pytest.raises(UsageError, match=r"several splits \(train, val\) into one file"):
        name_targets(here, here / "x.packed", ["train", "val"])


def test_size_is_parsed_as_height_and_width():
    assert (parse_size(""), parse_size("64"), parse_size("48x64")) == (None, (64, 64), (48, 64))
    for text in ("0", "-1", "4x", "1x2x3", "٣"):
        with pytest.raises(UsageError):
            parse_size(text)


def test_progress_in_a_log_is_a_line_every_five_seconds(capsys):
    now = 100.0
    lines = ProgressLines("x.packed", clock=lambda: now)
    for done in range(0, 1001, 100):  # one of them a second
        lines(400 + done, 2000)
        now += 1.0
    assert capsys.readouterr().err.splitlines() == [
        "x.packed: 900 of 2,000 images, 100 images/s, 11 s left",
        "x.packed: 1,400 of 2,000 images, 100 images/s, 6 s left",
    ]


def test_progress_in_a_terminal_is_a_bar(here, capsys, monkeypatch):
    class_folders(here / "flowers")
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    assert run(capsys, "flowers")[0] == 0
    assert "flowers.packed" in screen.getvalue()
    assert "12 of 12" in screen.getvalue()


def test_pack_without_pillow_names_the_extra(here):
    class_folders(here / "flowers")
    program = (
        "import sys; sys.modules['PIL'] = None\n"
        "from echelon.cli.main import run\n"
        "sys.exit(run(['pack', 'flowers']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (69, "")
    assert "hint: " in done.stderr
    assert "-m pip install pillow\n" in done.stderr


def test_pack_imports_no_torch_and_its_help_no_pillow(here):
    class_folders(here / "flowers")
    program = (
        "import sys\n"
        "from echelon.cli.main import run\n"
        "run(['pack', '--help'])\n"
        "assert not {'PIL', 'numpy', 'torch', 'rich'} & set(sys.modules)\n"
        "assert run(['pack', 'flowers', '--json']) == 0\n"
        "assert run(['pack', '--verify', 'flowers.packed', '--json']) == 0\n"
        "assert not {'numpy', 'torch'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)


def test_pack_continues_after_ctrl_c(here):
    """The last image is a pipe: it opens once all images before it are packed or in progress."""
    folder = class_folders(here / "flowers", classes=("ant", "bee"), per_class=64)
    last = folder / "bee" / "last.png"
    os.mkfifo(last)
    argv = [*ECHELON, "pack", "flowers", "--workers", "2", "--json"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(argv, start_new_session=True, **pipes) as process:
        with last.open("wb"):
            os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "")
    assert not (here / "flowers.packed").exists()

    content = (folder / "ant" / "0000.png").read_bytes()
    feeding = threading.Thread(target=lambda: last.write_bytes(content))
    feeding.start()
    done = subprocess.run(argv, **pipes, timeout=60, check=True)
    feeding.join()
    assert json.loads(done.stdout)[0]["images"] == 129
    assert sorted(path.name for path in here.iterdir()) == ["flowers", "flowers.packed"]
