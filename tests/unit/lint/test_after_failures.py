"""Failures that destroy or spoil what follows, and files that several jobs write at once."""

import pytest

from echelon.lint.linting import lint
from unit.lint.fakes import JOB, SlurmOf, TextFiles, codes

TWO = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --exclusive\n"
ARRAY = "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --array={}\n"


def found(body, code, head=JOB, path="job.sh", **options):
    """Return the severity, the line and the text of each finding with a code."""
    texts = options.pop("texts", {})
    files = TextFiles({path: "", **texts}, **options)
    findings = lint(head + body, path=path, files=files, programs=SlurmOf())
    return [(str(f.severity), f.line, f.what) for f in findings if f.code == code]


REPORTED = "The script notices if this command fails, but the job is COMPLETED anyway, because "


@pytest.mark.parametrize(
    "body",
    [
        "python a.py\nif [ $? -eq 0 ]; then\n  echo well\nelse\n  echo failed\nfi\n",
        "python a.py\ncode=$?\nif [ $code -ne 0 ]; then\n  echo failed\nfi\ndate\n",
        "if srun python a.py; then\n  echo well\nelse\n  echo failed\nfi\n",
        "tell() { curl -d $1 b; }\npython a.py\n[ $? -eq 0 ] && tell well || tell no\ndate\n",
    ],
)
def test_a_failure_that_the_script_only_prints(body):
    [(severity, _, what)] = found(body, "E507")
    assert severity == "advice"
    assert what.startswith(REPORTED)


@pytest.mark.parametrize(
    "body",
    [
        "python a.py\nif [ $? -eq 0 ]; then\n  echo well\nelse\n  exit 1\nfi\n",
        "if ! python a.py; then\n  python b.py\nelse\n  echo well\nfi\n",
        "if python a.py; then\n  echo well\nelse\n  sbatch $0\nfi\n",
        "if python a.py; then\n  echo well\nelse\n  scancel $SLURM_JOB_ID\nfi\n",
        "python a.py\ncode=$?\necho $code\nexit $code\n",
        "if python a.py; then\n  echo well\nfi\n",
        "python a.py || echo no\n./simulate $?\n",
    ],
)
def test_failures_that_the_script_does_more_about(body):
    assert not [what for _, _, what in found(body, "E507") if what.startswith(REPORTED)]


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("unzip a.zip\nrm a.zip\n", "removes the archive a.zip."),
        ("tar xzf a.tar.gz -C $TMPDIR\nrm -f a.tar.gz\n", "removes the archive a.tar.gz."),
        ("tar -xf /data/a.tar\nls\nrm /data/a.tar\n", "removes the archive /data/a.tar."),
        ("cp -r $TMPDIR/out /results\nrm -rf $TMPDIR\n", "removes ${TMPDIR}, its source."),
        ("rsync -a out/ /results/\nrm -r out\n", "removes out, its source."),
        ("mv runs/a /results\nrm -r runs\n", "removes runs, its source."),
        ("tar czf /results/a.tgz out\nrm -r out\n", "removes out, its source."),
        ("for f in a b; do\n  cp -r out /results\n  rm -r out\ndone\n", "removes out, its source."),
    ],
)
def test_data_that_is_removed_though_it_was_not_copied(body, what):
    [(severity, line, text)] = [
        one for one in found(f"{body}python a.py\n", "E507") if "still removes" in one[2]
    ]
    assert severity == "advice"
    assert line in (3, 4)
    assert text.startswith("If this command fails, line ")
    assert text.endswith(what)


