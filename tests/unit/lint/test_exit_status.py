"""The exit status of a script in which one command fails: lint's answer is that of real bash."""

import subprocess

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from echelon.lint.exit_status import endings
from echelon.lint.linting import lint
from unit.lint.fakes import JOB, SlurmOf, TextFiles

FAILS = "fails() { (( ++calls )); return 3; }"
"""The command that fails, as a function, because nothing else is run."""

STATEMENTS = (
    "{run}",
    "{run} | cat",
    "{run} || true",
    "{run} || exit 1",
    "{run} && echo well",
    "{run} || echo failed",
    "{run} || {{ echo failed; exit 1; }}",
    "{run}; echo after",
    "! {run}",
    "({run})",
    "(cd . && {run})",
    "{{ {run}; }}",
    "if {run}; then\n echo well\nfi",
    "if ! {run}; then\n exit 1\nfi",
    "if {run}; then echo well; else echo failed; exit 2; fi",
    "for i in 1 2; do\n {run} $i\ndone",
    "for i in 1 2; do\n {run} $i || exit 1\ndone",
    "for i in 1 2; do\n {run}\n echo next\ndone",
    "for i in 1 2; do\n {run} || break\ndone",
    "while read -r x; do\n {run}\ndone <<< a",
    "echo a | while read -r x; do\n {run}\n echo next\ndone",
    "echo a | while read -r x; do\n {run} || exit 1\ndone",
    "echo a | while read -r x; do\n {run} || code=1\n echo next\ndone | cat",
    "while {run}; do\n break\ndone",
    "while {run}; do\n break\ndone | cat",
    "(cd . && {run}) || code=1",
    '{run} && good=1\n[ "${{good:-0}}" = 1 ] || exit 1',
    "{run} &\nwait",
    "{run} &\nwait $!",
    "{run} &\npid=$!\nwait $pid",
    "pids=()\n{run} &\npids+=($!)\nfor p in ${{pids[@]}}; do wait $p || exit 1; done",
    "work() {{\n {run}\n}}\nwork",
    "work() {{\n {run}\n echo after\n}}\nwork",
    "work() {{ {run} || return 1; }}\nwork",
    "out=$({run})",
    "local_out=$({run}) || exit 1",
    "export OUT=$({run})",
    "echo $({run})",
    "{run} | cat\nexit ${{PIPESTATUS[0]}}",
    "case a in a) {run};; esac",
    "set -e\n{run}\nset +e",
    "set +e\n{run}\nset -e",
    "{run} || code=$?\nexit $code",
    "code=0\n{run} || code=$?\necho $code",
    "{run}\ncode=$?",
    "[ -d . ] && {run}",
    "if [ -d . ]; then {run}; else echo no; fi",
    "trap 'exit 4' EXIT\n{run}",
    "trap 'code=$?; echo bye; exit $code' EXIT\n{run}",
)
BEFORE = (
    *("", "", "set -e", "set -eu", "set -euo pipefail", "set -o pipefail", "set -o errexit"),
    *("set +e", "set -e\nset +e", "trap 'echo bye' EXIT", "trap 'exit 1' ERR"),
    "set -E\ntrap 'exit 1' ERR",
)
AFTER = (
    *("", "", "echo done", "exit", "exit 0", "exit $?", "true", ":", "wait", "echo $?"),
    *("code=$?\necho $code\nexit $code", "[ $? -eq 0 ] || exit 1\necho well", "exit ${code:-0}"),
    *("if [ $? -ne 0 ]; then exit 1; fi\necho well", "if [ $? -ne 0 ]; then echo failed; fi"),
    *("(( $? == 0 )) || exit 1", "[[ $? == 0 ]] || { echo failed; exit 2; }", "cp a b || true"),
)
SCRIPTS = st.tuples(*map(st.sampled_from, (BEFORE, STATEMENTS, AFTER)))


