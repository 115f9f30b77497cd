"""Finds, locks, records and removes staged copies.

::

    <place>/prefeed-staged-<uid>/              0700
        <name>-<hash of url>/                  one copy; a process that changes it holds a lock on this directory
            copy.json                          its record; without it prefeed removes nothing
            data/                              the path to train from
            incoming/                          files that are being written
    <home>/staged/<hash of host, directory>.json   the record again, for `prefeed stage list`, also after the copy is lost

A copy needs no server and no record in the home. Either may be removed by hand.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import stat
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from prefeed.config import Config
from prefeed.errors import CopyError, CopyInUseError, NotACopyError
from prefeed.places import expanded
from prefeed.sources.urls import canonical_url
from prefeed.store.directory import is_private, require_private
from prefeed.system.files import atomic_write, make_private
from prefeed.system.locks import directory_lock
from prefeed.system.machine import host_name
from prefeed.transfer.rooted_dir import RootedDir

FORMAT: Final = 1
MARKER: Final = "copy.json"
DATA: Final = "data"
INCOMING: Final = "incoming"
MEMORY: Final = "memory"
"""Name of the place ``PREFEED_MEMORY_DIR``."""

COPYING, COMPLETE, PARTIAL, REMOVING = "copying", "complete", "partial", "removing"
INTERRUPTED, GONE = "interrupted", "gone"
"""States that are not recorded but derived when copies are listed."""

_MAX_NAME_CHARS: Final = 40
_POLL_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRecord:
    """Record of a copy.

    Attributes:
        source: Canonical URL of the origin.
        directory: Directory of the copy; the files are in ``data`` below it.
        state: ``copying``, ``complete``, ``partial`` or ``removing``.
        num_files: Files copied so far.
        bytes: Their size in bytes.
        num_linked: Links to objects of the origin for which there is no space.
        linked_bytes: Size of these objects in bytes.
        num_missing: Objects of the origin without a file or link.
        started: Start of the last run, in seconds since 1970.
        finished: Its end; 0.0 before that.
        pid: Process of the last run.
        host: Node of that process. Other nodes that share the home cannot see its disks.
    """

    source: str
    directory: str
    state: str
    num_files: int = 0
    bytes: int = 0
    num_linked: int = 0
    linked_bytes: int = 0
    num_missing: int = 0
    started: float = 0.0
    finished: float = 0.0
    pid: int = 0
    host: str = ""

    @property
    def data(self) -> Path:
        """The path to train from."""
        return Path(self.directory) / DATA


# ---------------------------------------------------------------- names


def resolve_place(to: str, config: Config) -> Path:
    """Return the directory of ``memory`` or of a path."""
    return config.memory_dir if to == MEMORY else expanded(to)


def copies_of_user(place: Path) -> Path:
    """Return the directory of this user's copies in a place."""
    return place / f"prefeed-staged-{os.geteuid()}"


def copy_directory(place: Path, url: str) -> Path:
    """Return the directory of the copy of an origin in a place."""
    parts = urlsplit(url) if "://" in url else None
    name = url.rstrip("/").rpartition("/")[2] if parts is None or parts.path.strip("/") else parts.netloc
    clean = re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("._")[:_MAX_NAME_CHARS] or "data"
    return copies_of_user(place) / f"{clean}-{_digest(url)}"


def _digest(text: str) -> str:
    return hashlib.sha256(os.fsencode(text)).hexdigest()[:8]


# ---------------------------------------------------------------- reading and writing


def write_record(record: CopyRecord, config: Config) -> None:
    """Write the record of a copy, and a second one in the home if possible."""
    text = json.dumps({"format": FORMAT, **asdict(record)}, indent=1) + "\n"
    directory = Path(record.directory)
    _write(directory / MARKER, text)
    with contextlib.suppress(OSError):  # without the home's record only `prefeed stage list` misses a copy on disk
        make_private(_home_file(record.directory, config).parent)
        _write(_home_file(record.directory, config), text)


