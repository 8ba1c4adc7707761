"""Defects that a reader found in scripts and lint did not, beside what looks like them."""

import pytest

from echelon.lint.edits import apply_edits
from echelon.lint.files import DiskFiles
from echelon.lint.linting import lint
from echelon.lint.repository import Repository
from unit.lint.fakes import JOB, SlurmOf, TextFiles, codes


@pytest.mark.parametrize(
    ("nodes", "names", "found"),
    [
        ("1", "n[1-3]", True),
        ("2", "a,b,c", True),
        ("1-2", "a,b,c", True),
        ("2-4", "a,b,c", False),
        ("1", "a,a", False),
        ("1", "$HOSTS", False),  # E106
        ("1", "/etc/hosts", False),  # a file with names
    ],
)
def test_a_list_of_more_nodes_than_older_versions_accept(nodes, names, found):
    script = f"#!/bin/bash\n#SBATCH --nodes={nodes}\n#SBATCH --nodelist={names}\npython a.py\n"
    of_version = {
        version: [
            str(finding.severity)
            for finding in lint(
                script, path="job.sh", files=TextFiles({}), programs=SlurmOf(version)
            )
            if finding.code == "E114"
        ]
        for version in ("22.05.8", None, "23.02.1")
    }
    assert list(of_version.values()) == ([["error"], ["advice"], []] if found else [[], [], []])


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('$data = "/scratch/data"', True),
        ("$data=/scratch/data", True),
        ("${data} = 3", True),
        ('"$data" = 3', False),
        ('[ "$data" = 3 ]', False),
        ("echo $data = 3", False),
        ("$program --data = 3", False),
        ("$data", False),
    ],
)
def test_assignments_to_the_value_of_a_variable(line, found):
    assert (("E209", "error") in codes(f"{line}\npython a.py\n")) == found


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("cd /proj/<project>/code", True),
        ("source /home/<user-name>/env/bin/activate", True),
        ("python /home/<user>/train.py", True),
        ("python a.py < /proj/in.txt > /proj/out.txt", False),
        ("python a.py </proj/in >/proj/out", False),
        ("echo 'cd /proj/<project>/code'", False),
        ("grep '/<a>/' page.html", False),
    ],
)
def test_placeholders_in_paths(line, found):
    assert (("E116", "warning") in codes(f"{line}\npython a.py\n")) == found


@pytest.mark.parametrize(
    ("name", "found"),
    [("NUMBA_DISABLE_INTEL_SVML", True), ("XLA_FLAGS", True), ("NUMBA_CASES", False)],
)
def test_more_variables_of_programs(name, found):
    assert (("E312", "warning") in codes(f"{name}=1\npython a.py\n")) == found


SUBMITS_ITSELF = 'if [ -z "$SLURM_JOB_ID" ]; then\n    exec sbatch "$0"\nfi\n'


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (SUBMITS_ITSELF + 'HERE="$(dirname "$0")"\npython $HERE/a.py\n', True),
        (SUBMITS_ITSELF + 'if [ -n "$LOCAL" ]; then HERE="$(dirname "$0")"; fi\n', False),
        ('HERE="$(dirname "$0")"\n' + SUBMITS_ITSELF + "python a.py\n", False),
        ('sbatch other.sh\nHERE="$(dirname "$0")"\npython $HERE/a.py\n', False),
    ],
)
def test_the_directory_of_a_script_that_submits_itself(body, found):
    assert (("E211", "warning") in codes(body)) == found


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("for i in 1 2; do\n  python a.py $i\ndone\n", True),
        ("set -e\nfor i in 1 2; do\n  python a.py $i\ndone\n", False),
        ("for i in 1 2; do\n  python a.py $i || exit 1\ndone\n", False),
        ("for i in 1 2; do\n  python a.py $i || failed=1\ndone\nexit $failed\n", False),
        ("for i in 1 2; do\n  python a.py $i &\ndone\nwait\n", False),
    ],
)
def test_failures_in_a_loop(body, found):
    assert (("E507", "advice") in codes(body, a="print(1)\n")) == found


def of_generated(body, quote="", before="", after=""):
    text = f"#!/bin/bash\n{before}sbatch <<{quote}EOF{quote}\n#!/bin/bash\n{body}EOF\n{after}"
    found = lint(text, path="submit.sh", files=TextFiles({}), programs=SlurmOf())
    return [(f.code, f.line) for f in found if str(f.severity) != "advice"]


@pytest.mark.parametrize("quote", ["", "'", '"'])
@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("#SBATCH --partition=<name>\nsrun python a.py\n", [("E116", 4)]),
        ("#SBATCH --mem=16Go\nsrun python a.py\n", [("E111", 4)]),
        ("#SBATCH --nodes=1\nsrun python a.py\necho done\n", [("E507", 5)]),
        ("#SBATCH --nodes=1\nsrun python a.py | tee log\n", [("E505", 5)]),
        ("#SBATCH --nodes=$N\n#SBATCH --array=0-$((N - 1))\nsrun python a.py\n", []),
        ("#SBATCH --output=$DIR/a.out\nsrun python $SCRIPT\n", []),
        ("#SBATCH --nodes=1\nsrun python a.py\nexit \\$?\n", []),
    ],
)
def test_jobs_in_here_documents(body, found, quote):
    assert of_generated(body, quote) == found


def test_escaped_line_ends_in_here_documents():
    body = "#SBATCH --nodes=1\nsrun \\\\\n  --ntasks=1 \\\\\n  python a.py\necho done\n"
    assert of_generated(body) == [("E507", 5)]


def test_comments_also_silence_rules_in_here_documents():
    body = "#SBATCH --mem=16Go  # echelon: ignore E111\nsrun python a.py\n"
    assert of_generated(body) == []
    wrong = "#SBATCH --mem=16Go\nsrun python a.py\n"
    assert of_generated(wrong, before="# echelon: ignore-file E111\n") == []


def test_a_here_document_that_is_no_job():
    text = "#!/bin/bash\ncat > notes <<EOF\nuse\n#SBATCH --mem=16Go\nEOF\n"
    assert lint(text, path="a.sh", files=TextFiles({}), programs=SlurmOf()) == []


def test_an_empty_line_before_a_directive_with_a_variable():
    body = "#SBATCH --nodes=1\n\n#SBATCH --account=$ACCOUNT\n#SBATCH --mem=16Go\nsrun python a.py\n"
    assert of_generated(body) == [("E111", 7)]


@pytest.mark.parametrize("marks", ["%%{}%%", "@{}@", "__{}__"])
def test_templates_with_other_marks(marks):
    given = {"ntasks": "n", "cpus-per-task": "c", "time": "t", "mem": "m"}
    head = "".join(f"#SBATCH --{option}={marks.format(name)}\n" for option, name in given.items())
    assert codes("python a.py\n", f"#!/bin/bash\n{head}") == [("E116", "advice")]


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("python a.py\nuname -a\n", True),
        ('python a.py\necho "end $(date)"; pwd\n', True),
        ("python a.py\nwait\n", True),
        ("srun ./simulate\necho done\n", True),
        ("srun make train\ndate\n", True),
        ("srun ./simulate\n", False),
        ("srun hostname\necho done\n", False),
        ("srun ./simulate\nstatus=$?\necho done\nexit $status\n", False),
        ("srun ./simulate\nsrun rm -rf /tmp/a\n", False),
        ("srun ft_launcher --nproc_per_node=1 a.py\necho done\n", True),
    ],
)
def test_more_endings_that_hide_a_failure(body, found):
    assert (("E507", "warning") in codes(body, a="print(1)\n")) == found


@pytest.mark.parametrize(
    ("signal", "body", "found"),
    [
        ("B:USR1@300", "srun python a.py\n", True),
        ("B:TERM@300", "python a.py\n", True),
        ("USR1@300", "srun python a.py\n", False),
        ("B:USR1@300", "trap 'touch stop' USR1\nsrun python a.py &\nwait\n", False),
        ("B:USR1@300", "trap - EXIT\nexec python a.py\n", False),
        ("B:USR1@300", "exec python a.py\n", False),
        ("B:USR1@300", "source handlers.sh\nsrun python a.py\n", False),
        ("B:URG@300", "srun python a.py\n", False),
        ("B:TERM@00:30", "srun python a.py\n", False),  # E105
    ],
)
def test_signals_that_end_the_script(signal, body, found):
    head = f"#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --signal={signal}\n"
    assert (("E509", "warning") in codes(body, head, a="print(1)\n")) == found


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("conda activate YOUR_CONDA_ENV\npython a.py\n", True),
        ("python YOUR_SCRIPT.py\n", True),
        ("echo YOUR_SCRIPT\npython a.py\n", False),
        ("python a.py --prompt 'YOUR_TURN to play'\n", False),
    ],
)
def test_placeholders_in_capital_letters(body, found):
    assert (("E116", "warning") in codes(body)) == found


