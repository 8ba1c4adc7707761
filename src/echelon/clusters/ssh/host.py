"""Starts commands of Echelon on a login host, and exchanges messages with them.

A command's answer begins with a line that marks its start, because the profiles of shells may print
anything before it.
"""

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping
from typing import IO, TYPE_CHECKING, Any, Self

from echelon.clusters.ssh.call import LOST, MARK, Call
from echelon.clusters.ssh.connection import Connection
from echelon.clusters.ssh.failures import UnreachableError, explain_ssh, is_lost
from echelon.clusters.ssh.installed import FOLDER, find_id
from echelon.clusters.ssh.site import Site
from echelon.clusters.ssh.stream import Stream
from echelon.core.records import to_count
from echelon.core.shell import Shell
from echelon.core.userstate import state_folder
from echelon.errors import EchelonError, UnavailableError

if TYPE_CHECKING:
    import subprocess

_MOST_ERRORS = 1 << 16
_TYPES: Mapping[str, type] = {"out": str, "err": str, "at": dict}
"""Types of the parts of a command's output."""
BEAT_S = 5.0
"""Seconds between two signs of life to an attached command."""


class LostConnectionError(UnreachableError):
    """The connection broke after the command had started there."""


class Host:
    """The login host of a site."""

    def __init__(self, site: Site, shell: Shell, environ: Mapping[str, str]) -> None:
        self.site = site
        self.connection = Connection(site.host, shell, environ)
        state = state_folder(environ)
        self._folder = f"{FOLDER}/{find_id(site.python, state and state / 'brought.json')}"

    def start(self, call: Call) -> "Talk":
        """Start a command there; install Echelon there first, if it is missing.

        Raises:
            EchelonError: there is no connection, or Echelon cannot be installed.
        """
        talk = self._try(call)
        if talk is None:
            from echelon.clusters.ssh.install import install  # noqa: PLC0415

            install(self.connection, self.site.python, self._folder)
            talk = self._try(call)
        if talk is None:
            raise UnavailableError(
                f"Echelon does not start on {self.site.host}",
                hint=f"remove its copy there, and try again: ssh {self.site.host} "
                f"rm -r {self._folder}",
            )
        return talk

    def _try(self, call: Call) -> "Talk | None":
        line = self._line("light" if call.light else "")
        talk = Talk(self.site.host, self.connection.open(line))
        with contextlib.suppress(OSError):  # the command has already ended
            talk.input.write(f"{call.encode()}\n".encode())
            talk.input.flush()
        if talk.has_begun():
            return talk
        code, errors = talk.finish()
        if is_lost(code):
            raise explain_ssh(self.site.host, errors)
        return None

    def _line(self, word: str) -> str:
        return f'exec /bin/sh "$HOME/{self._folder}/echelon" {word}'

    def show(self, call: Call) -> int:
        """Run a command there in our terminal, and return its exit code, or LOST."""
        self.start(Call(argv=(), folder="~")).finish()  # installs Echelon if it is missing
        code = self.connection.open(self._line(call.encode()), terminal=True).wait()
        return LOST if is_lost(code) else code


class Talk:
    """A command that runs on the host."""

    def __init__(self, host: str, program: "subprocess.Popen[bytes]") -> None:
        assert program.stdin is not None
        assert program.stdout is not None
        self._host, self._program = host, program
        self.input: IO[bytes] = program.stdin
        self.output: IO[bytes] = program.stdout
        self._errors = bytearray()
        self._drain = threading.Thread(target=self._read_errors, daemon=True)
        self._drain.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_error: object) -> None:
        """Wait for the command's end; end it now after an error."""
        self.close() if kind else self.finish()

    def _read_errors(self) -> None:
        assert self._program.stderr is not None
        with contextlib.suppress(OSError, ValueError):
            while chunk := self._program.stderr.read1(1 << 14):  # type: ignore[attr-defined]
                self._errors += chunk
                del self._errors[:-_MOST_ERRORS]

    def keep_alive(self) -> None:
        """Send signs of life until the command ends, even while nobody reads its frames."""

        def beat() -> None:
            with contextlib.suppress(OSError, ValueError):  # the input is closed
                while self._program.poll() is None:
                    self.input.write(b"\n")
                    self.input.flush()
                    time.sleep(BEAT_S)

        threading.Thread(target=beat, daemon=True).start()

    def has_begun(self) -> bool:
        """Wait for the line that marks the command's start; False if it does not come."""
        while line := self.output.readline(1 << 16):
            if line.endswith(MARK):
                return True
        return False

    def output_parts(self) -> Iterator[tuple[str, Any]]:
        """Yield the command's output as `out` and `err`, and at last `end` with its exit code.

        Between them, a command that follows a run sends `at` with how far it has printed.

        Raises:
            LostConnectionError: the connection broke before the end.
        """
        with self.stream() as stream:
            while True:
                [(kind, value)] = list(stream.receive().items())[:1] or [("", None)]
                code = to_count(value, below=LOST + 1) if kind == "end" else None
                if code is None and not isinstance(value, _TYPES.get(kind, ())):
                    raise stream.refuse(f"a message '{kind[:80]}'")
                yield kind, value
                if code is not None:
                    return

    @contextlib.contextmanager
    def stream(self) -> Iterator[Stream]:
        """Yield the stream of a command that answers with one.

        Raises:
            LostConnectionError: the connection broke.
            EchelonError: the command reported this error.
        """
        stream = Stream(self.output, self.input, peer=self._host)  # type: ignore[arg-type]
        try:
            yield stream
        except UnavailableError as error:
            if stream.is_cut:
                raise self.explain() from error
            raise

    def finish(self) -> tuple[int, str]:
        """Wait for the command's end; return ssh's exit code, and its stderr."""
        with contextlib.suppress(OSError):
            self.input.close()
        code = self._program.wait()
        self._drain.join(timeout=1)
        for pipe in (self.output, self._program.stderr):
            if pipe is not None and not self._drain.is_alive():
                pipe.close()
        return code, self._errors.decode(errors="replace")

    def close(self) -> None:
        """End the command now."""
        self._program.terminate()
        self.finish()

    def explain(self) -> EchelonError:
        """Return why the command ended too early: an error of ssh, or its own."""
        code, errors = self.finish()
        if is_lost(code):
            known = explain_ssh(self._host, errors)
            return LostConnectionError(known.message, hint=known.hint)
        message = (errors.strip().splitlines() or ["no message"])[-1]
        return EchelonError(
            f"the command on {self._host} ended with exit code {code}: {message}",
            hint="this is a bug: please report it with the output of `echelon --debug …`",
        )
