"""Executes a command on the login host for a user of another machine.

The answer on stdout begins with a line that marks its start. Then come messages: the command's
output, how far a run's output was printed, and the exit code. Commands that transfer files exchange
messages and data in both directions.
"""

import contextlib
import io
import json
import os
import select
import signal
import sys
import threading
from pathlib import Path
from typing import Any, NoReturn

from echelon.clusters.ssh.call import FOLLOW, LOST, MARK, SEND, SUBMIT, Call
from echelon.clusters.ssh.stream import PatientFile, Stream, describe_error
from echelon.core.atomic_file import make_private
from echelon.errors import EchelonError, NotFoundError, UsageError


def main(word: str) -> NoReturn:
    """Run a call, and exit with its code."""
    # With a terminal, stdin is the user's input, so the call is an argument.
    source = PatientFile(0)
    reader = io.BufferedReader(source)
    call = Call.decode(word or reader.readline().decode())
    for number in (signal.SIGTERM, signal.SIGHUP):
        # Exit without a last frame, so that the other machine sees a lost connection.
        signal.signal(number, lambda _number, _frame: os._exit(LOST))
    for name in ("ECHELON_RUNS_DIR", "ECHELON_CONFIG"):
        os.environ.pop(name, None)  # they are for commands of this machine's own users
    if call.columns:
        os.environ |= {"COLUMNS": str(call.columns), "LINES": str(call.lines)}
    if call.terminal and not call.prints_output:
        sys.exit(_run(call))  # ssh provides a terminal
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # other output must not be mistaken for the answer
    answer.write(MARK)
    answer.flush()
    stream = Stream(reader, answer, peer="the other machine")
    if not call.prints_output:
        source.patience_s = call.patience_s  # other commands may wait for a lock of this one
        sys.exit(_serve(call, stream))
    if call.attached:
        threading.Thread(target=_exit_on_disconnect, args=[call.patience_s], daemon=True).start()
    sys.stdout = SentOutput(stream, "out", terminal=call.terminal)
    sys.stderr = SentOutput(stream, "err", terminal=call.terminal)
    code = 70
    try:
        code = _run(call, stream)
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
    finally:
        with contextlib.suppress(EchelonError):
            stream.send({"end": code})
        os._exit(code)  # do not wait for the thread that reads


def _exit_on_disconnect(patience_s: float) -> None:
    while select.select([0], [], [], patience_s)[0] and os.read(0, 1 << 10):
        pass
    os.kill(os.getpid(), signal.SIGHUP)


def _run(call: Call, stream: Stream | None = None) -> int:
    from echelon.cli import console  # noqa: PLC0415
    from echelon.cli.main import explain, run  # noqa: PLC0415

    if not call.argv:
        return 0
    try:
        if call.argv[0] == "doctor":
            make_private(expand(call.folder))  # the doctor needs no project there
        os.chdir(_find_folder(call.folder))
        if call.argv[0] == FOLLOW and stream is not None:
            return _follow(json.loads(call.argv[1]), stream)
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # noqa: BLE001  every error is reported
        failure = explain(error)
        if call.argv[0] == FOLLOW and stream is not None:
            stream.send({"error": describe_error(failure)})  # Python raises it, not only a terminal
        else:
            console.print_error(failure)
        return failure.exit_code
    return run(list(call.argv))


def expand(folder: str) -> Path:
    """Return a folder's path, with `~` replaced by the home directory.

    Raises:
        UsageError: the path names the home directory of an unknown user.
    """
    try:
        return Path(folder).expanduser()
    except RuntimeError as error:
        raise UsageError(
            f"the folder {folder} is unknown: {error}", hint='write workdir = "~/…" or a full path'
        ) from error


def _find_folder(folder: str) -> Path:
    path = expand(folder)
    if not path.is_dir():
        raise NotFoundError(
            f"the folder {path} does not exist on {os.uname().nodename}",
            hint="nothing was submitted from this project yet: echelon submit",
        )
    return path


class SentOutput(io.TextIOBase):
    """A text stream that sends its lines as messages."""

    encoding = "utf-8"

    def __init__(self, stream: Stream, kind: str, *, terminal: bool) -> None:
        self._stream, self._kind, self._terminal = stream, kind, terminal
        self._buffer: list[str] = []
        self.sent = 0
        """Number of messages."""

    def write(self, text: str) -> int:
        """Buffer text until a line ends."""
        self._buffer.append(text)
        if "\n" in text:
            self.flush()
        return len(text)

    def flush(self) -> None:
        """Send the buffered text."""
        if text := "".join(self._buffer):
            self._buffer.clear()
            self._stream.send({self._kind: text})
            self.sent += 1

    def isatty(self) -> bool:
        """Tell whether the output is shown in a terminal."""
        return self._terminal

    def writable(self) -> bool:
        return True


def _follow(wanted: dict[str, Any], stream: Stream) -> int:
    from echelon.cli.following import Choice, Position, follow_run  # noqa: PLC0415
    from echelon.client.manage.clusters import cluster_of  # noqa: PLC0415
    from echelon.run.listing import find_run  # noqa: PLC0415

    reported = 0

    def tell(position: object) -> None:
        nonlocal reported
        sent = 0
        for output in (sys.stdout, sys.stderr):
            output.flush()
            sent += getattr(output, "sent", 0)
        if sent != reported:
            stream.send({"at": position})
            reported = sent

    run = find_run(Path("runs"), wanted["run"])
    return follow_run(
        run,
        cluster_of(run),
        show=wanted["show"],
        choice=Choice.of(run, rank=wanted["rank"], tail=wanted["tail"], since=wanted["since"]),
        resubmit=wanted["resubmit"],
        raw=wanted["raw"],
        position=Position(tell=tell, begin=wanted["begin"]),
    )


def _serve(call: Call, stream: Stream) -> int:
    """Answer a request to exchange files, and report errors to the other side."""
    from echelon.cli.main import explain  # noqa: PLC0415

    try:
        with stream.reporting():
            try:
                _answer(call, stream)
            except EchelonError:
                raise
            except Exception as error:
                raise explain(error) from error
    except EchelonError as failure:
        return failure.exit_code
    return 0


def _answer(call: Call, stream: Stream) -> None:
    if call.argv[0] == SUBMIT:
        from echelon.client.submit.hosted import serve_submission  # noqa: PLC0415

        serve_submission(expand(call.folder), stream)
    elif call.argv[0] == SEND:
        from echelon.client.remote.fetching import send_files  # noqa: PLC0415
        from echelon.run.listing import find_run  # noqa: PLC0415

        wanted = stream.receive()
        run = find_run(_find_folder(call.folder) / "runs", str(wanted["run"]))
        stream.send({"run": run.run_id})
        send_files(run.path, [str(one) for one in wanted["patterns"]], stream)
    else:
        raise EchelonError(
            f"unknown request: {call.argv[0]}", hint="use the same version of Echelon on both ends"
        )