@pytest.mark.parametrize(
    "body",
    [
        "set -e\nunzip a.zip\nrm a.zip\n",
        "unzip a.zip && rm a.zip\n",
        "unzip a.zip || exit 1\nrm a.zip\n",
        "if unzip a.zip; then\n  rm a.zip\nfi\n",
        "unzip a.zip\nif [ $? -eq 0 ]; then rm a.zip; fi\n",
        "unzip a.zip\nrm b.zip\n",
        "unzip a.zip\nrm -r a\n",
        "cp a.zip $TMPDIR/a.zip\nunzip $TMPDIR/a.zip\nrm $TMPDIR/a.zip\n",
        "cp -r data $TMPDIR\npython b.py\nrm -rf $TMPDIR\n",
        "tar czf $TMPDIR/a.tgz out\nrm -r $TMPDIR\n",
        "rm -r out\ncp -r out /results\n",
        "rm -r out; cp -r out /results\n",
        "scp host:out .\nrm -r host:out\n",
        "clean() {\n  rm a.zip\n}\nunzip a.zip\n",
        "trap 'exit 1' ERR\nunzip a.zip\nrm a.zip\n",
    ],
)
def test_data_that_is_kept_or_a_copy(body):
    assert not [one for one in found(f"{body}python a.py\n", "E507") if "removes" in one[2]]


@pytest.mark.parametrize(
    ("body", "kinds"),
    [
        ("wget https://a.org/a.zip\nunzip a.zip\npython a.py\n", ["advice"]),
        ("curl -L https://a.org/1 -o b/a.tar\ntar xf b/a.tar\npython a.py\n", ["advice"]),
        ("wget https://a.org/a.zip && unzip a.zip\npython a.py\n", []),
        ("wget https://a.org/a.zip || exit 1\nunzip a.zip\npython a.py\n", []),
        ("wget https://a.org/a.zip\nunzip b.zip\npython a.py\n", []),
        ("unzip a.zip; wget https://a.org/a.zip\npython a.py\n", []),
        ("wget https://a.org/a.zip\ntar cf a.zip a\npython a.py\n", []),
        ("set -e\nwget https://a.org/a.zip\nunzip a.zip\npython a.py\n", []),
    ],
)
def test_archives_that_are_unpacked_though_the_download_failed(body, kinds):
    assert [severity for severity, _, _ in found(body, "E507")] == kinds


COMMON = "set -euo pipefail\nexport DATA_ROOT=/data\nprepare() {\n  true\n}\nID=3\n"
SOURCES = "source tools/common.sh\n"


@pytest.mark.parametrize(
    ("body", "kinds"),
    [
        (f"{SOURCES}python a.py $DATA_ROOT\n", ["`DATA_ROOT`"]),
        (f"{SOURCES}ROOT=$DATA_ROOT/a\npython a.py $ROOT\n", ["`DATA_ROOT`"]),
        (f"{SOURCES}prepare\npython a.py $DATA_ROOT\n", ["`DATA_ROOT`, `prepare`"]),
        (". ./tools/common.sh\nprepare\n", ["`prepare`"]),
        (f"{SOURCES}python a.py\n", []),
        (f"{SOURCES}python a.py $ID ${{DATA_ROOT:-/data}}\n", []),
        (f"{SOURCES}DATA_ROOT=/b\npython a.py $DATA_ROOT\n", []),
        (f"set -e\n{SOURCES}python a.py $DATA_ROOT\n", []),
        (f"cd /project\n{SOURCES}python a.py $DATA_ROOT\n", []),
        ("source tools/common.sh || exit 1\npython a.py $DATA_ROOT\n", []),
        ("[ -f tools/common.sh ] && source tools/common.sh\npython a.py $DATA_ROOT\n", []),
        ("source tools/other.sh\npython a.py $DATA_ROOT\n", []),
        ("source $HOME/tools/common.sh\npython a.py $DATA_ROOT\n", []),
    ],
)
def test_a_sourced_file_that_is_not_found_elsewhere(body, kinds):
    texts = {"tools/common.sh": COMMON}
    hits = [one for one in found(body, "E507", texts=texts) if "another directory" in one[2]]
    assert [severity for severity, _, _ in hits] == ["advice"] * len(kinds)
    assert [text.partition("continues without ")[2].rstrip(".") for _, _, text in hits] == kinds


@pytest.mark.parametrize("head", [JOB.replace("bash", "sh"), f"{JOB}#SBATCH --chdir=/project\n"])
def test_a_sourced_file_without_which_sh_stops_or_whose_directory_is_known(head):
    texts = {"tools/common.sh": COMMON}
    hits = found(f"{SOURCES}python a.py $DATA_ROOT\n", "E507", head, texts=texts)
    assert not [one for one in hits if "another directory" in one[2]]


