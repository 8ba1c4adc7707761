"""Files that do not exist, are in another folder, or do not work, and what looks like them."""

import pytest

from echelon.lint.files import DiskFiles
from echelon.lint.linting import lint
from echelon.lint.repository import Repository
from unit.lint.fakes import JOB, SlurmOf, TextFiles


def found(body, texts, code="E215", head=JOB, path="jobs/job.sh", **options):
    """Return the severity, the line and the text of each finding with a code."""
    files = TextFiles({path: "", **texts}, repository=True, **options)
    findings = lint(head + body, path=path, files=files, programs=SlurmOf())
    return [(str(f.severity), f.line, f.what) for f in findings if f.code == code]


PLAIN = {"jobs/plain.sh": "true\n", "plain.sh": "true\n", "tools/plain.sh": "true\n"}


@pytest.mark.parametrize(
    "line",
    [
        "srun plain.sh 1",
        "srun -n 4 --cpu-bind=cores plain.sh",
        "srun ./plain.sh",
        "for n in 1 2; do srun tools/plain.sh $n; done",
    ],
)
def test_srun_does_not_start_a_file_that_is_not_executable(line):
    [(severity, number, what)] = found(f"{line}\n", PLAIN)
    assert (severity, number) == ("advice", 3)
    assert what.endswith("plain.sh is not executable, so srun cannot start it.")


@pytest.mark.parametrize("start", ["", "srun ", "srun -n 2 "])
def test_a_file_of_the_repository_that_is_not_executable(start):
    [(severity, number, what)] = found(f"{start}$WORK/own/tools/plain.sh\n", PLAIN)
    assert (severity, number) == ("advice", 3)
    assert "/own/tools/plain.sh is not executable" in what


@pytest.mark.parametrize("path", ["$WORK/other/tools/plain.sh", "$SCRIPTS/plain.sh", "$START"])
def test_a_file_that_may_be_in_another_repository(path):
    assert found(f"srun {path}\n", PLAIN) == []


@pytest.mark.parametrize(
    "line",
    [
        "srun bash plain.sh",
        "srun other.sh",
        "srun run.sh",
        "srun plain",
        "srun $SCRIPT",
        "chmod +x plain.sh; srun plain.sh",
        "cd tools; srun plain.sh",
        "srun --chdir=/data plain.sh",
        "srun --container-image=a.sqsh ./plain.sh",
        "srun --bcast=/tmp/plain.sh ./plain.sh",
    ],
)
def test_srun_starts_these_or_lint_does_not_know(line):
    assert found(f"{line}\n", {**PLAIN, "run.sh": "true\n"}) == []


@pytest.mark.parametrize(
    ("line", "end"),
    [
        ("ln -s logs/$SLURM_JOB_ID.out logs/latest.out", "logs/logs"),
        ("ln -f -s logs/a.out logs/latest.out", "logs/logs"),
        ("ln -sfn ./logs/a.out logs/b/latest.out", "logs/b/logs"),
        ("DIR=logs; ln -sf $DIR/a.out $DIR/latest.out", "logs/logs"),
    ],
)
def test_a_link_to_nothing(line, end):
    [(severity, number, what)] = found(f"{line}\n", {})
    assert (severity, number) == ("advice", 3)
    assert what.endswith(f"this link points to {end}/…, which does not exist.")


@pytest.mark.parametrize(
    "line",
    [
        "ln -s a.out logs/latest.out",
        "ln -s $PWD/logs/a.out logs/latest.out",
        "ln -s $DIR/a.out $DIR/latest.out",
        "ln -s /logs/a.out /logs/latest.out",
        "ln -s ../logs/a.out logs/latest.out",
        "ln -s logs/a.out latest.out",
        "ln -s data/a.out logs/latest.out",
        "ln -sr logs/a.out logs/latest.out",
        "ln --relative -s logs/a.out logs/latest.out",
        "ln logs/a.out logs/latest.out",
        "ln -s -t logs logs/a.out",
        "ln -s logs/a logs/b logs",
    ],
)
def test_links_that_work(line):
    assert found(f"{line}\n", {}) == []


def test_a_link_to_a_folder_of_the_same_name():
    line = "ln -s logs/a.out logs/latest.out\n"
    assert found(line, {}, folders={"logs/logs"}) == []