@pytest.mark.parametrize(
    ("folder", "made", "found"),
    [
        ("/scratch/me/logs", "mkdir -p /scratch/me/logs", True),
        ("/scratch/me/logs", "mkdir -p /scratch/me/out", False),
        ("/scratch/me/logs", ":", False),
    ],
)
def test_output_directories_that_the_script_creates_itself(folder, made, found):
    head = f"#!/bin/bash\n#SBATCH --output={folder}/%j.out\n"
    assert (("E501", "advice") in codes(f"{made}\npython a.py\n", head)) == found


@pytest.mark.parametrize(
    ("argument", "found"),
    [
        ("--num_workers=18", True),
        ("datasets.num_workers=18", True),
        ("data.loader.workers=18", True),
        ("datasets.num_workers=8", False),
        ("network.num_workers_name=18", False),
    ],
)
def test_workers_of_configurations(argument, found):
    head = "#!/bin/bash\n#SBATCH --ntasks=1\n#SBATCH --cpus-per-task=10\n"
    text = "from torch.utils.data import DataLoader\n"
    assert ("E402" in dict(codes(f"python a.py {argument}\n", head, a=text))) == found


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("vllm serve model --tensor-parallel-size 4\n", True),
        ("N=4\nlm_eval --model vllm --model_args a=b,tensor_parallel_size=$N\n", True),
        ("N=4\nlm_eval --model_args a=$1,tensor_parallel_size=$N\n", True),
        ("vllm serve model --tensor-parallel-size=2\n", False),
        ("vllm serve model --tensor-parallel-size $N\n", False),
        ("echo --tensor-parallel-size 4\n", False),
    ],
)
def test_tensor_parallel_processes(body, found):
    head = "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --gpus-per-node=2\n"
    assert (("E204", "warning") in codes(body, head)) == found


@pytest.mark.parametrize(
    ("name", "found"), [("activate.csh", True), ("activate.fish", True), ("activate", False)]
)
def test_environments_for_another_shell(name, found):
    assert (("E408", "warning") in codes(f"source env/bin/{name}\npython a.py\n")) == found


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("ns-train nerfacto\nexit 0\n", True),
        ("module load cuda\n./simulate input\n\nexit 0\n", True),
        ("ns-train nerfacto\nexit\n", False),
        ("set -e\nns-train nerfacto\nexit 0\n", False),
        ("ns-train nerfacto || exit 1\nexit 0\n", False),
        ("if ns-train nerfacto; then\n  exit 0\nfi\nexit 1\n", False),
        ("sbatch next.sh\nexit 0\n", False),
        ("echo done\nexit 0\n", False),
        ("time sleep 10\nexit 0\n", False),
    ],
)
def test_jobs_that_always_succeed(body, found):
    assert (("E507", "warning") in codes(body)) == found


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("bash tools/train.sh a | tee log\n", True),
        ("set -o pipefail\nbash tools/train.sh a | tee log\n", False),
        ("bash tools/list.sh | grep a\n", False),
    ],
)
def test_pipes_of_scripts(body, found):
    assert (("E505", "warning") in codes(body)) == found


def test_a_secret_that_is_only_its_name():
    found = codes("export WANDB_API_KEY=WANDB_API_KEY\npython a.py\n")
    assert found == [("E116", "warning")]


@pytest.mark.parametrize(
    ("given", "default", "found"),
    [
        ("", 32, [("E402", "warning")]),
        ("", 16, [("E402", "advice")]),
        ("", 10, [("E402", "advice")]),
        ("", 8, []),
        ("--workers 4", 16, []),
        ('"$@"', 16, []),
    ],
)
def test_data_loader_workers_by_default(given, default, found):
    python = (
        "import argparse, torch\nparser = argparse.ArgumentParser()\n"
        f"parser.add_argument('--workers', type=int, default={default})\n"
        "args = parser.parse_args()\n"
        "torch.utils.data.DataLoader([], num_workers=args.workers)\n"
    )
    head = f"{JOB}#SBATCH --cpus-per-task=8\n"
    workers = [one for one in codes(f"python a.py {given}\n", head, a=python) if one[0] == "E402"]
    assert workers == found


def test_a_cache_of_cuda_that_is_not_exported():
    assert ("E312", "warning") in codes("CUDA_CACHE_PATH=/tmp/me\npython a.py\n")


@pytest.mark.parametrize(
    ("after", "found"),
    [
        ("--b=2", True),
        ("--b=2 \\\n  --c 3", True),
        ("--b=2 --c=3", True),
        ("--b=2 --c 3", True),
        ("-b=2", True),
        ("NAME=2", False),
        ("a[1]=2", False),
    ],
)
def test_options_with_values_after_a_broken_line(after, found):
    body = "python a.py \\\n  --a=1{}\n  {}\n"
    assert (("E208", "error") in codes(body.format(" \\ ", after))) == found
    assert (("E208", "error") in codes(body.format("", after))) == found
    assert ("E208", "error") not in codes(body.format(" \\", after))


@pytest.mark.parametrize(
    ("rest", "found"),
    [
        ("echo\necho status $?", True),
        ("echo status $?", True),
        ("printf '%s' $?", True),
        ("status=$?\necho $status\nexit $status", False),
        ("if [ $? -ne 0 ]; then exit 1; fi\necho done", False),
        ("[ $? -eq 0 ] || exit 1\necho done", False),
        ("echo $? > status; exit $?", True),
    ],
)
def test_an_exit_status_that_is_only_printed(rest, found):
    assert (("E507", "warning") in codes(f"python a.py\n{rest}\n")) == found


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("CUDA_VISIBLE_DEVICES=0,1,2,3 python a.py\npython b.py\n", True),
        ("srun python b.py\nCUDA_VISIBLE_DEVICES=4 python a.py\n", True),
        (
            "CUDA_VISIBLE_DEVICES=0 python a.py &\nCUDA_VISIBLE_DEVICES=1 python b.py &\nwait\n",
            False,
        ),
        ("CUDA_VISIBLE_DEVICES=2 srun python a.py\npython b.py\n", False),
        ("CUDA_VISIBLE_DEVICES=$1 python a.py\npython b.py\n", False),
        ("CUDA_VISIBLE_DEVICES= python a.py\npython b.py\n", False),
    ],
)
def test_gpus_that_the_job_does_not_have(body, found):
    head = f"{JOB}#SBATCH --gres=gpu:2\n"
    assert (("E409", "warning") in codes(body, head)) == found
    assert "E409" not in dict(codes(body, JOB))
    assert "E409" not in dict(codes(body, f"{head}#SBATCH --exclusive\n"))


@pytest.mark.parametrize(
    ("inner", "found"),
    [
        ("python a.py; echo done", True),
        ("python a.py\n  echo done\n", True),
        ("set -e; python a.py; echo done", False),
        ("python a.py && echo done", False),
        ("python a.py || exit 1; echo done", False),
        ("python a.py; code=$?; echo done; exit $code", False),
        ("echo start; python a.py", False),
        ("trap cleanup EXIT; python a.py; echo done", False),
    ],
)
@pytest.mark.parametrize(
    "outer",
    ["bash -c '{}'", "set -e\nsingularity exec --nv i.sif bash -lc '{}'", "srun bash -c '{}'"],
)
def test_failures_in_an_inner_shell(outer, inner, found):
    assert (("E507", "warning") in codes(f"{outer.format(inner)}\n")) == found


@pytest.mark.parametrize(
    ("made", "found"), [("mkdir -p out", True), ("mkdir -p other", False), ("date", False)]
)
def test_an_inner_shell_that_lists_a_directory_of_the_script(made, found):
    body = f"set -e\n{made}\nsingularity exec i.sif bash -c 'python a.py; ls -l out'\n"
    assert (("E507", "warning") in codes(body)) == found


@pytest.mark.parametrize(
    ("folder", "body", "found"),
    [
        ("/scratch/me", "export RUNS=/scratch/me\nmkdir -p $RUNS\n", True),
        ("/scratch/me", "", False),
        ("logs", "mkdir -p logs\n", False),  # below the other directory, which may have it
    ],
)
def test_an_output_directory_beside_chdir(folder, body, found):
    head = f"{JOB}#SBATCH --chdir=/home/me\n#SBATCH --output={folder}/%j.out\n"
    assert ("E501" in dict(codes(f"{body}python a.py\n", head))) == found


