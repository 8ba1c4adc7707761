"""The one place that runs programs.

Everything else takes a `Shell` as an argument, so that tests can pass a `FakeShell` instead of
patching subprocess.
"""

import os
import select
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, Protocol

from echelon.core.frozen import frozen
from echelon.errors import CommandError, MissingProgramError, TimedOutError


@frozen
class Result:
    """How a program exited, and its output."""

    argv: tuple[str, ...]
    code: int = 0
    """Exit code; negative for a signal, as in `subprocess`."""
    stdout: str = ""
    stderr: str = ""

    def check(self, *, hint: str = "") -> "Result":
        """Return self.

        Raises:
            CommandError: the program exited with a code other than 0.
        """
        if self.code != 0:
            raise CommandError(self.argv, self.code, self.stderr, hint=hint)
        return self


class Shell(Protocol):
    """Five ways to use a program: run it, talk to it, leave it running, become it, find it."""

    def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: str = "",
        timeout_s: float | None = None,
        keep: Sequence[int] = (),
    ) -> Result:
        """Run a program and return its output. It inherits the file descriptors in `keep`.

        Raises:
            MissingProgramError: it is not installed.
            TimedOutError: it took longer than `timeout_s`; it and its children have been killed.
        """

    def open(
        self, argv: Sequence[str], *, terminal: bool = False, log: BinaryIO | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a program, and return it with pipes to its input, output and errors.

        Args:
            argv: the program and its arguments.
            terminal: without pipes: it reads and writes what we do.
            log: without pipes: it has no input, and writes to this file.

        Raises:
            MissingProgramError: it is not installed.
        """

    def start(
        self,
        argv: Sequence[str],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        keep: Sequence[int] = (),
        stdin: bytes = b"",
    ) -> int:
        """Start a program in its own session, append its output to `log`, and return its pid.

        It inherits the file descriptors in `keep` and no others. The caller may wait for it. Its
        input is `stdin`, at most a pipe's 4 KiB: unlike arguments and variables, nobody can
        read it in /proc once the program has.
        """

    def replace(self, argv: Sequence[str], *, env: Mapping[str, str]) -> NoReturn:
        """Replace this process: signals, terminal and exit code are the program's."""

    def which(self, program: str) -> Path | None:
        """Return the path of a program, or None."""


_waited = 0
"""Programs whose exit codes `LocalShell.run` waits for."""
_counting = threading.Lock()


@contextmanager
def _waited_for() -> Iterator[None]:
    global _waited  # noqa: PLW0603
    with _counting:
        _waited += 1
    try:
        yield
    finally:
        with _counting:
            _waited -= 1


def collect_children() -> list[tuple[int, int]] | None:
    """Collect all children that have exited; return their pids and states.

    Returns None, and collects none, while `LocalShell.run` waits for a program in another thread:
    it would never learn the program's exit code, and take it for 0.
    """
    found = []
    with _counting, suppress(ChildProcessError):
        if _waited:
            return None
        while (one := os.waitpid(-1, os.WNOHANG))[0]:
            found.append(one)
    return found


def _open_program(
    argv: Sequence[str], env: Mapping[str, str] | None, keep: Sequence[int]
) -> "subprocess.Popen[str]":
    try:
        return subprocess.Popen(
            argv,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            # In its own process group, so that a time-out also kills its children.
            process_group=0,
            pass_fds=keep,
        )
    except FileNotFoundError as error:
        raise MissingProgramError(argv[0]) from error


class LocalShell:
    """Runs real programs."""

    def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: str = "",
        timeout_s: float | None = None,
        keep: Sequence[int] = (),
    ) -> Result:
        with _waited_for(), _open_program(argv, env, keep) as child:
            try:
                stdout, stderr = child.communicate(stdin, timeout=timeout_s)
            except subprocess.TimeoutExpired as error:
                signal_group(child.pid)
                raise TimedOutError(
                    f"'{argv[0]}' did not exit within {timeout_s:g} s",
                    hint=f"the full command was: {' '.join(argv)}",
                ) from error
            except BaseException:
                # After an interrupt, communicate() has waited a moment for the child.
                signal_group(child.pid)
                raise
        return Result(argv=tuple(argv), code=child.returncode, stdout=stdout, stderr=stderr)

    def open(
        self, argv: Sequence[str], *, terminal: bool = False, log: BinaryIO | None = None
    ) -> subprocess.Popen[bytes]:
        pipe = None if terminal else subprocess.PIPE
        output = log or pipe
        try:
            return subprocess.Popen(
                argv, stdin=subprocess.DEVNULL if log else pipe, stdout=output, stderr=output
            )
        except FileNotFoundError as error:
            raise MissingProgramError(argv[0]) from error

    def start(
        self,
        argv: Sequence[str],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        keep: Sequence[int] = (),
        stdin: bytes = b"",
    ) -> int:
        with log.open("ab") as output:
            try:
                child = subprocess.Popen(
                    argv,
                    env=env,
                    stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                    pass_fds=keep,
                )
            except FileNotFoundError as error:
                raise MissingProgramError(argv[0]) from error
        if child.stdin:
            assert len(stdin) <= select.PIPE_BUF, "a larger write could block"
            with suppress(BrokenPipeError), child.stdin:  # it may have exited already
                child.stdin.write(stdin)
        # It outlives us on purpose: otherwise Popen would warn when it is garbage-collected.
        child.returncode = 0
        return child.pid

    def replace(self, argv: Sequence[str], *, env: Mapping[str, str]) -> NoReturn:
        try:
            os.execvpe(argv[0], list(argv), env)  # noqa: S606  without a shell on purpose
        except FileNotFoundError as error:
            raise MissingProgramError(argv[0]) from error

    def which(self, program: str) -> Path | None:
        # On Debian, daemons are in folders that are not on an ordinary user's PATH.
        path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
        found = shutil.which(program, path=path)
        return Path(found) if found else None


