"""Scripts with the fixes of E507 and E509 that lint names: real bash runs them.

A program fails in its first run only, so that a loop over several inputs goes on.
"""

import re
import signal
import subprocess

import pytest

from echelon.core.waiting import wait_until
from echelon.lint.linting import lint
from unit.lint.fakes import JOB, SlurmOf, TextFiles

PROGRAM = """\
#!/bin/bash
echo "$*" >> ran
[ "$(wc -l < ran)" -gt 1 ]
"""
FAILS = PROGRAM + "exit 1\n"
LOOP = "for i in 1 2; do\n  python a.py $i\n  echo next\ndone\n"
IN_LOOP = "… || failed=1  # for each program in a loop; end the script with: exit ${failed:-0}"
AT_TOP = "set -e  # near the top of the script"


def hits(files):
    beside = TextFiles({"a.py": "print(1)\n", "b.py": "print(1)\n", **files}, repository=True)
    found = lint(files["job.sh"], path="job.sh", files=beside, programs=SlurmOf())
    return [f for f in found if f.code in ("E505", "E507")]


def apply(files, finding):
    """Return the files with all lines of a fix."""
    fixed = dict(files)
    own = finding.path
    # A new line would move the others, so it comes last.
    for part in sorted(finding.fix.split("\n"), reverse=True):
        other = re.search(r"top of (\w+\.sh)", part)
        named = other[1] if other else "job.sh" if "job script" in part else own
        lines = fixed[named].rstrip("\n").split("\n")
        change, _, place = part.partition("  # ")
        if change.startswith("set "):
            above = re.match(r"above line (\d+)", place)
            lines.insert(int(above[1]) - 1 if above else 1, change)
        elif named == own:
            lines[finding.line - 1] += change.removeprefix("…")
        else:
            lines = [one + " || failed=1" * one.startswith("bash") for one in lines]
        if "exit ${failed:-0}" in place:
            lines = [*lines[: -1 if lines[-1] == "exit 0" else None], "exit ${failed:-0}"]
        fixed[named] = "\n".join(lines) + "\n"
    return fixed


def run(folder, files, program=PROGRAM):
    """Return the exit status of the job, and how often its program ran."""
    folder.mkdir()
    for name, text in {**files, "python": program}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    done = subprocess.run(
        ["bash", "job.sh"],
        check=False,
        cwd=folder,
        env={"PATH": f"{folder}:/usr/bin:/bin"},
        capture_output=True,
        timeout=20,
    )
    return done.returncode, len((folder / "ran").read_text().splitlines())


@pytest.mark.parametrize(
    ("body", "fix", "ran"),
    [
        ("python a.py\necho done\n", AT_TOP, 1),
        (LOOP, IN_LOOP, 2),
        (f"{LOOP}echo done\n", IN_LOOP, 2),
        (f"{LOOP}exit 0\n", IN_LOOP, 2),
        ("for i in 1 2; do\n  python a.py $i\ndone\nexit 0\n", IN_LOOP, 2),
        ("for i in 1 2; do\n  python a.py $i\ndone\n", IN_LOOP, 2),
        (
            "for i in 1 2; do\n  python a.py $i | tee log\ndone\n",
            f"set -o pipefail  # near the top of the script\n{IN_LOOP}",
            2,
        ),
        (
            "source own.sh\npython a.py\necho done\n",
            "set -e  # above line 4: if source (line 3) fails, the job can still run",
            1,
        ),
        (
            "ssh-add key\ncd .\nif true; then\n  python a.py\nfi\necho done\n",
            "set -e  # above line 5: if ssh-add (line 3) fails, the job can still run",
            1,
        ),
        (
            "mkdir out\nmkdir -p out\npython a.py\npython b.py\necho done\n",
            "set -e  # above line 5: if mkdir (line 3) fails, the job can still run",
            1,
        ),
        (
            "shift\npython a.py | tee log\necho done\n",
            "set -eo pipefail  # above line 4: if shift (line 3) fails, the job can still run",
            1,
        ),
        (
            "shift\npython a.py | tee log\nif [ $? -ne 0 ]; then\n  exit 1\nfi\necho done\n",
            "set -o pipefail  # near the top of the script",
            1,
        ),
        ("mkdir -p out\npython a.py\nrm out/*\necho done\n", "… || exit 1", 1),
        (
            "python a.py | tee log\nrm out/*\necho done\n",
            "set -o pipefail  # near the top of the script\n… || exit 1",
            1,
        ),
        ("source activate\npython a.py\necho done\n", AT_TOP, 1),
        ("set +e\npython a.py\necho done\n", "… || exit 1", 1),
        ("python a.py && echo well\necho done\n", "… || exit 1", 1),
        (
            "set -e\nwork() {\n  python a.py\n  echo after\n}\nwork || exit 1\necho done\n",
            "… || return 1  # `set -e` has no effect in a function whose status is tested",
            1,
        ),
    ],
)
def test_the_fixed_job_fails(tmp_path, body, fix, ran):
    files = {"job.sh": JOB + body, "own.sh": "false\n", "activate": "true\n"}
    found = hits(files)
    [hit] = [f for f in found if f.severity != "advice"] or found
    assert hit.fix == fix
    assert run(tmp_path / "before", files)[0] == 0
    status, times = run(tmp_path / "after", apply(files, hit))
    assert status != 0
    assert times == ran
    assert [f for f in hits(apply(files, hit)) if f.severity != "advice"] == []