@pytest.mark.parametrize(
    "path",
    [
        "jobs/inner.sh",
        "inner.sh",
        "$SLURM_SUBMIT_DIR/jobs/inner.sh",
        "${SLURM_SUBMIT_DIR}/jobs/inner.sh",
        "/scratch/me/own/jobs/inner.sh",
        "$HOME/own/jobs/inner.sh",
        "~/own/jobs/inner.sh",
        "own/jobs/inner.sh",
    ],
)
@pytest.mark.parametrize("start", ["bash", "srun sh", "apptainer exec a.sif bash", "srun"])
def test_a_script_of_the_repository_is_read(start, path):
    inner = {"jobs/inner.sh": "#!/bin/bash\npython train.py | tee log\n"}
    assert [line for _, line, _ in found(f"{start} {path}\n", inner, "E505")] == [2]


@pytest.mark.parametrize(
    "path",
    [
        "/scratch/me/other/jobs/inner.sh",
        "$REPO/jobs/inner.sh",
        "/jobs/inner.sh",
        "../own2/jobs/inner.sh",
        "$(dirname $0)/jobs/inner.sh",
    ],
)
def test_a_script_that_may_be_another_is_not_read(path):
    inner = {"jobs/inner.sh": "#!/bin/bash\npython train.py | tee log\n"}
    assert found(f"bash {path}\n", inner, "E505") == []


def test_the_root_of_a_repository(tmp_path, monkeypatch):
    (tmp_path / "own" / ".git").mkdir(parents=True)
    (tmp_path / "own" / "jobs" / "a").mkdir(parents=True)
    files = DiskFiles()
    assert files.root(f"{tmp_path}/own/jobs/a/job.sh") == (f"{tmp_path}/own", "own", "jobs/a")
    assert files.root(f"{tmp_path}/job.sh") is None
    monkeypatch.chdir(tmp_path / "own" / "jobs")
    assert DiskFiles().root("a/job.sh") == ("..", "own", "jobs/a")
    assert DiskFiles().root("job.sh") == ("..", "own", "jobs")
    monkeypatch.chdir(tmp_path / "own")
    assert DiskFiles().root("job.sh") == (".", "own", "")


def test_a_secret_of_a_script_that_the_job_runs():
    login = f"wandb login {'0a' * 20}\n"
    [(_, _, own)] = found(login, {}, "E406")
    [(_, _, called)] = found("bash login.sh\n", {"jobs/login.sh": login}, "E406")
    assert own.endswith("Slurm also stores a copy of the script.")
    assert own.startswith(called)
    assert "Slurm" not in called


SPREAD = {
    **dict.fromkeys(("src/new/infer.py", "src/new/tools/run.sh", "a/go.py", "b/go.py"), "\n"),
    **dict.fromkeys(("one/x.py", "two/x.py", "three/x.py", "exp/one/slurm/a.sh"), "\n"),
    **dict.fromkeys(("train.py", "src/train.py", "exp/one/fit.py", "exp/one/cfg/a.yaml"), "\n"),
}


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("python infer.py", "infer.py is only in src/new. Python fails"),
        ("time srun python -u ./infer.py a.json", "./infer.py is only in src/new. Python fails"),
        ("torchrun --nproc_per_node=2 new/infer.py", "new/infer.py is only in src. Python fails"),
        ("bash tools/run.sh", "tools/run.sh is only in src/new. Bash fails"),
        ("srun tools/run.sh", "tools/run.sh is only in src/new. srun fails"),
        ("source tools/run.sh", "tools/run.sh is only in src/new. `source` fails"),
        ("python go.py", "go.py is only in a and in b. Python fails"),
        ("cd $SLURM_SUBMIT_DIR\npython infer.py", "infer.py is only in src/new. Python fails"),
    ],
)
def test_a_script_that_is_only_in_another_folder(line, what):
    [(severity, _, said)] = found(f"{line}\n", SPREAD)
    assert (severity, said) == ("advice", f"{what} unless sbatch is called there.")


@pytest.mark.parametrize(
    "line",
    [
        "python train.py",
        "python src/new/infer.py",
        "cd src/new; python infer.py",
        "pushd src/new; python infer.py",
        "cd $SLURM_SUBMIT_DIR/src/new; python infer.py",
        "cd $WHERE; python infer.py",
        "python ../new/infer.py",
        "python x.py",
        "infer.py",
        "python -m infer",
        "cp src/new/infer.py .; python infer.py",
    ],
)
def test_a_script_that_may_be_where_the_job_starts(line):
    assert found(f"{line}\n", SPREAD) == []


def test_a_script_above_the_job_script():
    assert found("python fit.py\n", SPREAD, path="exp/one/slurm/job.sh") == []
    assert len(found("python fit.py\n", SPREAD)) == 1


