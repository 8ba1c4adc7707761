"""How long `echelon lint` takes for one script and for 1,000, including start-up.

    .venv/bin/python benchmarks/lint.py [--trials N]

Lints every script of tests/golden/lint and of our own styles, each in a separate process, and then
1,000 copies of them in one call on two CPUs. Measures wall-clock time and CPU time, which depends
less on other load. Bytecode is cached, as for an
installed package; start-up without it is a separate row. Writes benchmarks/results/lint.json.
"""

import argparse
import os
import resource
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from measuring import ECHELON, summary, write_results

SCRIPTS = Path(__file__).parents[1] / "tests" / "golden"
GOAL_S = 0.4
MANY, GOAL_OF_MANY_S = 1000, 10


def measure(argv, *, bytecode):
    """Return the wall-clock time and the CPU time of a command."""
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environ |= {"PYTHONPYCACHEPREFIX": bytecode} if bytecode else {"PYTHONDONTWRITEBYTECODE": "1"}
    began, cpu = time.monotonic(), cpu_s()
    done = subprocess.run([*ECHELON, *argv], capture_output=True, check=False, env=environ)
    assert done.returncode in (0, 1), done.stderr.decode()
    return time.monotonic() - began, cpu_s() - cpu


def cpu_s():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=1, help="of each script")
    trials = parser.parse_args().trials
    busy = round(os.getloadavg()[0], 1)  # with other load, wall-clock times mean little
    corpus = sorted([*SCRIPTS.glob("lint/*/*.sh"), *SCRIPTS.glob("scripts/*.sh")])
    with tempfile.TemporaryDirectory() as bytecode:
        measure(["lint", corpus[0]], bytecode=bytecode)  # the first start compiles bytecode
        each = [
            measure(["lint", path], bytecode=bytecode) for path in corpus for _ in range(trials)
        ]
        bare = [measure(["--version"], bytecode=bytecode) for _ in range(max(5, trials))]
        with tempfile.TemporaryDirectory() as copies:
            for number in range(MANY):
                script = corpus[number % len(corpus)]
                shutil.copy(script, Path(copies, f"{number}-{script.name}"))
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
            together = measure(["lint", copies], bytecode=bytecode)
    uncompiled = [measure(["lint", path], bytecode="") for path in corpus[:10]]
    rows = {
        "one script": summary([clock for clock, _ in each]),
        "one script, CPU time": summary([cpu for _, cpu in each]),
        "one script, nothing compiled, CPU time": summary([cpu for _, cpu in uncompiled]),
        "a bare start (--version), CPU time": summary([cpu for _, cpu in bare]),
        f"{MANY} scripts in one call on two CPUs": summary([together[0]]),
        f"{MANY} scripts in one call, CPU time": summary([together[1]]),
    }
    goals = {
        "one script, median, seconds": (rows["one script"]["median_s"], GOAL_S),
        "one script, median, CPU seconds": (rows["one script, CPU time"]["median_s"], GOAL_S),
        f"{MANY} scripts on two CPUs, seconds": (round(together[0], 3), GOAL_OF_MANY_S),
    }
    write_results("lint", rows, goals, load_average_before=busy)


if __name__ == "__main__":
    main()
