import pytest
import typer.main

from docs.calls import find_fault, mentioned
from docs.page import parse_page
from echelon.cli.app import app

TREE = typer.main.get_command(app)


@pytest.mark.parametrize(
    "call",
    [
        "ps",
        "ps # all of them --nothing",
        "--debug …",
        "run --procs 4 train.py --lr 0.1",
        "run --procs=4 train.py --lr 0.1",
        "submit --preflight --nodes 2:4 train.py --nodes-of-the-script",
        "sandbox exec -- srun --gpus=2 x",
        "sandbox up [--nodes 4] [--accounting]",
        "… | head",
        "status RUN --json",
        "submit -m package.module",
        "submit --notify 'a \"$B\"' train.py",
    ],
)
def test_possible(call):
    assert not find_fault(call, TREE)


@pytest.mark.parametrize(
    ("call", "fault"),
    [
        ("sumbit train.py", "'echelon' has no command 'sumbit'"),
        ("sandbox upp", "'sandbox' has no command 'upp'"),
        ("run --prcs 4 train.py", "'run' has no option --prcs"),
        ("status last --jsn", "'status' has no option --jsn"),
        ("--debgu ps", "'echelon' has no option --debgu"),
        ("sandbox up [--acounting]", "'up' has no option --acounting"),
    ],
)
def test_impossible(call, fault):
    assert find_fault(call, TREE) == fault


def test_where_calls_are_found():
    page = parse_page(
        "page.md",
        "Use `echelon a --x` or `A=b .venv/bin/echelon b`, not `echelons c`.\n"
        "<!-- not run: so -->\n```\nsudo echelon d \\\n  --e\neval $(echelon f)\n```\n"
        "```console\n$ echelon g\n```\n",
    )
    assert list(mentioned(page)) == ["a --x", "b", "d    --e", "f"]