def test_a_setup_that_fails_today_still_does_not_end_the_fixed_job(tmp_path):
    body = "mkdir out\nmodule load x\nset -- $1\nshift\npython a.py\necho done\n"
    files = {"job.sh": JOB + body, "python": "true\n"}
    [hit] = hits(files)
    fixed = apply(files, hit)
    assert hit.fix.startswith("set -e  # above line 7: ")
    (tmp_path / "out").mkdir()
    for name, text in {**fixed, "python": "#!/bin/bash\n"}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(["bash", "job.sh"], check=False, cwd=tmp_path, env=environ)
    assert done.returncode == 0


@pytest.mark.parametrize("end", ["", " ;"])
def test_several_runs_of_the_same_program_are_independent(tmp_path, end):
    body = "".join(f"python -u a.py {n}{end}\n" for n in range(3)) + "echo done\n"
    files = {"job.sh": JOB + body}
    [hit] = hits(files)
    assert (
        hit.fix == "… || failed=1  # for each run of a.py; end the script with: exit ${failed:-0}"
    )
    fixed = re.sub(r"(a\.py \d)", r"\1 || failed=1", files["job.sh"]) + "exit ${failed:-0}\n"
    assert run(tmp_path / "after", {"job.sh": fixed}) == (1, 3)


def test_two_runs_of_the_same_program_may_depend_on_each_other():
    body = "python a.py train\npython a.py test\necho done\n"
    assert [f.fix for f in hits({"job.sh": JOB + body}) if f.severity != "advice"] == [AT_TOP]


@pytest.mark.parametrize("server", ["ray start --head --block", "vllm serve x", "sleep infinity"])
def test_a_script_that_stays_at_a_server_is_not_completed(server):
    for step in ("", "srun "):
        body = f"{step}{server} &\npython a.py\nwait\necho done\n"
        assert [f for f in hits({"job.sh": JOB + body}) if f.severity != "advice"] == []
    killed = f"{server} &\npython a.py\nkill $!\nwait\necho done\n"
    assert [f.severity for f in hits({"job.sh": JOB + killed})] == ["warning"]


def test_wait_for_servers_of_which_one_may_fail():
    body = "srun ray start --head --block &\nsrun ray start --address x --block &\nwait\n"
    found = lint(JOB + body, path="job.sh", files=TextFiles({}), programs=SlurmOf())
    assert [f.severity for f in found if f.code == "E503"] == ["advice"]


def test_a_program_in_an_inner_shell_whose_failure_the_next_one_hides():
    inner = 'srun bash -c "\ncd .\npython a.py{}\npython {}.py\n"\n'
    [hit] = hits({"job.sh": JOB + inner.format("", "b")})
    assert (hit.line, hit.severity, hit.fix) == (5, "advice", "… || exit 1")
    assert hits({"job.sh": JOB + inner.format(" || exit 1", "b")}) == []
    assert hits({"job.sh": JOB + inner.format(" &&", "b")}) == []
    assert hits({"job.sh": JOB + inner.format(" 1", "a")}) == []  # independent runs


