"""The cache of images: one file per digest, imported once, in a folder that all nodes share."""

import contextlib
import errno
import fcntl
import json
import os
import platform
import shlex
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from echelon.core.atomic_file import make_private
from echelon.core.frozen import frozen
from echelon.core.ownership import find_foreign_owner, find_intruder
from echelon.core.records import find_record
from echelon.core.shell import Result, Shell
from echelon.errors import MissingProgramError, NotFoundError, NotPermittedError, UnavailableError
from echelon.launch.container.commands import APPTAINER, PODMAN, STARTED, explain_failure
from echelon.launch.container.reference import Reference

_ENDINGS = {".sif": "apptainer", ".tar": PODMAN}
_WITHOUT_LOCKS = (errno.ENOTSUP, errno.ENOSYS, errno.ENOLCK, errno.EINVAL)
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


@frozen
class Stored:
    """An image in the cache."""

    reference: str
    """As it was requested; empty if that is not known."""
    path: Path
    runtime: str
    size: int
    """In bytes."""
    used_s: float
    """When it was last used, as seconds since 1970."""

    @property
    def digest(self) -> str:
        return self.path.stem.replace("-", ":")


def architecture() -> str:
    """Return this machine's architecture, in the words of registries."""
    return _MACHINES.get(platform.machine(), platform.machine())


def cache_folder(named: str, environ: Mapping[str, str]) -> Path:
    """Return the folder of the cache: a named one, or one in the user's own cache."""
    home = environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME", "/"), ".cache")
    return Path(named) if named else Path(home, "echelon", "images").absolute()


def choose_runtime(named: str, reference: Reference, shell: Shell) -> str:
    """Return the runtime to use on this machine.

    Raises:
        MissingProgramError: it is not installed, or none is.
    """
    wanted = (named,) if named else APPTAINER if reference.path.endswith(".sif") else STARTED
    if reference.local and not named:
        wanted = (PODMAN,)  # only its own storage has it
    if found := next((one for one in wanted if shell.which(one)), ""):
        return found
    raise MissingProgramError(
        " or ".join(wanted),
        hint="load its module (--load), or name another with --image-runtime",
    )


