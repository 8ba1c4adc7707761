"""Images for tests: files of this machine's own Debian, with its Python and, if wanted, torch.

They are written as OCI archives, without compression: that takes seconds, and podman, apptainer and
registries read them like any other.
"""

import fcntl
import hashlib
import io
import json
import os
import platform
import re
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

from echelon.launch.container.store import read_image_id

PROGRAMS = ("bash", "dash", "env", "cat", "id", "sleep", "ls", "grep")
FOLDERS = ("dev", "proc", "sys", "run", "tmp", "etc", "root", "home", "var/tmp", "opt", "mnt")
LINKS = {"bin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64", "usr/bin/sh": "dash"}
LIBRARIES = (
    *("torch", "torchgen", "functorch", "numpy", "numpy.libs", "typing_extensions.py", "sympy"),
    *("mpmath", "networkx", "jinja2", "markupsafe", "filelock", "fsspec"),
)
"""torch, and what it imports."""
NEEDLESS = re.compile(
    r"/(test|tests|idlelib|ensurepip|lib2to3|tkinter|config-[^/]*|site-packages/torch/include"
    r"|torch/share|torch/test|torch/testing/_internal/generated)(/|$)|\.(a|lib|opt-[12]\.pyc)$"
)
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def write_image(path, *, torch=True, bare=False, architecture="", version=""):
    """Write an OCI archive; return its digest.

    Args:
        path: the file.
        torch: with torch.
        bare: without any program.
        architecture: what it claims to be for; by default what it is for.
        version: instead of this Python, a program that claims to be another.
    """
    layer = path.with_suffix(".layer")
    with tarfile.open(layer, "w") as tar:
        _add_root(tar, () if bare else PROGRAMS)
        if not bare:
            _add_python(tar, version, torch=torch)
        if torch:
            for folder in (Path(sysconfig.get_path("purelib")) / name for name in LIBRARIES):
                if folder.exists():
                    _add(tar, folder, f"usr/local/lib/{_python()}/site-packages/{folder.name}")
    return _write_archive(path, layer, architecture)


def _python():
    return f"python{sys.version_info[0]}.{sys.version_info[1]}"


def _add_root(tar, programs):
    for folder in FOLDERS:
        entry = tarfile.TarInfo(folder)
        entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if folder.endswith("tmp") else 0o755
        tar.addfile(entry)
    for name, target in LINKS.items():
        entry = tarfile.TarInfo(name)
        entry.type, entry.linkname = tarfile.SYMTYPE, target
        tar.addfile(entry)
    texts = {
        "etc/passwd": "root:x:0:0:root:/root:/bin/sh\n",
        "etc/group": "root:x:0:\n",
        "etc/hosts": "127.0.0.1 localhost\n",
        "etc/resolv.conf": "",
        "etc/debian_version": "12\n",
    }
    for name, text in texts.items():
        entry = tarfile.TarInfo(name)
        entry.size, entry.mode = len(text), 0o644
        tar.addfile(entry, io.BytesIO(text.encode()))
    for name in programs:
        tar.add(Path("/usr/bin", name).resolve(), f"usr/bin/{name}")


def _add_python(tar, version, *, torch):
    """Add this Python; an older one is a script that answers as that would."""
    base = Path(sys.base_prefix)
    python = Path(os.path.realpath(sys.executable))
    if not version:
        tar.add(python, "usr/local/bin/python3")
        library = Path(sysconfig.get_path("stdlib"))
        _add(tar, library, f"usr/local/lib/{library.name}", leave="site-packages")
    else:
        said = f"the ranks' Python is {version}; Echelon needs 3.11 or newer"
        text = f'#!/bin/sh\necho "{said}" >&2\nexit 1\n'
        entry = tarfile.TarInfo("usr/local/bin/python3")
        entry.size, entry.mode = len(text), 0o755
        tar.addfile(entry, io.BytesIO(text.encode()))
    modules = [
        str(path) for path in (base / "lib").rglob("*.so*") if "site-packages" not in str(path)
    ]
    programs = [str(Path("/usr/bin", name).resolve()) for name in PROGRAMS]
    site = Path(sysconfig.get_path("purelib"))
    for folder in (site / name for name in LIBRARIES if torch):
        modules += [str(path) for path in folder.rglob("*.so*")]
    for path in sorted(_list_libraries([str(python), *programs, *modules])):
        real = Path(path).resolve()
        loader = path.startswith("/lib64")
        folder = "usr/lib64" if loader else f"usr/lib/{platform.machine()}-linux-gnu"
        tar.add(real, f"{folder}/{Path(path).name}")


