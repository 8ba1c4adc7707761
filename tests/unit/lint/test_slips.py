"""Slips that bash, or a launcher, does not report where they are."""

import time

import pytest

from echelon.lint.linting import lint
from echelon.lint.rules.prose import find_prose
from echelon.lint.subject import read_subject
from unit.lint.fakes import JOB, SlurmOf, TextFiles, codes


def _found(code, body, head=JOB, **beside):
    return dict(codes(body, head, a="print(1)\n", **beside)).get(code)


@pytest.mark.parametrize(
    ("test", "found"),
    [
        ("[ $N > 1 ]", "warning"),
        ("[ $N >= 1 ]", "warning"),
        ("[ ! $N < 1 ]", "warning"),
        ('[ "$A"=="1" ]', "warning"),
        ("[ $A=1 ]", "warning"),
        ("[[ $A==1 ]]", "warning"),
        ("[[ $A!=x ]]", "warning"),
        ("[ $N -gt 1 ]", None),
        ("[[ $N > 1 ]]", None),
        ("(( N > 1 ))", None),
        (r"[ a \> b ]", None),
        ('[ "$A" == "1" ]', None),
        ('[ "x$A" = x ]', None),
        ('[ $(echo "$N > 1" | bc) = 1 ]', None),
        ("[ -f a=b ]", None),
        ("grep -q x a > b", None),
    ],
)
def test_conditions_that_are_always_true(test, found):
    assert _found("E315", f"if {test}; then\n  echo a\nfi\npython a.py\n") == found


def test_conditions_in_a_here_document_are_not_those_of_the_script():
    body = "cat > other.sh <<'EOF'\nif [ $N > 1 ]; then echo; fi\nEOF\npython a.py\n"
    assert _found("E315", body) is None
    assert _found("E315", "if [ $N > 1 ]; then echo; fi\n", head="#!/bin/bash\n") is None


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("for i in {1..$N}; do python a.py $i; done\n", "warning"),
        ("for i in {$LOW..${HIGH}}; do python a.py $i; done\n", "warning"),
        ("for i in {1..4}; do python a.py $i; done\n", None),
        ("for i in $(seq 1 $N); do python a.py $i; done\n", None),
        ("export LD_LIBRARY_PATH=/opt/lib:LD_LIBRARY_PATH\npython a.py\n", "warning"),
        ("export LD_LIBRARY_PATH=/opt/lib:$LD_LIBRARY_PATH\npython a.py\n", None),
        ("export LD_LIBRARY_PATH=/opt/LD_LIBRARY_PATH\npython a.py\n", None),
    ],
)
def test_what_bash_does_not_expand(body, found):
    assert _found("E313", body) == found


def test_zsh_expands_variables_in_braces():
    body = "for i in {1..$N}; do python a.py $i; done\n"
    assert _found("E313", body, head="#!/bin/zsh\n#SBATCH --nodes=1\n") is None


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("python a.py --name run_$SLURM_JOB_ID_last\n", "warning"),
        ("MODEL=big\npython a.py --name $MODEL_v2\n", "warning"),
        ("MODEL=big\npython a.py --name ${MODEL}_v2\n", None),
        ("MODEL=big\npython a.py --name ${MODEL_v2:-x}\n", None),
        ("MODEL=big\npython a.py --dir $MODEL_DIR\n", None),  # it may come from outside
        ("MODEL=big\nread MODEL_v2\npython a.py $MODEL_v2\n", None),
        ("MODEL=big\nfor MODEL_v2 in a b; do python a.py $MODEL_v2; done\n", None),
        ("MODEL=big\nsource names.sh\npython a.py --name $MODEL_v2\n", None),
        ("python a.py $SLURM_JOB_ID $SLURM_JOB_NODELIST\n", None),
    ],
)
def test_names_that_end_too_late(body, found):
    assert _found("E314", body) == found


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("export PATH=/opt/cuda/bin\npython a.py\n", "warning"),
        ("PATH=$HOME/bin\npython a.py\n", "warning"),
        ("export PATH=/opt/cuda/bin:$PATH\npython a.py\n", None),
        ("export PATH=/usr/local/bin:/usr/bin:/bin\npython a.py\n", None),
        ("export PATH=$OLD_PATH\npython a.py\n", None),
        ("PATH=/opt/cuda/bin python a.py\n", None),
        ("export PATH=$(cleaned)\npython a.py\n", None),
    ],
)
def test_a_path_without_the_programs_of_the_system(body, found):
    assert _found("E316", body) == found