def test_a_function_that_is_called_several_times(tmp_path):
    work = "work() {\n  python a.py $1\n  echo after\n}\n"
    loop = "for i in 1 2; do\n  work $i\ndone\necho done\n"
    for calls in (loop, "work 1\nwork 2\necho done\n"):
        [hit] = hits({"job.sh": JOB + work + calls})
        change, call = hit.fix.split("\n")
        assert call == "work … || failed=1  # for each call; end the script with: exit ${failed:-0}"
        fixed = work.replace("$1", f"$1 {change.removeprefix('… ')}")
        fixed += re.sub(r"(work \S+)", r"\1 || failed=1", calls) + "exit ${failed:-0}\n"
        assert run(tmp_path / f"{len(calls)}", {"job.sh": JOB + fixed}) == (1, 2)
    [hit] = hits({"job.sh": f"{JOB}{work}work 1\necho done\n"})
    assert hit.fix == AT_TOP


@pytest.mark.parametrize(
    ("body", "work", "ran"),
    [
        ("bash work.sh\n", "python a.py\necho done\n", 1),
        ("bash work.sh\necho done\n", "python a.py\necho done\n", 1),
        ("bash work.sh\necho done\n", LOOP, 2),
        ("bash work.sh 1\nbash work.sh 2\nbash work.sh 3\n", f"{LOOP}echo done\n", 6),
    ],
)
def test_a_failure_in_a_script_that_the_job_starts(tmp_path, body, work, ran):
    files = {"job.sh": JOB + body, "work.sh": f"#!/bin/bash\n{work}"}
    [hit] = [f for f in hits(files) if f.path == "work.sh"]
    assert hit.what.startswith("This script succeeds even if this command fails, because ")
    assert hit.what.endswith(", so the job does not notice.")
    assert ("job script" in hit.fix) == (body != "bash work.sh\n")
    assert run(tmp_path / "before", files)[0] == 0
    status, times = run(tmp_path / "after", apply(files, hit))
    assert status != 0
    assert times == ran


@pytest.mark.parametrize("shell", ["srun bash -c", "bash -c"])
def test_the_fix_of_a_pipe_is_in_its_own_shell(shell):
    found = hits({"job.sh": f"{JOB}{shell} 'python a.py | tee log'\ndate\n"})
    [hit] = [f for f in found if f.code == "E505"]
    assert hit.fix == "set -o pipefail; …  # at the start of the inner script"
    work = "#!/bin/bash\nshift\npython a.py | tee log\ndate\n"
    [hit] = hits({"job.sh": f"{JOB}bash work.sh\n", "work.sh": work})
    assert (hit.path, hit.fix) == (
        "work.sh",
        "set -eo pipefail  # above line 3: if shift (line 2) fails, the job can still run",
    )


def test_the_fix_of_the_job_script_has_a_place_too(tmp_path):
    files = {
        "job.sh": f"{JOB}shift\nbash work.sh\necho done\n",
        "work.sh": "#!/bin/bash\nshift\npython a.py\necho done\n",
    }
    [hit] = [f for f in hits(files) if f.path == "work.sh"]
    assert hit.fix == (
        "set -e  # above line 3: if shift (line 2) fails, the job can still run\n"
        "set -e  # above line 4 of the job script, too: if shift (line 3) fails, the job can still "
        "run"
    )
    assert run(tmp_path / "after", apply(files, hit))[0] != 0


def test_the_fix_of_the_job_names_the_script_that_hides_the_failure(tmp_path):
    # Its many options make it too complex to be executed by lint.
    options = "".join(f'[ "$1" = {n} ] && a{n}=1\n[ "$a{n}" = 2 ] && b=1\n' for n in range(9))
    work = f"#!/bin/bash\n{options}python a.py\necho done\n"
    files = {"job.sh": f"{JOB}bash work.sh\necho done\n", "work.sh": work}
    [hit] = hits(files)
    assert hit.path == "job.sh"
    assert hit.fix == f"{AT_TOP}\nset -e  # near the top of work.sh, too"
    assert run(tmp_path / "before", files)[0] == 0
    assert run(tmp_path / "after", apply(files, hit))[0] != 0