@pytest.mark.parametrize(
    ("line", "kinds"),
    [
        ("cd src/new && sbatch ../../jobs/job.sh", []),
        ("subprocess.run(['sbatch', 'jobs/job.sh'], cwd='src/new')", []),
        ("sbatch jobs/job.sh", ["advice"]),
    ],
)
def test_a_document_that_tells_where_the_job_starts(line, kinds):
    texts = {**SPREAD, "README.md": f"{line}\n"}
    assert [kind for kind, _, _ in found("python infer.py\n", texts)] == kinds


@pytest.mark.parametrize("head", [f"{JOB}#SBATCH --chdir=src/new\n", "#!/bin/bash\n"])
def test_a_job_that_starts_elsewhere_or_is_none(head):
    assert found("python infer.py\n", SPREAD, head=head) == []


ARGUMENTS = {"tools/run.sh": "true\n", "configs/a.sh": "true\n", "train.py": "print()\n"}


@pytest.mark.parametrize(
    ("line", "kinds"),
    [
        ("tools/run.sh part 16 configs/b.sh", ["advice"]),
        ("GPUS=8 ./tools/run.sh part configs/b.sh", ["advice"]),
        ("srun -n 4 tools/run.sh configs/b.py", ["advice"]),
        ("bash tools/run.sh --script=configs/b.sh", ["advice"]),
        ("python train.py configs/b.py", ["advice"]),
        ("tools/run.sh part 16 configs/a.sh", []),
        ("tools/run.sh b.sh", []),
        ("tools/run.sh --output configs/b.sh", []),
        ("tools/run.sh /data/b.sh $HOME/c.sh $DIR/d.sh", []),
        ("tools/run.sh other/b.sh", []),
        ("other/run.sh configs/b.sh", []),
        ("echo tools/run.sh configs/b.sh", []),
        ("cp configs/a.sh configs/b.sh; tools/run.sh configs/b.sh", []),
        ("cd $DIR; tools/run.sh configs/b.sh", []),
    ],
)
def test_a_script_that_is_an_argument_and_does_not_exist(line, kinds):
    assert [kind for kind, _, _ in found(f"{line}\n", ARGUMENTS)] == kinds


def test_srun_of_a_script_that_does_not_exist():
    [(kind, _, what)] = found("srun tools/runn.sh\n", ARGUMENTS)
    assert (kind, what[:44]) == ("advice", "No path in this repository ends with tools/r")


@pytest.mark.parametrize(
    ("folder", "kinds"),
    [
        ("/home/me/own", ["warning"]),
        ("/home/me/tool", []),
        ("/home/me/package", ["advice"]),
        ("/home/me/package/tools", ["advice"]),
        ("/home/me/package/scripts", []),
        ("/home/me/own/submodule", ["advice"]),  # of the folder alone
        ("$HOME/package", ["advice"]),
        ("/home/me/tools", []),
        ("/home/me/packages", []),
    ],
)
def test_a_job_that_changes_to_a_clone_of_its_repository(folder, kinds):
    texts = {"src/package/__init__.py": "", "tools/a.py": "", "train.py": ""}
    found_here = found(f"cd {folder}\npython trian.py\n", texts)
    assert [kind for kind, _, _ in found_here] == kinds


@pytest.mark.parametrize(
    ("name", "other", "same"),
    [
        ("plaid", "plaid-dev", True),
        ("Plaid-dev", "plaid", True),
        ("model_code", "model", True),
        ("model", "modeling", False),
        ("ml-tools", "ml", False),
        ("plaid", "", False),
    ],
)
def test_names_of_clones(name, other, same):
    assert Repository(name=name, paths=frozenset()).is_other_name(other) == same


@pytest.mark.parametrize(
    ("line", "kinds"),
    [
        ("python /home/me/own/infer.py", ["warning"]),
        ("srun $PYTHON ~/own/infer.py --a", ["warning"]),
        ("python $HOME/own/new/infer.py", ["warning"]),
        ("python /home/me/own/src/trian.py", ["warning"]),
        ("python /home/me/own/src/new/infer.py", []),
        ("python /home/me/own/own/infer.py", []),
        ("python /home/me/other/infer.py", []),
        ("python /home/me/own/$WHERE/infer.py", []),
        ("python /home/me/own/x.py", []),
        ("python /cluster/home/me/own/infer.py", ["warning"]),
        ("python $SCRATCH/own/infer.py", ["advice"]),
        ("python /scratch/own/src/trian.py", ["advice"]),
        ("cp -r $HOME/own/src $TMPDIR/own; python $TMPDIR/own/infer.py", []),
        ("rsync -a --exclude .git ./src/ ~/own/; python ~/own/infer.py", []),
        ("tar xf src.tar -C $TMPDIR/own; python $TMPDIR/own/src/trian.py", []),
        ("srun cp -r src $HOME/own; python $HOME/own/infer.py", []),
        ("cp results.csv $HOME/own/results/; python $HOME/own/infer.py", ["warning"]),
    ],
)
def test_a_script_by_its_full_path(line, kinds):
    assert [kind for kind, _, _ in found(f"{line}\n", SPREAD)] == kinds


