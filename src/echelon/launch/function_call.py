"""The program of a run that was submitted as a Python function: each rank calls the function.

Its text is copied into the run's code, beside the pickled function. It runs in the ranks' Python,
which may have nothing of Echelon, and keeps what the function returns in the run directory.
"""

import json
import os
import pickle
import sys
from pathlib import Path
from typing import IO, Any

FOLDER = ".echelon"
"""Where these files are, in the run's code."""
PROGRAM, FUNCTION, ABOUT, LIBRARY = "call.py", "function.pkl", "function.json", "lib"
RESULTS = "results"
"""Where results are, in the run directory."""
MOST_BYTES = 10**9
"""The largest result."""


def name_result(rank: int) -> str:
    """Return the name of the file with a rank's result."""
    return f"rank-{rank:05}.pkl"


def main() -> None:
    """Call the function, and keep its result."""
    folder = Path(__file__).resolve().parent
    about = json.loads((folder / ABOUT).read_text())
    check_python(about)
    root = Path(about["root"] or folder.parent)
    sys.path[:1] = [str(root / path) for path in about["paths"]]
    # Its own version: pickles of one are not for another.
    sys.path.insert(0, str(folder / LIBRARY))
    with (folder / FUNCTION).open("rb") as file:
        packed = pickle.load(file)  # noqa: S301  the digest of the code covers it
    dump = pickle.loads(packed["dump"])  # noqa: S301
    del sys.path[0]
    function = pickle.loads(packed["function"])  # noqa: S301
    call = packed["calls"][int(sys.argv[1]) if sys.argv[1:] else 0]
    args, options = pickle.loads(call)  # noqa: S301
    if about["checkpoint"]:
        options[about["checkpoint"]] = pickle.loads(packed["checkpoint"])(os.environ)  # noqa: S301
    keep_result(function(*args, **options), about["name"], dump)
    if about["checkpoint"]:
        options[about["checkpoint"]].wait()  # an error if the last one could not be written


def check_python(about: dict[str, Any]) -> None:
    """Raise an error if this Python cannot read what another one has pickled."""
    own = "{}.{}".format(*sys.version_info)
    if own != about["python"]:
        raise RuntimeError(
            f"{about['name']} was submitted from Python {about['python']}, and the ranks have "
            f"Python {own}, which cannot read it: use the same version on both sides (python=…)"
        )


class _Limited:
    """A file that does not grow without end."""

    def __init__(self, file: IO[bytes], name: str) -> None:
        self._file, self._name, self._left = file, name, MOST_BYTES

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self._left -= size
        if self._left < 0:
            raise ValueError(
                f"the result of {self._name} is larger than {MOST_BYTES:,} bytes: write it to a "
                "file in the folder that ECHELON_RUN_DIR names, and return the path"
            )
        self._file.write(data)
        return size


def keep_result(value: object, name: str, dump: Any) -> None:
    """Write a rank's result into the run directory: a line about it, then the pickle."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    folder = Path(os.environ["ECHELON_RUN_DIR"], RESULTS)
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / name_result(rank)
    unfinished = path.with_suffix(".tmp")
    unfinished.unlink(missing_ok=True)
    with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(json.dumps({"rank": rank, "world_size": size}).encode() + b"\n")
        try:
            dump(value, _Limited(file, name))
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise TypeError(f"the result of {name} cannot be pickled: {error}") from error
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


if __name__ == "__main__":
    main()
