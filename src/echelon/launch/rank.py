"""How a process forked from the zygote becomes a rank: as if Python had been started for it.

What a fresh process would have (random state, `__main__`, handlers at exit, its own stacks on
demand) is restored here; what the zygote already imported stays.
"""

import atexit
import contextlib
import faulthandler
import json
import os
import random
import runpy
import signal
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any, NoReturn

DUMP = signal.SIGRTMIN + 7
"""Makes a warm rank write its stacks, even one that holds the interpreter's lock."""
_TORCH_SEED = 67280421310721
"""Where torch's generator begins in every fresh process."""
_NOT_OURS = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""What the zygote has handlers for, and a fresh process has not."""
_MAX_TRACEBACK = 16_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What the ranks run."""

    argv: tuple[str, ...]
    """A script or a module's name, and its arguments."""
    kind: str = "script"
    """`script` or `module` for Python; `binary` for anything else."""

    def command(self, python: str) -> list[str]:
        """Return how it is started plainly."""
        before = {"script": [python], "module": [python, "-m"], "binary": []}[self.kind]
        return [*before, *self.argv]


def restore_fresh_state(stacks: Path) -> None:
    """Give a forked process what a fresh one has."""
    for module in [name for name in sys.modules if name.partition(".")[0] == "echelon"]:
        # The launcher's own copy must not stand in for the one that the script may want.
        del sys.modules[module]
    random.seed()
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    if torch := sys.modules.get("torch"):
        torch.default_generator.manual_seed(_TORCH_SEED)
    for number in (*_NOT_OURS, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.set_wakeup_fd(-1)
    for stream in (sys.stdout, sys.stderr):
        # They were made for the zygote's own output; line by line, so that nothing is lost.
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    faulthandler.enable()
    handle = os.open(stacks, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    faulthandler.register(DUMP, file=handle, all_threads=True)


def run_program(program: Program, error_file: Path) -> NoReturn:
    """Run a script or module as `__main__`, and end as Python would, but without its tear-down.

    Taking apart an interpreter that holds torch costs over a second for four ranks.
    """
    code = 0
    try:
        _enter_main(program)()
    except SystemExit as leaving:
        code = _exit_code(leaving)
        if code:
            _record(leaving.with_traceback(None), error_file)
    except BaseException as error:  # noqa: BLE001  whatever it is, it ends here
        trace = _without_own_frames(error.__traceback__)
        _record(error.with_traceback(trace), error_file)
        sys.excepthook(type(error), error, trace)
        code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    _leave(code)


def _enter_main(program: Program) -> Callable[[], object]:
    """Make a real `__main__` module, and return what runs in it."""
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    vars(main)["__builtins__"] = sys.modules["builtins"]
    sys.argv = list(program.argv)
    if program.kind == "module":
        sys.path[0] = os.getcwd()  # noqa: PTH109  as Python itself puts it there
        return lambda: runpy._run_module_as_main(program.argv[0])  # type: ignore[attr-defined]  # noqa: SLF001
    path = os.path.abspath(program.argv[0])  # noqa: PTH100  links stay, as Python leaves them
    sys.path[0] = str(Path(path).resolve().parent)
    loader = SourceFileLoader("__main__", path)
    main.__file__ = path
    main.__loader__ = loader
    vars(main)["__cached__"] = None
    return lambda: exec(loader.get_code("__main__"), vars(main))  # type: ignore[arg-type]  # noqa: S102


def _exit_code(leaving: SystemExit) -> int:
    if leaving.code is None:
        return 0
    if isinstance(leaving.code, int):
        return leaving.code & 0xFF
    sys.stderr.write(f"{leaving.code}\n")
    return 1


def _without_own_frames(trace: types.TracebackType | None) -> types.TracebackType | None:
    """Leave out how the launcher got there."""
    own = {__file__, runpy.__file__, "<frozen runpy>"}
    while trace is not None and trace.tb_frame.f_code.co_filename in own:
        trace = trace.tb_next
    return trace


def _record(error: BaseException, path: Path) -> None:
    """Leave a record of an exception where torchrun's scripts leave theirs, in their format."""
    record = {
        "message": {
            "message": f"{type(error).__name__}: {_text(error)}"[:_MAX_TRACEBACK],
            "extraInfo": {
                "py_callstack": _format(error),
                "timestamp": str(int(time.time())),
            },
        },
        "type": type(error).__name__,
        "modules": [base.__name__ for base in type(error).__mro__],
    }
    with contextlib.suppress(OSError):  # a full disk may be why it died
        # The script may have left a better one itself, with torch's @record.
        if not path.exists():
            path.write_text(json.dumps(record))


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  it is the script's own code that fails here
        return "<exception str() failed>"


def _format(error: BaseException) -> str:
    if error.__traceback__ is None:
        return ""
    return "".join(traceback.format_exception(error))[-_MAX_TRACEBACK:]


def read_record(path: Path) -> dict[str, Any]:
    """Return a rank's record of its exception, whoever wrote it; empty when there is none."""
    try:
        record = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    message = record.get("message", "") if isinstance(record, Mapping) else ""
    if isinstance(message, Mapping):
        more = message.get("extraInfo", {})
        trace = str(more.get("py_callstack", "")) if isinstance(more, Mapping) else ""
        message = str(message.get("message", ""))
    else:
        trace = ""
    kind = str(record.get("type", "")) or str(message).partition(":")[0]
    bases = record.get("modules", [])
    return {
        "type": kind,
        "bases": [str(base) for base in bases] if isinstance(bases, Sequence) else [],
        "message": str(message)[:_MAX_TRACEBACK].removeprefix(f"{kind}: "),
        "traceback": trace[-_MAX_TRACEBACK:],
    }


def _leave(code: int) -> NoReturn:
    """Do what a leaving interpreter owes its program, and go."""
    with contextlib.suppress(Exception):
        threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001
    with contextlib.suppress(Exception):
        atexit._run_exitfuncs()  # noqa: SLF001
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)
