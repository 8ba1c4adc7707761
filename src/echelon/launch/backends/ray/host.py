"""The actor that Ray runs on each node of a run; the parent of the agent."""


def make_host() -> type:
    """Return the actor's class.

    It is made in a function so that Ray sends it as a whole: its node may not see this file. It
    uses the standard library alone, and Echelon only after checking that it is there.
    """

    class Host:
        """Runs one node's agent, which ends with this actor."""

        def start(
            self,
            *,
            node: str,
            mark: tuple[str, str],
            argv: list[str],
            env: dict[str, str],
            stdin: bytes,
            folder: str,
            log: str,
        ) -> str:
            """Start the agent; return what is missing on this node, if anything.

            Args:
                node: id of the intended node; the agent gets its name.
                mark: a file that all nodes must see, and its content.
                argv: the agent's command, from `launcher_command`.
                env: its variables.
                stdin: its input.
                folder: the ranks' working directory.
                log: file for its output.

            Raises:
                RuntimeError: Ray placed the actor on another node.
            """
            import hashlib  # noqa: PLC0415
            import os  # noqa: PLC0415
            import signal  # noqa: PLC0415
            from pathlib import Path  # noqa: PLC0415
            from typing import Any  # noqa: PLC0415

            import ray  # noqa: PLC0415

            if (own := ray.get_runtime_context().get_node_id()) != node:
                raise RuntimeError(f"this is node {own}, not {node}")
            path, content = mark
            try:
                if Path(path).read_text() != content:
                    return "sees another directory under the path of the run directory"
            except OSError as error:
                return f"does not see the run directory {Path(path).parents[2]}: {error.strerror}"
            if not os.access(argv[0], os.X_OK):
                return f"does not have the Python {argv[0]}"
            if not Path(folder).is_dir():
                return f"does not have the working directory {folder}"
            os.chdir(folder)
            digest, launcher = argv[3:5]
            data = Path(launcher).read_bytes()
            if hashlib.sha256(data).hexdigest() != digest:
                return "sees another launcher than the one that was submitted"
            loader: dict[str, Any] = {}
            exec(data[: data.index(b"PK\3\4")], loader)  # noqa: S102  see BOOTSTRAP
            loader["load"](launcher, digest, data)
            from echelon.core.shell import LocalShell  # noqa: PLC0415
            from echelon.launch.protocol.rank_environment import TIED  # noqa: PLC0415

            self.log = Path(log)
            devices = os.environ.get("CUDA_VISIBLE_DEVICES", "")
            full = {**env, "CUDA_VISIBLE_DEVICES": devices, TIED: str(os.getpid())}
            # Ray blocks signals in its workers, and a child would inherit that.
            blocked = signal.pthread_sigmask(signal.SIG_SETMASK, [])
            try:
                self.pid = LocalShell().start(argv, log=self.log, env=full, stdin=stdin)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            return ""

        def wait(self) -> tuple[int, str]:
            """Wait for the agent's exit; return its code and its last line of output."""
            import os  # noqa: PLC0415

            _, status = os.waitpid(self.pid, 0)
            lines = self.log.read_text(errors="replace").splitlines()
            return os.waitstatus_to_exitcode(status), (lines or [""])[-1]

    return Host
