"""Overrides that a Hydra program refuses, because no file of its configuration has the key (E207).

What Hydra does was tried with 1.3: each key that is an error here ends with 'Could not override'.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echelon.lint.hydra import read_keys
from echelon.lint.linting import lint
from unit.lint.fakes import SlurmOf, TextFiles

TRAIN = """\
import hydra
@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg):
    print(cfg)
main()
"""
CONF = {
    "conf/config.yaml": "defaults:\n- _self_\n- base\n- model: small\n- optional db/user: me\n"
    "- override hydra/launcher: submitit_slurm\n"
    "seed: 1  # of all\ntrain:\n  lr: 0.1\n  steps: [1,\n",
    "conf/base.yaml": "name: a\nlogger:\n  wandb:\n    project: p\n",
    "conf/model/small.yaml": "_target_: a.B\nwidth: 8\nextra:\n",
    "conf/model/large.yaml": "width: 80\ndepth: 3\n",
    "conf/db/user/me.yaml": "login: me\n",
}
CONF["conf/config.yaml"] = CONF["conf/config.yaml"].replace("[1,", "[1, 2]")


def found(arguments, program=TRAIN, **more):
    """Return what lint says of the arguments of train.py; `conf_a` is the text of conf/a.yaml."""
    changed = {f"{name.replace('_', '/', 1)}.yaml": text for name, text in more.items()}
    job = f"#!/bin/bash\n#SBATCH --time=1:00:00\npython train.py {arguments}\n"
    files = TextFiles({"job.sh": job, "train.py": program, **CONF, **changed}, repository=True)
    findings = lint(job, path="job.sh", files=files, programs=SlurmOf())
    return [f for f in findings if f.code == "E207"]


@pytest.mark.parametrize(
    "key", ["lr", "train.rate", "model.heads", "logger.wandb.name", "db.user.word", "optimizer"]
)
def test_a_key_that_no_file_has_cannot_be_overridden(key):
    [finding] = found(f"seed=2 {key}=1 train.lr=3 name=$NAME +more=1")
    assert str(finding.severity) == "warning"
    assert f"`{key}`" in finding.what
    assert "Could not override" in finding.what


@pytest.mark.parametrize(
    "arguments",
    [
        "seed=2 train.lr=1 name=b logger.wandb.project=q model.width=1 db.user.login=x",
        "model=large model.depth=2",  # of another file of the group
        "model.extra.any=1",  # null
        "train.steps.0=1",
        "+train.rate=1 ++lr=2 ~seed",
        "hydra.run.dir=out hydra/launcher=basic model/sub=x",
        "--multirun seed=1,2",
        '"$@" other=1 --config-path=elsewhere',
        "--config-name=missing other=1",
        "${ARGS} other=1",
        '"$@" other=1',
        "+opt=adam opt.lr=1",
        "+opt@train.opt=adam train.opt.lr=1",
        "++model.heads=1 model.heads=2",
    ],
)
def test_a_key_of_some_file_or_one_that_is_added_is_accepted(arguments):
    assert found(arguments) == []


def test_a_group_with_a_slash_before_its_name_is_the_same():
    absolute = CONF["conf/config.yaml"].replace("- model:", "- /model:")
    assert found("model.width=1", conf_config=absolute) == []
    assert found("model.heads=1", conf_config=absolute)


def test_the_command_line_chooses_the_file():
    assert found("--config-name base name=b") == []
    [finding] = found("--config-name=base seed=2")
    assert "conf/base.yaml" in finding.what


@pytest.mark.parametrize(
    "changed",
    [
        {"conf_config": "# @package _global_\nseed: 1\n"},
        {"conf_config": "defaults:\n- model@other: small\nseed: 1\n"},
        {"conf_config": "defaults:\n- stored\nseed: 1\n"},  # perhaps in the ConfigStore
        {"conf_config": "{seed: 1}\n"},
        {"conf_config": "defaults: [base, {model: small}]\nseed: 1\n"},
        {"conf_config": '"defaults":\n- base\nseed: 1\n'},
        {"conf_config": "seed: 1\nhydra:\n  searchpath:\n  - pkg://more\n"},
        {"conf_base": "a: &a\n  b: 1\n<<: *a\n"},
        {"conf_model/other": "# @package _global_\nlr: 1\n"},
        {"program": TRAIN.replace("def main", "@other.main()\ndef main")},
        {"program": TRAIN + "from hydra.core.config_store import ConfigStore\n"},
        {"program": TRAIN.replace('"conf"', 'os.environ["CONF"]')},
        {"program": TRAIN.replace('"config")', "NAME)")},
    ],
)
def test_nothing_is_said_if_other_files_may_add_keys(changed):
    assert found("lr=1", **changed) == []


def test_a_group_whose_defaults_are_other_groups_may_have_any_key():
    assert found("model.heads=1", **{"conf_model/large": "defaults:\n- /base\nwidth: 1\n"}) == []
    assert found("model.parts.a=1", **{"conf_model/parts/a": "heads: 1\n"}) == []
    assert found("model.heads=1", conf_config="defaults:\n- model/small\nseed: 1\n") == []
    assert found("other=a", **{"conf_other/a": "heads: 1\n"})  # not in the list of defaults
    assert found("+exp=a lr=1", **{"conf_exp/a": "# @package _global_\nlr: 1\n"}) == []
    assert found("lr=1", **{"conf_exp/a": "# @package _global_\nlr: 1\n"})


@pytest.mark.parametrize(
    "folder",
    ['str(Path(__file__).parent / "conf")', 'os.path.join(os.path.dirname(__file__), "conf")'],
)
def test_a_folder_beside_the_program_is_found(folder):
    assert found("lr=1", program=TRAIN.replace('"conf"', folder))


def test_the_fix_is_the_only_key_of_this_name_or_one_that_is_added():
    assert found("project=p")[0].fix == "logger.wandb.project=…"
    assert found("other=p")[0].fix.startswith("+other=…")


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        (
            "a: 1\nb:\n  c: x\n  d:\n    e: 2\nf: 3\n",
            {"a": 0, "b": {"c": 0, "d": {"e": 0}}, "f": 0},
        ),
        ("a:\n- x: 1\n  y: 2\n- z\nb: 1\n", {"a": 0, "b": 0}),
        ("a:\n  - - 1\n    - 2\n  - x:\n      y: 1\nb:\n  c: 1\n", {"a": 0, "b": {"c": 0}}),
        ("a: |\n  b: 1\n\n  c: 2\nd: 1\n", {"a": 0, "d": 0}),
        ("a: one\n  b: two\nc: 1\n", {"a": 0, "c": 0}),
        ("---\n# a: 1\n'b': 2 # c\n\"d\" : 1\n", None),
        ("a: [1,\n  2]\nb: {c: 1}\n", {"a": 0, "b": 0}),
        ("a: [1,\n2]\n", None),
        ("a:\n\tb: 1\n", None),
        ("- a\n", None),
        ("", {}),
    ],
)
def test_the_keys_of_a_file(text, keys):
    def opened(given):
        return {k: opened(v) if v else None for k, v in given.items()}

    assert read_keys(text) == (keys if keys is None else opened(keys))


@given(st.text(alphabet="ab-: \n#|'\"[]{}", max_size=60))
def test_any_text_is_read(text):
    assert read_keys(text) is None or isinstance(read_keys(text), dict)
