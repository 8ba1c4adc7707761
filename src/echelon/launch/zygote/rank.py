"""How a process forked from the zygote becomes a rank: as if Python had been started for it.

What a fresh process would have (random state, `__main__`, handlers at exit, its own stacks on
demand) is restored here; what the zygote already imported stays.
"""

import atexit
import contextlib
import ctypes
import faulthandler
import gc
import io
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
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any, NoReturn

import echelon
from echelon.core.records import parse_json, read_bytes
from echelon.launch.archive import find_archive
from echelon.launch.protocol.program import Program
from echelon.launch.zygote.gloo_groups import keep_gloo_groups
from echelon.run.background_writer import persist

DUMP = signal.SIGRTMIN + 7
"""Makes a warm rank write its stacks, even one that holds the interpreter's lock."""
PATIENCE_S = 30.0
"""For how long files are tried that ranks cannot start without, while storage only fails."""
_NOT_OURS = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""What the zygote has handlers for, and a fresh process has not."""
_OPENBLAS_SETTERS = (
    "openblas_set_num_threads",
    "openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",
    "scipy_openblas_set_num_threads64_",
)
"""By what names distributions and numpy's own wheels have it."""
_MAX_TRACEBACK = 16_000
_MAX_NAME, _MAX_BASES = 200, 50
"""A script may have written the record itself, and it has to fit into a message."""