@pytest.mark.parametrize(
    ("value", "written", "found"),
    [
        ("<PASS_ACCOUNT>", "#SBATCH -A $account\n", True),
        ("YOUR_ACCOUNT", "#SBATCH -A $account\n", True),
        ("physics", "#SBATCH -A $account\n", False),
        ("<PASS_ACCOUNT>", "", False),  # not a job
    ],
)
def test_placeholders_of_a_script_that_writes_jobs(value, written, found):
    body = f'account="{value}"\nsbatch <<EOF\n#!/bin/bash\n{written}python a.py\nEOF\n'
    assert (("E116", "warning") in codes(body, "#!/bin/bash\n")) == found


PARSER = """\
import argparse
def read():
    parser = argparse.ArgumentParser(description="train")
    group = parser.add_argument_group("data")
    group.add_argument("--data-dir", required=True)
    parser.add_argument("-n", "--epochs", type=int, default=3)
    parser.add_argument("--model", choices=["small", "large"])
    parser.add_argument("--resume")
    parser.add_argument("--tags", nargs="*")
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--amp", action=argparse.BooleanOptionalAction)
    return parser
args = read().parse_args()
"""


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ("--data-dir d --epochs 4 --model small --fast --tags --no-amp", ""),
        ("--data-dir d --epoch=4 --resume last.pt", ""),  # abbreviated
        ("--data-dir d $MORE", ""),
        ("$MORE", ""),
        ("--data-dir d -n 4", ""),
        ("--data-dir d --lr 0.1 --seed=1", "`--lr`, `--seed`"),
        ("--data_dir d", "`--data_dir`"),
        ("--epochs 3", "requires `--data-dir`"),
        ("--data-dir d --epochs many", "'many'"),
        ("--data-dir d --epochs 1e3", "'1e3'"),
        ("--data-dir d --epochs __EPOCHS__", ""),  # replaced before
        ("--data-dir d --model=huge", "'huge'"),
        ("--data-dir d --resume --fast", "needs a value for `--resume`"),
        ("--data-dir d --resume $last --fast", "`$last` is empty"),
        ('--data-dir d --resume "$last" --fast', ""),
        ("--data-dir d --fast=1", "takes no value"),
    ],
)
def test_arguments_that_the_parser_does_not_accept(arguments, found):
    text = f"{JOB}last=\npython a.py {arguments}\n"
    seen = lint(text, path="job.sh", files=TextFiles({"a.py": PARSER}), programs=SlurmOf())
    said = [f.what for f in seen if f.code == "E207"]
    assert found in " ".join(said)
    assert bool(said) == bool(found)


def test_a_script_that_creates_a_folder_has_no_other_parser():
    text = f"from pathlib import Path\nPath('a').mkdir(parents=True)\n{PARSER}"
    files = TextFiles({"a.py": text})
    seen = lint(f"{JOB}python a.py --lr 1\n", path="job.sh", files=files, programs=SlurmOf())
    assert "E207" in {f.code for f in seen}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('    parser.add_argument("--fast", action="store_true")', "    more(parser)"),
        ("ArgumentParser(", "ArgumentParser(parents=[other], "),
        ("read().parse_args()", "read().parse_known_args()"),
        ('"--resume"', '*names, "--resume"'),
        ("    return parser", "    if 1:\n        parser.add_argument('--lr')\n    return parser"),
        ("read().parse_args()", "other().parse_args()"),
        ("read().parse_args()", "read().parse_args(['--data-dir', 'd'])"),
    ],
)
def test_a_parser_that_may_have_other_options(before, after):
    assert before in PARSER
    files = TextFiles({"a.py": PARSER.replace(before, after)})
    seen = lint(f"{JOB}python a.py --lr 1\n", path="job.sh", files=files, programs=SlurmOf())
    assert "E207" not in {f.code for f in seen}


def test_a_script_that_is_one_of_two_files():
    files = TextFiles({"jobs/a.py": PARSER, "a.py": "x = 1\n"})
    seen = lint(f"{JOB}python a.py --lr 1\n", path="jobs/job.sh", files=files, programs=SlurmOf())
    assert "E207" not in {f.code for f in seen}


@pytest.mark.parametrize(
    ("body", "kinds"),
    [
        ("if [ -n $A ]; then\n  python a.py\nelse\n  python b.py\nfi\necho done\n", ["warning"]),
        ("case $A in\n  x) python a.py ;;\nesac\ndate\n", ["warning"]),
        ("nvidia-smi && time python a.py\nsleep 3\n", ["warning"]),
        ("for i in 1 2; do\n  if [ $i = 1 ]; then python a.py; fi\ndone\necho done\n", ["warning"]),
        ("uv run tool train\necho done\n", ["warning"]),
        ("Rscript fit.R\ndate\n", ["warning"]),
        ("for i in 1 2; do\n  uv run tool $i\ndone\n", ["advice"]),
        ("if python a.py; then\n  echo good\nfi\necho done\n", []),
        ("python a.py || echo failed\necho done\n", ["advice"]),
        ("python a.py \\\n  --fast || true\n", ["advice"]),
        ("python a.py || exit 1\necho done\n", []),
        ("! python a.py\necho done\n", []),
        ("while ! python a.py; do sleep 9; done\necho done\n", []),
        ("uv sync\necho done\n", ["advice"]),
        ("Rscript --version\necho done\n", []),
    ],
)
def test_failures_in_branches_and_of_runners(body, kinds):
    seen = lint(f"{JOB}{body}", path="job.sh", files=TextFiles({}), programs=SlurmOf())
    assert [str(f.severity) for f in seen if f.code == "E507"] == kinds


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("conda activate \\$WORK/envs/a", True),
        ("cd '$HOME/project'", True),
        ("cd $HOME/project", False),
        ('mkdir -p "$SCRATCH/out"', False),
        ("echo '$HOME/project'", False),
        ("cat <<'END' > b.sh\ncd $HOME/project\nEND", False),
    ],
)
def test_paths_with_an_escaped_variable(line, found):
    assert (("E313", "warning") in codes(f"{line}\npython a.py\n")) == found


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ('if [ ! -f in ]; then\n  echo "in is missing"\n  echo\n  exit\nfi\n./a\n', True),
        ("[ -f in ] || { echo 'not found: in'; exit; }\n./a\n", True),
        ('if [ ! -f in ]; then\n  echo "in is missing"\n  exit 1\nfi\n./a\n', False),
        ('if [ -f out ]; then\n  echo "nothing to do"\n  exit\nfi\n./a\n', False),
        ('echo "errors go to error.log"\n./a\nexit\n', False),
    ],
)
def test_exit_after_an_error_message(body, found):
    assert ("E507" in dict(codes(body))) == found


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("WORK_DIR=/scratch/w\nmkdir -p WORK_DIR\n", True),
        ("WORK_DIR=/scratch/w\ncd WORK_DIR\n", True),
        ("WORK_DIR=/scratch/w\nmkdir -p $WORK_DIR\n", False),
        ("DATA=/scratch/w\nmkdir -p DATA\n", False),
        ("mkdir -p WORK_DIR\n", False),
    ],
)
def test_a_directory_whose_dollar_sign_is_missing(body, found):
    assert ("E313" in dict(codes(body))) == found


@pytest.mark.parametrize(
    ("body", "kinds"),
    [
        ("align reads.fa\necho done\n", ["advice"]),
        ("align reads.fa || exit 1\necho done\n", []),
        ("align reads.fa\nif [ $? != 0 ]; then exit 1; fi\necho done\n", []),
        ("set -e\nalign reads.fa\necho done\n", []),
        ("align reads.fa\ncount reads.sam\n", ["advice"]),
        ("align reads.fa && count=1\nmail me\n", ["advice"]),
        ("echo a | align\nls\n", ["advice"]),
        ("for i in a b; do align $i; done\ndate\n", ["advice"]),
        ("for i in a b; do\n  if [ -f $i ]; then align $i; fi\ndone\nplot\n", ["advice"]),
        ("align reads.fa\nexit\n", []),
        ("align reads.fa &\nserve\nkill $!\n", []),
        ("run() {\n  align $1\n}\nrun a\nrun b\n", ["advice"]),
        ("say() {\n  echo $1\n}\nsay a\nalign b\n", []),
        ("check() {\n  [ -f $1 ] || exit 1\n}\ncheck a\nalign b\n", []),
        ("source tools.sh\nalign reads.fa\ncount reads.sam\n", []),
        ("source /opt/tools.sh\nalign reads.fa\ncount reads.sam\n", ["advice"]),
        ("Align = 4\ncount reads.sam\n", []),
        ("module load aligner\necho done\n", []),
    ],
)
def test_a_failure_of_a_program_that_lint_does_not_know(body, kinds):
    assert [severity for code, severity in codes(body) if code == "E507"] == kinds


def missing(body, head=JOB, path="jobs/job.sh", **options):
    names = ("tools/prepare.py", "train.py", path)
    files = TextFiles(dict.fromkeys(names, "print()\n"), repository=True, **options)
    found = lint(head + body, path=path, files=files, programs=SlurmOf())
    return [finding.line for finding in found if finding.code == "E215"]