@pytest.mark.parametrize(
    ("command", "found"),
    [("laod cuda", "warning"), ("puregs", None), ("load cuda", None), ("$ACTION cuda", None)],
)
def test_misspelled_commands_of_module(command, found):
    assert _found("E212", f"module {command}\npython a.py\n") == found


@pytest.mark.parametrize(
    ("option", "found"),
    [
        ("--nproc_per_nodes=2", "error"),
        ("--nproc-per-gpu=2", None),  # not alike
        ("--master_adr=a", "error"),
        ("--nproc_per=2", None),  # torchrun accepts abbreviations
        ("--nproc-per-node=2", None),
        ("-m", None),
    ],
)
def test_misspelled_options_of_torchrun(option, found):
    assert _found("E207", f"torchrun --standalone {option} a.py\n") == found


def test_a_misspelled_option_in_a_branch_is_a_warning():
    body = "if [ -f x ]; then torchrun --standalone --nproc_per_nodes=2 a.py; fi\n"
    assert _found("E207", body) == "warning"


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("set -e\nN=0\n((N++))\npython a.py\n", "warning"),
        ("set -euo pipefail\nN=0\nif [ -f x ]; then\n  ((N++))\nfi\npython a.py\n", "warning"),
        ("set -e\nN=1\n((N++))\npython a.py\n", None),
        ("set -e\nN=0\n((N++)) || true\npython a.py\n", None),
        ("set -e\nN=0\n((++N))\npython a.py\n", None),
        ("N=0\n((N++))\npython a.py\n", None),
        ("N=0\n((N++))\nset -e\npython a.py\n", None),
    ],
)
def test_arithmetic_that_ends_the_script(body, found):
    assert _found("E511", body) == found


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ('PRIVATE="false"\npython a.py ${PRIVATE:+--private}\n', "warning"),
        ('PRIVATE="${PRIVATE:-false}"\npython a.py ${PRIVATE:+--private}\n', "warning"),
        ('PRIVATE=${PRIVATE:-"false"}\npython a.py ${PRIVATE:+--private}\n', "warning"),
        ('PRIVATE=""\npython a.py ${PRIVATE:+--private}\n', None),
        ("PRIVATE=yes\npython a.py ${PRIVATE:+--private}\n", None),
        ("python a.py ${PRIVATE:+--private}\nPRIVATE=false\n", None),
    ],
)
def test_options_whose_switch_is_the_text_false(body, found):
    assert _found("E315", body) == found


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("export DIR=/tmp/$SLURM_JOB_ID CACHE=${DIR}/cache\npython a.py $CACHE\n", "warning"),
        ("f() {\n  local a=1 b=$a\n  python a.py $b\n}\nf\n", "warning"),
        ("export DIR=/tmp\nexport CACHE=${DIR}/cache\npython a.py $CACHE\n", None),
        ("DIR=/tmp CACHE=$DIR/cache\npython a.py $CACHE\n", None),  # bash assigns in order
        ("export DIR=/tmp CACHE='$DIR'\npython a.py $CACHE\n", None),
    ],
)
def test_values_before_the_line(body, found):
    assert _found("E314", body) == found


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("\n--time=2:00:00\npython a.py\n", "warning"),
        ("# limit\n--mem=4G\npython a.py\n", "warning"),
        ("python a.py\n--time=2:00:00\n", None),  # a missing backslash: E208
        ("python a.py \\\n--time=2:00:00\n", None),
        ("--unknown=2\npython a.py\n", None),
    ],
)
def test_directives_without_sbatch(body, found):
    assert _found("E212", body) == found


@pytest.mark.parametrize(
    ("signal", "body", "found"),
    [
        ("USR1@90", "python handles.py\n", "warning"),
        ("SIGUSR1@90", "torchrun --standalone --nproc_per_node=2 handles.py\n", "warning"),
        ("USR1@90", "python a.py\n", "advice"),
        ("TERM@90", "python handles.py\n", "advice"),  # it handles another one
        ("B:USR1@90", "trap 'kill $!' USR1\npython a.py & wait $!\n", None),
        ("USR1@90", "mpirun -n 1 python a.py\n", None),
        ("USR1@90", "./start.sh\n", None),  # lint cannot see what it starts
    ],
)
def test_signals_that_reach_nothing(signal, body, found):
    head = f"#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --signal={signal}\n"
    handles = "import signal\nsignal.signal(signal.SIGUSR1, print)\n"
    assert _found("E509", body, head=head, handles=handles) == found


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("set -u\nsource ~/.bashrc\npython a.py\n", "advice"),
        ("set -euo pipefail\n. $HOME/.bash_profile\npython a.py\n", "advice"),
        ("set -u\nset +u\nsource ~/.bashrc\nset -u\npython a.py\n", None),
        ("source ~/.bashrc\nset -u\npython a.py\n", None),
        ("source ~/.bashrc\npython a.py\n", None),
    ],
)
def test_files_of_interactive_shells_after_set_u(body, found):
    assert _found("E314", body) == found