@pytest.mark.parametrize(
    ("call", "severity"),
    [("work || echo skipped", "advice"), ("work || exit 1", "warning"), ("work", "warning")],
)
def test_a_function_whose_failure_is_tolerated(call, severity):
    body = f"work() (\n  python a.py\n  echo after\n)\n{call}\necho done\n"
    [hit] = hits({"job.sh": JOB + body})
    assert hit.severity == severity
    assert hit.fix.startswith("set -e" if call == "work" else "… || return 1")


@pytest.mark.parametrize("last", ["sleep infinity", "tail -f /dev/null", "tail --follow=name log"])
def test_a_script_that_does_not_end_is_not_completed(last):
    assert hits({"job.sh": f"{JOB}python a.py\n{last}\n"}) == []


@pytest.mark.parametrize(
    "last", ["sleep 10", "tail -f --pid=$pid log\necho done", "tail log; date"]
)
def test_a_script_that_ends_is_completed(last):
    assert [f.severity for f in hits({"job.sh": f"{JOB}python a.py\n{last}\n"})] == ["warning"]


@pytest.mark.parametrize(
    ("last", "severity"),
    [
        ("rm model.pt", "advice"),
        ("rm -f model.pt", "warning"),
        ("rm -rf out", "warning"),
        ("rm -r out", "warning"),  # the script itself has created it
        ("rm -r other", "advice"),
    ],
)
def test_rm_fails_if_the_program_has_not_written_the_file(last, severity):
    found = hits({"job.sh": f"{JOB}mkdir -p out\npython a.py\n{last}\n"})
    assert [f.severity for f in found] == [severity]


TRY = "for i in 1 2 3; do\n  python a.py {}\n  sleep 0\ndone\n"
TESTED = '[ "${succeeded:-0}" = 1 ] || exit 1'
NO_TRY = "test after the loop whether a try has succeeded, and exit with 1 if none has"


@pytest.mark.parametrize(
    ("body", "fix", "fixed"),
    [
        (
            TRY.format("&& break") + "echo done\n",
            f"… && succeeded=1 && break\n{TESTED}  # after the loop",
            TRY.format("&& succeeded=1 && break") + f"{TESTED}\necho done\n",
        ),
        (
            TRY.format("| tee log && break") + "echo done\n",
            (
                "set -o pipefail  # near the top of the script\n… && succeeded=1 && break\n"
                f"{TESTED}  # after the loop"
            ),
            "set -o pipefail\n"
            + TRY.format("| tee log && succeeded=1 && break")
            + f"{TESTED}\necho done\n",
        ),
        (
            "for i in 1 2 3; do python a.py && exit 0; sleep 0; done; echo failed\n",
            "exit 1  # after the loop",
            "for i in 1 2 3; do python a.py && exit 0; sleep 0; done; exit 1; echo failed\n",
        ),
    ],
)
def test_a_loop_that_tries_again_succeeds_if_one_try_does(tmp_path, body, fix, fixed):
    [hit] = hits({"job.sh": JOB + body})
    assert hit.fix == fix
    assert run(tmp_path / "before", {"job.sh": JOB + body}, FAILS)[0] == 0
    assert run(tmp_path / "none", {"job.sh": JOB + fixed}, FAILS) == (1, 3)
    assert run(tmp_path / "second", {"job.sh": JOB + fixed}) == (0, 2)


@pytest.mark.parametrize(
    "body",
    [
        f"for seed in 1 2; do\n{TRY.format('&& break')}done\necho done\n",
        TRY.format("&& { echo well; break; }") + "echo done\n",
    ],
)
def test_a_loop_that_tries_again_in_another_way_has_words_as_its_fix(body):
    assert [f.fix for f in hits({"job.sh": JOB + body})] == [NO_TRY]