@pytest.mark.parametrize(
    "line",
    [
        "python trian.py",
        "srun python -u ./trian.py --epochs 3",
        "torchrun --standalone --nproc_per_node=2 tools/trian.py",
        "cd $SLURM_SUBMIT_DIR && python trian.py",
        "cd tools; python trian.py",
        "cp results.csv /archive/; python trian.py",
        "git rev-parse HEAD; python trian.py",
        "SCRIPT=trian.py; python $SCRIPT",
        "curl -X POST --data '{}' https://example.org; python trian.py",
    ],
)
def test_python_scripts_that_do_not_exist(line):
    assert missing(f"{line}\n") == [3]


@pytest.mark.parametrize(
    "body",
    [
        "python train.py",
        "python src/train.py",
        "python other/run.py",  # another repository
        "python /opt/tools/run.py",
        "python $SCRIPT",
        "python -m package.run",
        "python your_script.py",
        "cd /scratch/project\npython run.py",
        'cd "$WORK"\npython run.py',
        "git clone https://example.org/a.git .\npython run.py",
        "curl -LO https://example.org/run.py\npython run.py",
        "cp /shared/run.py .\npython run.py",
        "echo 'print()' > run.py\npython run.py",
        "cat > run.py <<EOF\nprint()\nEOF\npython run.py",
        "if [ -f run.py ]; then\n  python run.py\nfi",
        "apptainer exec image.sif python run.py",
        "srun --container-image=a.sqsh python run.py",
        "ssh host python run.py",
    ],
)
def test_python_scripts_that_may_exist(body):
    assert missing(f"{body}\n") == []


def test_python_scripts_of_jobs_that_run_elsewhere_may_exist():
    assert missing("python run.py\n", f"{JOB}#SBATCH --chdir=/scratch\n") == []
    assert missing("python run.py\n", path="templates/job.sh") == []


def test_the_names_of_a_repository(tmp_path):
    (tmp_path / "src" / "empty").mkdir(parents=True)
    (tmp_path / "data").symlink_to("src")
    for name in ("job.sh", "src/train.py"):
        (tmp_path / name).write_text("\n")
    job = str(tmp_path / "src" / "job.sh")
    assert DiskFiles().repository(job) is None
    (tmp_path / ".git").mkdir()
    names = DiskFiles().repository(job).names
    assert names == {"job.sh", "src/", "data", "empty/", "train.py"}
    (tmp_path / ".gitmodules").write_text("\n")
    assert DiskFiles().repository(job) is None  # the empty folder may be a submodule
    (tmp_path / ".gitmodules").write_text("[submodule]\npath = src/empty\n")
    assert DiskFiles().repository(job).names == {*names, ".gitmodules"}


OPTIONS = """\
import argparse
def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int)
    return parser.parse_args()
"""


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("from options import get_args\nargs = get_args()\n", True),
        ("from options import get_args\ndef main():\n    args = get_args()\nmain()\n", True),
        ("from options import get_args\n", False),
        ("from options import get_args\nif True:\n    args = get_args()\n", False),
        ("from options import get_args\nargs = get_args(['--epochs', '3'])\n", False),
        ("from options import get_args\ndef get_args():\n    pass\nget_args()\n", False),
        ("import options\nfrom other import get_args\nargs = get_args()\n", False),
        ("import sys\nfrom options import get_args\ndel sys.argv[1:]\nget_args()\n", False),
    ],
)
def test_options_of_a_parser_in_another_module(script, found):
    line = "python train.py --epoch-count 3\n"
    assert (("E207", "warning") in codes(line, train=script, options=OPTIONS)) == found
    assert codes("python train.py --epochs 3\n", train=script, options=OPTIONS) == codes(
        "python train.py\n", train=script, options=OPTIONS
    )


def test_two_parsers_in_other_modules_are_not_compared():
    script = "import more\nfrom options import get_args\nargs = get_args()\n"
    beside = {"train": script, "options": OPTIONS}
    assert ("E207", "warning") in codes("python train.py --x\n", **beside, more="x = 1\n")
    assert ("E207", "warning") not in codes("python train.py --x\n", **beside, more=OPTIONS)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('ROOT="${ROOT:-$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)}"', True),
        ('ROOT=${ROOT:-$(dirname "$0")}', True),
        ('ROOT=${SLURM_SUBMIT_DIR:-$(dirname "$0")}', False),
        ('ROOT=/data/project\nROOT=${ROOT:-$(dirname "$0")}', False),  # it is set
        ("ROOT=${ROOT:-$(dirname /data/project/src)}", False),
        ('# sbatch --export=ALL,ROOT=/data job.sh\nROOT=${ROOT:-$(dirname "$0")}', False),
    ],
)
def test_the_directory_of_the_script_as_a_default(line, found):
    assert (("E211", "warning") in codes(f'{line}\ncd "$ROOT"\npython a.py\n')) == found


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("OMP_NUM_THREADS=80 torchrun --standalone --nproc_per_node=2 a.py", True),
        ("OMP_NUM_THREADS=4 torchrun --standalone --nproc_per_node=2 a.py", False),
        ("OMP_NUM_THREADS=80\ntorchrun --standalone --nproc_per_node=2 a.py", False),
        ("OMP_NUM_THREADS=80 ./build\ntorchrun --standalone --nproc_per_node=2 a.py", False),
    ],
)
def test_threads_of_one_command(line, found):
    head = f"{JOB}#SBATCH --gpus-per-node=2\n#SBATCH --cpus-per-task=8\n"
    head += "#SBATCH --ntasks-per-node=1\n"
    assert (("E403", "advice") in codes(f"{line}\n", head)) == found


@pytest.mark.parametrize(
    ("body", "kinds"),
    [
        ("align a &\nalign b &\nwait\n", ["advice"]),
        ("gpu_monitor.sh &\npython a.py\nwait\n", []),
        ("python a.py &\nwait\n", ["warning"]),
    ],
)
def test_wait_for_programs_that_lint_does_not_know(body, kinds):
    assert [severity for code, severity in codes(body) if code == "E503"] == kinds


@pytest.mark.parametrize(
    ("body", "kinds"),
    [
        ("align a &\necho started\n", ["warning"]),
        ("align a &\nalign b\n", ["advice"]),
        ("align a &\nalign b\nwait\n", []),
        ("luigid &\nluigi a\n", []),
        ("code-server &\necho started\n", []),
    ],
)
def test_a_background_program_that_lint_does_not_know(body, kinds):
    assert [severity for code, severity in codes(body) if code == "E504"] == kinds


@pytest.mark.parametrize(
    ("body", "kinds"),
    [
        ("align a | tee log\n", ["advice"]),
        ("set -o pipefail\nalign a | tee log\n", []),
        ("echo a | tee log\n", []),
        ("align a | sort\n", []),
    ],
)
def test_a_pipe_of_a_program_that_lint_does_not_know(body, kinds):
    assert [severity for code, severity in codes(body) if code == "E505"] == kinds


ARRAY = "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --array={}\n"


@pytest.mark.parametrize(
    ("indices", "body", "kinds"),
    [
        ("0-3", "A=(a b c)\npython a.py ${A[$SLURM_ARRAY_TASK_ID]}\n", ["warning"]),
        ("1-3", "A=(a b c)\npython a.py ${A[SLURM_ARRAY_TASK_ID]}\n", ["warning"]),
        ("1-3", "A=(a b c)\npython a.py ${A[$SLURM_ARRAY_TASK_ID-1]}\n", []),
        ("1-3", "A=(a b c)\npython a.py ${A[$((SLURM_ARRAY_TASK_ID - 1))]}\n", []),
        ("1-4", "A=(a b c)\ni=$((SLURM_ARRAY_TASK_ID-1))\npython a.py ${A[$i]}\n", ["warning"]),
        ("0-2%2", "A=(\n  a # one\n  b\n  c\n)\npython a.py ${A[$SLURM_ARRAY_TASK_ID]}\n", []),
        ("0,5", "A=(a b)\npython a.py ${A[$SLURM_ARRAY_TASK_ID]}\n", ["warning"]),
        ("0-3", "A=(a b)\nA+=(c d)\npython a.py ${A[$SLURM_ARRAY_TASK_ID]}\n", []),
        ("0-3", "A=($B)\npython a.py ${A[$SLURM_ARRAY_TASK_ID]}\n", []),
        ("0-3", "A=(data/*)\npython a.py ${A[$SLURM_ARRAY_TASK_ID]}\n", []),
        ("0-3", "A=({1..4})\npython a.py ${A[$SLURM_ARRAY_TASK_ID]}\n", []),
        ("0-3", "A=(a b)\npython a.py ${A[$((SLURM_ARRAY_TASK_ID / 2))]}\n", []),
    ],
)
def test_an_index_beyond_the_end_of_an_array(indices, body, kinds):
    found = codes(body, ARRAY.format(indices))
    assert [severity for code, severity in found if code == "E314"] == kinds


