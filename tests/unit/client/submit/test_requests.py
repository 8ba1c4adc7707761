import json

import pytest
import typer.main

from echelon.cli import app, main
from echelon.client.submit.requests import read_request, read_text
from echelon.errors import UsageError


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder to work in, with no settings of the user's own around it."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(folder, **flags):
    return read_request(flags, folder, {"HOME": str(folder / "home")})


def test_layers_of_a_request_have_the_documented_order(project):
    (project / "home/.config/echelon").mkdir(parents=True)
    (project / "home/.config/echelon/config.toml").write_text(
        'account = "me"\npartition = "own"\n'
        '[clusters.big]\npartition = "profile"\nqos = "profile"\n'
    )
    (project / "echelon.toml").write_text(
        'cluster = "big"\nqos = "project"\nnodes = 2\ngpus = 1\n[slurm.extra]\nreservation = "r"\n'
    )
    merged = read(project, gpus="2", setting=["nodes=3", "env.A=1"])
    spec = merged.spec
    assert (spec.account, spec.partition, spec.qos) == ("me", "profile", "project")
    assert (spec.gpus, str(spec.nodes)) == (2, "3")
    assert (spec.env, spec.slurm_extra) == ({"A": "1"}, {"reservation": "r"})
    own = str(project / "home/.config/echelon/config.toml")
    assert merged.origins["partition"] == f"cluster big in {own}"
    assert merged.origins["account"] == own
    assert merged.origins["qos"] == str(project / "echelon.toml")
    assert merged.origins["gpus"] == "flags"
    assert merged.origins["nodes"] == "--set"


def test_a_pyproject_in_a_parent_folder_is_a_project_file(project):
    (project / "pyproject.toml").write_text("[tool.echelon]\ngpus = 4\n")
    below = project / "a" / "b"
    below.mkdir(parents=True)
    merged = read(below)
    assert merged.spec.gpus == 4
    assert merged.origins["gpus"] == str(project / "pyproject.toml")


def test_a_flag_overrides_the_profile_of_the_project(project):
    (project / "echelon.toml").write_text(
        'cluster = "a"\n[clusters.a]\nqos = "a"\n[clusters.b]\nqos = "b"\n'
    )
    assert read(project).spec.qos == "a"
    assert read(project, cluster="b").spec.qos == "b"


def test_a_profile_of_the_project_is_chosen_by_flag(project):
    (project / "echelon.toml").write_text('[clusters.big]\ngpu_option = "gpus-per-node"\n')
    assert read(project).spec.gpu_option == "gres"
    assert read(project, cluster="big").spec.gpu_option == "gpus-per-node"


@pytest.mark.parametrize(
    ("toml", "flags", "message"),
    [
        ("x = ", {}, "is not valid TOML"),
        ("", {"cluster": "big"}, "unknown cluster profile: 'big' (known: none)"),
        ("", {"setting": ["nodes"]}, "--set nodes has no '='"),
        ("", {"env": ["A"]}, "--env A has no '='"),
        ("clusters = 3", {}, "'clusters' is not a table"),
        ("slurm = 3", {}, "unknown key 'slurm'"),
        ("[slurm]\nextr = 3", {}, "unknown key 'slurm.extr'"),
    ],
)
def test_an_invalid_request_is_an_error(project, toml, flags, message):
    (project / "echelon.toml").write_text(toml)
    with pytest.raises(UsageError) as caught:
        read(project, **flags)
    assert message in caught.value.message
    assert caught.value.hint


def test_the_directives_of_a_job_script_are_a_layer(project):
    (project / "job.sh").write_text(
        "#!/bin/bash\n#SBATCH -N2 --gres=gpu:a100:4 -t 2:00:00\nsrun x\n"
    )
    (project / "echelon.toml").write_text("nodes = 9\n")
    merged = read(project, source=project / "job.sh", time="1h")
    assert (str(merged.spec.nodes), merged.spec.gpus, merged.spec.time) == ("2", 4, "01:00:00")
    assert merged.origins["gpus"] == str(project / "job.sh")
    assert merged.origins["time"] == "flags"