WORK = "work() {\n  python a.py $1\n  echo after\n}\n"
READS = "cat a.py b.py | while read -r seed; do\n  python a.py {}\ndone\n"
COUNTS = "… || failed=1  # for each program in a loop; end the script with: exit ${failed:-0}"
OUTSIDE = "(…) || failed=1  # behind the parentheses; end the script with: exit ${failed:-0}"
PIPEFAIL = "set -o pipefail  # near the top of the script"


@pytest.mark.parametrize(
    ("body", "fix", "fixed"),
    [
        (READS.format("") + "echo done\n", AT_TOP, "set -e\n{}"),
        (
            READS.format("| tee log"),
            "set -eo pipefail  # near the top of the script",
            "set -eo pipefail\n{}",
        ),
        (
            f"{READS.format('').strip()} | tee log\n",
            "set -eo pipefail  # near the top of the script",
            "set -eo pipefail\n{}",
        ),
        (
            "code=$HOME/code\nfor i in 1 2; do\n  python a.py $code\ndone\necho done\n",
            COUNTS,
            "for i in 1 2; do\n  python a.py $code || failed=1\ndone\nexit ${{failed:-0}}\n",
        ),
        (
            "failed=0\nfor i in 1 2; do\n  python a.py $i\ndone\necho $failed\n",
            COUNTS.replace("failed", "any_failed"),
            (
                "failed=0\nfor i in 1 2; do\n  python a.py || any_failed=1\ndone\necho $failed\n"
                "exit ${{any_failed:-0}}\n"
            ),
        ),
        (
            "for i in 1 2; do python a.py $i; done; echo done\n",
            COUNTS,
            "for i in 1 2; do python a.py $i || failed=1; done; echo done\nexit ${{failed:-0}}\n",
        ),
        (
            "for i in 1 2; do\n  (cd . && python a.py $i)\ndone\necho done\n",
            OUTSIDE,
            "for i in 1 2; do\n  (cd . && python a.py $i) || failed=1\ndone\nexit ${{failed:-0}}\n",
        ),
        (
            "for i in 1 2; do\n  (\n    python a.py $i\n    echo\n  )\ndone\necho done\n",
            AT_TOP,
            "set -e\n{}",
        ),
        (
            "work() {\n  python a.py | tee log\n  echo after\n}\nwork || exit 1\n",
            (
                f"{PIPEFAIL}\n… || return 1  # `set -e` has no effect in a function whose status "
                "is tested"
            ),
            (
                "set -o pipefail\n"
                "work() {{\n  python a.py | tee log || return 1\n  echo after\n}}\n"
                "work || exit 1\n"
            ),
        ),
        (
            "if python a.py | tee log; then echo well; else echo failed; fi\n",
            f"{PIPEFAIL}\nexit 1  # where the script handles the failure",
            (
                "set -o pipefail\n"
                "if python a.py | tee log; then echo well; else echo failed; exit 1; fi\n"
            ),
        ),
    ],
)
def test_the_fix_works_where_it_is(tmp_path, body, fix, fixed):
    files = {"job.sh": JOB + body, "a.py": "print(1)\n", "b.py": "print(1)\n"}
    [hit] = [f for f in hits(files) if f.severity != "advice"]
    assert hit.fix == fix
    assert run(tmp_path / "before", files)[0] == 0
    assert run(tmp_path / "after", {**files, "job.sh": JOB + fixed.format(body)})[0] == 1


@pytest.mark.parametrize("test", ["|| exit 1", "|| true"])
def test_the_fix_of_a_function_is_for_all_calls(tmp_path, test):
    calls = f"work 1 {test}\nwork 2\necho all\n"
    [hit] = hits({"job.sh": JOB + WORK + calls})
    assert hit.fix == (
        "… || return 1\nwork … || failed=1  # for each call that nothing tests; end the script "
        "with: exit ${failed:-0}"
    )
    fixed = WORK.replace("$1", "$1 || return 1") + calls.replace("work 2", "work 2 || failed=1")
    last = "#!/bin/bash\n[[ $* != *2 ]] || exit 1\necho >> ran\n"
    assert run(tmp_path / "before", {"job.sh": JOB + WORK + calls}, last)[0] == 0
    assert run(tmp_path / "after", {"job.sh": f"{JOB}{fixed}exit ${{failed:-0}}\n"}, last)[0] == 1


