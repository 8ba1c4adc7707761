"""A project, and sending it to a workdir."""

from byte_streams import exchange
from echelon.client.remote.sending import describe_project, send_project
from echelon.client.remote.workdir import hold_workdir
from echelon.core.shell import LocalShell


def make_project(root):
    write(root, {"train.py": "train\n", "pkg/a.py": "a\n", "pkg/sub/b.py": "b\n", "empty": ""})
    write(root, {"tool.sh": "#!/bin/sh\n"})
    (root / "tool.sh").chmod(0o755)
    (root / "alias.py").symlink_to("train.py")
    return root


def write(root, files):
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(content)


def describe(root, state=None):
    return describe_project(root, LocalShell(), runs=root / "runs", state=state)


def receive(workdir, stream):
    with stream.reporting(), hold_workdir(workdir) as held:
        held.receive(stream)


def send(root, workdir, described=None, progress=lambda _sent, _all: None, **cuts):
    described = described or describe(root)
    return exchange(
        lambda stream: send_project(described, root, stream, progress),
        lambda stream: receive(workdir, stream),
        **cuts,
    )


def content(folder):
    """Everything in a folder but Echelon's own records."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if name.startswith((".echelon", "runs")) or (path.is_dir() and not path.is_symlink()):
            assert not name.startswith(".echelon-"), "a temporary file"
            continue
        found[name] = f"-> {path.readlink()}" if path.is_symlink() else path.read_bytes()
    return found