def status(text):
    """Run a script with bash. `cp` fails, too; its failure is always handled."""
    done = subprocess.run(
        ["bash", "-c", f"calls=0\n{FAILS}\n{text}"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=20,
        check=False,
    )
    return done.returncode


@settings(max_examples=150, deadline=None)
@given(SCRIPTS)
@example(
    ("set -E\ntrap 'exit 1' ERR", "echo a | while read -r x; do\n {run}\n echo next\ndone", "")
)
def test_the_status_is_that_of_bash(parts):
    before, statement, after = parts
    text = "\n".join(part for part in (before, statement.format(run="fails"), after) if part) + "\n"
    line = next(n for n, line in enumerate(text.split("\n"), 1) if "fails" in line)
    ends = endings(text, line, "fails")
    if ends is None:  # lint claims nothing
        return
    real = status(text) == 0
    assert real in {end.succeeds for end in ends}, text


@pytest.mark.parametrize(
    ("text", "line", "handled"),
    [
        ("fails\necho done\n", 2, False),
        ("fails || true\necho done\n", 2, True),
        ("if fails; then echo a; fi\n", 1, True),
        ("fails\n[ $? -eq 0 ] || echo failed\n", 2, True),
        ("fails &\nwait $! || echo failed\n", 2, True),
        ("fails\n[ -f a ] || echo none\n", 2, False),
        ("fails\ncode=$?\necho done\nexit 0\n", 4, False),
    ],
)
def test_how_a_lost_failure_was_lost(text, line, handled):
    ends = endings(text, 1, "fails")
    assert ends
    assert all(end.succeeds and end.handled == handled for end in ends)
    assert max(end.line for end in ends) == line


@pytest.mark.parametrize(
    ("text", "lost_in"),
    [
        ("fails | tee log\necho done\n", "|"),
        ("fails &\nwait\n", "wait"),
        ("fails &\necho done\n", "&"),
        ("fails &\nwait $!\necho done\n", ""),
    ],
)
def test_what_takes_the_status(text, lost_in):
    assert {end.lost_in for end in endings(text, 1, "fails")} == {lost_in}


def test_conditions_that_decide_nothing_are_cheap():
    text = "fails\n" + "if [ -f $x ]; then a=1; else b=$x; fi\n" * 400 + "echo done\n"
    ends = endings(text, 1, "fails")
    assert ends
    assert {end.succeeds for end in ends} == {True}


def test_a_failure_of_one_round_of_a_loop_is_lost():
    text = "for i in 1 2; do\n fails $i\ndone\n"
    assert not any(end.succeeds for end in endings(text, 2, "fails"))
    assert all(end.succeeds for end in endings(text, 2, "fails", once=True))


@pytest.mark.parametrize(
    "text",
    [
        "fails\nuntil ready; do sleep 1; done\n",
        "while true; do fails && break; sleep 1; done\n",
        "fails\nexit $other\n",
        "fails\nkill $$\n",
        "fails\nscancel $SLURM_JOB_ID\n",
        "a() { a; }\na\nfails\n",
        "(" * 300 + "fails" + ")" * 300,
        "fails\n" + "".join(f"[ -f $x ] && a{n}=1\n[ $a{n} = 1 ] || b=1\n" for n in range(9)),
    ],
)
def test_nothing_is_claimed_where_it_is_unclear(text):
    line = next(n for n, line in enumerate(text.split("\n"), 1) if "fails" in line)
    assert endings(text, line, "fails") is None


def test_a_command_that_the_grammar_extends_over_the_next_lines_is_not_believed():
    # tree-sitter takes all up to the next condition for arguments of sed.
    lines = [
        'if [ -z "$CONFIG" ]; then',
        "  find a -type f 2>/dev/null | sort | sed 's/^/  /'",
        "  exit 1",
        "fi",
        "# ── environment ──",
        "set -e",
        'X=$(python -c "\nx\n" 2>/dev/null || echo "0")',
        'if [ "$X" = "0" ] && [ ! -d "a" ]; then',
        "  echo",
        "elif [ b ]; then",
        "  echo",
        "fi",
        "fails",
        "echo done",
    ]
    text = "\n".join(lines) + "\n"
    line = text[: text.index("\nfails")].count("\n") + 2
    ends = endings(text, line, "fails")
    assert ends is None or not any(end.succeeds for end in ends)


# --- what lint says of it -------------------------------------------------------------------


def _found(body, code="E507", **files):
    texts = {name.replace("__", "/").replace("_sh", ".sh"): text for name, text in files.items()}
    beside = TextFiles({"a.py": "print(1)\n", "b.py": "print(1)\n", **texts}, repository=True)
    findings = lint(f"{JOB}{body}", path="job.sh", files=beside, programs=SlurmOf())
    return [(f.path, f.line, str(f.severity)) for f in findings if f.code == code]


def test_a_script_that_the_job_starts_may_hide_a_failure():
    hides = "#!/bin/bash\npython a.py\necho done\n"
    assert _found("bash work.sh\n", work_sh=hides) == [("work.sh", 2, "warning")]
    assert _found("source work.sh\n", work_sh=hides) == []
    assert _found("bash work.sh\n", work_sh="set -e\npython a.py\necho done\n") == []
    twice = _found("./work.sh\n", work_sh="python a.py\npython b.py\n")
    assert twice == [("work.sh", 1, "advice")]


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('source "${SLURM_SUBMIT_DIR:-$(pwd)}/slurm/env.sh"', []),
        ("source $ROOT/slurm/env.sh", []),
        ("source $ROOT/other.sh", ["advice"]),  # it may contain `set -e`
        ("source env.sh", ["advice"]),
        ("source /opt/conda/etc/profile.d/conda.sh", ["warning"]),
        ("source $HOME/venv/bin/activate", ["warning"]),
    ],
)
def test_a_sourced_file_that_turns_errexit_on(source, found):
    body = f"{source}\npython a.py\necho done\n"
    hits = _found(body, slurm__env_sh="set -eo pipefail\n")
    assert [severity for _, _, severity in hits] == found


