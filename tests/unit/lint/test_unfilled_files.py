"""Placeholders in the files that a job reads."""

import pytest

from echelon.lint.linting import lint
from unit.lint.fakes import JOB, SlurmOf, TextFiles

TOML = "# fill in\n[data]\nroot = '/path/to/data'  # yours\nepochs = 3\n"
YAML = "a: 1\ndata:\n  root: <your data>\n  key: YOUR_KEY\n"
JSON = '{\n  "root": "/path/to/data",\n  "description": "in /path/to/data"\n}\n'


def placeholders(body, head=JOB, **options):
    """Return the severity, the line and the text of each finding about a placeholder."""
    texts = {
        "conf/a.toml": TOML,
        "conf/a.yaml": YAML,
        "conf/a.json": JSON,
        "train.py": "print()\n",
        "conf/b.yaml": "root: /data\n# root: /path/to/data\nnote: see /path/to/data\n",
        "env.sh": "echo /path/to/x\nexport ROOT=/path/to/env\n",
        "a.conf": "ROOT /path/to/a\n",
        "conf/c.yaml": "help: /path/to/data\nroots: see /path/to/data\n",
    }
    files = TextFiles({**texts, "job.sh": ""}, repository=True, **options)
    found = lint(head + body, path="job.sh", files=files, programs=SlurmOf())
    return [(str(f.severity), f.line, f.what) for f in found if f.code == "E116"]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("python train.py conf/a.toml", "`root` in line 3 of conf/a.toml is still the placeholder"),
        ("python train.py --config=conf/a.toml", "`root` in line 3 of conf/a.toml"),
        ("F=conf/a.toml; srun python train.py $F $@", "`root` in line 3 of conf/a.toml"),
        ("python train.py @conf/a.json", "`root` in line 2 of conf/a.json"),
        ("tune run full --config conf/a.yaml", "`root` in line 3 of conf/a.yaml"),
        ("python train.py ~/own/conf/a.toml", "`root` in line 3 of conf/a.toml"),
        ("source env.sh", "`ROOT` in line 2 of env.sh is still the placeholder /path/to/env."),
        (". ./env.sh", "`ROOT` in line 2 of env.sh"),
        ("D=.; while read a b; do :; done < $D/a.conf", "`ROOT` in line 1 of a.conf"),
        ("while read a b; do :; done < a.conf", "`ROOT` in line 1 of a.conf"),
    ],
)
def test_a_placeholder_in_a_file_that_the_job_reads(line, what):
    [(severity, number, said)] = placeholders(f"{line}\n")
    assert (severity, number) == ("advice", 3)
    assert said.startswith(what)


def test_several_placeholders_are_one_finding():
    [(_, _, what)] = placeholders("python train.py conf/a.yaml\npython train.py conf/a.yaml\n")
    assert what.endswith("is still the placeholder <your data> (and 1 more).")


@pytest.mark.parametrize(
    "line",
    [
        "python train.py conf/b.yaml",
        "python train.py conf/c.yaml",
        "python train.py conf/a.toml --root=/data",
        "python train.py conf/a.toml --data.root /data",
        "python train.py conf/a.toml data.root=/data",
        "python train.py --output conf/a.toml",
        "echo conf/a.toml",
        "cat conf/a.toml",
        "sed -i s:/path/to/data:/data: conf/a.toml; python train.py conf/a.toml",
        "cat > conf/a.toml <<E\nE\npython train.py conf/a.toml",
        "python train.py other/a.toml",
        "python train.py /data/a.toml",
        "source other.sh",
        "bash train.sh < a.conf",
    ],
)
def test_files_without_placeholders_or_whose_values_are_replaced(line):
    assert placeholders(f"{line}\n") == []


def test_a_script_that_is_no_job():
    assert placeholders("source env.sh\n", "#!/bin/bash\n") == []
