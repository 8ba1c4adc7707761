"""Packing: what is listed, what is in the file, and what becomes of it when we are killed."""

import contextlib
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
from dataclasses import replace

import psutil
import pytest
from PIL import Image

from echelon.core.waiting import wait_until
from echelon.errors import ConflictError, NotFoundError, UnavailableError, UsageError
from echelon.train.images import packfile, packing
from echelon.train.images.folders import find_splits, list_folder, list_split
from image_folders import class_folders, pixels, save


def make_plan(folder, target, size=None):
    return packing.make_plan(list_folder(folder), target, size=size)


def pack(folder, target, *, size=None, **options):
    return packing.pack(make_plan(folder, target, size), **{"workers": 1, **options})


def read(target):
    """Return the images and labels of a file, by its documented layout alone."""
    content = target.read_bytes()
    length = int.from_bytes(content[12:16], "little")
    header = json.loads(content[48 : 48 + length])
    step = header["height"] * header["width"] * 3
    first, labels = header["images_offset"], header["labels_offset"]
    images = [content[k : k + step] for k in range(first, len(content), step)]
    numbers = [
        int.from_bytes(content[labels + 8 * k : labels + 8 * k + 8], "little")
        for k in range(header["count"])
    ]
    return header, images, numbers


# --- listing ------------------------------------------------------------------------------------


def tiny_imagenet(folder):
    """TinyImageNet's layout, with two classes."""
    for number, (wnid, k) in enumerate((wnid, k) for wnid in ("n02", "n01") for k in range(3)):
        save(folder / "train" / wnid / "images" / f"{wnid}_{k}.JPEG", number)
        (folder / "train" / wnid / f"{wnid}_boxes.txt").write_text(f"{wnid}_0.JPEG\t0\t0\t9\t9\n")
    for k in range(4):
        save(folder / "val" / "images" / f"val_{k}.JPEG", 50 + k)
        save(folder / "test" / "images" / f"test_{k}.JPEG", 60 + k)
    lines = [f"val_{k}.JPEG\t{wnid}\t0\t0\t9\t9\n" for k, wnid in enumerate(("n02", "n01") * 2)]
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))
    (folder / "wnids.txt").write_text("n02\nn01\n")
    (folder / "words.txt").write_text("n00\tcat\nn01\tgoldfish, Carassius auratus\nn02\tnewt\n")
    return folder


def test_tiny_imagenet_is_listed_as_it_is(tmp_path):
    folder = tiny_imagenet(tmp_path / "tiny")
    assert find_splits(folder) == (["train", "val"], ["test"])
    train, val = list_split(folder, "train"), list_split(folder, "val")
    assert train.source == "tiny/train"
    assert train.classes == val.classes == ("n01", "n02")
    assert train.words == val.words == ("goldfish, Carassius auratus", "newt")
    assert [(entry.file, entry.label) for entry in train.entries] == [
        (f"{wnid}/images/{wnid}_{k}.JPEG", label)
        for label, wnid in enumerate(("n01", "n02"))
        for k in range(3)
    ]
    assert [(entry.file, entry.label) for entry in val.entries] == [
        (f"images/val_{k}.JPEG", (1, 0)[k % 2]) for k in range(4)
    ]


def test_class_folders_are_listed_in_order_without_what_is_no_image(tmp_path):
    for name in ("bee/2.PNG", "bee/deep/1.Jpeg", "ant/x.webp", ".hidden/x.png", "bee/.x.png"):
        save(tmp_path / name, 0)
    (tmp_path / "bee" / "notes.txt").touch()
    (tmp_path / "bee" / "loop").symlink_to(tmp_path / "bee")
    listing = list_folder(tmp_path)
    assert listing.classes == ("ant", "bee")
    assert [entry.file for entry in listing.entries] == [
        "ant/x.webp",
        "bee/2.PNG",
        "bee/deep/1.Jpeg",
    ]
    assert [entry.label for entry in listing.entries] == [0, 1, 1]


def test_folders_that_are_numbers_are_their_own_labels(tmp_path):
    for number in range(12):
        save(tmp_path / str(number) / "x.png", number)
    listing = list_folder(tmp_path)
    assert [int(entry.file.split("/")[0]) for entry in listing.entries] == list(range(12))
    assert [entry.label for entry in listing.entries] == list(range(12))


def test_class_ids_without_names_stay_what_they_are(tmp_path):
    for k in range(3):
        save(tmp_path / f"{k}.png", k)
    (tmp_path / "labels.txt").write_text("0.png,7\n1.png,3\n2.png,7\n")
    listing = list_folder(tmp_path)
    assert listing.classes == ()
    assert [entry.label for entry in listing.entries] == [7, 3, 7]


