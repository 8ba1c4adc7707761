"""Run directories are executed only if the user submitted them, or trusts them."""

import os
import stat

import pytest

from echelon.client.manage.relocation import find_home
from echelon.client.submit.trust import read_script, seal_script
from echelon.core.userstate import remember
from echelon.errors import EchelonError, NotFoundError, NotPermittedError
from echelon.spec.merging import Layer, merge
from prepared import prepare_run


@pytest.fixture(params=["echelon", "srun"])
def run(tmp_path, request):
    (tmp_path / "train.py").touch()
    values = {"script": "train.py", "style": request.param, "notify": "mail me"}
    spec = merge([Layer(source="x", values=values)]).spec
    return prepare_run(spec, tmp_path / "runs", tmp_path)


@pytest.fixture
def environ(tmp_path):
    return {"HOME": str(tmp_path / "home")}


def test_a_submitted_script_is_trusted_in_any_directory(run, environ, tmp_path):
    script = run.script.read_bytes()
    assert remember(script, environ) == ""
    assert read_script(run, environ) == script
    record = tmp_path / "home/.local/state/echelon/submitted"
    assert stat.S_IMODE(record.stat().st_mode) == 0o600
    assert stat.S_IMODE(record.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("other", [{}, {"HOME": "/nowhere"}])
def test_a_script_without_a_record_needs_trust(run, other):
    with pytest.raises(NotPermittedError, match="was not submitted by you") as caught:
        read_script(run, other)
    assert "script = 'train.py'" in caught.value.message
    assert "notify = 'mail me'" in caught.value.message
    assert caught.value.hint == f"if you trust its content: echelon resume {run.run_id} --trust"
    assert read_script(run, other, trust=True) == run.script.read_bytes()


def test_a_changed_script_is_not_trusted(run, environ):
    remember(run.script.read_bytes(), environ)
    run.script.write_text("#!/bin/bash\necho other\n")
    with pytest.raises(NotPermittedError, match="was not submitted by you"):
        read_script(run, environ)


@pytest.mark.parametrize("name", ["spec.toml", "launcher"])
@pytest.mark.parametrize("run", ["echelon"], indirect=True)
def test_a_changed_launcher_or_request_is_not_trusted(run, environ, name):
    script = run.script.read_bytes()
    remember(script, environ)
    path = run.path / name
    path.write_bytes(path.read_bytes() + b"\n")
    with pytest.raises(NotPermittedError, match="was changed after submission"):
        read_script(run, environ)
    trusted = read_script(run, environ, trust=True)
    assert trusted != script
    assert trusted == run.script.read_bytes() == seal_script(trusted, run)


def test_scripts_without_a_launcher_start_nothing_in_the_run_directory(tmp_path):
    """The script alone determines what is executed."""
    (tmp_path / "train.py").touch()
    for style in ("srun", "file", "spawn", "static", "torchrun", "ray"):
        spec = merge([Layer(source="x", values={"script": "train.py", "style": style})]).spec
        run = prepare_run(spec, tmp_path / "runs", tmp_path)
        assert not run.launcher.exists()
        lines = run.script.read_text().splitlines()
        named = [line for line in lines if str(run.path) in line]
        assert all(line.startswith("#SBATCH --output=") for line in named), named


def test_an_unwritable_home_is_reported_by_remember(tmp_path):
    (tmp_path / "home").write_text("")
    assert "Not a directory" in remember(b"", {"HOME": str(tmp_path / "home")})
    assert remember(b"", {}) == "no home directory"


def test_a_run_without_a_script_is_an_error(run, environ):
    os.remove(run.script)  # noqa: PTH107
    with pytest.raises(NotFoundError, match="cannot read the script"):
        read_script(run, environ)


@pytest.mark.parametrize("name", ["job.sbatch", "spec.toml", "launcher", "submitted"])
@pytest.mark.timeout(60)
def test_a_pipe_in_place_of_a_run_file_does_not_block(run, environ, tmp_path, name):
    remember(run.script.read_bytes(), environ)
    folder = tmp_path / "home/.local/state/echelon" if name == "submitted" else run.path
    plain = name in ("spec.toml", "launcher") and not run.launcher.exists()
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    if plain:
        assert read_script(run, environ)  # it starts nothing in there
        return
    with pytest.raises(EchelonError):
        read_script(run, environ)
    if name == "submitted":
        assert remember(b"x", environ)


@pytest.mark.parametrize("style", ["echelon", "srun", "ray"])
def test_a_changed_copy_of_the_code_is_not_executed(tmp_path, environ, style):
    (tmp_path / "train.py").touch()
    values = {"script": "train.py", "style": style, "snapshot": True}
    spec = merge([Layer(source="x", values=values)]).spec
    run = prepare_run(spec, tmp_path / "runs", tmp_path)
    script = run.script.read_bytes()
    remember(script, environ)
    assert read_script(run, environ) == seal_script(script, run) == script
    assert find_home(run) == run.path
    if style == "srun":  # the others find it otherwise
        text = script.decode()
        assert f'"$python" {run.code}/train.py' in text
        assert text.index("\nexport PYTHONPATH\n") < text.index("    srun ")
    (run.code / "train.py").chmod(0o600)
    (run.code / "train.py").write_text("print('planted')\n")
    for trust in (False, True):
        with pytest.raises(NotPermittedError, match=r"code/train\.py is not what was submitted"):
            read_script(run, environ, trust=trust)
    # Whoever changes the digest of the code as well changes the request.
    run.spec.write_text(run.spec.read_text().replace('digest = "', 'digest = "0'))
    with pytest.raises(NotPermittedError, match=r"spec\.toml was changed after submission"):
        read_script(run, environ)