@pytest.mark.parametrize(
    ("line", "kinds"),
    [
        ("cd /home/me/own; python infer.py", ["advice"]),
        ("cd /home/me/own; python go.py", ["advice"]),
        ("cd $HOME/own/a; python infer.py", ["advice"]),
        ("cd $HOME/own/src/new; python infer.py", []),
        ("cd /home/me/own/src; python new/infer.py", []),
        ("cd /home/me/own; python train.py", []),
        ("python infer.py\ncd /home/me/own", []),
        ("cd /home/me/own; cd src/new; python infer.py", []),
        ("if [ -d /home/me/own ]; then cd /home/me/own; fi; python infer.py", []),
    ],
)
def test_a_job_that_changes_to_its_repository(line, kinds):
    assert [kind for kind, _, _ in found(f"{line}\n", SPREAD)] == kinds


@pytest.mark.parametrize(("name", "told"), [("bert", True), ("scripts", False), ("thesis", False)])
def test_a_full_path_through_a_directory_with_a_common_name(tmp_path, name, told):
    for path in (".git/HEAD", "src/train.py", "jobs/job.sh"):
        (tmp_path / name / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name / path).touch()
    job = f"{JOB}python /home/me/{name}/train.py\n"
    findings = lint(
        job, path=str(tmp_path / name / "jobs/job.sh"), files=DiskFiles(), programs=SlurmOf()
    )
    assert ("E215" in [finding.code for finding in findings]) == told


MODELS = {"src/model.py": "", "src/deep/model.py": "", "run.sh": ""}


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("cd $HOME/LLaMA-Factory; python src/train.py", False),
        ("cd /scratch/me/fairseq; python ./src/train.py", False),
        ("cd /scratch/me/fairseq; python src/deep/train.py", True),
        ("cd /scratch/me/my_own; python src/train.py", True),
        ("cd /scratch/me/code; python src/train.py", True),
        ("cd $CODE; python src/train.py", True),
        ("cd /scratch/me/copy; python src/model.py; python src/train.py", True),
    ],
)
def test_a_job_in_a_directory_of_another_name(line, told):
    assert [kind for kind, _, _ in found(f"{line}\n", MODELS)] == ["advice"] * told


@pytest.mark.parametrize(
    ("line", "kinds"),
    [
        ("cd ../other-project; python src/train2.py", []),
        ("cd ../../other-project/src; python train2.py", []),
        ("cd ../own; python src/train2.py", ["warning"]),
        ("cd ../src; python train2.py", ["warning"]),
        ("cd ..; python src/train2.py", ["warning"]),
    ],
)
def test_a_job_that_changes_to_the_directory_beside_its_repository(line, kinds):
    texts = {"src/train.py": "", "run.sh": ""}
    assert [kind for kind, _, _ in found(f"{line}\n", texts)] == kinds


PACKAGES = {"jobs/environment.yml": "", "requirements.txt": "", "src/train.py": ""}


@pytest.mark.parametrize(
    ("line", "kinds"),
    [
        ("pip install -r requirement.txt", ["warning"]),
        ("python -m pip install -q -r src/requirements.txt", ["warning"]),
        ("conda env create --name a --file env.yaml", ["warning"]),
        ("cd ~/own; mamba env update -f environment.yml", ["advice"]),
        ("pip install -r requirements.txt", []),
        ("conda env create -f environment.yml", []),
        ("conda create --file env.yaml", []),
        ("[ -f env.yaml ] && conda env create -f env.yaml", []),
        ("pip freeze > env.txt; pip install -r env.txt", []),
        ("pip install -r env.txt || true", []),
        ("pip-compile env.in; pip install -r env.txt", []),
        ("pipreqs .; pip install -r env.txt", []),
        ("uv export --format requirements.txt --output-file env.txt; pip install -r env.txt", []),
        ("conda env export -f env.yml -n base; conda env create -f env.yml", []),
        ("export A=1; pip install -r env.txt", ["warning"]),
        ("cd $CODE; pip install -r env.txt", []),
        ("pip install -r $CODE/env.txt", []),
        ("pip install torch -f https://a.b/c.html", []),
    ],
)
def test_a_list_of_packages_that_does_not_exist(line, kinds):
    assert [kind for kind, _, _ in found(f"{line}\n", PACKAGES)] == kinds