@pytest.mark.parametrize(
    ("indices", "body", "found"),
    [
        ("1-9", "python a.py\n", True),
        ("1-9%1", "python a.py\n", False),
        ("3", "python a.py\n", False),
        ("1-9", "python a.py $SLURM_ARRAY_TASK_ID\n", False),
        ("1-9", "wandb agent a\n", False),
        ("1-9", "python a.py --seed $RANDOM\n", False),
        ("1-9", "srun --output=out-%a.txt python a.py\n", False),
        ("1-9", "srun --output=out-%A.txt python a.py\n", True),
        ("1-9", "sbatch --export=ALL,ID=$SLURM_ARRAY_TASK_ID b.sh\n", False),
        ("1-9", "sbatch --export=ALL,ID=3 b.sh\n", True),
        ("1-9", "bash b.sh\n", True),
    ],
)
def test_tasks_of_an_array_that_do_the_same(indices, body, found):
    assert (("E202", "advice") in codes(body, ARRAY.format(indices))) == found
    if "a.py" in body:
        other = "import os\nprint(os.environ['SLURM_ARRAY_TASK_ID'])\n"
        assert "E202" not in dict(codes(body, ARRAY.format(indices), a=other))
        assert "E202" not in dict(codes(body, ARRAY.format(indices), a="import b\n", b=other))


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("id=$SLURM_ARRAY_TASK_ID\npython a.py $id\n", True),
        ("./align $SLURM_ARRAY_TASK_ID\n", True),
        ("echo $SLURM_ARRAY_TASK_ID\n./align\n", False),
        ("./align ${SLURM_ARRAY_TASK_ID:-0}\n", False),
        ("# sbatch --array=0-9 job.sh\n./align $SLURM_ARRAY_TASK_ID\n", False),
        ('if [ -n "$SLURM_ARRAY_TASK_ID" ]; then ./align $SLURM_ARRAY_TASK_ID; fi\n', False),
    ],
)
def test_the_index_of_a_task_without_an_array(body, found):
    assert (("E407", "advice") in codes(body)) == found


@pytest.mark.parametrize(
    ("head", "body", "python", "found"),
    [
        ("#SBATCH --gres=gpu:4\n", "python a.py\n", None, True),
        ("#SBATCH --gres=gpu:4\n", "python a.py\n", "print()\n", True),
        ("#SBATCH --gres=gpu:4\n", "python a.py\n", "torch.nn.DataParallel(m)\n", False),
        ("#SBATCH --gres=gpu:1\n", "python a.py\n", None, False),
        ("#SBATCH --gres=gpu:4\n", "python a.py --gpus 4\n", None, False),
        ("#SBATCH --gres=gpu:4\n", "python a.py &\npython b.py\nwait\n", None, False),
        ("#SBATCH --gres=gpu:4\n", "# gpus\npython a.py\n", None, True),
    ],
)
def test_one_process_in_a_job_of_several_gpus(head, body, python, found):
    beside = {"a": python} if python else {}
    assert (("E203", "advice") in codes(body, JOB + head, **beside)) == found


@pytest.mark.parametrize(
    ("head", "body", "found"),
    [
        ("#SBATCH --ntasks=8\n", "python a.py\n", True),
        ("#SBATCH --ntasks=8\n#SBATCH --nodes=1\n", "python a.py\n", False),
        ("#SBATCH --ntasks=8\n", "srun python a.py\n", False),
        ("#SBATCH --ntasks=8\n", "python a.py --jobs $SLURM_NTASKS\n", False),
        ("#SBATCH --ntasks=1\n", "python a.py\n", False),
    ],
)
def test_tasks_that_nothing_starts(head, body, found):
    assert (("E201", "advice") in codes(body, f"#!/bin/bash\n{head}")) == found


@pytest.mark.parametrize(
    ("head", "body", "found"),
    [
        ("#SBATCH --ntasks=2\n", "srun -n 4 ./a\n", True),
        ("#SBATCH --ntasks=2\n#SBATCH --cpus-per-task=2\n", "srun -n 4 ./a\n", False),
        ("#SBATCH --ntasks=4\n", "srun -n 4 ./a\n", False),
        ("#SBATCH --ntasks=2\n", "srun -n 4 --overcommit ./a\n", False),
        ("#SBATCH --ntasks=2\n#SBATCH --exclusive\n", "srun -n 4 ./a\n", False),
    ],
)
def test_a_step_of_more_tasks_than_the_job_has_cpus(head, body, found):
    assert (("E213", "advice") in codes(body, f"#!/bin/bash\n{head}")) == found


@pytest.mark.parametrize(("value", "found"), [("24", True), ("30", False), ("24:00:00", False)])
def test_a_time_limit_in_minutes_that_looks_like_hours(value, found):
    head = f"#!/bin/bash\n#SBATCH --time={value}\n"
    assert (("E112", "advice") in codes("python a.py\n", head)) == found


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("python a.py --data $data_dir\n", True),
        ("data_dir=a\npython a.py --data $data_dir\n", False),
        ("for data_dir in a b; do python a.py $data_dir; done\n", False),
        ("python a.py --data $DATA_DIR\n", False),
        ("python a.py --data ${data_dir:-a}\n", False),
        ("echo $MASTER_ADDR\npython a.py\n", True),
    ],
)
def test_a_variable_that_only_the_script_can_set(body, found):
    assert (("E314", "advice") in codes(body)) == found


@pytest.mark.parametrize(
    ("body", "lines"),
    [
        ("./tools/run.sh\n", []),
        ("./tools/plain.sh\n", [3]),
        ("bash tools/plain.sh\n", []),
        ("chmod +x tools/*.sh\n./tools/plain.sh\n", []),
        ("bash tools/other.sh\n", [3]),
        ("./tools/other.sh\n", [3]),
        ("[ -f tools/other.sh ] && bash tools/other.sh\n", []),
        ("bash elsewhere/other.sh\n", []),
        ("cd /data\nbash tools/other.sh\n", []),
        ("cd /data/me/clone\nbash tools/other.sh\n", []),
        ("cd /data/me/clone\nbash tools/run.sh\nbash tools/other.sh\n", [5]),
        ("source tools/other.sh\n", [3]),
        ("source tools/other.sh || true\n", []),
        ("if [ -f tools/other.sh ]; then\n  source tools/other.sh\nfi\n", []),
        (". ./paths.sh\n", [3]),
        (". ./secrets.sh\n", []),
        ("source venv/bin/activate.sh\n", []),
        ("source ~/env.sh\n", []),
        ("source site-modules.sh\n", []),
    ],
)
def test_shell_scripts_that_cannot_run(body, lines):
    texts = dict.fromkeys(("tools/run.sh", "tools/plain.sh", "job.sh"), "echo\n")
    files = TextFiles(texts, repository=True)
    found = lint(JOB + body, path="job.sh", files=files, programs=SlurmOf())
    assert [finding.line for finding in found if finding.code == "E215"] == lines


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("python a.py > runs/a.log\n", True),
        ("python a.py 2>&1 | tee runs/a.log\n", True),
        ("mkdir -p runs\npython a.py > runs/a.log\n", False),
        ("python a.py > tools/a.log\n", False),
        ("python a.py > a.log\n", False),
        ("python a.py > /runs/a.log\n", False),
        ("cd x\npython a.py > runs/a.log\n", False),
    ],
)
def test_a_redirection_into_a_directory_that_nothing_creates(body, found):
    files = TextFiles({"tools/a.py": "", "a.py": "", "job.sh": ""}, repository=True)
    seen = lint(JOB + body, path="job.sh", files=files, programs=SlurmOf())
    assert (("E501", "advice") in {(f.code, str(f.severity)) for f in seen}) == found


def test_an_executable_file_on_disk(tmp_path):
    plain = tmp_path / "a.sh"
    plain.write_text("")
    assert DiskFiles().is_executable(str(plain))  # no repository
    (tmp_path / ".git").mkdir()
    assert DiskFiles().is_executable(str(plain))  # the modes may be lost
    (tmp_path / "b.sh").write_text("")
    (tmp_path / "b.sh").chmod(0o755)
    assert not DiskFiles().is_executable(str(plain))
    assert DiskFiles().is_executable(str(tmp_path / "b.sh"))


def test_lines_of_a_repository_that_name_a_script(tmp_path):
    (tmp_path / ".git").mkdir()
    (tmp_path / "job.sh").write_text("job.sh\n")
    (tmp_path / "submit.sh").write_text("sed s/a/b/ job.sh\nls\n")
    (tmp_path / "data.bin").write_text("job.sh\n")
    assert DiskFiles().lines_with(str(tmp_path / "job.sh")) == ("sed s/a/b/ job.sh",)


