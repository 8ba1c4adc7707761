"""CPU and memory used by the launcher's own processes while ranks train.

    .venv/bin/python benchmarks/idle.py [--seconds N]

Simulates 2 nodes with 2 ranks each on this machine, which all-reduce every 50 ms; then measures
torchrun's agent with the same ranks. Zygote and ranks run the user's program and are not counted.
Writes benchmarks/results/idle.json.
"""

import argparse
import os
import time
from pathlib import Path

import measuring
import psutil
from measuring import ECHELON, SCRIPTS, TORCHRUN, started, steps, workshop

from echelon.core.waiting import wait_until

RANKS = 4
PERIOD_S = 0.05
SETTLE_S = 3.0
TICKS = os.sysconf("SC_CLK_TCK")
MIB = 1 << 20


def cpu_s(pid):
    """Return user and system time of a process and all its threads, without its children."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(words[11]) + int(words[12])) / TICKS


def memory(pid):
    """Return resident and proportional memory (RSS and PSS) in MiB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    kib = {words[0]: int(words[1]) for line in lines if len(words := line.split()) == 3}
    return {"rss_mib": round(kib["Rss:"] / 1024, 1), "pss_mib": round(kib["Pss:"] / 1024, 1)}


def our_processes(command):
    """Return the launcher's processes by role; a guard is a fork of an agent."""
    found = {"the command, echelon run": command.pid}
    for process in psutil.Process(command.pid).children(recursive=True):
        if process.status() == psutil.STATUS_ZOMBIE:
            continue  # not reaped yet
        words = process.cmdline()
        role = words[5] if len(words) > 5 and words[4].endswith("/launcher") else ""
        if role == "agent":
            kind = "guard" if process.parent().cmdline() == words else "agent"
            number = sum(name.startswith(kind) for name in found)
            found[f"{kind} {number}"] = process.pid
        elif role == "telemetry":
            found[f"{role} {sum(name.startswith(role) for name in found)}"] = process.pid
        elif role == "controller":
            found[role] = process.pid
    return found


def watch(pids, seconds):
    """Return each process's CPU use over an interval, in cores, and its memory at the end."""
    began, before = time.monotonic(), {name: cpu_s(pid) for name, pid in pids.items()}
    time.sleep(seconds)
    took = time.monotonic() - began
    return {
        name: {
            "cpu_percent": round(100 * (cpu_s(pid) - before[name]) / took, 2),
            **memory(pid),
        }
        for name, pid in pids.items()
    }


def measure(argv, folder, seconds, find):
    """Start ranks, let them settle, and watch the processes returned by `find`."""
    folder.mkdir()
    script = [str(SCRIPTS / "steps.py"), str(folder), str(PERIOD_S)]
    with started([*argv, *script], folder) as command:
        assert wait_until(lambda: len(steps(folder, 0, RANKS)) == RANKS, timeout_s=120)
        time.sleep(SETTLE_S)
        return watch(find(command), seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=30.0)
    seconds = parser.parse_args().seconds
    ours = [*ECHELON, "run", "--nodes", "2", "--procs", "2"]
    theirs = [*TORCHRUN, "--standalone", f"--nproc-per-node={RANKS}"]
    with workshop() as folder:
        rows = measure(ours, folder / "ours", seconds, our_processes)
        peer = measure(theirs, folder / "theirs", seconds, lambda command: {"": command.pid})[""]
    assert {"controller", "agent 0", "agent 1", "guard 0", "guard 1"} <= rows.keys(), rows
    judged = [name for name in rows if name.startswith(("controller", "agent"))]
    telemetry = max(row["cpu_percent"] for name, row in rows.items() if "telemetry" in name)
    worst = {
        figure: max(rows[name][figure] for name in judged) for figure in ("cpu_percent", "rss_mib")
    }
    goals = {
        "controller and agents, CPU of a core, percent": (worst["cpu_percent"], 1.0),
        "controller and agents, resident, MB": (round(worst["rss_mib"] * MIB / 1e6, 1), 40.0),
        "telemetry of a node, CPU of a core, percent": (telemetry, 1.0),
    }
    ratios = {
        figure: round(rows["agent 0"][figure] / peer[figure], 3) if peer[figure] else None
        for figure in peer
    }
    rows["torchrun's agent"] = peer
    measuring.write_results("idle", rows, goals, agent_to_torchruns=ratios)
    for figure, value in ratios.items():
        print(f"agent, {figure}: {value} × torchrun's")


if __name__ == "__main__":
    main()