@pytest.mark.parametrize(
    ("path", "kinds"),
    [
        ("$HOME/My_Tool", ["advice"]),
        ("~/my_tool/src", []),
        ("${HOME}/my.tool/src/", ["advice"]),
        ("$HOME/my-tool", []),
        ("my_tool", []),
        ("$HOME/my_tools", []),
        ("$WORK/my_tool", []),
    ],
)
def test_a_directory_that_another_file_names_like_the_repository(path, kinds, monkeypatch):
    named = Repository(name="my-tool", paths=frozenset({"src/", "src/a.py"}))
    monkeypatch.setattr(TextFiles, "repository", lambda *_: named)
    hits = found(f"cd {path} || exit\npython src/a.py\n", {"b.sh": "cd ${HOME}/my-tool\n"})
    assert [kind for kind, _, what in hits if "Another file" in what] == kinds


def test_a_package_named_like_its_repository():
    package = Repository(name="my-tool", paths=frozenset({"my_tool/", "my_tool/a.py"}))
    assert package.inside("/home/me/code/my_tool/a.py") == []
    assert package.inside("/home/me/my-tool/my_tool/a.py") == ["my_tool/a.py"]


@pytest.mark.parametrize(
    ("before", "kinds"),
    [("", ["warning"]), ("cd src\n", ["warning"]), ("cd tool\n", []), ("cd ~/own/tool\n", [])],
)
def test_a_script_that_may_be_in_a_submodule(before, kinds, monkeypatch):
    paths = frozenset({"src/", "src/train.py", "tool/"})
    own = Repository(name="own", paths=paths, unlisted=frozenset({"/tool"}))
    monkeypatch.setattr(TextFiles, "repository", lambda *_: own)
    assert [kind for kind, _, _ in found(f"{before}python src/infer.py\n", {})] == kinds


@pytest.mark.parametrize(
    ("options", "fix"),
    [
        ("--name a", "is tools/score.py meant?"),
        ("--folder a", "is tools/score.py meant? It does not accept these arguments."),
    ],
)
def test_the_script_that_is_meant_may_have_other_arguments(options, fix):
    script = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--name')\n"
    texts = {"tools/score.py": f"{script}p.parse_args()\n", "eval/plot.py": ""}
    files = TextFiles({"jobs/job.sh": "", **texts}, repository=True)
    text = f"{JOB}python eval/score.py {options}\n"
    findings = lint(text, path="jobs/job.sh", files=files, programs=SlurmOf())
    assert [finding.fix for finding in findings if finding.code == "E215"] == [fix]


@pytest.mark.parametrize(
    ("name", "other", "misspelt"),
    [
        ("train-transformer", "train-trainsformer", True),
        ("my-experiments", "my-expriments", True),
        ("train-transformer", "train_transformer", False),
        ("train-transformer", "train-transformer2", False),
        ("train-transformer", "Train-Transformer", False),
        ("tools", "tolls", False),  # short names are alike by chance
        ("train-transformer", "transformer", False),
    ],
)
def test_a_name_that_is_almost_that_of_the_repository(name, other, misspelt):
    assert Repository(name=name, paths=frozenset()).is_misspelt(other) == misspelt


def test_a_change_to_a_directory_named_almost_like_the_repository(tmp_path):
    root = tmp_path / "train-transformer"
    (root / ".git").mkdir(parents=True)
    (root / "train.py").write_text("print(1)\n")
    for name, told in (("train-trainsformer", True), ("train-transformer", False)):
        (root / "job.sh").write_text(script := f"{JOB}cd ~/git/{name}\npython train.py\n")
        findings = lint(script, path=str(root / "job.sh"), files=DiskFiles(), programs=SlurmOf())
        assert any(f"not {name}" in f.what for f in findings) == told


def test_a_folder_that_may_be_the_repository_under_another_name():
    texts = {"src/infer.py": ""}
    said = found("cd /home/me/own/ppo\npython src/infer.py\n", texts)
    assert not any("is only in" in what for _, _, what in said)
    [(kind, _, what)] = found("cd /home/me/own/src\npython src/infer.py\n", texts)
    assert kind == "advice"
    assert what.startswith(
        "src/infer.py is only in the top directory of the repository, not in src"
    )


def test_a_directory_of_the_repository_with_almost_its_name():
    repository = Repository(name="recommenders", paths=frozenset({"recommender/"}))
    assert not repository.is_misspelt("recommender")
    assert repository.is_misspelt("recomenders")