@pytest.mark.parametrize(
    ("nodes", "body", "found"),
    [
        (2, "virtualenv --no-download $SLURM_TMPDIR/env\nsrun python a.py\n", True),
        (1, "virtualenv --no-download $SLURM_TMPDIR/env\nsrun python a.py\n", False),
        (2, "virtualenv ~/env\nsrun python a.py\n", False),
        (2, "srun -n2 virtualenv $SLURM_TMPDIR/env\nsrun python a.py\n", False),
    ],
)
def test_an_environment_on_the_first_node(nodes, body, found):
    head = f"#!/bin/bash\n#SBATCH --nodes={nodes}\n#SBATCH --ntasks-per-node=1\n"
    assert (("E408", "warning") in codes(body, head)) == found


@pytest.mark.parametrize(
    ("head", "found"), [("#SBATCH --ntasks-per-node=1\n", True), ("#SBATCH --ntasks=1\n", False)]
)
def test_lightning_without_srun(head, found):
    python = "import lightning\nlightning.Trainer(devices=2)\n"
    assert (("E214", "warning") in codes("python a.py\n", JOB + head, a=python)) == found


def test_programs_behind_others():
    assert ("E507", "advice") in codes("time mpirun ./a\ntime mpirun ./b\n")
    assert ("E507", "advice") not in codes("time sleep 3\ntime mpirun ./b\n")


@pytest.mark.parametrize(
    ("head", "command", "found"),
    [
        ("", "singularity exec --nv a.sif ./a\n", True),
        ("", "singularity exec a.sif ./a\n", False),
        ("#SBATCH --gres=gpu:1\n", "singularity exec --nv a.sif ./a\n", False),
        ("#SBATCH --partition=gpu\n", "apptainer exec --nv a.sif ./a\n", False),
    ],
)
def test_a_container_with_gpus_that_the_job_does_not_have(head, command, found):
    assert (("E118", "advice") in codes(command, JOB + head)) == found


def test_exit_0_after_an_error_message():
    script = 'if [ ! -f in ]; then\n  echo "in is missing"\n  exit 0\nfi\nset -e\n./a\n'
    assert ("E507", "advice") in codes(script)
    assert ("E507", "advice") not in codes(script.replace("in is missing", "done"))


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ('if [ -z "$1" ]; then echo "ERROR: no model"; exit; fi\nset -e\n./a\n', True),
        ('if [ -z "$1" ]; then\n  >&2 echo "Model not found"\n  exit\nfi\nset -e\n./a\n', True),
        ('if [ -z "$1" ]; then\n  echo >&2 "No model given"\n  exit\nfi\nset -e\n./a\n', True),
        ('u() { echo "Usage: a B"; }\nif [ $# -lt 1 ]; then u; exit; fi\nset -e\n./a\n', True),
        ('case $1 in\n  -h | --help)\n    echo "Usage: a"\n    exit;;\nesac\nset -e\n./a\n', False),
        ('u() { echo "Usage: a B"; }\nif [ $1 = -h ]; then u; exit; fi\nset -e\n./a\n', False),
        ("if [ $# = 0 ]; then\ncat <<E\nusage: a B\nE\nexit\nfi\nset -e\n./a\n", True),
        ('[ -d x ] || { echo "x is missing"; exit; }\nset -e\n./a\n', True),
        ('[ -d x ] || (echo "x is missing"; exit)\nset -e\n./a\n', False),
        ('if [ -f out ]; then echo >&2 "Nothing to do"; exit; fi\nset -e\n./a\n', False),
    ],
)
def test_exit_without_a_number_after_an_error(body, found):
    assert (("E507", "warning") in codes(body)) == found


def test_words_behind_a_redirection_are_arguments():
    python = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--a')\n"
    python += "args = p.parse_args()\n"
    line = "python a.py > a.log --epochs 3\n"
    assert ("E207", "warning") in codes(line, a=python)
    assert ("E207", "warning") not in codes(line.replace("--epochs 3", ""), a=python)


@pytest.mark.parametrize(
    ("body", "kinds"),
    [
        ("python a.py\nhostname\nexit\n", ["warning"]),
        ("python a.py\nexit\n", []),
        ("hostname\npython a.py\nexit\n", []),
        ("python a.py\nexit $?\n", []),
        ("uv venv\nuv pip install a\necho done\n", ["advice"]),
        ("pip install a\necho done\n", ["advice"]),
        ("pip install a\npython b.py | tee b.log\necho done\n", []),
        ("pip install a\n", []),
        ("python a.py\nexit 1\n", ["warning"]),
        ("python a.py && exit 0\nexit 1\n", []),
        ("python a.py\nexit 0\n", ["warning"]),
        ("echo 'not for sbatch'\nexit 1\n", []),
        ("if ! python a.py; then\n  exit 1\nfi\n", []),
    ],
)
def test_statuses_at_the_end(body, kinds):
    seen = lint(f"{JOB}{body}", path="job.sh", files=TextFiles({}), programs=SlurmOf())
    assert [str(f.severity) for f in seen if f.code == "E507"] == kinds


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("python -m pip install a\nif [ $A ]; then\n  ./a\nelse\n  ./b\nfi\necho done\n", 7),
        ("python -m pip install a\npython -m pip install b\n./a\ndate\n", 5),
        ("python -m pip install a\npython a.py\nsstat\ndate\n", 4),
        ("python -c 'import a'\n./a\npython -c 'import b'\ndate\n", 4),
    ],
)
def test_the_program_that_matters_is_no_installation(body, line):
    seen = lint(f"{JOB}{body}", path="job.sh", files=TextFiles({}), programs=SlurmOf())
    assert [f.line for f in seen if f.code == "E507"] == [line]


@pytest.mark.parametrize(
    ("signal", "body", "python", "found"),
    [
        ("USR1@120", "srun python a.py\n", "print(1)\n", True),
        ("10@120", "srun python a.py\n", "print(1)\n", True),
        ("SIGTERM@60", "srun python a.py\n", "print(1)\n", True),
        ("B:USR1@120", "srun python a.py\n", "print(1)\n", False),
        ("USR1@120", "srun python a.py\n", "import signal\n", False),
        ("USR1@120", "srun python a.py\n", "import lightning\n", False),
        ("USR1@120", "srun python a.py\n", "import b\n", False),
        ("USR1@120", "srun bash -c 'trap true USR1; python a.py'\n", "print(1)\n", False),
        ("URG@120", "srun python a.py\n", "print(1)\n", False),
        ("USR1@120", "srun python c.py\n", "print(1)\n", False),
    ],
)
def test_a_signal_that_ends_the_ranks(signal, body, python, found):
    head = f"#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --signal={signal}\n"
    module = "import signal\nsignal.signal(signal.SIGUSR1, print)\n"
    assert (("E509", "advice") in codes(body, head, a=python, b=module)) == found


@pytest.mark.parametrize(
    ("loop", "found"),
    [
        ("until curl -s localhost:80; do sleep 5; done\n", True),
        ("while ! nc -z localhost 80; do\n  sleep 1\n  echo waiting\ndone\n", True),
        ("until curl --max-time 3 -s localhost:80\ndo\n  sleep 5\ndone\n", True),
        ("until $(curl -sf localhost:80); do sleep 5; done\n", True),
        ("while ! (echo > /dev/tcp/localhost/80) 2> /dev/null; do sleep 1; done\n", True),
        ('while [ "$(curl -s a)" != ok ]; do sleep 1; done\n', True),
        ('while [ "$(curl -s a)" = busy ]; do sleep 1; done\n', False),
        ("until curl -s a; do sleep 5; kill -0 $p || exit 1; done\n", False),
        ("until curl -s a; do\n  sleep 5; ((n++))\n  [ $n -gt 9 ] && break\ndone\n", False),
        ("timeout 60 bash -c 'until curl -s a; do sleep 5; done'\n", False),
        ("timeout 60 bash -c '\nuntil curl -s a; do sleep 5; done'\n", False),
        ("while read a; do echo; done\n", False),
    ],
)
def test_loops_that_wait_for_a_server(loop, found):
    end = "python a.py\nkill $p\n"
    assert (("E508", "advice") in codes(f"./serve &\np=$!\n{loop}{end}")) == found
    assert ("E508", "advice") not in codes(f"{loop}./serve &\np=$!\n{end}")


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("pkill -9 -f a.py", True),
        ("killall -q server", True),
        ("pkill -u $USER python", True),
        ("srun --ntasks-per-node=1 pkill python", True),
        ("pkill -P $$", False),
        ("pkill -f job_$SLURM_JOB_ID", False),
        ("kill $server", False),
    ],
)
@pytest.mark.parametrize("exclusive", [False, True])
def test_processes_ended_by_name(line, found, exclusive):
    head = f"{JOB}#SBATCH --exclusive\n" if exclusive else JOB
    wanted = found and not exclusive
    assert (("E510", "advice") in codes(f"{line}\npython a.py\n", head)) == wanted


