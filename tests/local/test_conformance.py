"""A warm rank is forked, not started: its program must not be able to tell, save as written here.

Every program runs both ways, plainly and under `echelon run`, and both must print the same, end the
same way and leave the same files.
"""

import ast
import json
import signal
import subprocess
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from started_programs import clean_environment, run_plainly, run_warm

COLD_START = "--set=preload="
"""Nothing is imported beforehand: quicker, where torch is not what a program is about."""

# --- what a program finds ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that a program can find out about its process."""

    name: str
    expression: str
    differs: str = ""
    """Why it is not the same in a warm rank, where it is not."""

    def __str__(self) -> str:
        return self.name


FACTS = [
    Fact("argv", "sys.argv"),
    Fact("orig_argv", "sys.orig_argv"),
    Fact("name", "__name__"),
    Fact("file", "__file__"),
    Fact("spec", "__spec__"),
    Fact("package", "__package__"),
    Fact("doc", "__doc__"),
    Fact("builtins", "__builtins__ is sys.modules['builtins']"),
    Fact("loader", "type(__loader__).__name__, __loader__.name, __loader__.path"),
    Fact("globals", "sorted(name for name in globals() if name.startswith('__'))"),
    Fact("main is a module", "vars(sys.modules['__main__']) is globals()"),
    Fact("path", "sys.path"),
    Fact("a neighbour module", "neighbour.__file__, neighbour.word"),
    Fact("echelon is the installed one", "__import__('echelon').__file__"),
    Fact("executable", "sys.executable, sys.prefix"),
    Fact("flags", "sys.flags"),
    Fact("warnoptions", "sys.warnoptions"),
    Fact("warning filters", "[f[:2] + f[3:] for f in warnings.filters]"),
    Fact("hooks", "sys.excepthook, sys.unraisablehook, threading.excepthook"),
    Fact("recursion limit", "sys.getrecursionlimit()"),
    Fact("switch interval", "sys.getswitchinterval()"),
    Fact("collector", "gc.isenabled(), gc.get_threshold()"),
    Fact("threads", "[t.name for t in threading.enumerate()]"),
    Fact("main thread", "threading.current_thread() is threading.main_thread()"),
    Fact("signal handlers", "{s: signal.getsignal(s) for s in signal.Signals}"),
    Fact("blocked signals", "signal.pthread_sigmask(signal.SIG_BLOCK, [])"),
    Fact("wakeup", "signal.set_wakeup_fd(-1)"),
    Fact("stdin is at its end", "sys.stdin.read()"),
    Fact("streams", "[(s.encoding, s.errors, s.line_buffering, s.write_through) for s in STREAMS]"),
    Fact("terminal", "[s.isatty() for s in STREAMS]"),
    Fact("umask", "os.umask(0o22)"),
    Fact("folder", "os.getcwd()"),
    Fact("niceness", "os.nice(0)"),
    Fact("limits", "[resource.getrlimit(number) for number in range(16)]"),
    Fact("locale", "locale.setlocale(locale.LC_ALL)"),
    Fact("hash seed", "os.environ.get('PYTHONHASHSEED')"),
    Fact("threads for OpenMP", "os.environ.get('OMP_NUM_THREADS')"),
    Fact("variables", "sorted(set(os.environ) - EXTRA)"),
    Fact("process name", "open('/proc/self/comm').read()"),
    Fact("open files", "len([path for path in open_files() if not path.endswith('.stacks')])"),
    Fact("a file for stacks", "len(open_files())", "where it writes them when asked"),
    Fact("fault handler", "faulthandler.is_enabled()", "a crash leaves its stacks in the log"),
    Fact("frozen objects", "gc.get_freeze_count() > 0", "the zygote's; they are never looked at"),
    Fact("session", "os.getsid(0) == os.getpid()", "its own, so that all of it can be ended"),
    Fact("frames below", "sys._getframe(1).f_back is not None", "the launcher's"),
    Fact("command line", "b'zygote' in open('/proc/self/cmdline', 'rb').read()", "the zygote's"),
]
TORCH_FACTS = [
    Fact("torch's numbers, once seeded", "torch.manual_seed(1), torch.rand(3).tolist()"),
    Fact("torch's threads", "torch.get_num_threads(), torch.get_num_interop_threads()"),
    Fact("CUDA is untouched", "torch.cuda.is_initialized(), torch.cuda.device_count()"),
    Fact("default type", "torch.get_default_dtype(), torch.get_default_device()"),
    Fact("modes", "torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled()"),
    Fact("process groups", "torch.distributed.is_initialized()"),
    Fact("start method", "torch.multiprocessing.get_start_method(allow_none=True)"),
    Fact("torch's warning filters", "[f[:2] + f[3:] for f in warnings.filters]"),
    Fact("threads of numpy's algebra", "len(os.listdir('/proc/self/task'))"),
    Fact("a loader that forks", "list(DataLoader(range(6), num_workers=2, batch_size=2))"),
]
# Beside torchrun's: docs/reference/environment.md.
RANK_VARIABLES = {
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
    *("ROLE_RANK", "ROLE_NAME", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"),
    *("TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE"),
    *("TORCH_NCCL_ASYNC_ERROR_HANDLING", "OMP_NUM_THREADS"),
}
OWN_VARIABLES = {
    "ECHELON_RUN_DIR": "where the run's files are",
    "ECHELON_GENERATION": "how often the ranks were started before",
    "ECHELON_BEACON": "where a rank shows its step",
    "ECHELON_LAST_SAVED": "what to resume from",
    "ECHELON_TRACKER_ID": "a name that stays the same over restarts and jobs",
    "WANDB_RUN_ID": "W&B continues one curve",
    "WANDB_RESUME": "likewise",
    "GLOO_SOCKET_IFNAME": "the interface that leads to rank 0",
    "NCCL_SOCKET_IFNAME": "likewise",
    "PYTHONUNBUFFERED": "a print before a crash must not die in a buffer",
}
BASHS_VARIABLES = {"_", "SHLVL", "PWD", "OLDPWD"}
"""A job's script is a script of bash."""

_FACTS_SCRIPT = """\
'''What it finds.'''
import faulthandler, gc, locale, os, resource, signal, sys, threading, warnings
STREAMS = [sys.stdin, sys.stdout, sys.stderr]
EXTRA = {extra}
def open_files():
    return [os.path.realpath(f"/proc/self/fd/{{n}}") for n in os.listdir("/proc/self/fd")]
{head}
for name, expression in {facts}:
    print(repr((name, repr(eval(expression)))))
"""
_TORCH_HEAD = """\
import numpy, torch
from torch.utils.data import DataLoader
numpy.ones((500, 500)) @ numpy.ones((500, 500))
"""


def _find_facts(where, facts, head, *words, files):
    """Return name → what it is plainly and in a warm rank."""
    extra = RANK_VARIABLES | set(OWN_VARIABLES) | BASHS_VARIABLES
    pairs = [(fact.name, fact.expression) for fact in facts]
    script = _FACTS_SCRIPT.format(extra=extra, head=head, facts=pairs)
    env = clean_environment(OMP_NUM_THREADS="2")
    found = []
    for way, start, flags in (("plain", run_plainly, []), ("warm", run_warm, words)):
        folder = where / way / "folder"
        (folder / "sub").mkdir(parents=True)
        for name, content in {"sub/train.py": script, **files}.items():
            (folder / name).write_text(content)
        arguments = ["sub/train.py", "a", "b c", "--lr=1", "--", "-x"]
        ran = start(folder, *flags, *arguments, env=env, umask=0o027)
        assert ran.status == 0, ran.output + ran.told
        assert way == "plain" or ran.warm()
        found.append(dict(ast.literal_eval(line) for line in ran.output.splitlines()))
    plain, warm = found
    return {name: (plain[name], warm[name]) for name in plain}


@pytest.fixture(scope="module")
def facts(tmp_path_factory):
    where = tmp_path_factory.mktemp("facts")
    neighbour = {"sub/neighbour.py": "word = 'here'\n"}
    return _find_facts(where, FACTS, "import neighbour", COLD_START, files=neighbour)


@pytest.fixture(scope="module")
def torch_facts(tmp_path_factory):
    return _find_facts(tmp_path_factory.mktemp("facts"), TORCH_FACTS, _TORCH_HEAD, files={})


def _compare(fact, plain, warm):
    if fact.differs:
        assert plain != warm, f"it is the same by now: {fact.differs}"
    else:
        assert plain == warm


@pytest.mark.parametrize("fact", FACTS, ids=str)
def test_a_warm_rank_finds_what_a_plain_process_finds(facts, fact):
    _compare(fact, *facts[fact.name])


@pytest.mark.parametrize("fact", TORCH_FACTS, ids=str)
def test_a_warm_rank_finds_torch_as_it_is_after_an_import(torch_facts, fact):
    _compare(fact, *torch_facts[fact.name])


# --- what a program does ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Case:
    """A program, and how it ends."""

    name: str
    script: str
    status: int = 0
    """A signal's number, negative."""
    files: dict[str, str] = field(default_factory=dict)
    """Beside the script."""
    words: tuple[str, ...] = ("train.py", "a", "b")
    env: dict[str, str] = field(default_factory=dict)
    preload: str = ""
    adds: str = ""
    """What a warm rank may print besides, and where: a reason."""

    def __str__(self) -> str:
        return self.name


CASES = [
    Case(
        "a module with relative imports",
        "",
        files={
            "pkg/__init__.py": "print('package', __name__)\n",
            "pkg/near.py": "word = __name__\n",
            "pkg/mod.py": """\
                import sys
                from . import near
                from .near import word
                print(__name__, __package__, __spec__.name, __file__, sys.argv, sys.path[0], word)
                """,
        },
        words=("-m", "pkg.mod", "a", "b"),
    ),
    Case("a module that is not there", "", words=("-m", "pkg.no"), status=1),
    Case(
        "a script by another name",
        "",
        files={"real/other.py": "import sys, near; print(__file__, sys.argv, sys.path[0])\n"}
        | {"real/near.py": ""},
        words=("link.py",),
    ),
    Case(
        "functions of __main__ in other processes",
        """\
        import multiprocessing, os, sys

        def double(number):
            return number * 2, __name__, sys.argv

        if __name__ == "__main__":
            for method in ("fork", "spawn"):
                with multiprocessing.get_context(method).Pool(2) as pool:
                    print(method, pool.map(double, [1, 2, 3]))
                child = multiprocessing.get_context(method).Process(target=sys.exit, args=(5,))
                child.start()
                child.join()
                print(child.exitcode, multiprocessing.parent_process())
        """,
    ),
    Case(
        "classes of __main__, pickled; functions, shown",
        """\
        import inspect, pickle

        class Point:
            def __init__(self, x):
                self.x = x

        with open("point.pickle", "wb") as file:
            pickle.dump(Point(3), file)
        with open("point.pickle", "rb") as file:
            print(pickle.load(file).x, Point.__module__, Point)
        print(inspect.getsource(Point.__init__), inspect.getfile(Point))
        """,
    ),
    Case(
        "a usage error",
        """\
        import argparse
        parser = argparse.ArgumentParser()
        parser.add_argument("--lr", type=float)
        parser.parse_args()
        """,
        words=("train.py", "--lr", "much"),
        status=2,
    ),
    Case(
        "options of Python by variables",
        "import sys; print(sys.path, sys.flags, sys.warnoptions)",
        env={"PYTHONSAFEPATH": "1", "PYTHONWARNINGS": "error", "PYTHONOPTIMIZE": "1"},
    ),
    Case("a code", "import sys; print('x', end=''); sys.exit(3)", status=3),
    Case("a code beyond a byte", "import sys; sys.exit(256 + 7)", status=7),
    Case("a text for a code", "import sys; sys.exit('that is why')", status=1),
    Case(
        "an exception",
        """\
        def divide(by):
            try:
                return 1 / by
            except ZeroDivisionError as error:
                raise ValueError("no such number\\nat all") from error

        divide(0)
        """,
        status=1,
    ),
    Case(
        "a syntax error",
        "import broken",
        files={"broken.py": "def f(:\n    pass\n"},
        status=1,
    ),
    Case("Ctrl-C", "raise KeyboardInterrupt('enough')", status=-signal.SIGINT),
    Case("a sudden end", "import os; print('x', end=''); os._exit(7)", status=7),
    Case(
        "a kill",
        "import os, signal; print('last words', end=''); os.kill(os.getpid(), signal.SIGKILL)",
        status=-signal.SIGKILL,
    ),
    Case(
        "a crash",
        "import ctypes; print('before', flush=True); ctypes.string_at(0)",
        status=-signal.SIGSEGV,
        adds="Fatal Python error: Segmentation fault",
    ),
    Case(
        "handlers at exit, in their order, and threads before them",
        """\
        import atexit, threading, time
        atexit.register(print, "registered first")
        @atexit.register
        def fail():
            raise RuntimeError("in a handler")
        atexit.register(print, "registered last")
        def work():
            time.sleep(0.2)
            print("a thread ends")
        def idle():
            time.sleep(60)
            print("never")
        threading.Thread(target=work).start()
        threading.Thread(target=idle, daemon=True).start()
        print("the script ends")
        """,
    ),
    Case(
        "a thread that fails",
        """\
        import threading
        def work():
            raise RuntimeError("in a thread")
        threading.Thread(target=work, name="worker").start()
        """,
    ),
    Case(
        "a hook for exceptions",
        """\
        import atexit, sys
        def hook(kind, error, trace):
            print("hook", kind, error, trace.tb_lineno, sys.exc_info())
        sys.excepthook = hook
        atexit.register(lambda: print(sys.last_value))
        raise ValueError("for the hook")
        """,
        status=1,
    ),
    Case(
        "a hook that fails",
        """\
        import sys
        def hook(kind, error, trace):
            raise OSError("in the hook")
        sys.excepthook = hook
        raise ValueError("for the hook")
        """,
        status=1,
    ),
    Case(
        "files that nobody closed",
        """\
        import atexit, csv, gzip, logging, sys, tempfile, zipfile
        import keeper
        logging.basicConfig(filename="train.log", level="INFO")
        logging.info("begun")
        plain = open("plain.txt", "w")
        plain.write("abc")
        raw = open("raw.bin", "wb")
        raw.write(b"def")
        packed = gzip.GzipFile("packed.gz", "wb", mtime=0)
        packed.write(b"x" * 1000)
        archive = zipfile.ZipFile("archive.zip", "w")
        archive.writestr(zipfile.ZipInfo("member"), "y" * 1000)
        scratch = tempfile.NamedTemporaryFile(dir=".", prefix="scratch-")
        folder = tempfile.TemporaryDirectory(dir=".")
        keeper.keep(open("kept.txt", "w")).write("ghi")
        class Last:
            def __del__(self):
                print("finalized, and still knows", keeper.kept)
        last = Last()
        def cycle():
            return last, plain
        atexit.register(print, "handlers come first")
        """,
        files={"keeper.py": "kept = []\ndef keep(file):\n    kept.append(file)\n    return file\n"},
    ),
    Case(
        "files that nobody closed, after an exception",
        """\
        def write(rows):
            file = open("rows.txt", "w")
            file.write("abc")
            rows.append(file)
            raise ValueError("while it is open")
        rows = []
        write(rows)
        """,
        status=1,
    ),
    Case(
        "a process of its own",
        """\
        import os, subprocess, sys
        pid = os.fork()
        if pid == 0:
            print("child")
            sys.exit(4)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
        handles = "import os, signal; print(os.listdir('/proc/self/fd'), signal.getsignal(15))"
        print(subprocess.run([sys.executable, "-c", handles], capture_output=True).stdout)
        """,
    ),
    Case(
        "torch's loaders",
        """\
        import torch
        from torch.utils.data import DataLoader, Dataset, get_worker_info

        class Squares(Dataset):
            def __len__(self):
                return 6
            def __getitem__(self, index):
                return torch.tensor([index * index, get_worker_info().id])

        if __name__ == "__main__":
            for method in ("fork", "spawn"):
                loader = DataLoader(Squares(), 2, num_workers=2, multiprocessing_context=method)
                print(method, [batch.tolist() for batch in loader])
        """,
        preload="torch",
    ),
    Case(
        "torch's own processes",
        """\
        import os
        import torch
        import torch.multiprocessing as mp

        def work(rank, shared):
            shared[rank] = rank + 1

        if __name__ == "__main__":
            shared = torch.zeros(2).share_memory_()
            mp.spawn(work, (shared,), nprocs=2)
            print(shared.tolist())
        """,
        preload="torch",
    ),
]
SLOW = {"torch's loaders", "torch's own processes", "a code beyond a byte", "a thread that fails"}


def _lay_out(folder, case):
    folder.mkdir(parents=True)
    for name, content in {"train.py": case.script, **case.files}.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(content))
    if "real/other.py" in case.files:
        (folder / "link.py").symlink_to("real/other.py")


