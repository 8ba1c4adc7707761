"""Notifies the user at the end of a run, through a command of their own.

The command gets its information in variables, never in its text, because the message of a failure
may be anything. Whatever the command does, it only costs the run some time.

The notification is recorded before the outcome (`notify.json`) and renamed to `notified.json` once
it is sent. If a controller is killed in between, the next process of the run sends it. The sender
and the command hold a lock on the file, so that no two processes send the same notification.
"""

import contextlib
import fcntl
import json
import os
import stat
import threading
from collections.abc import Iterator, Mapping

from echelon.core.atomic_file import replacing
from echelon.core.shell import Shell
from echelon.core.waiting import wait_until
from echelon.errors import EchelonError, TimedOutError
from echelon.launch.protocol.rank_environment import PRIVATE
from echelon.run.attempts import outcome
from echelon.run.directory import RunDir

LIMIT_S = 30.0
"""How long the command may take, including everything that it starts."""
_LATE_S = 5.0
"""How much longer we wait for one that cannot be killed, because it is blocked on storage."""
PATIENCE_S = LIMIT_S + _LATE_S
"""How long to wait for another process that is sending a notification."""
_LONGEST = 500
"""Characters of a reason."""
_MOST_BYTES = 1 << 16
"""Size limit of a recorded notification."""
_SCRIPT = """\
[ -z "$6" ] || cd -- "$6" || exit
(: >>"$1") 2>/dev/null || set -- /dev/null "${@:2}"
exec 3>&1 >>"$1" 2>&1
eval 'bash -c "$2"' "$5"
set -- "$?" "$3" "$4"
[ -z "$2" ] || mv -f -- "$2" "$3"
exit "$1"
"""
# Output goes to a log, if that can be written. Descriptor 3 stays open, so that we wait for
# what the command leaves in the background. This script marks the notification as sent, not its
# parent, which may be killed meanwhile. It holds the lock; $5 closes it for the command.