def restore_fresh_state(stacks: Path, launcher: Iterable[str]) -> None:
    """Give a forked process what a fresh one has.

    Args:
        stacks: where it writes its stacks when asked.
        launcher: names of the launcher's modules. To look for them here would touch the names of
            all modules, and each page that a rank touches is copied.
    """
    # The launcher's own copy must not stand in for the one that the script may want.
    hide_launcher()
    for module in launcher:
        del sys.modules[module]
    random.seed()
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()
    if torch := sys.modules.get("torch"):
        torch.default_generator.seed()
    keep_gloo_groups()
    _wake_openblas()
    for number in (*_NOT_OURS, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for stream in (sys.stdout, sys.stderr):
        if not stream.write_through:  # type: ignore[union-attr]
            # Somebody has unset PYTHONUNBUFFERED: line by line at least, so that little is lost.
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    faulthandler.enable()
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    handle = persist(lambda: os.open(stacks, flags, 0o600), within_s=PATIENCE_S)
    faulthandler.register(DUMP, file=handle, all_threads=True)


def hide_launcher() -> object | None:
    """Import nothing more from the launcher; return what it was imported from, if it was."""
    archive = find_archive(echelon)
    if archive in sys.meta_path:
        sys.meta_path.remove(archive)
        return archive
    return None


def keep_sockets_in(folder: str) -> None:
    """Have multiprocessing keep its sockets in a folder that the agent removes.

    It would make one in TMPDIR (`pymp-…`), for this process and each that it starts, and remove it
    at exit: a process that is killed leaves it.
    """
    if process := sys.modules.get("multiprocessing.process"):
        with contextlib.suppress(OSError):
            Path(folder).mkdir(mode=0o700, exist_ok=True)
            process.current_process()._config["tempdir"] = folder  # noqa: SLF001  no other way


def _wake_openblas() -> None:
    """Give OpenBLAS the threads that the zygote denied it while it was imported.

    It reads the variables once, when it is loaded.
    """
    names = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")
    asked = (os.environ.get(name, "") for name in names)
    count = next((int(text) for text in asked if text.isdecimal() and int(text)), 0)
    with Path("/proc/self/maps").open(errors="replace") as lines:
        libraries = {line.split(maxsplit=5)[-1].strip() for line in lines if "openblas" in line}
    for path in libraries:
        with contextlib.suppress(OSError):  # a file by that name, but no library
            library = ctypes.CDLL(path)
            for name in _OPENBLAS_SETTERS:
                if setter := getattr(library, name, None):
                    setter(count or len(os.sched_getaffinity(0)))
                    break


def run_program(program: Program, error_file: Path) -> NoReturn:
    """Run a script or module as `__main__`, and end as Python would, but without its tear-down.

    Taking apart an interpreter that holds torch costs over a second for four ranks.
    """
    _leave(_run(program, error_file))


def _run(program: Program, error_file: Path) -> int:
    """Run it, tell of an exception as Python does, and return the exit code; a signal's is < 0."""
    error = _catch(program)
    if error is None:
        return 0
    if isinstance(error, SystemExit):
        if code := _exit_code(error):
            _record(error.with_traceback(None), error_file)
        return code
    error = error.with_traceback(_without_own_frames(error.__traceback__))
    _record(error, error_file)
    return _show(error)


def _catch(program: Program) -> BaseException | None:
    # A function of its own: hooks must not find themselves inside an `except`.
    try:
        _enter_main(program)()
    except BaseException as error:  # noqa: BLE001  whatever it is, it ends here
        return error
    return None


def _enter_main(program: Program) -> Callable[[], object]:
    """Make a real `__main__` module, and return what runs in it."""
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    vars(main)["__builtins__"] = sys.modules["builtins"]
    if sys.version_info < (3, 14):
        vars(main)["__annotations__"] = {}
    sys.argv = list(program.argv)
    sys.orig_argv = program.command(sys.executable)
    lead_path(program.folder())
    if program.kind == "module":
        return lambda: runpy._run_module_as_main(program.argv[0])  # type: ignore[attr-defined]  # noqa: SLF001
    path = os.path.abspath(program.argv[0])  # noqa: PTH100  links stay, as Python leaves them
    main.__file__ = path
    main.__loader__ = SourceFileLoader("__main__", path)
    vars(main)["__cached__"] = None
    try:
        source = Path(path).read_bytes()
    except OSError as error:
        why = f"[Errno {error.errno}] {error.strerror}"
        sys.stderr.write(f"{sys.executable}: can't open file {path!r}: {why}\n")
        raise SystemExit(2) from None
    # Not the loader's `get_code`: that would read and write bytecode, which a script has none of.
    code = compile(source, path, "exec", dont_inherit=True)
    return lambda: exec(code, vars(main))  # noqa: S102


def lead_path(folder: str) -> None:
    """Put a folder where the launcher's own is, which only its own imports needed."""
    sys.path[:1] = [] if sys.flags.safe_path else [folder]


def _show(error: BaseException) -> int:
    """Tell of an exception by the program's own hook, and return the exit code."""
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except SystemExit as leaving:
        return _exit_code(leaving)
    except BaseException as worse:  # noqa: BLE001  a broken hook must not hide why it was called
        worse = worse.with_traceback(_without_own_frames(worse.__traceback__))
        sys.stderr.write("Error in sys.excepthook:\n")
        sys.__excepthook__(type(worse), worse, worse.__traceback__)
        sys.stderr.write("\nOriginal exception was:\n")
        sys.__excepthook__(type(error), error, error.__traceback__)
    return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1


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
        record = parse_json(read_bytes(path))
    except (OSError, ValueError):
        return {}
    if not isinstance(record, Mapping):
        return {}
    message = record.get("message", "")
    if isinstance(message, Mapping):
        more = message.get("extraInfo", {})
        trace = str(more.get("py_callstack", "")) if isinstance(more, Mapping) else ""
        message = str(message.get("message", ""))
    else:
        trace = ""
    kind = (str(record.get("type", "")) or str(message).partition(":")[0])[:_MAX_NAME]
    bases = record.get("modules", [])
    bases = bases[:_MAX_BASES] if isinstance(bases, Sequence) else []
    return {
        "type": kind,
        "bases": [str(base)[:_MAX_NAME] for base in bases],
        "message": str(message)[:_MAX_TRACEBACK].removeprefix(f"{kind}: "),
        "traceback": trace[-_MAX_TRACEBACK:],
    }


def _leave(code: int) -> NoReturn:
    """Do what a leaving interpreter owes its program, and go."""
    with contextlib.suppress(BaseException):  # Ctrl-C ends the wait for threads, and no more
        threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()  # noqa: SLF001
    _flush(sys.stdout, sys.stderr)
    with contextlib.suppress(BaseException):
        _let_go()
    _flush(sys.stdout, sys.stderr)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _let_go() -> None:
    """Drop what the program holds: open files are flushed, finalizers run, temporary files go.

    Python takes all modules apart; here only `__main__` is, which is cheap.
    """
    for name in ("last_type", "last_value", "last_traceback"):
        vars(sys).pop(name, None)
    # Before anything is collected: of a text file and its buffer, either may be the first to go.
    # What the zygote had is frozen, and not among these.
    buffers = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
    _flush(*(thing for thing in gc.get_objects() if issubclass(type(thing), buffers)))
    sys.modules.pop("__main__", None)
    gc.collect()


def _flush(*streams: Any) -> None:
    for stream in streams:
        with contextlib.suppress(Exception):  # closed, or nobody reads it
            stream.flush()