def forget_copy(directory: str, config: Config) -> None:
    """Remove the record of a copy from the home."""
    with contextlib.suppress(OSError):
        _home_file(directory, config).unlink()


def read_record(directory: Path) -> CopyRecord | None:
    """Read the record of a copy. Return None if the directory is not a copy of this user."""
    if not is_private(directory):
        return None
    return _read(directory / MARKER, directory)


def iterate_copies(config: Config) -> Iterator[CopyRecord]:
    """Yield the records of copies in memory and of those recorded in the home, which may be lost."""
    seen = set()
    for directory in sorted(copies_of_user(config.memory_dir).glob("*/")):
        record = read_record(directory)
        if record is not None:
            seen.add(record.directory)
            yield record
    for file in sorted((config.home / "staged").glob("*.json")):
        remembered = _read(file, None)
        if remembered is not None and remembered.directory not in seen:
            here = read_record(Path(remembered.directory))
            if here is None and remembered.host not in ("", host_name()):
                continue  # on another node
            seen.add(remembered.directory)
            yield here or remembered


def _read(file: Path, directory: Path | None) -> CopyRecord | None:
    try:
        values: dict[str, Any] = json.loads(file.read_bytes())
        names = {field.name for field in fields(CopyRecord)}
        if values.pop("format") != FORMAT or not isinstance(values["state"], str):
            return None
        known = {name: value for name, value in values.items() if name in names}
        # The copy may have been moved, or mounted elsewhere. Its directory is the one in which the record was found.
        return CopyRecord(**(known | ({} if directory is None else {"directory": str(directory)})))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _home_file(directory: str, config: Config) -> Path:
    return config.home / "staged" / f"{_digest(f'{host_name()} {directory}')}.json"


def _write(file: Path, text: str) -> None:
    with atomic_write(file, private=True, durable=False) as opened:
        opened.write(text.encode())


# ---------------------------------------------------------------- locks


@contextlib.contextmanager
def create_and_lock(directory: Path, *, on_wait: Callable[[int], None]) -> Iterator[RootedDir]:
    """Create and lock the directory of a copy. Yield it open.

    **Blocking**: while another process holds the lock. The lock is released when this process ends, even if it is killed.

    Args:
        directory: Directory of the copy.
        on_wait: Called once with the process id of the lock's owner, if this call has to wait.

    Raises:
        CopyError: The directory cannot be created.
        StoreError: Another user owns the directory.
    """
    is_waiting = False
    own: RootedDir | None = None
    with contextlib.ExitStack() as stack:
        while own is None:
            try:
                _create(directory)
                own = _lock_and_open(stack, directory, directory_lock(directory, within_seconds=0))
            except FileNotFoundError:  # another process removed the directory in between
                continue
            except BlockingIOError:
                if not is_waiting:
                    on_wait(holder_of(directory))
                is_waiting = True
                threading.Event().wait(_POLL_SECONDS)
        yield own


@contextlib.contextmanager
def lock_copy(directory: Path) -> Iterator[RootedDir]:
    """Lock the directory of an existing copy. Yield it open.

    Raises:
        CopyInUseError: Another process holds the lock.
        FileNotFoundError: The copy no longer exists.
    """
    with contextlib.ExitStack() as stack:
        try:
            own = _lock_and_open(stack, directory, directory_lock(directory))
        except BlockingIOError as err:
            pid = holder_of(directory)
            raise CopyInUseError(
                f"process {pid} is using {directory}; wait until it is done, or stop it", path=str(directory), pid=pid
            ) from err
        yield own


