"""Finds the Python programs that a job script launches, directly or through other scripts.

Commands are unwrapped layer by layer: `srun apptainer exec … bash -c 'torchrun train.py'` is one
launch. Each shell script on the way is read as well.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from echelon.core.frozen import frozen
from echelon.lint.bash import Command, Shell, Where, Word
from echelon.lint.files import Files, Place, find_file
from echelon.lint.patterns import pattern
from echelon.lint.reading import read_shell
from echelon.lint.request import Amounts, read_srun, read_step

_MOST_LAYERS = 50
"""Maximum number of wrapper programs in front of a command."""
_DEEPEST = 6
"""Maximum nesting of shells."""
_MOST_SHELLS = 100
_MOST_TEXT = 1_000_000
"""Maximum number of shells to read, and of their characters in total."""
_SHELLS = frozenset({"bash", "sh", "zsh", "ksh", "dash"})
_WRAPPERS = frozenset(
    {
        *("exec", "command", "nohup", "time", "env", "nice", "ionice", "stdbuf", "numactl"),
        *("taskset", "timeout", "setsid", "unbuffer", "conda", "mamba", "micromamba", "uv"),
        *("poetry", "pixi", "singularity", "apptainer", "docker", "podman", "podman-hpc"),
        *("shifter", "enroot", "ch-run", "nsys", "ncu", "catchsegv", "xvfb-run", "strace"),
        *("then", "do", "!", "sudo", "hpcrun", "map", "likwid-pin"),
    }
)
_MPI = frozenset({"mpirun", "mpiexec", "orterun", "jsrun", "aprun", "prun"})
_STARTERS = _SHELLS | _WRAPPERS | _MPI | {"srun", "torchrun", "deepspeed", "accelerate"}
_ELSEWHERE = frozenset({"ssh", "pdsh", "clush", "parallel", "pssh", "xargs"})
"""Programs that run a command on other hosts, or many times."""
_PYTHON = pattern(r"(?:.*/)?(?:ipython|pypy|python)[0-9.]*", re.IGNORECASE)
_PYTHON_VARIABLE = pattern(r"\$\{?\w*PYTHON(?:_BIN|_EXE|_CMD)?\}?", re.IGNORECASE)
_LAUNCH_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "launch",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
}
_FLAGS = frozenset(
    {
        *("standalone", "use-env", "no-python", "module", "m", "multi-gpu", "cpu", "use-deepspeed"),
        *("use-fsdp", "tpu", "debug", "dynamo-use-dynamic", "same-network", "quiet", "q", "ipex"),
        *("use-xpu", "use-megatron-lm", "force-slurm", "no-ssh", "no-local-rank", "autotuning-run"),
        *("dynamo-use-fullgraph", "use-cpu", "mps", "force-multi", "fp16", "h", "help"),
        *("signals-to-handle-none", "event-log-handler-none", "duplicate-stdout-filters-none"),
    }
)
"""Options of launchers that take no value."""


@frozen
class Launcher:
    """A program that starts the ranks of a node."""

    kind: str
    """torchrun, launch, accelerate or deepspeed."""
    options: Mapping[str, Word]
    """By name, with dashes instead of underscores."""
    complete: bool
    """False if an unknown variable may contain more options."""

    @property
    def name(self) -> str:
        """The name to show in messages."""
        return "torch.distributed.launch" if self.kind == "launch" else self.kind

    def option(self, *names: str) -> Word | None:
        return next((self.options[name] for name in names if name in self.options), None)


@frozen
class Launch:
    """A Python program that the script starts, and how."""

    path: str
    """The file of the command that starts it."""
    line: int
    command: Command
    """The outermost command, in the job script."""
    inner: Command
    """The command of the shell that starts the program itself."""
    amounts: Amounts
    """Resources of the step, or of the job if there is no step."""
    srun: Mapping[str, Word] | None = None
    """Options of srun; None without srun."""
    mpi: bool = False
    elsewhere: bool = False
    """Started through a program such as ssh or parallel."""
    launcher: Launcher | None = None
    program: Word | None = None
    """The Python file, or the module given with -m."""
    module: bool = False
    arguments: tuple[Word, ...] = ()
    variables: frozenset[str] = frozenset()
    """Variables that wrappers set, such as RANK=$SLURM_PROCID."""

    @property
    def parallel(self) -> bool:
        """Whether it may start several ranks."""
        return self.srun is not None or self.mpi or self.launcher is not None

    def place_of(self, word: Word | None, script: str) -> Place:
        """Return the place of an argument; that of the launch if `script` does not contain it."""
        return Place(self.path, word.line if word and self.path == script else self.line)


@dataclass(slots=True)
class Found:
    """The result of the search."""

    launches: list[Launch]
    shells: list[Shell]
    """All shells that were read, the job script first."""
    sruns: list[tuple[Command, Mapping[str, Word], tuple[Word, ...]]]
    """Each srun command with its options and the command it starts."""


def find_launches(shell: Shell, job: Amounts, files: Files) -> Found:
    """Return all launches of a job script."""
    found = Found(launches=[], shells=[shell], sruns=[])
    _Finder(job, files, found).search(shell, _State(amounts=job, variables=frozenset()))
    return found


@frozen
class _State:
    """What the layers unwrapped so far have set."""

    amounts: Amounts
    variables: frozenset[str]
    srun: Mapping[str, Word] | None = None
    mpi: bool = False
    elsewhere: bool = False
    command: Command | None = None
    depth: int = 0
    layers: int = 0
    written: tuple[Shell, ...] = ()
    """The enclosing shells, whose here-documents may have written the file."""
    entered: frozenset[tuple[str, Where]] = frozenset()
    """The texts of the enclosing shells, because a script may start itself."""


class _Finder:
    def __init__(self, job: Amounts, files: Files, found: Found) -> None:
        self._job, self._files, self._found = job, files, found
        self._text = 0

    def search(self, shell: Shell, state: _State) -> None:
        names = {a.name for a in shell.assignments} if shell.where is Where.TASK else set()
        state = replace(
            state,
            variables=state.variables | names,
            written=(*state.written, shell),
            entered=state.entered | {(shell.text, shell.where)},
        )
        for command in shell.commands:
            own = {assignment.name for assignment in command.assignments}
            self._peel(
                command,
                command.words,
                replace(
                    state,
                    command=state.command or command,
                    variables=state.variables | own,
                ),
            )

    def _peel(self, command: Command, words: tuple[Word, ...], state: _State) -> None:
        """Unwrap one layer and continue with the command inside."""
        if not words or state.layers >= _MOST_LAYERS:
            return
        state = replace(state, layers=state.layers + 1)
        name = PurePosixPath(words[0].text).name
        if name == "srun":
            options, rest = read_srun(words[1:])
            self._found.sruns.append((command, options, rest))
            amounts = read_step(self._job, options)
            state = replace(state, srun=options, amounts=amounts)
            self._peel(command, rest, state)
        elif name in _MPI or name in _ELSEWHERE:
            state = replace(state, mpi=state.mpi or name in _MPI, elsewhere=name in _ELSEWHERE)
            self._peel(command, _skip(words[1:]), state)
        elif name in _WRAPPERS:
            set_here = {w.text.partition("=")[0] for w in words[1:] if "=" in w.text}
            state = replace(state, variables=state.variables | set_here)
            self._peel(command, _skip(words[1:]), state)
        elif name in _SHELLS:
            self._enter_shell(command, words[1:], state)
        else:
            self._peel_program(name, command, words, state)

    def _peel_program(
        self, name: str, command: Command, words: tuple[Word, ...], state: _State
    ) -> None:
        """Handle Python, launchers and scripts."""
        if _is_python(words[0].text):
            self._enter_python(command, words[1:], state)
        elif name in ("torchrun", "deepspeed"):
            self._add_launcher(name, command, words[1:], state)
        elif name == "accelerate" and [word.text for word in words[1:2]] == ["launch"]:
            self._add_launcher("accelerate", command, words[2:], state)
        elif name.endswith((".py", ".sh")) or words[0].text.startswith("./"):
            self._enter_file(command, words, state)

    # --- nested shells ------------------------------------------------------------------

    def _enter_shell(self, command: Command, words: tuple[Word, ...], state: _State) -> None:
        rest, code = list(words), False
        while rest and rest[0].text.startswith("-"):
            flag = rest.pop(0).text
            code = code or (not flag.startswith("--") and "c" in flag)
        if code and rest:
            text = rest[0]
            self._enter(text, path=command.path, positional=tuple(rest[2:]), state=state)
        elif rest:
            self._enter_file(command, tuple(rest), state, told=True)
        elif command.stdin is not None:
            self._enter(command.stdin, path=command.path, positional=(), state=state)

    def _enter_file(
        self, command: Command, words: tuple[Word, ...], state: _State, *, told: bool = False
    ) -> None:
        name = words[0].text
        for around in reversed(state.written):
            for target, text in around.written.items():
                if PurePosixPath(target).name == PurePosixPath(name).name:
                    positional = tuple(words[1:])
                    self._enter(text, path=around.path, positional=positional, state=state)
                    return
        place = find_file(self._files, name, (command.path, ""))
        source = self._files.read(place) if place else None
        first = (source or "").split("\n", 1)[0]
        if name.endswith(".py") or (first.startswith("#!") and "python" in first):
            self._add(command, state, program=words[0], arguments=words[1:])
        elif source is not None and (told or name.endswith(".sh") or "sh" in first[:30]):
            script = Word(text=source, line=1, text_line=1)
            self._enter(script, path=place, positional=tuple(words[1:]), state=state)

    def _enter(self, text: Word, *, path: str, positional: tuple[Word, ...], state: _State) -> None:
        assert state.command is not None
        where = Where.TASK if state.srun is not None or state.mpi else Where.BATCH
        if (text.text, where) in state.entered or not self._may_read(text.text, state.depth):
            return
        values = state.command.moment.values()
        if where is Where.TASK:  # they differ between tasks
            for name in ("SLURM_NODEID", "SLURM_PROCID", "SLURM_LOCALID"):
                values.pop(name, None)
        shell = read_shell(
            text.text,
            path=path,
            where=where,
            first_line=text.text_line or text.line,
            literal=bool(text.text_line),
            values=values,
            positional=positional,
        )
        self._found.shells.append(shell)
        self.search(shell, replace(state, depth=state.depth + 1))

    def _may_read(self, text: str, depth: int) -> bool:
        """Tell whether the limits allow one more shell."""
        self._text += len(text)
        few = len(self._found.shells) < _MOST_SHELLS and self._text <= _MOST_TEXT
        return few and depth < _DEEPEST

    # --- Python -------------------------------------------------------------------------

    def _enter_python(self, command: Command, words: tuple[Word, ...], state: _State) -> None:
        rest = list(words)
        while rest and rest[0].text.startswith("-"):
            flag = rest.pop(0).text
            if flag in ("-W", "-X") and rest:
                rest.pop(0)
            elif flag.startswith("-m") or (flag == "-um"):
                module = flag[2:] if flag.startswith("-m") and flag != "-m" else ""
                module = module or (rest.pop(0).text if rest else "")
                if module in _LAUNCH_MODULES:
                    kind = _LAUNCH_MODULES[module]
                    self._add_launcher(kind, command, tuple(rest), state)
                    return
                word = replace(words[0], text=module)
                self._add(command, state, program=word, module=True, arguments=tuple(rest))
                return
            elif flag in ("-c", "-", "-V", "--version", "-h", "--help"):
                return
        if rest:
            self._add(command, state, program=rest[0], arguments=tuple(rest[1:]))

    def _add_launcher(
        self, kind: str, command: Command, words: tuple[Word, ...], state: _State
    ) -> None:
        options, rest, complete = _read_options(words)
        launcher = Launcher(kind=kind, options=options, complete=complete)
        module = "module" in options or "m" in options
        self._add(
            command,
            state,
            launcher=launcher,
            program=rest[0] if rest else None,
            module=module,
            arguments=tuple(rest[1:]),
        )

    def _add(
        self,
        command: Command,
        state: _State,
        *,
        program: Word | None,
        arguments: tuple[Word, ...],
        launcher: Launcher | None = None,
        module: bool = False,
    ) -> None:
        assert state.command is not None
        self._found.launches.append(
            Launch(
                path=command.path,
                line=command.line,
                command=state.command,
                inner=command,
                amounts=state.amounts,
                srun=state.srun,
                mpi=state.mpi,
                elsewhere=state.elsewhere,
                launcher=launcher,
                program=program,
                module=module,
                arguments=arguments,
                variables=state.variables,
            )
        )


def _is_python(text: str) -> bool:
    return bool(_PYTHON.fullmatch(text) or _PYTHON_VARIABLE.fullmatch(text))


def _skip(words: tuple[Word, ...]) -> tuple[Word, ...]:
    """Skip the options of a wrapper, up to the program that it starts."""
    for number, word in enumerate(words):
        name = PurePosixPath(word.text).name
        if name in _STARTERS or _is_python(word.text) or re.search(r"\.(py|sh)$", name):
            return words[number:]
    return ()


def _read_options(words: tuple[Word, ...]) -> tuple[dict[str, Word], list[Word], bool]:
    """Return the options of a launcher, the words after them, and whether all options are known."""
    options: dict[str, Word] = {}
    rest, complete = list(words), True
    while rest and (rest[0].text.startswith("-") or _is_hidden(rest)):
        word = rest.pop(0)
        if not word.text.startswith("-"):
            complete = False
            continue
        name, equals, value = word.text.lstrip("-").partition("=")
        name = _whole_name(name.replace("_", "-"))
        if equals or name in _FLAGS or not rest:
            options[name] = replace(word, text=value)
        else:
            options[name] = rest.pop(0)
    return options, rest, complete


def _is_hidden(words: list[Word]) -> bool:
    """Tell whether the next word is an unknown variable that may contain options."""
    word = words[0]
    script = word.text.endswith(".py")
    return word.text.startswith("$") and not word.known and not script and len(words) > 1


_LONG_NAMES = (
    *("nnodes", "nproc-per-node", "node-rank", "master-addr", "master-port", "standalone"),
    *("rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "max-restarts"),
)


def _whole_name(name: str) -> str:
    """Complete an abbreviated option: launchers accept --nnode for --nnodes."""
    found = [long for long in _LONG_NAMES if long.startswith(name)]
    return found[0] if len(found) == 1 and len(name) > 3 else name