def signal_group(pid: int, number: int = signal.SIGKILL) -> None:
    """Signal the process group of a program, which may have exited already."""
    with suppress(ProcessLookupError):
        os.killpg(pid, number)


@dataclass(slots=True)
class FakeShell:
    """A shell for tests: returns prepared results, records every call, and runs nothing."""

    answers: Mapping[str, str | Result | Callable[[Sequence[str]], Result]] = field(
        default_factory=dict
    )
    """Prefix of a command line → its stdout, its result, or a function of its argv.

    The longest match wins.
    """
    programs: Sequence[str] | None = None
    """What `which` finds; None for everything."""
    calls: list[tuple[str, ...]] = field(default_factory=list)

    class Replaced(BaseException):
        """Raised by `replace`, because the real one never returns."""

    def run(self, argv: Sequence[str], **_options: Any) -> Result:
        self.calls.append(tuple(argv))
        line = " ".join(argv)
        known = [key for key in self.answers if line.startswith(key)]
        if not known:
            raise AssertionError(f"FakeShell has no answer for: {line}")
        answer = self.answers[max(known, key=len)]
        if isinstance(answer, str):
            return Result(argv=tuple(argv), stdout=answer)
        return answer if isinstance(answer, Result) else answer(argv)

    def open(self, argv: Sequence[str], **_options: Any) -> subprocess.Popen[bytes]:
        raise AssertionError(f"FakeShell cannot talk to: {' '.join(argv)}")

    def start(self, argv: Sequence[str], **_options: Any) -> int:
        self.calls.append(tuple(argv))
        return 2**22 + len(self.calls)  # above the kernel's largest pid: never a real process

    def replace(self, argv: Sequence[str], *, env: Mapping[str, str]) -> NoReturn:
        self.calls.append(tuple(argv))
        raise self.Replaced(argv, env)

    def which(self, program: str) -> Path | None:
        if self.programs is not None and program not in self.programs:
            return None
        return Path("/usr/bin") / program