@pytest.mark.parametrize(
    ("body", "head", "lines"),
    [
        ("srun mkdir -p $D/a && rsync -a b $D/a\n", TWO, [4]),
        ("srun mkdir -p $TMPDIR/a\ncp -r b $TMPDIR/a/\n", TWO, [5]),
        ("srun mkdir -p $TMPDIR/a; tar xf b.tar -C $TMPDIR/a\n", TWO, [4]),
        ("srun mkdir -p /scratch/a\nunzip b.zip -d /scratch/a/c\n", TWO, [5]),
        ("srun mkdir -p $TMPDIR/a\ncp -r b $TMPDIR/a/\n", JOB, []),
        ("srun mkdir -p $D/a\ncp -r b $D/a\n", TWO, []),
        ("srun mkdir -p a && cp -r b a\n", TWO, []),
        ("srun mkdir -p $HOME/a && cp -r b $HOME/a\n", TWO, []),
        ("srun -N1 -n1 mkdir -p $TMPDIR/a\ncp -r b $TMPDIR/a\n", TWO, []),
        ("mkdir -p $TMPDIR/a && cp -r b $TMPDIR/a\n", TWO, []),
        ("srun mkdir -p $TMPDIR/a\nsrun cp -r b $TMPDIR/a\n", TWO, []),
        ("srun mkdir -p $TMPDIR/a\ncp -r b $TMPDIR/a\nsrun rsync b $TMPDIR/a\n", TWO, []),
        ("srun mkdir -p $TMPDIR/a\ncp -r b $TMPDIR/abc\n", TWO, []),
        ("srun mkdir -p $TMPDIR/a\nsbcast b $TMPDIR/a/b\ncp c $TMPDIR/a\n", TWO, []),
    ],
)
def test_directories_of_all_nodes_that_only_the_first_one_fills(body, head, lines):
    hits = found(f"{body}srun python a.py\n", "E201", head)
    assert [(severity, line) for severity, line, _ in hits] == [("advice", n) for n in lines]


@pytest.mark.parametrize(
    ("line", "kinds"),
    [
        ("RANK=\\$SLURM_PROCID python a.py", ["warning"]),
        ("export RANK=\\$SLURM_PROCID; python a.py", ["warning"]),
        ("export RANK=\\${SLURM_PROCID}; python a.py", ["warning"]),
        ("RANK=$SLURM_PROCID python a.py", []),
        ("RANK=\\$OTHER python a.py", []),
        ("RANK=\\$SLURM_PROCID bash -c true", []),
    ],
)
def test_the_name_of_a_variable_in_an_inner_assignment(line, kinds):
    hits = found(f"srun bash -c '{line}'\n", "E313", TWO)
    assert [severity for severity, _, _ in hits] == kinds
    assert not found(f'srun bash -c "{line}"\n', "E313", TWO)


