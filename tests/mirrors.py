"""A project, and sending it to a mirror."""

from byte_streams import exchange
from echelon.client.remote.mirror import receive_project, send_project
from echelon.client.remote.project_description import (
    describe_project,
)
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


def send(root, workdir, described=None, **cuts):
    described = described or describe(root)
    return exchange(
        lambda stream: send_project(described, root, stream),
        lambda stream: receive_project(workdir, stream),
        **cuts,
    )


def content(folder):
    """Everything in a folder but the mirror's own records."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if name.startswith((".echelon", "runs")) or (path.is_dir() and not path.is_symlink()):
            assert not name.startswith(".echelon-"), "a temporary file"
            continue
        found[name] = f"-> {path.readlink()}" if path.is_symlink() else path.read_bytes()
    return found
