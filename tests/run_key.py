"""The key of a run, as its controller draws it: a test has no other way to learn it."""

_RECORDER = """\
import os, pathlib, secrets, sys

def record(size, draw=secrets.token_bytes):
    secrets.token_bytes = draw
    key = draw(size)
    pathlib.Path(os.environ["KEY_RECORD"]).write_bytes(key)
    return key

if "controller" in sys.orig_argv:
    secrets.token_bytes = record
"""
"""The first secret that a controller draws is the key of its run."""


def record_key(folder):
    """Return variables that have a run's controller leave its key in a file, for `recorded_key`.

    Nothing else gives it to a test: it is in no variable, argument or file.
    """
    recorder = folder / "recorder"
    recorder.mkdir()
    (recorder / "sitecustomize.py").write_text(_RECORDER)
    return {"PYTHONPATH": str(recorder), "KEY_RECORD": str(recorder / "key")}


def recorded_key(folder):
    return (folder / "recorder" / "key").read_bytes()