@pytest.mark.parametrize(
    ("body", "kinds"),
    [
        ("python a.py $I > out.txt", ["warning"]),
        ("python a.py $I &> logs/out.txt", ["warning"]),
        ("OUT=logs/out.txt\npython a.py $I >$OUT 2>&1", ["warning"]),
        ("python a.py $I 2>&1 | tee logs/run.log", ["warning"]),
        ("for i in 1 2; do\n  python a.py $I | tee run.log\ndone", ["warning"]),
        ("srun --output=out.txt python a.py $I", ["warning"]),
        ("cd $SLURM_SUBMIT_DIR\npython a.py $I > out.txt", ["warning"]),
        ("D=run\ncd $D\npython a.py $I > out.txt", ["warning"]),
        ("D=run-$I\ncd $D\npython a.py > out.txt", []),
        ("cd $(find_it)\npython a.py $I > out.txt", []),
        ("python a.py $I >> out.txt", []),
        ("python a.py $I | tee -a out.txt", []),
        ("python a.py $I 2> err.txt", []),
        ("python a.py $I > out-$I.txt", []),
        ("python a.py $I > $OUT", []),
        ("python a.py $I > /dev/null", []),
        ("python a.py $I > /tmp/out.txt", []),
        ("cd $I\npython a.py > out.txt", []),
        ("if [ $I = 1 ]; then\n  python a.py > out.txt\nfi", []),
        ("if [ $I = 1 ]; then\n  python a.py | tee out.txt\nfi", []),
        ("[ $I = 1 ] && python a.py | tee out.txt", []),
        ("python -c 'print(1 > 0)' $I", []),
        ("echo $I > out.txt", []),
        ("srun --output=out-%a.txt python a.py $I", []),
        ("srun --output=out-$I.txt python a.py", []),
    ],
)
def test_an_output_file_of_all_tasks_of_an_array(body, kinds):
    body = f"set -eo pipefail\nI=$SLURM_ARRAY_TASK_ID\n{body}\n"
    hits = found(body, "E502", ARRAY.format("1-9"))
    assert [severity for severity, _, _ in hits] == kinds
    assert all("All tasks of the job array write to " in text for _, _, text in hits)
    for one_at_a_time in ("1-9%1", "1"):
        assert not found(body, "E502", ARRAY.format(one_at_a_time))


@pytest.mark.parametrize(
    ("arguments", "python", "found"),
    [
        ("--output r.csv", None, True),
        ("--output_file results/r.json", None, True),
        ("--output r.csv", "print('SLURM_ARRAY_TASK_ID')\n", False),
        ("--output r-$SLURM_ARRAY_TASK_ID.csv", None, False),
        ("--output results", None, False),
        ("--input r.csv", None, False),
    ],
)
def test_an_output_option_of_all_tasks_of_an_array(arguments, python, found):
    body = f"python a.py --seed $SLURM_ARRAY_TASK_ID {arguments}\n"
    beside = {"a": python} if python else {}
    assert (("E502", "advice") in codes(body, ARRAY.format("1-9"), **beside)) == found
    assert ("E502", "advice") not in codes(body, JOB, **beside)


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        ("scontrol show hostnames > hostfile\ndeepspeed --hostfile=hostfile a.py\n", [4]),
        ("scontrol show hostnames > h\nmpirun --hostfile ./h python a.py\n", [4]),
        ("scontrol show hostnames > h.$SLURM_JOB_ID\nmpirun --hostfile h.$SLURM_JOB_ID ./a\n", []),
        ("scontrol show hostnames > h\ncat h\n", []),
        ("scontrol show hostnames > /tmp/h\nmpirun --hostfile /tmp/h ./a\n", []),
        ("cat list > h\nmpirun --hostfile h ./a\n", []),
        ("cd run.$SLURM_JOB_ID\nscontrol show hostnames > h\nmpirun --hostfile h ./a\n", []),
        ("scontrol show hostnames > h\nmpirun --hostfile h2 ./a\n", []),
    ],
)
def test_a_file_of_hosts_that_another_job_replaces(body, lines):
    hits = found(body, "E502", TWO)
    assert [(severity, line) for severity, line, _ in hits] == [("advice", n) for n in lines]


@pytest.mark.parametrize(
    ("line", "kinds"),
    [
        ("cd $HOME/own/core", ["advice"]),
        ("cd /home/me/own/core", ["advice"]),
        ('cd "$SCRIPT_DIR/../core"', ["advice"]),
        ("cd $SLURM_SUBMIT_DIR/jobs/core", ["advice"]),
        ("cd $HOME/own/core || exit 1", []),
        ("cd $HOME/own/core && ls", []),
        ("set -e\ncd $HOME/own/core", []),
        ("cd $HOME/own/tools", []),
        ('cd "$SCRIPT_DIR/../tools"', []),
        ("cd $HOME/own", []),
        ("cd $HOME/other/core", []),
        ("cd $HOME/own/other/core", []),
        ("cd $HOME/own/results", []),
        ("cd $SLURM_SUBMIT_DIR/core", []),
        ("mkdir -p $HOME/own/core\ncd $HOME/own/core", []),
        ("git clone https://a.org/core\ncd $HOME/own/core", []),
        ("singularity pull a\ncd $HOME/own/core", []),
    ],
)
def test_a_folder_that_the_repository_does_not_have(line, kinds):
    texts = {"tools/a.py": "", "jobs/b.sh": ""}
    body = f"SCRIPT_DIR=$(find_it)\n{line}\n./run\n"
    hits = found(body, "E215", path="jobs/job.sh", texts=texts, repository=True)
    assert [severity for severity, _, _ in hits] == kinds