def test_splits_of_class_folders_share_the_classes_of_train(tmp_path):
    class_folders(tmp_path / "train")
    class_folders(tmp_path / "val", classes=("bee", "cow"))
    assert find_splits(tmp_path) == (["train", "val"], [])
    assert {entry.label for entry in list_split(tmp_path, "val").entries} == {1, 2}
    class_folders(tmp_path / "val", classes=("dog",))
    with pytest.raises(UsageError, match=r"unknown class 'dog'"):
        list_split(tmp_path, "val")


def test_a_class_may_be_called_train(tmp_path):
    class_folders(tmp_path, classes=("bus", "car", "train"))
    assert find_splits(tmp_path) == ([], [])


@pytest.mark.parametrize(
    ("lines", "error", "message"),
    [
        ("a.png\tx\n", UsageError, r"b\.png has no line in labels.txt \(1 such"),
        (
            "a.png\tx\nb.png\tx\nc.png\ty\n",
            NotFoundError,
            r"c\.png is listed in labels.txt but does not exist",
        ),
        ("a.png\tx\nb.png\n", UsageError, "line 2 of .* is invalid"),
        ("a.png\tx\nb.png\tx\na.png\ty\n", UsageError, "gives a.png two classes"),
    ],
)
def test_annotations_that_do_not_fit_are_told(tmp_path, lines, error, message):
    for name in ("a", "b"):
        save(tmp_path / "images" / f"{name}.png", 0)
    (tmp_path / "labels.txt").write_text(lines)
    with pytest.raises(error, match=message):
        list_folder(tmp_path)