def test_arguments_after_the_script_belong_to_the_script(project, capsys):
    assert main.run(["script", "--nodes", "2", "train.py", "--nodes", "9", "-x", "--", "y"]) == 0
    out = capsys.readouterr().out
    assert "#SBATCH --nodes=2\n" in out
    assert " train.py --nodes 9 -x -- y\n" in out


def test_a_request_without_a_script_is_an_error(project, capsys):
    assert main.run(["script", "--nodes", "2"]) == 2
    assert "no training script given" in capsys.readouterr().err


def test_config_shows_values_and_origins(project, capsys):
    (project / "echelon.toml").write_text("gpus = 4\n")
    assert main.run(["config", "--json", "--nodes", "2", "--cpus-per-task", "8"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["gpus"] == {"value": "4", "from": str(project / "echelon.toml")}
    assert shown["nodes"] == {"value": "2", "from": "flags"}
    assert shown["world size"] == {"value": "8", "from": "derived"}
    assert shown["OMP_NUM_THREADS"] == {"value": "4", "from": "derived"}
    assert "qos" not in shown
    assert main.run(["config", "--all", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["qos"] == {"value": "", "from": "default"}


def test_all_problems_of_a_request_are_reported_at_once(project, capsys):
    (project / "echelon.toml").write_text('partitoin = "x"\n')
    assert main.run(["config", "--mem", "16Go", "--style", "sru"]) == 2
    err = capsys.readouterr().err
    assert "unknown key 'partitoin'" in err
    assert "'16Go' is not a memory size" in err
    assert "did you mean 'srun'?" in err


@pytest.mark.parametrize("option", ["--array=0-2", "-a 0-2", "--arr 0-2"])
def test_a_job_array_is_refused_by_commands_that_start_one_run(project, capsys, option):
    """One of its tasks would train, and the others find nothing to do and say COMPLETED."""
    (project / "sweep.py").touch()
    (project / "job.sh").write_text(f"#!/bin/bash\n#SBATCH {option}\nsrun x\n")
    message = "only echelon submit accepts job arrays"
    assert main.run(["run", "--on", "local", "--from", "job.sh", "sweep.py"]) == 2
    assert message in capsys.readouterr().err
    assert main.run(["run", "--on", "local", "--slurm", "array=0-2", "sweep.py"]) == 2
    assert message in capsys.readouterr().err
    (project / "echelon.toml").write_text('[slurm.extra]\narray = "0-2"\n')
    assert main.run(["submit", "--on", "local", "sweep.py"]) == 2
    assert message in capsys.readouterr().err


def test_a_script_knows_the_conda_of_the_shell_it_was_made_in(project, capsys, monkeypatch):
    monkeypatch.setenv("CONDA_EXE", "/opt/conda/bin/conda")
    assert main.run(["script", "--conda", "mine", "train.py"]) == 0
    assert "conda_exe=/opt/conda/bin/conda\n" in capsys.readouterr().out


def test_environment_modules_and_python_modules_have_different_flags(project, capsys):
    argv = ["script", "--load", "cuda/12.1", "--load", "gcc", "--module", "pkg.train", "--lr", "1"]
    assert main.run(argv) == 0
    out = capsys.readouterr().out
    assert "\nif ! module load cuda/12.1 gcc; then\n" in out
    assert out.endswith(" --module pkg.train --lr 1\n")


def test_no_flag_has_two_meanings(project):
    commands = typer.main.get_command(app.app).commands
    for name, command in commands.items():
        flags = [flag for parameter in command.params for flag in parameter.opts]
        assert sorted(set(flags)) == sorted(flags), name


def test_the_table_of_an_image():
    text = """\
[image]
name = "a.b/c:1"
mounts = ["/data", "/scratch"]
env = { A = "1" }
[clusters.x.image]
runtime = "podman"
"""
    spec = read_text(f'cluster = "x"\n{text}', {"HOME": "/nonexistent"}).spec
    assert (spec.image, spec.image_runtime) == ("a.b/c:1", "podman")
    assert spec.image_mounts == ("/data", "/scratch")
    assert spec.image_env == {"A": "1"}
    assert read_text('image = "x.sif"', {"HOME": "/nonexistent"}).spec.image == "x.sif"