def test_the_lines_of_an_inner_script_are_those_of_the_file():
    body = 'srun bash -c "\npython a.py \\\n  --x 1\n\npython b.py \\\n  --y 2\necho done\n"\n'
    inner = [(line, severity) for path, line, severity in _found(body) if line > 3]
    assert (7, "warning") in inner


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("python a.py\nif [ $? -eq 0 ]; then\n  echo\nelse\n  echo failed: $?\n  exit 1\nfi\n", 7),
        ("python a.py\nif [ $? -ne 0 ]; then\n  echo failed: $?\n  exit 1\nfi\n", 5),
        ("python a.py\ncode=$?\nif [ $code -ne 0 ]; then\n  echo $code\n  exit 1\nfi\n", 0),
        ("python a.py\nif [ $? -ne 0 ]; then\n  ls x\n  echo $?\n  exit 1\nfi\n", 0),
    ],
)
def test_the_status_of_a_test(body, line):
    assert _found(body) == ([("job.sh", line, "advice")] if line else [])


def test_a_long_script_with_any_characters_does_not_crash_the_parser():
    # The scanner crashes on some characters, and the binding on rows beyond 250.
    lines = [f"echo 'Ünïcödé ✅ ── {n} — 日本' > /dev/null # …" for n in range(600)]
    text = "\n".join([*lines, "fails", "echo dönè ✅"]) + "\n"
    ends = endings(text, 601, "fails")
    assert ends
    assert [(end.succeeds, end.line) for end in ends] == [(True, 602)]


@pytest.mark.parametrize(
    "body",
    [
        "set -o pipefail -o errexit\npython a.py\necho done\n",
        "set -u -o pipefail -e\npython a.py\necho done\n",
        "errors=0\nfor s in 1 2; do\n  python a.py\n  (( errors += $? ))\ndone\nexit $errors\n",
        "rc=0\npython a.py\n((rc |= $?))\nexit $rc\n",
        "rc=0\npython a.py\nlet rc+=$?\nexit $rc\n",
        "python a.py\ntest $? -eq 0 || exit 1\necho done\n",
        "python a.py\ntest -f model.pt || exit 1\necho done\n",
        "python a.py\nls model.pt || exit 1\necho done\n",
    ],
)
def test_what_may_notice_the_failure_is_believed(body):
    assert [found for found in _found(body) if found[2] == "warning"] == []


def test_the_branches_before_the_failure_do_not_matter():
    items = "".join(f"{n}) seed={n} ;;\n" for n in range(40))
    [end] = endings(f'case "$1" in\n{items}esac\npython a.py\necho after\n', 43, "python") or ()
    assert (end.succeeds, end.line) == (True, 44)