@pytest.mark.parametrize(
    "case",
    [pytest.param(c, id=c.name, marks=[pytest.mark.full] if c.name in SLOW else []) for c in CASES],
)
def test_a_program_does_the_same_both_ways(case, tmp_path):
    plainly, warmly = tmp_path / "plain" / "folder", tmp_path / "warm" / "folder"
    for folder in (plainly, warmly):
        _lay_out(folder, case)
    env = clean_environment(OMP_NUM_THREADS="1", **case.env)
    plain = run_plainly(plainly, *case.words, env=env)
    warm = run_warm(warmly, f"--set=preload={case.preload}", *case.words, env=env)
    assert warm.warm(), warm.told
    assert plain.status == case.status, plain.output
    assert warm.status == plain.status, warm.told
    if case.adds:
        assert warm.output.startswith(plain.output)
        assert case.adds in warm.output
    else:
        assert warm.output == plain.output
    assert warm.files == plain.files
    assert warm.code == (128 - case.status if case.status < 0 else case.status)


# --- what is not Python -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["hello.sh", *(pytest.param(n, marks=pytest.mark.full) for n in ("./a.sh", "sub/a.sh"))]
)
def test_a_program_of_another_kind_is_executed(name, tmp_path):
    program = tmp_path / name
    program.parent.mkdir(exist_ok=True)
    program.write_text(
        '#!/bin/sh\necho "$RANK of $WORLD_SIZE: $1, $OPENBLAS_NUM_THREADS"\nexit 4\n'
    )
    program.chmod(0o755)
    ran = run_warm(tmp_path, name, "a b", env=clean_environment())
    assert (ran.output, ran.status, ran.code) == ("0 of 1: a b, \n", 4, 4)
    assert not ran.warm()


