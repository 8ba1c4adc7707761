"""Findings for programs."""

import json

import pytest

from echelon.lint.formats import render_github, render_json, render_sarif
from echelon.lint.linting import RULES, lint
from unit.lint.fakes import SlurmOf, TextFiles

BAD = (
    "#!/bin/bash\n#SBATCH --mem=16Go\n#SBATCH --output=a%x.txt\n#SBATCH --error=b,c.txt\n"
    "#SBATCH --array=0-3\nexport MASTER_PORT=29500\npython x.py\n"
)

# What the schema of SARIF 2.1.0 demands of the objects that we write: the required members, and
# the type of each member that is allowed.
SCHEMA = {
    "log": ({"version", "runs"}, {"$schema": str, "version": ["2.1.0"], "runs": ["run*"]}),
    "run": (
        {"tool"},
        {
            "tool": "tool",
            "columnKind": ["utf16CodeUnits", "unicodeCodePoints"],
            "results": ["result*"],
        },
    ),
    "tool": ({"driver"}, {"driver": "driver"}),
    "driver": ({"name"}, {"name": str, "version": str, "rules": ["rule*"]}),
    "rule": (
        {"id"},
        {
            "id": str,
            "shortDescription": "text",
            "fullDescription": "text",
            "help": "text",
            "defaultConfiguration": "configuration",
        },
    ),
    "configuration": (set(), {"level": ["none", "note", "warning", "error"]}),
    "text": ({"text"}, {"text": str}),
    "result": (
        {"message"},
        {
            "ruleId": str,
            "ruleIndex": int,
            "level": ["none", "note", "warning", "error"],
            "message": "text",
            "locations": ["location*"],
            "relatedLocations": ["location*"],
            "fixes": ["fix*"],
        },
    ),
    "location": (set(), {"physicalLocation": "physical"}),
    "physical": ({"artifactLocation"}, {"artifactLocation": "artifact", "region": "region"}),
    "artifact": (set(), {"uri": str}),
    "region": (set(), dict.fromkeys(("startLine", "startColumn", "endLine", "endColumn"), int)),
    "fix": ({"artifactChanges"}, {"description": "text", "artifactChanges": ["change*"]}),
    "change": (
        {"artifactLocation", "replacements"},
        {"artifactLocation": "artifact", "replacements": ["replacement*"]},
    ),
    "replacement": ({"deletedRegion"}, {"deletedRegion": "region", "insertedContent": "text"}),
}


def check(value, kind):
    if isinstance(kind, type):
        assert type(value) is kind
        return
    if isinstance(kind, list) and kind[0].endswith("*"):
        assert isinstance(value, list)
        for item in value:
            check(item, kind[0][:-1])
        return
    if isinstance(kind, list):
        assert value in kind
        return
    required, allowed = SCHEMA[kind]
    assert required <= value.keys() <= allowed.keys(), (kind, value)
    for name, member in value.items():
        check(member, allowed[name])
    if kind == "region":
        assert min(value.values()) >= 1
        assert (value["startLine"], value["startColumn"]) <= (value["endLine"], value["endColumn"])


@pytest.fixture
def findings():
    return lint(BAD, path="a b/job.sh", files=TextFiles({}), programs=SlurmOf())


def test_sarif_is_valid(findings):
    log = json.loads(json.dumps(render_sarif(findings, RULES)))
    check(log, "log")
    run = log["runs"][0]
    rules = run["tool"]["driver"]["rules"]
    assert [rules[r["ruleIndex"]]["id"] for r in run["results"]] == [f.code for f in findings]
    (memory,) = [r for r in run["results"] if r["ruleId"] == "E104"]
    assert memory["level"] == "error"
    place = memory["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "a%20b/job.sh"
    assert place["region"] == {"startLine": 2, "startColumn": 1, "endLine": 2, "endColumn": 19}
    (change,) = memory["fixes"][0]["artifactChanges"]
    assert change["replacements"] == [
        {
            "deletedRegion": {"startLine": 2, "startColumn": 15, "endLine": 2, "endColumn": 19},
            "insertedContent": {"text": "16G"},
        }
    ]
    (output,) = [r for r in run["results"] if r["ruleId"] == "E502"]
    assert len(output["relatedLocations"]) == 1


def test_sarif_without_findings_is_valid():
    check(render_sarif([], RULES), "log")


@pytest.mark.parametrize("rule", RULES, ids=[rule.code for rule in RULES])
def test_sarif_of_each_rule_is_valid(rule):
    path = "train.py" if "--- train.py" in rule.bad[:20] else "job.sh"
    text = rule.bad.split("\n", 1)[1] if path == "train.py" else rule.bad
    check(render_sarif(lint(text, path=path, files=TextFiles({})), RULES), "log")


def test_github_gets_a_line_for_each_place(findings):
    lines = render_github(findings).split("\n")
    assert len(lines) == sum(len(finding.lines) for finding in findings)
    assert lines[0] == (
        "::error file=a b/job.sh,line=2,endLine=2,col=1,endColumn=19,title=E104::'16Go' is not a "
        "valid value of `--mem` (a whole number with K, M, G or T). sbatch rejects the "
        "script.%0A#SBATCH --mem=16G"
    )
    assert "%25x" in render_github([f for f in findings if f.code == "E502"])


def test_json_has_positions_and_edits(findings):
    first = json.loads(json.dumps(render_json(findings)))[0]
    assert (first["line"], first["column"], first["end_line"], first["end_column"]) == (2, 1, 2, 19)
    assert first["edits"] == [
        {"line": 2, "column": 15, "end_line": 2, "end_column": 19, "text": "16G"}
    ]
    (output,) = [f for f in render_json(findings) if f["code"] == "E502"]
    assert [span["line"] for span in output["also"]] == [4]