@pytest.mark.parametrize(
    ("more", "body", "found"),
    [
        (
            "",
            "export CUDA_VISIBLE_DEVICES=0\ntorchrun --standalone --nproc_per_node=1 train.py\n",
            "advice",
        ),
        (
            "",
            "export CUDA_VISIBLE_DEVICES=0,1\ntorchrun --standalone --nproc_per_node=1 train.py\n",
            "warning",
        ),
        (
            "#SBATCH --exclusive\n",
            "export CUDA_VISIBLE_DEVICES=0\ntorchrun --standalone --nproc_per_node=1 train.py\n",
            None,
        ),
        (
            "",
            "export CUDA_VISIBLE_DEVICES=0\nsrun python train.py\n",
            None,
        ),  # set again
    ],
)
def test_devices_by_hand(more, body, found):
    head = f"#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --gpus-per-node=1\n{more}"
    train = "import torch\nmodel = torch.nn.Linear(1, 1).cuda()\n"
    assert dict(codes(body, head, train=train)).get("E409") == found


@pytest.mark.parametrize(
    ("code", "body"),
    [
        ("E511", "set -e\nN=0\nset +e\n((N++))\nset -e\npython a.py\n"),
        ("E511", "set -e\nN=0\nN=5\n((N++))\npython a.py\n"),
        ("E511", "set -e\nN=0\nbump() {\n  ((N++))\n  true\n}\nif bump; then python a.py; fi\n"),
        ("E316", "old=$PATH\nexport PATH=/opt/a/bin:$PATH\npython a.py\nexport PATH=$old\n"),
        ("E316", "new=$HOME/bin:$PATH\nexport PATH=$new\npython a.py\n"),
        ("E315", "W=false\nif [ $1 = w ]; then W=true; fi\nW=\npython a.py ${W:+--w}\n"),
        ("E315", "W=false\n[ $1 = w ] || unset W\npython a.py ${W:+--w}\n"),
        ("E314", "export A=1 B=\\$A\npython a.py\n"),
        ("E314", "cat > x.sh <<'EOF'\nexport A=1 B=$A\nEOF\npython a.py\n"),
    ],
)
def test_what_only_looks_like_a_slip(code, body):
    assert _found(code, body) is None


def test_a_wrapper_may_start_a_step():
    head = "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --signal=TERM@60\n"
    assert _found("E509", "./wrapper.sh python a.py\npython a.py\n", head=head) is None


def test_a_task_of_an_array_that_does_other_work():
    head = "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --array=0-9\n"
    body = '[ "$SLURM_ARRAY_TASK_ID" -eq 0 ] || exit 0\npython a.py > final.txt\n'
    assert _found("E502", body, head=head) is None
    assert _found("E502", "python a.py > final.txt\n", head=head) == "warning"


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("layer_norm\npython a.py --layer_norm=$LAYER_NORM\n", True),
        ("for n in 1 2; do\n  out_dir\n  python a.py $OUT_DIR\ndone\n", True),
        ("batch_size\npython a.py model.batch_size=3\n", True),
        ("layer_norm() { true; }\nlayer_norm\npython a.py --layer_norm\n", False),
        ("source run.sh\nlayer_norm\npython a.py --layer_norm\n", False),
        ("layer_norm\npython a.py --layer_normal\n", False),
        ("layer_norm 1\npython a.py --layer_norm\n", False),
        ("layers\npython a.py --layers\n", False),
        ("layer_norm\nLAYER_NORM=1 python a.py\n", False),
        ("A=$(layer_norm)\npython a.py --layer_norm\n", False),
        ("alias layer_norm='python a.py'\nlayer_norm\n", False),
        ("layer_norm() {\n  A=1\n}\nlayer_norm\npython a.py --layer_norm\n", False),
        ("function layer_norm {\n  A=1\n}\nlayer_norm\npython a.py --layer_norm\n", False),
        ("A=$(which layer_norm)\nlayer_norm\npython a.py --layer_norm\n", False),
    ],
)
def test_the_name_of_an_option_alone_on_a_line(body, told):
    assert (("E212", "advice") in codes(body)) == told