def test_a_command_is_found_on_the_path(tmp_path):
    ran = run_warm(tmp_path, "printenv", "LOCAL_RANK", env=clean_environment())
    assert (ran.output, ran.code) == ("0\n", 0)


def test_a_file_that_may_not_be_executed_is_named(tmp_path):
    (tmp_path / "hello.sh").write_text("echo no\n")
    ran = run_warm(tmp_path, "hello.sh", env=clean_environment())
    assert ran.code == 126
    assert "cannot start hello.sh: Permission denied" in ran.output


def test_a_program_that_is_not_there_is_named(tmp_path):
    ran = run_warm(tmp_path, "no-such-program", env=clean_environment())
    assert ran.code != 0
    assert f"{tmp_path}/no-such-program does not exist" in ran.told
    assert not (tmp_path / "runs").exists(), "nothing is to be started"


def test_a_script_that_does_not_compile_is_refused_before_anything_starts(tmp_path):
    (tmp_path / "train.py").write_text("def f(:\n    pass\n")
    ran = run_warm(tmp_path, "train.py", env=clean_environment())
    assert ran.code != 0
    assert "does not compile: invalid syntax (train.py, line 1)" in ran.told


# --- several ranks ----------------------------------------------------------------------------


def test_ranks_draw_numbers_of_their_own_whenever_they_are_started(tmp_path):
    (tmp_path / "train.py").write_text(
        "import os, random, numpy, torch\n"
        "drawn = random.random(), numpy.random.rand(), torch.rand(1).item(), torch.initial_seed()\n"
        "print(*drawn)\n"
        "os._exit(os.environ['ECHELON_GENERATION'] == '0' and os.environ['RANK'] == '1')\n"
    )
    ran = run_warm(tmp_path, "--procs=2", "--restarts=1", "train.py", env=clean_environment())
    assert (ran.code, ran.warm()) == (0, True), ran.told
    drawn = ran.output.split()
    assert len(set(drawn)) == len(drawn) > 2 * 4


