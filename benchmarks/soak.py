"""Long-running fault tolerance tests, on a real Slurm in a separate sandbox.

    .venv/bin/python benchmarks/soak.py limit|preempt|nodes|storm|controller|all [options]

Each prints a table and merges it into benchmarks/results/soak.json. Failures are recorded there
with the reason, logs are kept, and the exit code is 1. Needs root and Debian's Slurm. Short
variants, for a quick check:

    soak.py limit --trainings 2 --seconds 60 --pace 0.1 --time 1m --no-requeue
    soak.py preempt --times 2 --between 5
    soak.py nodes --minutes 2 --every 15
    soak.py storm --minutes 3 --every 20 --calibrate 15
    soak.py controller --seconds 15
"""

import argparse
import json
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE.parent / "tests")]

from measuring import RESULTS, describe_machine  # noqa: E402
from soaking.ground import Report, ground, keep_logs, say  # noqa: E402
from soaking.nodes import soak_nodes  # noqa: E402
from soaking.slurmctld import SCENES, soak_controller  # noqa: E402
from soaking.stops import soak_limit, soak_preempt  # noqa: E402
from soaking.storm import soak_storm  # noqa: E402

TESTS = {
    "limit": (soak_limit, 4),
    "preempt": (soak_preempt, 4),
    "nodes": (soak_nodes, 6),
    "storm": (soak_storm, 8),
    "controller": (soak_controller, 4),
}
"""Name → function, and number of nodes."""
ALL = (
    ["limit"],
    ["preempt"],
    ["nodes"],
    ["storm"],
    ["storm", "--faults=ranks"],
    ["controller"],
)


def parse_arguments(words):
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    tests = parser.add_subparsers(dest="test", required=True)
    tests.add_parser("all", help="all of them, in their long form")
    limit = tests.add_parser("limit", help="time limits, until the training is done")
    limit.add_argument("--trainings", type=int, default=10, help="how many at once")
    limit.add_argument("--seconds", type=float, default=380, help="of each, undisturbed")
    limit.add_argument("--pace", dest="pace_s", type=float, default=0.5, help="seconds per step")
    limit.add_argument("--time", default="3m", help="limit of each job")
    limit.add_argument("--lead", type=int, default=0, help="seconds before it to stop; 0: ours")
    limit.add_argument("--apart", dest="apart_s", type=float, default=15, help="between starts")
    limit.add_argument("--no-requeue", dest="requeue", action="store_false")
    preempt = tests.add_parser("preempt", help="a job that is more important, again and again")
    preempt.add_argument("--times", type=int, default=10)
    preempt.add_argument("--between", dest="seconds_between", type=float, default=15)
    preempt.add_argument("--hold", dest="hold_s", type=int, default=10, help="how long it lasts")
    preempt.add_argument("--pace", dest="pace_s", type=float, default=0.1)
    nodes = tests.add_parser("nodes", help="nodes die, lose their cable, and come back")
    nodes.add_argument("--minutes", type=float, default=10)
    nodes.add_argument("--every", type=float, default=20, help="seconds between two things")
    nodes.add_argument("--nodes", default="2:4")
    nodes.add_argument("--pace", dest="pace_s", type=float, default=0.1)
    nodes.add_argument("--seed", type=int, default=0)
    storm = tests.add_parser("storm", help="one random fault after the other")
    storm.add_argument("--minutes", type=float, default=30)
    storm.add_argument("--every", type=float, default=60, help="seconds between two faults")
    storm.add_argument("--faults", choices=["all", "ranks"], default="all")
    storm.add_argument(
        "--sides", choices=["echelon", "torchrun", "both"], default="both", help="who stands in it"
    )
    storm.add_argument("--nodes", default="2:4")
    storm.add_argument("--pace", dest="pace_s", type=float, default=0.1)
    storm.add_argument("--save-every", type=int, default=20, help="steps between checkpoints")
    storm.add_argument("--calibrate", dest="calibrate_s", type=float, default=60)
    storm.add_argument("--seed", type=int, default=0)
    controller = tests.add_parser("controller", help="slurmctld goes away for a while")
    controller.add_argument("--seconds", type=float, default=30)
    scenes = list(dict.fromkeys(scene for scene, _ in SCENES))
    controller.add_argument("--scenes", nargs="+", choices=scenes, default=scenes)
    controller.add_argument("--steps", type=int, default=600, help="of a tenth of a second")
    return parser.parse_args(words)


def run_test(asked):
    """Run a test and write its table; return whether it passed."""
    soak, nodes = TESTS[asked.test]
    name = "storm of ranks" if getattr(asked, "faults", "") == "ranks" else asked.test
    report, kept, began_s = Report(), None, time.monotonic()
    with ground(nodes) as here:
        slurm = here.cluster.exec("sinfo", "-V").strip()
        with report.trial(name):
            soak(here, asked, report)
        if report.failures:
            kept = keep_logs(here, asked.test)
    lengths = {key: value for key, value in vars(asked).items() if key != "test"}
    took_s = round(time.monotonic() - began_s)
    judged = {what: _judge(*goal) for what, goal in report.goals.items()}
    machine = describe_machine()
    result = {
        **machine,
        "versions": {**machine["versions"], "slurm": slurm},
        "lengths": {**lengths, "nodes of the cluster": nodes},
        "took_s": took_s,
        "figures": report.figures,
        "goals": judged,
        "failed": report.failures,
        **({"logs": str(kept)} if kept else {}),
    }
    _merge(name, result)
    _show(name, result)
    return not report.failures


def _judge(value, way, limit):
    # A goal whose value could not be measured is not met.
    met = value is not None and (value <= limit if way == "≤" else value >= limit)
    rounded = round(value, 2) if value is not None else None
    return {"value": rounded, "goal": f"{way} {limit}", "met": met}


def _merge(name, result):
    path = RESULTS / "soak.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps({**known, name: result}, indent=2, ensure_ascii=False)
    path.write_text(f"{text}\n")


def _show(name, result):
    print(f"--- {name}, {result['took_s']} s")
    _print_figures(result["figures"], "")
    for what, goal in result["goals"].items():
        met = "met   " if goal["met"] else "MISSED"
        print(f"{met} {what}: {goal['value']}, goal {goal['goal']}")
    for failure in result["failed"]:
        print(f"FAILED {failure}")
    if "logs" in result:
        print(f"logs are kept in {result['logs']}")


def _print_figures(figures, indent):
    for what, value in figures.items():
        if isinstance(value, dict) and indent == "":
            print(f"{what}:")
            _print_figures(value, "    ")
        else:
            print(f"{indent}{what:60} {value}")


def main():
    words = sys.argv[1:]
    asked = parse_arguments(words)
    plans = [parse_arguments(one) for one in ALL] if asked.test == "all" else [asked]
    well = True
    for plan in plans:
        say(f"soak {plan.test}")
        well &= run_test(plan)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