def test_thousands_of_words_alone_on_their_lines():
    """A search of the text for each word took a minute."""
    words = "".join(f"word_{number}\n" for number in range(10_000))
    subject = read_subject(f"{JOB}{words}", path="a.sh", files=TextFiles({}), programs=SlurmOf())
    before = time.process_time()
    assert list(find_prose(subject)) == []
    assert time.process_time() - before < 10  # seconds


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("source /home/%u/.bashrc", "source /home/$USER/.bashrc"),
        ("mkdir -p runs/%x-%j", "mkdir -p runs/${SLURM_JOB_NAME}-${SLURM_JOB_ID}"),
        ("OUT=runs/%A_%a; mkdir $OUT", "runs/${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"),
        ("srun --output=logs/%j.txt hostname", None),
        ("mkdir -p logs/$(date +%Y/%j)", None),
        ("cp https://a.b/%a .", None),
        ("touch %20name 100%", None),
        ("printf '%u %j' 1 2", None),
        ("python a.py --format /%a", None),
    ],
)
def test_patterns_that_only_slurm_replaces(line, found):
    text = f"{JOB}{line}\npython a.py\n"
    fixes = [f.fix for f in lint(text, path="job.sh", files=TextFiles({})) if f.code == "E313"]
    assert [fix.replace("${USER}", "$USER") for fix in fixes] == (
        [found.rpartition(" ")[2]] if found else []
    )


@pytest.mark.parametrize(
    ("name", "more", "found"),
    [
        ("%x.out", "", "advice"),
        ("%x-%j.out", "", None),
        ("%x.out", "#SBATCH --dependency=singleton\n", None),
        ("%x.out", "sbatch --dependency=afterany:$SLURM_JOB_ID job.sh\n", None),
        ("%x-%a.out", "#SBATCH --array=1-3\n", "advice"),
        ("%A.out", "#SBATCH --array=1-3\n", None),
    ],
)
def test_an_output_that_several_jobs_append_to(name, more, found):
    head = f"#!/bin/bash\n#SBATCH --open-mode=append\n#SBATCH --output={name}\n"
    assert _found("E502", f"{more}python a.py\n", head=head) == found


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("pip install -e", "warning"),
        ("python3 -m pip install --user -e > log.txt", "warning"),
        ("uv pip install -r", "warning"),
        ("cd lib && pip3 install --editable ", "warning"),
        ("pip install -e .", None),
        ("pip install -e $LIB", None),
        ("pip install -r requirements.txt", None),
        ("pip install torch", None),
        ("echo pip install -e", None),
        ('NAME=$(basename "$FILE".json)', "advice"),
        ('NAME=`basename "${FILE}".tar.gz`', "advice"),
        ('NAME=$(basename "$FILE" .json)', None),
        ('NAME=$(basename "$FILE.json")', None),
        ('NAME=$(basename "$FILE").json', None),
        ('NAME=$(basename "$FOLDER"/a.json)', None),
    ],
)
def test_arguments_of_other_programs(line, found):
    assert _found("E207", f"{line}\npython a.py\n") == found


@pytest.mark.parametrize(("gpus", "found"), [(1, "advice"), (8, None)])
def test_the_port_of_ray_on_several_nodes(gpus, found):
    head = f"#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gpus-per-node={gpus}\n"
    body = "srun --nodes=1 ray start --head --port=6379 --block &\nsleep 9\npython a.py\n"
    assert _found("E301", body, head=head) == found


@pytest.mark.parametrize(
    ("script", "lines"),
    [
        ("#!/bin/bash\n{}alias py=python3\npy a.py\n", [4]),
        ("#!/usr/bin/env bash\n{}alias ll='ls -l' py=python3\npy a.py\npy b.py\n", [4]),
        ("#!/bin/bash\n{}shopt -s expand_aliases\nalias py=python3\npy a.py\n", []),
        ("#!/bin/bash -i\n{}alias py=python3\npy a.py\n", []),
        ("#!/bin/sh\n{}alias py=python3\npy a.py\n", []),  # it expands them
        ("#!/bin/zsh\n{}alias py=python3\npy a.py\n", []),
        ("#!/bin/bash\n{}alias py=python3\npython3 a.py\n", []),
        ("#!/bin/bash\n{}alias\npy a.py\n", []),
    ],
)
def test_an_alias_in_a_script(script, lines):
    script = script.format("#SBATCH --time=1:00:00\n")
    findings = lint(script, path="job.sh", files=TextFiles({}), programs=SlurmOf())
    said = [(f.line, str(f.severity)) for f in findings if "expands no aliases" in f.what]
    assert said == [(line, "warning") for line in lines]