def test_a_folder_that_a_document_tells_to_clone():
    texts = {"tools/a.py": "", "README.md": "git clone https://a.org/core\n"}
    hits = found("cd $HOME/own/core\n./run\n", "E215", texts=texts, repository=True)
    assert hits == []


def test_commands_of_a_rejected_script_are_no_errors():
    files = TextFiles({"a.py": "print(1)\n"})
    kinds = []
    for before in ("", "\n"):
        found = lint(f"{before}{TWO}python a.py\n", path="a.sh", files=files, programs=SlurmOf())
        kinds.append([(f.code, str(f.severity)) for f in found if f.code in ("E101", "E201")])
    assert kinds == [[("E201", "error")], [("E101", "error"), ("E201", "warning")]]


def test_the_name_of_a_variable_in_a_shell_of_the_first_node():
    assert found("bash -c 'RANK=\\$SLURM_PROCID python a.py'\n", "E313")


def test_commands_before_a_syntax_error_are_no_errors():
    body = "rate = 1\nif true; then\necho $rate\n"
    hits = lint(f"{JOB}{body}", path="a.sh", files=TextFiles({}), programs=SlurmOf())
    kinds = {f.code: str(f.severity) for f in hits if f.code in ("E209", "E210")}
    assert kinds == {"E209": "warning", "E210": "error"}
    fine = lint(f"{JOB}{body}fi\n", path="a.sh", files=TextFiles({}), programs=SlurmOf())
    assert ("E209", "error") in [(f.code, str(f.severity)) for f in fine]


PARSER = """\
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--name")
parser.add_argument("--size", type=int)
args = parser.parse_args()
"""


@pytest.mark.parametrize(
    ("body", "kinds"),
    [
        ('NAME=""\npython a.py --name $NAME --size 1\n', ["advice"]),
        ("NAME=\npython a.py --name $NAME --size 1\n", ["advice"]),
        ("python a.py --name --size 1\n", ["warning"]),
        ("SIZE=many\npython a.py --name a --size $SIZE\n", ["warning"]),
        ("NAME=a\npython a.py --name $NAME --size 1\n", []),
    ],
)
def test_a_value_that_a_person_fills_in(body, kinds):
    assert [severity for code, severity in codes(body, a=PARSER) if code == "E207"] == kinds


def fixes(body, code, head=JOB, **texts):
    files = TextFiles(texts, repository=bool(texts))
    found = lint(head + body, path="job.sh", files=files, programs=SlurmOf())
    return [f.fix for f in found if f.code == code]


@pytest.mark.parametrize(
    ("body", "fix"),
    [
        ("python a.py | tee log\n", "set -o pipefail  # near the top of the script"),
        ("python a.py \\\n  | tee log\n", "set -o pipefail  # near the top of the script"),
        ("python a.py | tee log\necho done\n", "set -eo pipefail  # near the top of the script"),
        ("set -e\npython a.py | tee log\nls\n", "set -o pipefail  # near the top of the script"),
    ],
)
def test_the_options_that_let_a_pipe_fail(body, fix):
    assert fixes(body, "E505") == [fix]


def test_fixes_of_a_script_that_ends_with_exit_0():
    assert fixes("./work\nexit 0\n", "E507") == ["remove line 4"]
    assert fixes("./work\necho done\nexit 0\n", "E507") == ["set -e  # near the top of the script"]


def test_a_secret_keeps_its_name():
    [fix] = fixes("export WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567\n", "E406")
    assert fix.startswith('export WANDB_API_KEY="$(cat ~/.secrets/wandb_api_key)"')