class Notifier:
    """See the module."""

    def __init__(
        self,
        command: str,
        *,
        run: RunDir,
        shell: Shell,
        environ: Mapping[str, str],
        folder: str = "",
    ) -> None:
        """Make one.

        Args:
            command: the user's; empty for none.
            run: the run.
            shell: runs programs.
            environ: our variables.
            folder: working directory of the command; ours if empty.
        """
        self._command, self._run, self._shell = command, run, shell
        self._environ, self._folder = environ, folder
        self._locks: dict[int, int] = {}
        """By attempt: open notices that we have locked."""
        self._told: set[int] = set()

    def owe(self, attempt: int, state: str, reason: str) -> None:
        """Record that a notification has to be sent, locked for us.

        Raises:
            OSError: it cannot be written.
        """
        if not self._command or attempt in self._told:  # storage may have been slow
            return
        with replacing(self._run.notice(attempt)) as file:
            file.write(json.dumps({"state": state, "reason": shorten(reason)}).encode())
            # Before it has its name; otherwise a process that waits for the run could be faster.
            lock = os.dup(file.fileno())
            _try_lock(lock)
        self._locks[attempt] = lock

    def send_owed(self, *, wait_s: float = 0.0) -> list[str]:
        """Send all notifications that are due; return what went wrong.

        Args:
            wait_s: how long to wait for another sender, which may be killed.
        """
        wrong: list[str] = []
        if not self._command:
            return wrong
        folders = [path.parent.name for path in self._run.attempts.glob("*/notify.json")]
        for attempt in sorted(int(name) for name in folders if name.isdecimal()):
            # Without an outcome, the next attempt continues as if the work were not done.
            if outcome(self._run, attempt) is not None:
                with self._claim(attempt, wait_s) as record:
                    if record:
                        wrong.append(self.tell(attempt, record["state"], record["reason"]))
        return [text for text in wrong if text]

    @contextlib.contextmanager
    def _claim(self, attempt: int, wait_s: float) -> Iterator[dict[str, str]]:
        """Lock a notice and yield its content; empty if another process sends it or has sent it."""
        try:
            # For writing, because network file systems require that for exclusive locks.
            handle = os.open(self._run.notice(attempt), os.O_RDWR | os.O_NOFOLLOW)
        except OSError:
            yield {}
            return
        if attempt not in self._locks and wait_until(lambda: _try_lock(handle), timeout_s=wait_s):
            self._locks[attempt] = os.dup(handle)
        try:
            held = attempt in self._locks and _is_still(handle, str(self._run.notice(attempt)))
            yield _parse(os.read(handle, _MOST_BYTES)) if held else {}
        finally:
            os.close(handle)
            self._release(attempt)

    def _release(self, attempt: int) -> None:
        if (lock := self._locks.pop(attempt, None)) is not None:
            os.close(lock)

    def tell(self, attempt: int, state: str, reason: str) -> str:
        """Run the command, if there is one; return what went wrong, or nothing."""
        if not self._command:
            return ""
        self._told.add(attempt)
        wrong = [f"did not exit within {LIMIT_S:g} s and cannot be killed"]

        def work() -> None:
            wrong[0] = self._run_command(attempt, describe_end(self._run, state, reason))

        # A daemon, so that a command that is blocked on a dead file server does not block us.
        thread = threading.Thread(target=work, name="notifier", daemon=True)
        thread.start()
        thread.join(LIMIT_S + _LATE_S)
        with contextlib.suppress(OSError):  # usually because the script has done it
            self._run.notice(attempt).replace(self._run.sent_notice(attempt))
        self._release(attempt)
        return wrong[0]

    def _run_command(self, attempt: int, facts: Mapping[str, str]) -> str:
        # Without our private variables, because it may submit another run.
        env = {name: value for name, value in self._environ.items() if name not in PRIVATE}
        log = self._run.notify_log
        lock = self._locks.get(attempt)
        keep = [] if lock is None else [lock]
        owed = (str(self._run.notice(attempt)), str(self._run.sent_notice(attempt)))
        argv = ["bash", "-c", _SCRIPT, "notify", str(log), self._command]
        argv += [*(owed if keep else ("", "")), f"{lock}>&-" if keep else "", self._folder]
        try:
            done = self._shell.run(argv, env={**env, **facts}, timeout_s=LIMIT_S, keep=keep)
        except TimedOutError:
            return f"did not exit within {LIMIT_S:g} s and was killed; see {log}"
        except EchelonError as error:
            return error.message
        except (OSError, ValueError) as error:
            return str(error)
        return f"exited with code {done.code}; see {log}" if done.code else ""


def describe_end(run: RunDir, state: str, reason: str) -> dict[str, str]:
    """Return the variables that describe the end of a run. Pure."""
    return {
        "ECHELON_RUN": run.run_id,
        "ECHELON_RUN_DIR": str(run.path),
        "ECHELON_STATE": state,
        "ECHELON_REASON": shorten(reason),
    }


def shorten(text: str) -> str:
    """Return a text as one line that is safe for terminals and variables."""
    line = " ".join(text.split())
    shown = "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in line)
    return shown if len(shown) <= _LONGEST else f"{shown[: _LONGEST - 1]}…"


def _try_lock(handle: int) -> bool:
    """Lock an open file; tell whether that succeeded."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # a file system without locks: rather send twice than never
    return True


def _is_still(handle: int, path: str) -> bool:
    """Tell whether an open file is regular and still has its name, so it is not sent yet."""
    opened = os.fstat(handle)
    with contextlib.suppress(OSError):
        return stat.S_ISREG(opened.st_mode) and os.path.samestat(opened, os.lstat(path))
    return False


def _parse(data: bytes) -> dict[str, str]:
    """Parse a recorded notification; empty if it is invalid."""
    with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):
        record = json.loads(data)
        return {name: str(record[name]) for name in ("state", "reason")}
    return {}