def _lock_and_open(
    stack: contextlib.ExitStack, directory: Path, lock: contextlib.AbstractContextManager[Path]
) -> RootedDir:
    held_as = stack.enter_context(lock)
    try:
        descriptor = os.open(held_as, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError as err:  # /proc is missing, because the lock keeps the copy
        raise CopyError(f"{directory} cannot be used, because /proc is not mounted; mount it") from err
    return stack.enter_context(RootedDir(str(directory), descriptor=descriptor, is_own=True))


def is_held(directory: Path) -> bool:
    """Return whether a process holds the lock of a copy."""
    try:
        with directory_lock(directory, within_seconds=0):
            return False
    except BlockingIOError:
        return True
    except OSError:
        return False


def holder_of(directory: Path) -> int:
    """Return the recorded process of a copy; 0 without a record."""
    record = read_record(directory)
    return 0 if record is None else record.pid


def _create(directory: Path) -> None:
    own = directory.parent
    if not own.parent.is_dir():
        raise CopyError(f"{own.parent} is not a directory; make it, or mount its disk")
    try:
        own.mkdir(mode=0o700, exist_ok=True)
        require_private(own)
        directory.mkdir(mode=0o700, exist_ok=True)
        require_private(directory)
    except FileNotFoundError:
        raise
    except OSError as err:
        raise CopyError(
            f"{own} cannot be made by user {os.geteuid()}: {err.strerror}; name another place with --to",
            path=str(directory),
        ) from err


# ---------------------------------------------------------------- finding and removing


def list_copies(config: Config) -> list[CopyRecord]:
    """Return all known copies with their current states."""
    return [replace(record, state=_state_of(record)) for record in iterate_copies(config)]


def _state_of(record: CopyRecord) -> str:
    directory = Path(record.directory)
    if not directory.is_dir():
        return GONE  # a tmpfs is lost at a restart of the machine
    if record.state in (COPYING, REMOVING):
        return record.state if is_held(directory) else INTERRUPTED
    return record.state


def find_copies(text: str, config: Config) -> list[CopyRecord]:
    """Find copies by the URL of their origin or by their own path.

    Raises:
        NotACopyError: There is no such copy. Nothing else is ever removed.
    """
    url = canonical_url(text)
    by_path = _read_copy_at(Path(url)) if url.startswith("/") else None
    found = [by_path] if by_path else [record for record in iterate_copies(config) if record.source == url]
    if not found:
        raise NotACopyError(
            f"{url} is neither a copy that prefeed made nor the origin of one; `prefeed stage list` shows them",
            path=url,
        )
    return found


def _read_copy_at(path: Path) -> CopyRecord | None:
    directory = path.parent if path.name == DATA else path
    return read_record(directory) if directory.parent.name == copies_of_user(Path("/")).name else None


def unstage(record: CopyRecord, config: Config) -> None:
    """Remove a copy and its record in the home. A copy that was lost loses the record only.

    Links are removed without following them. Open files stay readable until they are closed.

    Raises:
        CopyInUseError: A process is copying.
        CopyError: A file cannot be removed. The next call resumes.
    """
    directory = Path(record.directory)
    try:
        with lock_copy(directory) as own:
            if read_record(directory) is not None:
                with contextlib.suppress(OSError):  # on a full disk; this state is for lists only
                    write_record(replace(record, state=REMOVING), config)
                remove_held(own, config)
    except FileNotFoundError:
        pass
    except OSError as err:
        raise CopyError(f"{err.filename or directory} cannot be removed: {err.strerror}", path=str(directory)) from err
    forget_copy(record.directory, config)


def remove_held(own: RootedDir, config: Config) -> None:
    """Remove all files of a locked copy that prefeed created.

    Raises:
        OSError: First of the files that could not be removed. All others are removed.
    """
    # Kept as numbers, because an exception in a local variable keeps the frames of all callers in memory.
    failures: list[tuple[int, str, str]] = []

    def failed(where: str, err: OSError) -> None:
        failures.append((err.errno or errno.EIO, err.strerror or str(err), own.locate(where)))

    for name in (DATA, INCOMING):
        status = own.status(name)
        if status is None:
            continue
        if not stat.S_ISDIR(status.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), own.locate(name))
        for _ in own.remove(name, failed=failed):
            pass
    if failures:
        raise OSError(*failures[0])
    os.unlink(MARKER, dir_fd=own.descriptor)
    forget_copy(own.root, config)
    with contextlib.suppress(OSError):  # not empty: other copies, or files that prefeed did not create
        os.rmdir(own.root)
        os.rmdir(os.path.dirname(own.root))
