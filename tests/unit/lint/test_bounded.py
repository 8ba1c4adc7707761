"""The work of lint is bounded: small scripts that make it long for other tools do not here.

No clock is asked: Python counts the functions that it calls.
"""

import cProfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echelon.lint.linting import lint
from unit.lint.fakes import SlurmOf, TextFiles

JOB = "#!/bin/bash\n#SBATCH --nodes=2\n"
TRAIN = "srun python train.py"
_MOST_CALLS = 4_000_000
"""About two seconds; the scripts below have up to 120,000 characters."""
_CALLS_PER_CHARACTER = 400
_FIXED_CALLS = 2_000_000


def count_calls(text, **beside):
    files = TextFiles({"job.sh": text, "train.py": "print(1)\n", **beside})
    counted = cProfile.Profile()
    counted.enable()
    try:
        lint(text, path="job.sh", files=files, programs=SlurmOf())
    finally:
        counted.disable()
    return sum(entry.callcount for entry in counted.getstats())


LONG = {
    "doubling": "A='a '\n" + "A=$A$A\n" * 40 + f"{TRAIN} $A\n" * 500,
    "chain": "".join(f"V{n}=$V{n - 1}x\n" for n in range(3000)) + f"{TRAIN} $V2999\n",
    "programs": f"{TRAIN} a\n" * 2000,
    "arguments": f"{TRAIN} {'--a b ' * 20_000}\n",
    "assignments": "export A=b\n" * 10_000,
    "variables": "".join(f"V{n}={n}\n" for n in range(2000))
    + f"{TRAIN} {' '.join(f'$V{n}' for n in range(2000))}\n",
    "pipe": TRAIN + " | cat" * 3000 + "\n",
    "cases": "case x in\n" + "a) python train.py ;;\n" * 2000 + "esac\n",
    "loops": "".join(f"for i{n} in {{1..1000000}}; do\n" for n in range(150))
    + f"{TRAIN}\n"
    + "done\n" * 150,
    "functions": "".join(f"f{n}() {{ f{n - 1}; f{n - 1}; }}\n" for n in range(1, 60))
    + "x=$(f59)\n",
    "branches": "".join(f"if [ -f a{n} ]; then {TRAIN} | tee b{n}; fi\n" for n in range(500)),
    "statuses": f"{TRAIN}\n" + "echo $?\n" * 5000,
    "array": "A=( " + "[a]=b " * 5000 + ")\n",
    "here-documents": "".join(f"cat <<E{n}\nx\nE{n}\n" for n in range(1500)),
    "directives": "#SBATCH --mem=1\n" * 5000,
    "nodes": "#SBATCH --nodelist=n[1-99999999]\n#SBATCH --array=0-100000000\n" + TRAIN,
    "blanks": f"export A{' ' * 50_000}= 3\n{'A =' * 10_000}\n",
    "path": f'cd {"../" * 8000}x\nX="{"path/to/" * 8000}"\n',
    "characters": "écho é 'é' \"é\"\n" * 3000,
    "line ends": f"{TRAIN}\r\n" * 3000,
}


@pytest.mark.parametrize("kind", LONG)
def test_a_long_script_takes_no_more_than_some_function_calls(kind):
    assert count_calls(JOB + LONG[kind]) < _MOST_CALLS


PARTS = st.lists(
    st.sampled_from(
        [
            *("A=$A$B", 'B="$A $B"', "A=(${A[@]} ${A[@]})", "A+=$B", f"{TRAIN} $A ${{A[@]}}"),
            *("for i in {1..1000000}; do", "done", "if [ $A ]; then", "fi", "x=$(echo $A)"),
            *('bash -c "$A"', "bash job.sh $A", "eval $A", "f() { f; f; }", "f", "export A B=$A"),
            *(f"{TRAIN} | tee $A", f"{TRAIN} &", "wait", "cat > a.sh <<EOF\n$A\nEOF", "srun a.sh"),
        ]
    ),
    max_size=40,
)


@settings(max_examples=30, deadline=None)
@given(PARTS, st.integers(1, 6))
def test_the_work_follows_the_length_of_the_script(parts, times):
    text = JOB + "A='a b' B='c d'\n" + "\n".join(parts * times) + "\n"
    assert count_calls(text) < _FIXED_CALLS + _CALLS_PER_CHARACTER * len(text)