def _list_libraries(programs):
    """Return the shared libraries of the system, and of Python, that programs need."""
    said = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=False).stdout
    found = set(re.findall(r"(?:=> |^\s+)(/\S+) \(", said, re.MULTILINE))
    return {path for path in found if "site-packages" not in path}


def _add(tar, source, name, *, leave=""):
    def choose(entry):
        inner = f"/{entry.name}"
        if NEEDLESS.search(inner) or (leave and f"/{leave}/" in f"{inner}/"):
            return None
        entry.uid = entry.gid = 0
        return entry

    tar.add(source, name, filter=choose)


def _write_archive(path, layer, architecture):
    hashed = hashlib.sha256()
    with layer.open("rb") as file:
        while block := file.read(1 << 20):
            hashed.update(block)
    config = {
        "architecture": architecture or ARCHITECTURES[platform.machine()],
        "os": "linux",
        "config": {"Env": ["PATH=/usr/local/bin:/usr/bin:/bin", "FROM_IMAGE=yes"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashed.hexdigest()}"]},
    }
    blobs = {}

    def blob(content, kind):
        data = json.dumps(content).encode()
        digest = hashlib.sha256(data).hexdigest()
        blobs[digest] = data
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(data)}

    kinds = "application/vnd.oci.image"
    manifest = blob(
        {
            "schemaVersion": 2,
            "mediaType": f"{kinds}.manifest.v1+json",
            "config": blob(config, f"{kinds}.config.v1+json"),
            "layers": [
                {
                    "mediaType": f"{kinds}.layer.v1.tar",
                    "digest": f"sha256:{hashed.hexdigest()}",
                    "size": layer.stat().st_size,
                }
            ],
        },
        f"{kinds}.manifest.v1+json",
    )
    with tarfile.open(path, "w") as tar:
        for folder in ("blobs", "blobs/sha256"):  # apptainer does not create them itself
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        texts = {
            "oci-layout": b'{"imageLayoutVersion": "1.0.0"}',
            "index.json": json.dumps({"schemaVersion": 2, "manifests": [manifest]}).encode(),
            **{f"blobs/sha256/{digest}": data for digest, data in blobs.items()},
        }
        for name, data in texts.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o644
            tar.addfile(entry, io.BytesIO(data))
        tar.add(layer, f"blobs/sha256/{hashed.hexdigest()}")
    layer.unlink()
    return manifest["digest"]


# --- fixtures ---------------------------------------------------------------------------------


class Image:
    """An image for podman, unpacked once for all tests; removed when nobody needs it."""

    def __init__(self, folder, name, **options):
        self.path = folder / f"{name}.tar"
        with (folder / "images.lock").open("a") as lock:
            # Workers of pytest share the folder.
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not self.path.exists():
                write_image(folder / f"draft-{name}.tar", **options)
                (folder / f"draft-{name}.tar").rename(self.path)
            self.id = read_image_id(self.path)
            if self._podman("image", "exists", self.id).returncode:
                assert self._podman("load", "--quiet", "--input", str(self.path)).returncode == 0

    @staticmethod
    def _podman(*arguments):
        return subprocess.run(["podman", *arguments], capture_output=True, text=True, check=False)

    def containers(self):
        """Return the ids of containers that use it, or did and were not removed."""
        return self._podman("ps", "--all", "--quiet", f"--filter=ancestor={self.id}").stdout.split()

    def remove(self):
        """Remove it from podman's storage, unless another worker's container uses it.

        If one needs it later, its agent unpacks it again.
        """
        self._podman("rmi", self.id)
