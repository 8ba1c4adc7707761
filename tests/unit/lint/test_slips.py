"""Slips that bash, or a launcher, does not report where they are."""

import pytest

from unit.lint.fakes import JOB, codes


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
