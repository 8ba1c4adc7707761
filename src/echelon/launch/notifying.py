"""Telling somebody that a run is over, by a command of the user's own.

What the run has to say is in variables, never in the command's text: a failure's message may be
anything. Whatever becomes of the command, it costs the run nothing but a while.
"""

import threading
from collections.abc import Mapping

from echelon.core.rundir import RunDir
from echelon.core.shell import Shell
from echelon.errors import EchelonError, TimedOutError
from echelon.launch.contract import PRIVATE

LIMIT_S = 30.0
"""How long the command may take, with all that it starts."""
_LATE_S = 5.0
"""How much longer we wait for one that cannot be killed, because storage holds it."""
_LONGEST = 500
"""Characters of a reason."""
_SCRIPT = """\
(: >>"$1") 2>/dev/null || set -- /dev/null "$2"
exec 3>&1 >>"$1" 2>&1
exec bash -c "$2"
"""
# Output goes to a log, if that can be written. By what stays open as 3, what the command leaves
# behind is waited for.


class Notifier:
    """See the module."""

    def __init__(
        self, command: str, *, run: RunDir, shell: Shell, environ: Mapping[str, str]
    ) -> None:
        self._command, self._run, self._shell = command, run, shell
        self._environ = environ

    def tell(self, state: str, reason: str) -> str:
        """Run the command, if there is one; return what was wrong with it, or nothing."""
        if not self._command:
            return ""
        wrong = [f"it did not end within {LIMIT_S:g} s, and cannot be killed"]

        def work() -> None:
            wrong[0] = self._run_command(describe_end(self._run, state, reason))

        # A daemon: where a dead file server holds the command, it does not hold us.
        thread = threading.Thread(target=work, name="notifier", daemon=True)
        thread.start()
        thread.join(LIMIT_S + _LATE_S)
        return wrong[0]

    def _run_command(self, told: Mapping[str, str]) -> str:
        # Without what is between our own processes: it may submit another run.
        env = {name: value for name, value in self._environ.items() if name not in PRIVATE}
        log = self._run.notify_log
        argv = ["bash", "-c", _SCRIPT, "notify", str(log), self._command]
        try:
            done = self._shell.run(argv, env={**env, **told}, timeout_s=LIMIT_S)
        except TimedOutError:
            return f"it did not end within {LIMIT_S:g} s, and was killed; see {log}"
        except EchelonError as error:
            return error.message
        except (OSError, ValueError) as error:
            return str(error)
        return f"it ended with code {done.code}; see {log}" if done.code else ""


def describe_end(run: RunDir, state: str, reason: str) -> dict[str, str]:
    """Return the variables that say how a run ended. Pure."""
    return {
        "ECHELON_RUN": run.run_id,
        "ECHELON_RUN_DIR": str(run.path),
        "ECHELON_STATE": state,
        "ECHELON_REASON": shorten(reason),
    }


def shorten(text: str) -> str:
    """Return a text as one line that any terminal, and any variable, can hold."""
    line = " ".join(text.split())
    shown = "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in line)
    return shown if len(shown) <= _LONGEST else f"{shown[: _LONGEST - 1]}…"
