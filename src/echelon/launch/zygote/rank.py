"""How a process forked from the zygote becomes a rank, as if Python had been started for it.

What a fresh process would have (random state, `__main__`, exit handlers, a stack dump on demand) is
restored here; what the zygote has imported stays.
"""

import atexit
import contextlib
import ctypes
import faulthandler
import functools
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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any, NoReturn

import echelon
from echelon.core.records import parse_json, read_bytes
from echelon.launch.archive import find_archive
from echelon.launch.program import Program
from echelon.run.background_writer import persist

DUMP = signal.SIGRTMIN + 7
"""Makes a warm rank write its stacks, even while some thread holds the GIL."""
PATIENCE_S = 30.0
"""How long opening files that ranks need is retried while storage is unavailable."""
_NOT_OURS = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that the zygote handles, and a fresh process does not."""
_OPENBLAS_SETTERS = (
    "openblas_set_num_threads",
    "openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",
    "scipy_openblas_set_num_threads64_",
)
"""Names of the function in distributions' packages and in numpy's wheels."""
_MAX_TRACEBACK = 16_000
_MAX_NAME, _MAX_BASES = 200, 50
"""Limits for a record that a script wrote itself, so that it fits into a message."""
GLOO_KEEP_S = 5.0
"""How long gloo's groups are kept after they were destroyed."""


def restore_fresh_state(stacks: Path, launcher: Iterable[str]) -> None:
    """Give a forked process what a fresh one has.

    Args:
        stacks: the file for its stacks.
        launcher: names of the launcher's modules. Searching for them here would touch the names of
            all modules, and each memory page that a rank touches is copied.
    """
    # The script must not import the launcher's copy of the package instead of its own.
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
            # PYTHONUNBUFFERED was unset: buffer lines at most, so that little is lost.
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    faulthandler.enable()
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    handle = persist(lambda: os.open(stacks, flags, 0o600), within_s=PATIENCE_S)
    faulthandler.register(DUMP, file=handle, all_threads=True)


def keep_gloo_groups() -> None:
    """Keep gloo's process groups alive for a moment after a script has destroyed them.

    DistributedDataParallel is mostly the last to hold a group. When it is freed, torch joins the
    group's thread while holding the GIL, and that thread may need the GIL to free its last work: a
    correct script then hangs in its last line, under any launcher. Here the group outlives that
    line. Most ranks exit before it is freed. In one that continues, the groups are freed later,
    because peers that still wait for it must notice; an idle thread does not need the GIL.
    """
    torch = sys.modules.get("torch")
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    gloo = getattr(c10d, "ProcessGroupGloo", None)  # None: torch was built without it
    if torch is None or c10d is None or gloo is None:
        return
    destroy = c10d.destroy_process_group

    @functools.wraps(destroy)
    def keep_and_destroy(*args: Any, **options: Any) -> None:
        kept = list(_find_gloo(c10d, gloo, torch.device("cpu")))
        destroy(*args, **options)
        if kept:
            ending = threading.Timer(GLOO_KEEP_S, kept.clear)  # torch releases the GIL for that
            ending.daemon = True
            ending.start()

    for module in (c10d, sys.modules["torch.distributed"]):
        module.destroy_process_group = keep_and_destroy  # type: ignore[attr-defined]


def _find_gloo(c10d: Any, gloo: type, cpu: Any) -> Iterator[Any]:
    with contextlib.suppress(AttributeError):  # another version of torch
        for group in c10d._world.pg_map:  # noqa: SLF001
            with contextlib.suppress(RuntimeError):  # a group without a CPU backend
                backend = group._get_backend(cpu)  # noqa: SLF001
                if isinstance(backend, gloo):
                    yield backend


def hide_launcher() -> object | None:
    """Stop importing from the launcher's archive; return its importer, or None."""
    archive = find_archive(echelon)
    if archive in sys.meta_path:
        sys.meta_path.remove(archive)
        return archive
    return None


def keep_sockets_in(folder: str) -> None:
    """Have multiprocessing create its sockets in a folder that the agent removes.

    By default each process creates a folder in TMPDIR (`pymp-…`) and removes it at exit: a killed
    process leaves it behind.
    """
    if process := sys.modules.get("multiprocessing.process"):
        with contextlib.suppress(OSError):
            Path(folder).mkdir(mode=0o700, exist_ok=True)
            process.current_process()._config["tempdir"] = folder  # noqa: SLF001  no other way