# --- content ------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 3])
def test_images_and_labels_are_in_the_file_in_order(tmp_path, workers):
    folder = class_folders(tmp_path / "set", per_class=50)  # three blocks
    target = tmp_path / "set.packed"
    done = pack(folder, target, workers=workers)
    header, images, labels = read(target)
    assert images == [pixels(number) for number in range(150)]
    assert labels == [number // 50 for number in range(150)]
    assert (header["classes"], header["count"]) == (["ant", "bee", "cow"], 150)
    assert header["images_offset"] % 4096 == 0
    assert (done.header.count, done.skipped) == (150, {})
    assert packfile.verify(target) == done.header
    assert sorted(path.name for path in tmp_path.iterdir()) == ["set", "set.packed"]


@pytest.mark.parametrize("mode", ["L", "CMYK", "P", "1", "RGBA", "LA"])
def test_every_kind_of_image_becomes_rgb(tmp_path, mode):
    (tmp_path / "set" / "a").mkdir(parents=True)
    image = Image.new("RGB", (4, 4), (255, 255, 255)).convert(mode)
    image.save(tmp_path / "set" / "a" / "x.tif")
    pack(tmp_path / "set", tmp_path / "x.packed")
    assert read(tmp_path / "x.packed")[1] == [b"\xff" * 48]


def test_more_than_8_bits_are_not_cut_off_silently(tmp_path):
    (tmp_path / "set" / "a").mkdir(parents=True)
    save(tmp_path / "set" / "a" / "0.png", 0)
    Image.new("I;16", (8, 6), 300).save(tmp_path / "set" / "a" / "x.png")
    with pytest.raises(UsageError, match="more than 8 bits per channel"):
        pack(tmp_path / "set", tmp_path / "x.packed")


def test_an_image_of_another_size_is_told_with_the_fix(tmp_path):
    folder = class_folders(tmp_path / "set")
    save(folder / "bee" / "x.png", 0, height=5, width=7)
    with pytest.raises(
        UsageError, match=r"bee/x.png has size 5×7, but the first image has 6×8"
    ) as caught:
        pack(folder, tmp_path / "x.packed")
    assert "--size 6x8" in caught.value.hint


def test_images_are_resized_to_cover_and_cropped_around_the_centre(tmp_path):
    image = Image.new("RGB", (30, 10), (0, 0, 0))
    image.paste((200, 100, 50), (10, 0, 20, 10))  # what remains of the middle third
    (tmp_path / "set" / "a").mkdir(parents=True)
    image.save(tmp_path / "set" / "a" / "x.png")
    pack(tmp_path / "set", tmp_path / "x.packed", size=(5, 5))
    header, [pixel_bytes], _ = read(tmp_path / "x.packed")
    assert (header["height"], header["width"]) == (5, 5)
    assert pixel_bytes[3 * 12 : 3 * 13] == bytes([200, 100, 50])  # the centre
    assert min(pixel_bytes[::3]) > 0  # no black border


def spoil(folder):
    """Break the first image of all, and one in the middle."""
    content = (folder / "ant" / "0001.png").read_bytes()
    (folder / "ant" / "0000.png").write_bytes(content[: len(content) // 2])
    (folder / "bee" / "0002.png").write_text("no image")
    return folder


def test_a_broken_image_is_told_by_name(tmp_path):
    folder = spoil(class_folders(tmp_path / "set"))
    with pytest.raises(UsageError, match=r"ant/0000.png is broken") as caught:
        pack(folder, tmp_path / "x.packed")
    assert "--skip-broken" in caught.value.hint
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize("workers", [1, 2])
def test_broken_images_can_be_left_out(tmp_path, workers):
    folder = spoil(class_folders(tmp_path / "set", per_class=40))
    done = pack(folder, tmp_path / "x.packed", skip_broken=True, workers=workers)
    assert list(done.skipped) == ["ant/0000.png", "bee/0002.png"]
    kept = [number for number in range(120) if number not in (0, 42)]
    header, images, labels = read(tmp_path / "x.packed")
    assert images == [pixels(number) for number in kept]
    assert labels == [number // 40 for number in kept]
    assert (header["count"], header["skipped"]) == (118, 2)
    assert packfile.verify(tmp_path / "x.packed").count == 118


def test_when_all_are_broken_no_file_is_made(tmp_path):
    (tmp_path / "set" / "a").mkdir(parents=True)
    (tmp_path / "set" / "a" / "x.png").write_text("no image")
    for size in (None, (4, 4)):
        with pytest.raises(UsageError, match="none of the 1 images"):
            pack(tmp_path / "set", tmp_path / "x.packed", size=size, skip_broken=True)
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_an_image_that_vanishes_is_an_error_whatever_is_skipped(tmp_path):
    folder = class_folders(tmp_path / "set")
    plan = make_plan(folder, tmp_path / "x.packed")
    (folder / "bee" / "0001.png").unlink()
    with pytest.raises(UnavailableError, match=r"cannot read .*bee/0001.png: No such file"):
        packing.pack(plan, workers=1, skip_broken=True)


# --- up to date, or another ---------------------------------------------------------------------


def test_a_file_is_up_to_date_until_images_or_settings_change(tmp_path):
    folder, target = class_folders(tmp_path / "set"), tmp_path / "x.packed"
    assert not packing.is_up_to_date(make_plan(folder, target))
    pack(folder, target)
    assert packing.is_up_to_date(make_plan(folder, target))
    os.utime(folder / "ant" / "0000.png")
    assert packing.is_up_to_date(make_plan(folder, target))
    with pytest.raises(ConflictError, match="other images or with other settings") as caught:
        packing.is_up_to_date(make_plan(folder, target, (4, 4)))
    assert "--force" in caught.value.hint
    save(folder / "cow" / "new.png", 1)
    with pytest.raises(ConflictError, match="other images or with other settings"):
        packing.is_up_to_date(make_plan(folder, target))
    target.write_text("mine")
    with pytest.raises(ConflictError, match="is not a packed file"):
        packing.is_up_to_date(make_plan(folder, target))


def test_two_cannot_write_one_file(tmp_path):
    folder = class_folders(tmp_path / "set")
    plan = make_plan(folder, tmp_path / "x.packed")

    def meanwhile(done, total):
        with pytest.raises(ConflictError, match="another process is writing"):
            packing.pack(plan, workers=1)

    packing.pack(plan, workers=1, progress=meanwhile)
    assert packfile.verify(plan.target)


# --- interrupted --------------------------------------------------------------------------------


class Interrupt:
    """Presses Ctrl-C when so many images are done."""

    def __init__(self, after):
        self.after, self.seen = after, []

    def __call__(self, done, _total):
        self.seen.append(done)
        if done >= self.after:
            raise KeyboardInterrupt


@pytest.fixture
def half(tmp_path):
    """A set, and a packing of it that was interrupted after two of four blocks."""
    folder = class_folders(tmp_path / "set", per_class=80)
    with pytest.raises(KeyboardInterrupt):
        pack(folder, tmp_path / "x.packed", progress=Interrupt(128))
    assert not (tmp_path / "x.packed").exists()
    return folder, tmp_path / "x.packed"


def whole(folder, tmp_path):
    """The bytes of the same file, made in one go."""
    pack(folder, tmp_path / "whole.packed", skip_broken=True)
    return (tmp_path / "whole.packed").read_bytes()


def test_an_interrupted_packing_goes_on_where_it_was(tmp_path, half):
    folder, target = half
    seen, notes = Interrupt(1000), []
    pack(folder, target, progress=seen, note=notes.append)
    assert seen.seen[0] == 128
    assert "continuing after 128 images" in notes[0]
    assert target.read_bytes() == whole(folder, tmp_path)


def test_broken_images_of_the_first_run_are_remembered(tmp_path):
    folder, target = spoil(class_folders(tmp_path / "set", per_class=80)), tmp_path / "x.packed"
    with pytest.raises(KeyboardInterrupt):
        pack(folder, target, progress=Interrupt(128), skip_broken=True)
    with pytest.raises(UsageError, match=r"ant/0000.png is broken"):
        pack(folder, target)
    done = pack(folder, target, skip_broken=True)
    assert list(done.skipped) == ["ant/0000.png", "bee/0002.png"]
    assert target.read_bytes() == whole(folder, tmp_path)


def test_after_a_broken_image_skip_broken_goes_on(tmp_path):
    folder, target = class_folders(tmp_path / "set", per_class=80), tmp_path / "x.packed"
    (folder / "cow" / "0030.png").write_text("no image")
    with pytest.raises(UsageError, match=r"cow/0030.png is broken"):
        pack(folder, target)
    seen = Interrupt(1000)
    pack(folder, target, skip_broken=True, progress=seen)
    assert seen.seen[0] == 128
    assert target.read_bytes() == whole(folder, tmp_path)


@pytest.mark.parametrize("change", ["settings", "images"])
def test_what_has_changed_meanwhile_starts_anew(tmp_path, half, change):
    folder, target = half
    if change == "images":
        save(folder / "ant" / "new.png", 3)
    size = (4, 4) if change == "settings" else None
    seen, notes = Interrupt(1000), []
    pack(folder, target, size=size, progress=seen, note=notes.append)
    assert seen.seen[0] == 0
    assert "has other images or settings; starting over" in notes[0]
    pack(folder, tmp_path / "other.packed", size=size)
    assert target.read_bytes() == (tmp_path / "other.packed").read_bytes()


@pytest.mark.parametrize("damage", ["flipped", "cut"])
def test_a_damaged_partial_file_starts_anew(tmp_path, half, damage):
    folder, target = half
    partial = tmp_path / "x.packed.partial"
    content = bytearray(partial.read_bytes())
    content[-500] ^= 1
    partial.write_bytes(content if damage == "flipped" else content[:-500])
    notes = []
    pack(folder, target, note=notes.append)
    assert "is damaged; starting over" in notes[0]
    assert target.read_bytes() == whole(folder, tmp_path)


def test_a_line_of_the_journal_that_was_cut_off_does_not_count(tmp_path, half):
    folder, target = half
    journal = tmp_path / "x.packed.journal"
    lines = journal.read_text()
    journal.write_text(lines + lines.splitlines()[-1][:20])
    with pytest.raises(KeyboardInterrupt):
        pack(folder, target, progress=Interrupt(192))
    seen = Interrupt(1000)
    pack(folder, target, progress=seen)
    assert seen.seen[0] == 192
    assert target.read_bytes() == whole(folder, tmp_path)


KILLED = """
import os, signal, sys
from pathlib import Path
from echelon.train.images import folders, packing
folder, target, workers, fatal = Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:])
lines = 0
def count(frame, event, _):
    global lines
    if frame.f_code.co_filename != packing.__file__:
        return None
    lines += event == "line"
    if lines == fatal > 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return count
if __name__ == "__main__":
    plan = packing.make_plan(folders.list_folder(folder), target, size=(16, 16))
    sys.settrace(count)
    packing.pack(plan, workers=workers, skip_broken=True, record_every_s=0)
    sys.settrace(None)
    print(lines)
"""
"""Packs, and is killed before the given line of packing.py that it would run."""


def kill_and_restart(tmp_path, choose, kills):
    """Kill packings at the lines that `choose` names, each time from nothing, and restart them."""
    folder = spoil(class_folders(tmp_path / "set", per_class=90))
    expected = tmp_path / "whole.packed"
    pack(folder, expected, size=(16, 16), skip_broken=True)
    script = tmp_path / "killed.py"
    script.write_text(KILLED)

    def run(target, workers, fatal=0):
        argv = [sys.executable, script, folder, target, workers, fatal]
        return subprocess.run(
            [str(word) for word in argv], capture_output=True, text=True, timeout=60, check=False
        )

    lines = int(run(tmp_path / "counted.packed", 1).stdout)
    for number in range(kills):
        place = tmp_path / f"kill-{number}"
        fatal, workers = choose(lines), 1 + number % 2
        assert run(place / "x.packed", workers, fatal).returncode == -signal.SIGKILL
        done = run(place / "x.packed", workers)
        assert done.returncode == 0, f"killed at {fatal} of {lines}: {done.stderr}"
        assert (place / "x.packed").read_bytes() == expected.read_bytes(), fatal
        left = {path.name for path in place.iterdir()} - {"x.packed"}
        assert not left, f"killed at {fatal} of {lines}: {left}"


def test_a_kill_anywhere_is_healed_by_a_restart(tmp_path):
    dice = random.Random(4)  # noqa: S311  no secret
    kill_and_restart(tmp_path, lambda lines: dice.randint(1, lines - 1), 4)


@pytest.mark.full
def test_many_kills_are_healed_by_a_restart(tmp_path):
    dice = random.Random(5)  # noqa: S311  no secret

    def choose(lines):  # half of them where the file is about to appear
        return dice.randint(dice.choice([1, lines - 30]), lines - 1)

    kill_and_restart(tmp_path, choose, 30)


PAUSED = """
import signal, sys
from pathlib import Path
from echelon.train.images import folders, packing
def pause(done, total):
    if done:
        print("ready", flush=True)
        signal.pause()
if __name__ == "__main__":
    folder, target = map(Path, sys.argv[1:])
    plan = packing.make_plan(folders.list_folder(folder), target, size=None)
    packing.pack(plan, workers=3, progress=pause)
"""


def test_processes_that_decode_do_not_outlive_a_kill(tmp_path):
    folder = class_folders(tmp_path / "set", per_class=100)
    script = tmp_path / "paused.py"
    script.write_text(PAUSED)
    argv = [sys.executable, str(script), str(folder), str(tmp_path / "x.packed")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        workers = psutil.Process(process.pid).children(recursive=True)
        assert len(workers) >= 3
        process.kill()
    try:
        gone = lambda: not any(worker.is_running() for worker in workers)  # noqa: E731
        assert wait_until(gone, timeout_s=20)
    finally:
        for worker in workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.kill()


def test_a_worker_that_is_killed_is_told(tmp_path):
    folder = class_folders(tmp_path / "set", per_class=200)

    def kill_all(done, total):
        if done == 64:
            for worker in multiprocessing.active_children():
                worker.kill()

    with pytest.raises(UnavailableError, match="was killed"):
        pack(folder, tmp_path / "x.packed", workers=2, progress=kill_all)
    assert not (tmp_path / "x.packed").exists()


FULL = """
import resource, sys
from pathlib import Path
from echelon.train.images import folders, packing
resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, resource.RLIM_INFINITY))
plan = packing.make_plan(folders.list_folder(Path(sys.argv[1])), Path(sys.argv[2]), size=None)
try:
    packing.pack(plan, workers=1)
except packing.UnavailableError as error:
    print(error.message, "|", error.hint)
"""


def test_a_full_disk_is_told_and_what_was_written_is_kept(tmp_path):
    """With a limit on the size of files, which ends a write in the middle just the same."""
    folder, target = class_folders(tmp_path / "set", per_class=100), tmp_path / "x.packed"
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(folder), str(target)],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert "cannot write" in done.stdout
    assert "run the same command again to continue" in done.stdout
    seen = Interrupt(1000)
    pack(folder, target, progress=seen)
    assert seen.seen[0] > 0
    assert target.read_bytes() == whole(folder, tmp_path)


def test_too_small_a_disk_is_told_before_anything_is_decoded(tmp_path):
    folder = class_folders(tmp_path / "set")
    plan = make_plan(folder, tmp_path / "x.packed")
    huge = replace(plan, header=replace(plan.header, height=1 << 30, width=1 << 20))
    with pytest.raises(UnavailableError, match=r"not enough disk space in .* needs .* GB"):
        packing.pack(huge, workers=1)
    assert list(tmp_path.iterdir()) == [folder]


# --- verify -------------------------------------------------------------------------------------


def test_verify_finds_any_flipped_bit(tmp_path):
    folder = class_folders(tmp_path / "set", per_class=1)
    pack(folder, tmp_path / "x.packed", size=(2, 2))
    content = bytearray((tmp_path / "x.packed").read_bytes())
    for place in range(0, len(content), 3):
        content[place] ^= 4
        (tmp_path / "y.packed").write_bytes(content)
        content[place] ^= 4
        with pytest.raises(UsageError):
            packfile.verify(tmp_path / "y.packed")