class ImageStore:
    """See the module."""

    def __init__(self, folder: Path, shell: Shell) -> None:
        self.folder, self._shell = folder, shell

    def find(self, reference: Reference, runtime: str) -> Path | None:
        """Return the image's file; None if it is not there yet.

        Raises:
            NotPermittedError: other users could replace images in the cache.
        """
        path = self._path(reference, runtime)
        if not path.is_file():
            return None
        if str(path) != reference.path:
            self._check_owner(path)
        return path

    def fetch(self, reference: Reference, runtime: str) -> Path:
        """Return the image's file. The first process imports it, and all others wait.

        Raises:
            NotFoundError: the file or image does not exist.
            NotPermittedError: other users could replace images in the cache.
            UnavailableError: the import failed.
        """
        path = self._path(reference, runtime)
        if reference.path and path == Path(reference.path):
            if not path.is_file():
                raise NotFoundError(
                    f"the image {path} does not exist", hint="pull it: echelon image pull"
                )
            return path
        make_private(self.folder)
        self._check_owner(path)
        if path.is_file():
            with contextlib.suppress(OSError):  # `echelon image ls` shows when it was last used
                os.utime(path)
            return path
        with self._lock(path) as alone:
            if not path.is_file():  # else another process has imported it meanwhile
                if alone:
                    _remove_drafts(path)
                self._import(reference, runtime, path)
        return path

    def _check_owner(self, path: Path) -> None:
        if why := find_intruder(self.folder):
            raise NotPermittedError(
                f"the image cache {self.folder} is not trusted: {why}",
                hint="choose a folder that only you can write to: --image-cache",
            )
        # Others could write to the folder before its owner changed its mode.
        if why := find_foreign_owner(path):
            raise NotPermittedError(
                f"an image in the cache is not trusted: {why}",
                hint=f"remove it, and import it again: rm {shlex.quote(str(path))}",
            )

    def open(self, path: Path, runtime: str) -> str:
        """Return what a runtime opens: the file, or the image in podman's storage on this node.

        Raises:
            UnavailableError: it cannot be unpacked.
        """
        if runtime != PODMAN:
            return str(path)
        image = read_image_id(path)
        if self._shell.run([PODMAN, "image", "exists", image]).code:
            self._check(self._shell.run([PODMAN, "load", "--quiet", "--input", str(path)]), image)
        return image

    def list(self) -> list[Stored]:
        """Return the images in the cache, by name."""
        found = []
        for path in sorted(self.folder.glob("*")):
            if path.suffix in _ENDINGS and not path.name.startswith("."):
                with contextlib.suppress(OSError):  # removed meanwhile
                    found.append(_describe(path))
        return found

    def remove(self, stored: Stored) -> None:
        """Remove an image from the cache; a container that uses it keeps it open."""
        for path in (stored.path, _record_path(stored.path), _lock_path(stored.path)):
            path.unlink(missing_ok=True)

    def _path(self, reference: Reference, runtime: str) -> Path:
        ending = ".tar" if runtime == PODMAN else ".sif"
        if reference.path.endswith(ending):
            return Path(reference.path)
        if reference.path and runtime == PODMAN:
            raise UnavailableError(
                f"podman cannot open {reference.path}",
                hint="name an OCI archive (.tar), or use --image-runtime apptainer",
            )
        if reference.path:
            return self.folder / f"{read_image_id(Path(reference.path)).replace(':', '-')}.sif"
        return self.folder / f"{reference.stem}{ending}"

    @contextlib.contextmanager
    def _lock(self, path: Path) -> Iterator[bool]:
        """Wait for other imports of an image; yield whether that was possible."""
        alone = True
        # The kernel releases it with its holder, whichever node that was on.
        handle = os.open(_lock_path(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
            except OSError as error:
                if error.errno not in _WITHOUT_LOCKS:
                    raise
                # Without locks on this file system, several nodes import, and the last one wins.
                alone = False
            yield alone
        finally:
            os.close(handle)

    def _import(self, reference: Reference, runtime: str, path: Path) -> None:
        draft = path.parent / f".{path.name}.{os.uname().nodename}.{os.getpid()}"
        record = {"reference": str(reference), "runtime": runtime}
        try:
            if runtime == PODMAN:
                self._import_podman(reference, draft)
            else:
                self._import_apptainer(reference, runtime, draft)
            _record_path(path).write_text(json.dumps(record))
            draft.rename(path)
        finally:
            draft.unlink(missing_ok=True)

    def _import_podman(self, reference: Reference, draft: Path) -> None:
        name = str(reference).partition("@")[0] if reference.local else reference.pulled
        if not reference.local:
            insecure = ["--tls-verify=false"] if reference.plain_http else []
            self._check(self._shell.run([PODMAN, "pull", "--quiet", *insecure, name]), name)
        save = [PODMAN, "save", "--quiet", "--format=oci-archive", f"--output={draft}", name]
        self._check(self._shell.run(save), name)

    def _import_apptainer(self, reference: Reference, runtime: str, draft: Path) -> None:
        if reference.path:
            kind = "oci" if _is_oci(Path(reference.path)) else "docker"
            command = [runtime, "build", str(draft), f"{kind}-archive:{reference.path}"]
        else:
            plain = ["--no-https"] if reference.plain_http else []
            command = [runtime, "pull", *plain, str(draft), f"docker://{reference.pulled}"]
        self._check(self._shell.run(command), str(reference))

    def _check(self, done: Result, image: str) -> None:
        if done.code:
            reason, hint = explain_failure(done.argv[0], image, done.stderr or done.stdout)
            raise UnavailableError(reason, hint=hint)


def _describe(path: Path) -> Stored:
    status = path.stat()
    record = find_record(_record_path(path))
    return Stored(
        reference=str(record.get("reference", "")),
        path=path,
        runtime=str(record.get("runtime", "")) or _ENDINGS[path.suffix],
        size=status.st_size,
        used_s=status.st_mtime,
    )


def _remove_drafts(path: Path) -> None:
    """Remove what imports have left that were killed."""
    for left in path.parent.glob(f".{path.name}.*"):
        left.unlink(missing_ok=True)


def _record_path(path: Path) -> Path:
    return path.with_suffix(".json")


def _lock_path(path: Path) -> Path:
    return path.with_suffix(f"{path.suffix}.lock")


# --- archives ---------------------------------------------------------------------------------


def read_image_id(path: Path) -> str:
    """Return the id of the image in an archive, `sha256:…`: that of its configuration.

    Raises:
        NotFoundError: the file does not exist.
        UnavailableError: it is not an archive of an image.
    """
    try:
        with tarfile.open(path, "r:") as archive:
            if _has(archive, "index.json"):
                manifest = _read_json(archive, "index.json")["manifests"][0]["digest"]
                found = _read_json(archive, _blob(manifest))
                return str(found["config"]["digest"])
            config = str(_read_json(archive, "manifest.json")[0]["Config"])
            return f"sha256:{config.removesuffix('.json').rpartition('/')[2]}"
    except FileNotFoundError as error:
        raise NotFoundError(
            f"the image {path} does not exist", hint="pull it: echelon image pull"
        ) from error
    except (OSError, tarfile.TarError, ValueError, KeyError, IndexError, TypeError) as error:
        raise UnavailableError(
            f"{path} is not an archive of an image: {error}",
            hint=f"remove it, and import it again: rm {path}",
        ) from error


def _is_oci(path: Path) -> bool:
    with tarfile.open(path, "r:") as archive:
        return _has(archive, "index.json")


def _has(archive: tarfile.TarFile, name: str) -> bool:
    try:
        archive.getmember(name)
    except KeyError:
        return False
    return True


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _read_json(archive: tarfile.TarFile, name: str) -> Any:
    file = archive.extractfile(name)
    if file is None:
        raise KeyError(name)
    return json.loads(file.read())