_TELL = """\
import json, os
with open(f"rank-{os.environ['RANK']}.json", "w") as file:
    json.dump(dict(os.environ), file)
"""


def _told(folder, count):
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(count)]


def test_ranks_are_told_what_torchrun_tells_them(tmp_path):
    ours, torchs = tmp_path / "ours", tmp_path / "torchs"
    for folder in (ours, torchs):
        folder.mkdir()
        (folder / "train.py").write_text(_TELL)
    env = clean_environment()
    env.pop("OMP_NUM_THREADS", None)
    ran = run_warm(ours, "--nodes=2", "--procs=2", COLD_START, "train.py", env=env)
    assert ran.code == 0, ran.told
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    subprocess.run([*launch, "train.py"], cwd=torchs, env=env, check=True, capture_output=True)

    found, expected = _told(ours, 4), _told(torchs, 2)
    given = set(expected[0]) - set(env) - {"TORCHELASTIC_SIGNALS_TO_HANDLE"}  # meant for torchrun
    assert given - set(found[0]) == set(), "torchrun tells more"
    assert set(found[0]) - set(env) - given - BASHS_VARIABLES == set(OWN_VARIABLES)
    assert given <= RANK_VARIABLES
    for name in ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "OMP_NUM_THREADS", "ROLE_NAME"):
        assert found[0][name] == expected[0][name]
    for rank, variables in enumerate(found):
        node, local_rank = divmod(rank, 2)
        places = {"RANK": rank, "ROLE_RANK": rank, "LOCAL_RANK": local_rank, "GROUP_RANK": node}
        sizes = {"WORLD_SIZE": 4, "ROLE_WORLD_SIZE": 4, "LOCAL_WORLD_SIZE": 2}
        rest = {"GROUP_WORLD_SIZE": 2, "TORCHELASTIC_RESTART_COUNT": 0}
        wanted = {**places, **sizes, **rest}
        assert {name: variables[name] for name in wanted} == {n: str(v) for n, v in wanted.items()}
    for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "ECHELON_RUN_DIR"):
        assert len({variables[name] for variables in found}) == 1
    assert len({variables["TORCHELASTIC_ERROR_FILE"] for variables in found}) == 4
    assert Path(found[0]["ECHELON_RUN_DIR"]).parent == ours / "runs"