def _wake_openblas() -> None:
    """Set OpenBLAS's number of threads, which the zygote limited to one for its import.

    OpenBLAS reads the variables only when it is loaded.
    """
    names = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")
    asked = (os.environ.get(name, "") for name in names)
    count = next((int(text) for text in asked if text.isdecimal() and int(text)), 0)
    with Path("/proc/self/maps").open(errors="replace") as lines:
        libraries = {line.split(maxsplit=5)[-1].strip() for line in lines if "openblas" in line}
    for path in libraries:
        with contextlib.suppress(OSError):  # a file with such a name that is not a library
            library = ctypes.CDLL(path)
            for name in _OPENBLAS_SETTERS:
                if setter := getattr(library, name, None):
                    setter(count or len(os.sched_getaffinity(0)))
                    break


def run_program(program: Program, error_file: Path) -> NoReturn:
    """Run a script or module as `__main__`, and exit like Python, but without its tear-down.

    Finalizing an interpreter with torch takes over a second for four ranks.
    """
    _leave(_run(program, error_file))


def _run(program: Program, error_file: Path) -> int:
    """Run it, print an exception like Python, and return the exit code; < 0 for a signal."""
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
    # A separate function: hooks must not run inside an `except` block.
    try:
        _enter_main(program)()
    except BaseException as error:  # noqa: BLE001  reported by the caller
        return error
    return None


def _enter_main(program: Program) -> Callable[[], object]:
    """Create a real `__main__` module, and return the function that runs the program in it."""
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
    path = os.path.abspath(program.argv[0])  # noqa: PTH100  keeps links, like Python
    main.__file__ = path
    main.__loader__ = SourceFileLoader("__main__", path)
    vars(main)["__cached__"] = None
    try:
        source = Path(path).read_bytes()
    except OSError as error:
        why = f"[Errno {error.errno}] {error.strerror}"
        sys.stderr.write(f"{sys.executable}: can't open file {path!r}: {why}\n")
        raise SystemExit(2) from None
    # Not the loader's `get_code`: it would read and write bytecode, which scripts do not have.
    code = compile(source, path, "exec", dont_inherit=True)
    return lambda: exec(code, vars(main))  # noqa: S102


def lead_path(folder: str) -> None:
    """Replace the launcher's entry at the start of `sys.path` with the program's folder."""
    sys.path[:1] = [] if sys.flags.safe_path else [folder]


def _show(error: BaseException) -> int:
    """Pass an exception to the program's `sys.excepthook`, and return the exit code."""
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    try:
        sys.excepthook(type(error), error, error.__traceback__)
    except SystemExit as leaving:
        return _exit_code(leaving)
    except BaseException as worse:  # noqa: BLE001  a broken hook must not hide the exception
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
    """Remove the launcher's frames from the start of a traceback."""
    own = {__file__, runpy.__file__, "<frozen runpy>"}
    while trace is not None and trace.tb_frame.f_code.co_filename in own:
        trace = trace.tb_next
    return trace


def _record(error: BaseException, path: Path) -> None:
    """Record an exception in the file and format that torchrun uses."""
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
    with contextlib.suppress(OSError):  # the disk may be full
        # The script may have written a better one with torch's @record.
        if not path.exists():
            path.write_text(json.dumps(record))


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  the script's own code
        return "<exception str() failed>"


def _format(error: BaseException) -> str:
    if error.__traceback__ is None:
        return ""
    return "".join(traceback.format_exception(error))[-_MAX_TRACEBACK:]


def read_record(path: Path) -> dict[str, Any]:
    """Return a rank's record of its exception, from us or the script; empty if there is none."""
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
    """Do what Python does for a program at exit, and exit."""
    with contextlib.suppress(BaseException):  # Ctrl-C only ends the wait for threads
        threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()  # noqa: SLF001
    _flush(sys.stdout, sys.stderr)
    with contextlib.suppress(BaseException):
        _free_main()
    _flush(sys.stdout, sys.stderr)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _free_main() -> None:
    """Free what the program holds: files are flushed, finalizers run, temporary files removed.

    Python clears all modules; here only `__main__` is freed, which is cheap.
    """
    for name in ("last_type", "last_value", "last_traceback"):
        vars(sys).pop(name, None)
    # Flush first: the collector may free a buffer before the text file that writes to it. Objects
    # of the zygote are frozen, and not listed here.
    buffers = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
    _flush(*(thing for thing in gc.get_objects() if issubclass(type(thing), buffers)))
    sys.modules.pop("__main__", None)
    gc.collect()


def _flush(*streams: Any) -> None:
    for stream in streams:
        with contextlib.suppress(Exception):  # closed, or without a reader
            stream.flush()
