"""`ray-call FOLDER NODE DRIVER`: asks a run's driver to start the agent of one place again.

Like srun on Slurm, this process lives as long as its agent. It does not import ray, so a hundred of
them cost little. Its order is a file: the agent is wanted as long as the file exists, and the
driver removes it when the agent has exited.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from echelon.core.atomic_file import write_atomic
from echelon.core.frozen import frozen
from echelon.launch.backends.base import CAUSE
from echelon.launch.protocol.rank_environment import REPLACES
from echelon.run.journal import write_error

ORDERS = "orders"
"""The directory of orders, in the attempt's."""
_LOOK_S = 0.2


@frozen
class Order:
    """An agent that is wanted."""

    path: Path
    node: int
    variables: Mapping[str, str]
    """Additional variables of the agent."""

    def write(self) -> None:
        self.path.parent.mkdir(mode=0o700, exist_ok=True)
        write_atomic(self.path, json.dumps({"node": self.node, "variables": dict(self.variables)}))

    def withdraw(self) -> None:
        with suppress(FileNotFoundError):
            self.path.unlink()


def read_orders(folder: Path) -> list[Order]:
    """Return the orders in an attempt's directory, the oldest first."""
    found = []
    for path in (folder / ORDERS).glob("*.json"):
        with suppress(OSError, ValueError, KeyError):
            record = json.loads(path.read_text())
            order = Order(path=path, node=int(record["node"]), variables=dict(record["variables"]))
            found.append((path.stat().st_mtime_ns, order))
    return [order for _, order in sorted(found, key=lambda entry: entry[0])]


def main(arguments: list[str]) -> int:
    """Order the agent, and wait for its exit."""
    folder, node, driver = Path(arguments[0]), int(arguments[1]), int(arguments[2])
    controller = os.getppid()
    variables = {REPLACES: os.environ[REPLACES]} if REPLACES in os.environ else {}
    path = folder / ORDERS / f"{node}-{os.getpid()}.json"
    order = Order(path=path, node=node, variables=variables)
    # Ray sends this to all processes of a job to stop it, but the controller decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # no longer wanted
    try:
        order.write()
        while path.exists() and os.getppid() == controller:
            os.kill(driver, 0)
            time.sleep(_LOOK_S)
    except ProcessLookupError:
        write_error(f"{CAUSE}the Ray driver of the run is not running")
        return 69
    finally:
        order.withdraw()
    return 0