REPOSITORY = (
    *("src/kg/scripts/analyze.py", "src/kg/run.sh", "jobs/count_tokens.sh", "configs/small.yaml"),
    *("configs/sweep/a.json", "train.py", "jobs/job.sh"),
)


def paths(body, head=JOB, path="jobs/job.sh", **texts):
    """Return the severity, the line and the fix of each finding about a path."""
    files = TextFiles({**dict.fromkeys(REPOSITORY, "print()\n"), **texts}, repository=True)
    found = lint(head + body, path=path, files=files, programs=SlurmOf())
    return [(str(f.severity), f.line, f.fix) for f in found if f.code == "E215"]


def test_a_path_that_no_path_of_the_repository_ends_with():
    nearest = "is src/kg/scripts/analyze.py meant?"
    assert paths("python src/kp/scripts/analyze.py\n") == [("warning", 3, nearest)]
    assert paths("python ../src/kp/scripts/analyze.py\n") == [("warning", 3, nearest)]
    assert paths("srun python src/kg/scripts/analyse.py\n") == [("warning", 3, nearest)]
    assert paths("cd ~/own\npython src/kp/scripts/analyze.py\n") == [("warning", 4, nearest)]
    assert paths("bash slurm/count_tokens.sh\nbash slurm/count_tokens.sh\n") == [
        ("warning", 3, "is jobs/count_tokens.sh meant?")
    ]
    assert paths("source src/kp/run.sh\n")[0][0] == "warning"
    assert paths("./src/kq/run.sh\n")[0][1] == 3


@pytest.mark.parametrize(
    "body",
    [
        "python ./src/kg/scripts/analyze.py",
        "python own/train.py",  # from the directory above
        "python own/src/kg/scripts/analyze.py",
        "python other/train.py",
        "python other/src/run.py",
        "cd /scratch\npython src/kp/scripts/analyze.py",
        "cd $DATA\npython src/kp/scripts/analyze.py",
        "cp /shared/analyze.py src/kp/scripts/\npython src/kp/scripts/analyze.py",
        "python src/kp/run.py",
        "cat a > src/kp/scripts/analyze.py\npython src/kp/scripts/analyze.py",
        "apptainer exec a.sif python src/kp/scripts/analyze.py",
    ],
)
def test_paths_that_may_exist(body):
    assert paths(f"{body}\n") == []


@pytest.mark.parametrize(
    ("arguments", "fix"),
    [
        ("--config configs/smal.yaml", "configs/small.yaml"),
        ("--config=config/small.yaml", "configs/small.yaml"),
        ("configs/smal.yaml", "configs/small.yaml"),
        ("@configs/smal.yaml", "configs/small.yaml"),
        ("--config configs/sweep/b.json", "configs/sweep/a.json"),
        ("--config sweep/a.json", ""),
        ("--config your/configs/small.yaml", ""),
        ("--config small.toml", ""),
        ("--train-file configs/sweep/b.json", ""),
        ("--out-config configs/other.yaml", ""),
        ("--config $CONFIGS/smal.yaml", ""),
        ("--config https://example.org/configs/smal.yaml", ""),
    ],
)
def test_configuration_files(arguments, fix):
    told = [("advice", 3, f"is {fix} meant?")] if fix else []
    assert paths(f"python train.py {arguments}\n") == told


def test_configuration_files_that_the_repository_creates():
    body = "python train.py --config configs/smal.yaml\n"
    writes = "with open('configs/smal.yaml', 'w') as file:\n    pass\n"
    assert paths(body, **{"make.py": writes}) == []
    assert paths(body, **{"make.py": "# see configs/smal.yaml\n"})


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("cd src/kp\npython train.py\n", True),
        ("cd src/kp\ncd ..\npython train.py\n", True),
        ("cd config\npython train.py\n", True),
        ("cd src/kg\npython train.py\n", False),
        ("cd kg/scripts\npython train.py\n", False),
        ("cd own\npython train.py\n", False),
        ("cd somewhere\npython train.py\n", False),
        ("set -e\ncd src/kp\npython train.py\n", False),
        ("cd src/kp || exit\npython train.py\n", False),
        ("cd src/kp && python train.py\n", False),
        ("mkdir -p src/kp\ncd src/kp\npython train.py\n", False),
        ("if [ -d src/kp ]; then\n  cd src/kp\nfi\npython train.py\n", False),
    ],
)
def test_a_folder_that_the_repository_lacks(body, found):
    assert [severity for severity, _, _ in paths(body)] == (["warning"] if found else [])


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("python train.py --data /Users/anna/data/a.csv\n", True),
        ("DATA=/Users/anna/data/a.csv\npython train.py --data=$DATA\n", True),
        ("/Users/anna/env/bin/python train.py\n", True),
        ("python train.py 'C:\\data\\a.csv'\n", True),
        ("python train.py C:/data/a.csv\n", True),
        ("python train.py --data /users/anna/data/a.csv\n", False),
        ("echo /Users/anna/data/a.csv\n", False),
        ("scp a.csv host:/Users/anna/data/a.csv\n", False),
        ("python train.py --ratio A:b\n", False),
        ("[ $(uname) = Darwin ] && cd /Users/anna/data\n", False),
    ],
)
def test_paths_of_a_laptop(body, found):
    assert paths(body) == ([("advice", body.count("\n") + 2, PATH_OF_CLUSTER)] if found else [])


PATH_OF_CLUSTER = "use a path of the cluster"


def test_paths_of_a_laptop_in_a_script_that_the_job_runs():
    assert paths("bash jobs/step.sh\n", **{"jobs/step.sh": "cp /Users/a/b/c .\n"})


def test_what_git_ignores_and_submodules_may_exist(tmp_path):
    for folder in (".git", "src", "logs"):
        (tmp_path / folder).mkdir()
    job = tmp_path / "job.sh"
    job.write_text("\n")
    (tmp_path / "logs" / ".gitignore").write_text("*\n!.gitignore\n")
    (tmp_path / ".gitignore").write_text("# results\n/src/made/*\n*.tmp.py\nlocal\n/data/\n")
    (tmp_path / ".gitmodules").write_text('[submodule "a"]\n  path = src/tool\n')
    (tmp_path / "src" / "a.py").write_text("\n")
    repository = DiskFiles().repository(str(job))
    for path in ("src/made/a.py", "src/b.tmp.py", "local/a.py", "logs/a.py", "src/tool/a.py"):
        assert not repository.lacks(path)
    for path in ("made/a.py", "../tool/a.py", "data/b.py", "elsewhere/data/b.py"):
        assert not repository.lacks(path)
    assert repository.lacks("src/data/b.py")
    assert repository.lacks("src/logs/b.py")
    assert repository.lacks("src/b.py")
    assert repository.nearest("src/aa.py") == "src/a.py"


@pytest.mark.parametrize(
    ("path", "nearest"),
    [
        ("src/fine_tune.py", "src/fine-tune.py"),
        ("src/load_modl.py", "src/load_model.py"),
        ("src/laod_model.py", "src/load_model.py"),
        ("other/load_model.py", "src/load_model.py"),
        ("src/load_models_all.py", ""),
        ("src/loading.py", ""),
    ],
)
def test_a_path_that_is_probably_meant(path, nearest):
    repository = Repository(
        name="own", paths=frozenset({"src/", "src/fine-tune.py", "src/load_model.py"})
    )
    assert repository.nearest(path) == nearest


@pytest.mark.parametrize(
    ("body", "others", "kind"),
    [
        ("python src/kg/fit_all.py\n", {}, "warning"),
        ("python src/kg/fit_all.py\n", {"src/kg/fit_all.ipynb": "{}"}, "advice"),
        ("# nbconvert --to python fit_all.ipynb\npython src/kg/fit_all.py\n", {}, "advice"),
        ("python src/kg/fit_all.py\n", {"src/kg/fit.ipynb": "{}"}, "warning"),
    ],
)
def test_a_script_that_may_be_made_from_a_notebook(body, others, kind):
    assert [severity for severity, _, _ in paths(body, **others)] == [kind]