def test_a_function_whose_failures_are_all_tolerated_has_no_other_fix():
    body = f"set -e\n{WORK}work || echo go on\nwork || true\npython b.py\n"
    assert not any("set -e" in f.fix for f in hits({"job.sh": JOB + body}))


@pytest.mark.parametrize(
    ("body", "fix"),
    [
        ("./serve &\npython a.py\nwait\n", "status=$?  # behind this command, and behind line 5: "),
        ("./serve &\nfor i in 1 2; do\n  python a.py $i\ndone\nwait\n", "test the status of this"),
    ],
)
def test_a_program_before_wait(body, fix):
    assert [f.fix.startswith(fix) for f in hits({"job.sh": JOB + body})] == [True]


def test_what_reads_in_a_piped_loop_is_no_program():
    body = "while read -r x; do\n  echo $x\ndone < a.py | tee log\n"
    assert hits({"job.sh": JOB + body}) == []


def test_scripts_of_the_same_name_in_two_folders(tmp_path):
    files = {
        "job.sh": f"{JOB}bash a/run.sh\nbash b/run.sh\necho done\n",
        "a/run.sh": "#!/bin/bash\npython a.py\necho done\n",
        "b/run.sh": "#!/bin/bash\nset -e\npython a.py\necho done\n",
    }
    found = {(f.path, f.fix) for f in hits(files) if f.severity != "advice"}
    assert ("a/run.sh", f"{AT_TOP}\nset -e  # near the top of the job script, too") in found
    assert not any(path == "b/run.sh" for path, _ in found)
    assert not any("run.sh, too" in fix for path, fix in found if path == "job.sh")


def test_a_script_that_a_script_of_the_job_starts(tmp_path):
    files = {
        "job.sh": f"{JOB}bash run.sh\necho done\n",
        "run.sh": "#!/bin/bash\nbash inner.sh\necho done\n",
        "inner.sh": "#!/bin/bash\npython a.py\necho done\n",
    }
    [hit] = [f for f in hits(files) if f.path == "inner.sh"]
    assert hit.fix == (
        f"{AT_TOP}\nset -e  # near the top of run.sh, too\n"
        "set -e  # near the top of the job script, too"
    )
    assert run(tmp_path / "before", files)[0] == 0
    assert run(tmp_path / "after", apply(files, hit))[0] == 1


HANDLES = """\
#!/bin/bash
trap 'touch saved; exit 0' USR1
sleep 0.2  # until the job has its handler
touch started
for i in {1..200}; do sleep 0.05; done
exit 3
"""


@pytest.mark.parametrize("number", [0, 1])
def test_a_signal_that_the_program_handles_reaches_it(tmp_path, number):
    body = "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --signal=B:USR1@60\nset -e\n./work\n"
    found = lint(body, path="job.sh", files=TextFiles({}), programs=SlurmOf())
    [fix] = [f.fix.split("\n")[number] for f in found if f.code == "E509"]
    line = fix.partition("  # ")[0].replace("…", "./work")
    for name, text in {"work": HANDLES, "job.sh": body.replace("./work", line)}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    job = subprocess.Popen(["bash", "job.sh"], cwd=tmp_path)
    assert wait_until((tmp_path / "started").exists, timeout_s=10)
    job.send_signal(signal.SIGUSR1)
    assert job.wait(timeout=20) == 0
    assert (tmp_path / "saved").exists()


@pytest.mark.parametrize(
    ("run", "step"), [("srun ./work", True), ("./work", False), ("mpirun ./work", False)]
)
def test_the_fix_of_a_signal_depends_on_the_steps(run, step):
    body = f"#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH --signal=B:USR1@60\n{run}\n"
    found = lint(body, path="job.sh", files=TextFiles({}), programs=SlurmOf())
    [fix] = [f.fix for f in found if f.code == "E509"]
    assert ("srun …" in fix, "exec …" in fix) == (step, not step)


def test_mapfile_is_not_the_work_of_a_job():
    assert hits({"job.sh": f"{JOB}mapfile -t names < <(ls)\necho ${{names[0]}}\necho done\n"}) == []