@pytest.mark.parametrize(
    ("line", "python", "beside", "found"),
    [
        ("python tools/run.py", "import torch\n", "tools/random.py", True),
        ("torchrun --standalone tools/run.py", "import torch\n", "tools/types.py", True),
        ("python -m tools.run", "import numpy as np\nimport torch.nn\n", "queue.py", True),
        ("python tools/run.py", "import numpy\n", "tools/inspect.py", True),
        ("python tools/run.py", "import numpy\n", "tools/random.py", False),
        ("python tools/run.py", "import json\n", "tools/random.py", False),
        ("python tools/run.py", "import torch\n", "random.py", False),
        ("python -m tools.run", "import torch\n", "tools/random.py", False),
        ("python -P tools/run.py", "import torch\n", "tools/random.py", False),
        ("python tools/run.py", "import torch\n", "tools/test.py", False),
        ("python tools/run.py", "import torch\n", "tools/time.py", False),
    ],
)
def test_files_that_hide_modules_of_python(line, python, beside, found):
    files = TextFiles({"tools/run.py": python, beside: "seed = 1\n"})
    findings = lint(f"{JOB}{line}\n", path="job.sh", files=files, programs=SlurmOf())
    hidden = [(f.path, str(f.severity)) for f in findings if f.code == "E628"]
    assert hidden == ([("tools/run.py", "warning")] if found else [])


@pytest.mark.parametrize(
    ("nodes", "more", "body", "severity"),
    [
        (2, "", "export MASTER_ADDR=gpu07\nsrun python a.py\n", "warning"),
        (2, "", "srun torchrun --rdzv_endpoint=worker-0:29500 a.py\n", "warning"),
        (2, "", "export MASTER_ADDR=10.0.0.7\nsrun python a.py\n", "warning"),
        (1, "", "export MASTER_ADDR=gpu07\nsrun python a.py\n", "advice"),
        (1, "", "export MASTER_ADDR=127.0.0.1\nsrun python a.py\n", None),
        (1, "", "export MASTER_ADDR=localhost\nsrun python a.py\n", None),
        (2, "#SBATCH -w gpu[07-08]\n", "export MASTER_ADDR=gpu07\nsrun python a.py\n", None),
        (2, "#SBATCH -w gpu[05-06]\n", "MASTER_ADDR=gpu07 srun python a.py\n", "warning"),
        (2, "", "export MASTER_ADDR=gpu07.cluster\nsrun -w gpu07 python a.py\n", None),
        (2, "# sbatch -w gpu07\n", "export MASTER_ADDR=gpu07\nsrun python a.py\n", None),
        (2, "", "export MASTER_ADDR=gpu07\nsrun -w $NODES python a.py\n", None),
        (2, "", "export MASTER_ADDR=$(hostname)\nsrun python a.py\n", None),
    ],
)
def test_a_literal_host_that_slurm_may_not_choose(nodes, more, body, severity):
    head = f"#!/bin/bash\n#SBATCH --nodes={nodes}\n#SBATCH --ntasks-per-node=1\n{more}"
    python = "import os\nos.environ['MASTER_ADDR']\n"
    found = [kind for code, kind in codes(body, head, a=python) if code == "E307"]
    assert found == ([severity] if severity else [])


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("CONT_JOBDIR=/a\nls $CONT_JOBDIR\nenroot start a ls $CONT_JOB_DIR\n", True),
        ("CONT_JOBDIR=/a\nls $CONT_JOBDIR  # read it\nOUT=$CONT_JOB_DIR/b\n", True),
        ("module load a\nCONT_JOBDIR=/a\nls $CONT_JOBDIR $CONT_JOB_DIR\n", True),
        ("module load cuda\nCUDAHOME=/a\nls $CUDAHOME $CUDA_HOME\n", False),
        ("CONT_JOBDIR=$CONT_JOB_DIR/a\nls $CONT_JOBDIR\n", False),
        ("CONT_JOBDIR=/a\nread CONT_JOB_DIR\nls $CONT_JOB_DIR\n", False),
        ("CONT_JOBDIR=/a\nls ${CONT_JOB_DIR:-/b}\n", False),
        ("CONT_JOBDIR=/a\nsource own.sh\nls $CONT_JOB_DIR\n", False),
    ],
)
def test_names_that_differ_by_underscores(body, found):
    assert (("E314", "warning") in codes(body)) == found


@pytest.mark.parametrize(
    ("directive", "read"),
    [
        ("-exclude=node45", "-e xclude=node45"),
        ("-nodes 2", "-n odes"),
        ("-n4", ""),
        ("-Jtrain", ""),
        ("-p time", ""),
    ],
)
def test_a_long_option_with_one_dash(directive, read):
    script = f"#!/bin/bash\n#SBATCH {directive}\npython a.py\n"
    (found,) = [f for f in _findings(script) if f.code == "E105"] or [None]
    assert (found is not None) == bool(read)
    if found:
        assert f"is read as {read}" in found.what
        fixed = apply_edits(script, found.edits)
        assert f"#SBATCH -{directive}\n" in fixed
        assert "E105" not in {f.code for f in _findings(fixed)}


def _findings(script):
    return lint(script, path="job.sh", files=TextFiles({}), programs=SlurmOf())


USES_TOOLS = "from tools.metrics import score\n"


def modules_not_found(line, python, more=(), extra=""):
    texts = {"scripts/run.py": python, "tools/metrics.py": "def score(): pass\n", **dict(more)}
    files = TextFiles({**texts, "job.sh": ""}, repository=True)
    body = f"{JOB}{extra}{line}\n"
    found = lint(body, path="job.sh", files=files, programs=SlurmOf())
    return [(f.line, str(f.severity), f.fix) for f in found if f.code == "E629"]


@pytest.mark.parametrize(
    ("line", "fix"),
    [
        ("python scripts/run.py", "$PWD  # or start it with -m scripts.run"),
        ("python3.11 -u ./scripts/run.py", "$PWD  # or start it with -m scripts.run"),
        ("srun python scripts/run.py --a=1", "$PWD  # or start it with -m scripts.run"),
        ("torchrun --standalone scripts/run.py", "$PWD  # or start it with -m scripts.run"),
        ("accelerate launch --multi_gpu scripts/run.py", "$PWD  # or start it with -m scripts.run"),
        ("python /home/me/own/scripts/run.py", "/home/me/own"),
        ("python ../own/scripts/run.py", "$PWD/../own"),
        ("python -m scripts.run", None),
        ("ipython scripts/run.py", None),
        ("accelerate launch scripts/run.py", None),
        ("deepspeed scripts/run.py", None),
        ("apptainer exec a.sif python scripts/run.py", None),
        ("PYTHONPATH=. python scripts/run.py", None),
        ("cp scripts/run.py .; python scripts/run.py", None),
        ("source setup.sh\npython scripts/run.py", None),
    ],
)
def test_modules_that_python_does_not_find(line, fix):
    found = modules_not_found(line, USES_TOOLS)
    assert found == ([(3, "warning", f"export PYTHONPATH={fix}")] if fix else [])


@pytest.mark.parametrize(
    ("python", "found"),
    [
        (USES_TOOLS, True),
        ("import tools.metrics\n", True),
        ("from tools import metrics\n", True),
        ("import scripts.run\n", True),
        ("from tools.other import score\n", False),
        ("import sys\nsys.path.append('.')\nimport tools.metrics\n", False),
        ("import other\nimport tools.metrics\n", False),
        ("try:\n    import tools.metrics\nexcept ImportError:\n    pass\n", False),
        ("def f():\n    import tools.metrics\n", False),
        ("import datasets\n", False),
        ("import calendar\n", False),
        ("import elsewhere\n", False),
    ],
)
def test_imports_of_modules_that_python_does_not_find(python, found):
    more = {
        "scripts/other.py": "import sys\nsys.path.insert(0, '..')\n",
        "datasets/__init__.py": "",
        "calendar.py": "",
    }
    assert bool(modules_not_found("python scripts/run.py", python, more)) == found


@pytest.mark.parametrize(
    ("more", "found"),
    [
        ({"README.md": "Run pip install -r requirements.txt first.\n"}, True),
        ({"requirements.txt": "torch\n"}, True),
        ({"lib/pyproject.toml": ""}, True),
        ({"scripts/tools.py": ""}, False),
        ({"scripts/tools/a.py": ""}, False),
        ({"pyproject.toml": ""}, False),
        ({"setup.py": ""}, False),
        ({"README.md": "Run pip install -e . first.\n"}, False),
        ({"README.md": "Run pip install tools first.\n"}, False),
        ({"README.md": "Set PYTHONPATH to this directory.\n"}, False),
        ({"environment.yml": "- pip:\n  - -e .\n"}, False),
        ({"requirements.txt": "tools==1.0\n"}, False),
        ({"old/scripts/run.py": ""}, False),
    ],
)
def test_modules_that_may_be_installed(more, found):
    assert bool(modules_not_found("python scripts/run.py", USES_TOOLS, more)) == found


def test_modules_of_several_scripts_are_told_once():
    lines = "python scripts/run.py\npython scripts/again.py"
    assert len(modules_not_found(lines, USES_TOOLS, {"scripts/again.py": USES_TOOLS})) == 1
