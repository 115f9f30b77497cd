"""Copies that were made: where they lie, what is written beside them, who works at one; finding and removing them.

::

    <place>/prefeed-staged-<uid>/              0700
        <name>-<hash of url>/                  one copy; who works at it holds a lock on this directory
            copy.json                          what it is; without it prefeed removes nothing
            data/                              the path to train from
            incoming/                          files that are being written
    <home>/staged/<hash of host, directory>.json   that there is a copy: for lists, and to say of one that it is gone

A copy needs no server and no record in the home: removing either by hand does no harm.
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
from prefeed.system.files import make_private, replacing
from prefeed.system.locks import directory_lock
from prefeed.system.machine import host_name
from prefeed.transfer.rooted_dir import RootedDir

FORMAT: Final = 1
MARKER: Final = "copy.json"
DATA: Final = "data"
INCOMING: Final = "incoming"
MEMORY: Final = "memory"
"""The place that stands for ``PREFEED_MEMORY_DIR``."""

COPYING, COMPLETE, PARTIAL, REMOVING = "copying", "complete", "partial", "removing"
INTERRUPTED, GONE = "interrupted", "gone"
"""States that are not recorded: found out when a copy is looked at."""

_MAX_NAME_CHARS: Final = 40
_POLL_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRecord:
    """What is known of one copy.

    Attributes:
        source: Canonical URL of the origin.
        directory: Of the copy; what to train from is ``data`` in it.
        state: ``copying``, ``complete``, ``partial`` or ``removing``.
        num_files: Files that are copies, so far.
        bytes: Their size.
        num_linked: Names that lead to the origin, there being no room for a copy.
        linked_bytes: The size of those.
        num_missing: Names of the origin that are not there.
        started: Seconds since 1970 when the last run began.
        finished: When it ended; 0.0 when it did not.
        pid: Process that copies, or did.
        host: Name of its machine: others that share the home cannot see what lies on its disks.
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
    """Return the directory that ``memory`` or a path names."""
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
    """The copy's own record says this, and the home has it too if it can be written."""
    text = json.dumps({"format": FORMAT, **asdict(record)}, indent=1) + "\n"
    directory = Path(record.directory)
    _write(directory / MARKER, text)
    with contextlib.suppress(OSError):  # lists would miss a copy on disk; nothing else needs it
        make_private(_home_file(record.directory, config).parent)
        _write(_home_file(record.directory, config), text)


def forget_copy(directory: str, config: Config) -> None:
    """The home does not know this copy any more."""
    with contextlib.suppress(OSError):
        _home_file(directory, config).unlink()


def read_record(directory: Path) -> CopyRecord | None:
    """Return what a directory says that it is; None when it is no copy of this user made by prefeed."""
    if not is_private(directory):
        return None
    return _read(directory / MARKER, directory)


def iterate_copies(config: Config) -> Iterator[CopyRecord]:
    """Yield copies in memory and those that the home remembers, each once; some may be gone."""
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
                continue  # of another node
            seen.add(remembered.directory)
            yield here or remembered


def _read(file: Path, directory: Path | None) -> CopyRecord | None:
    try:
        values: dict[str, Any] = json.loads(file.read_bytes())
        names = {field.name for field in fields(CopyRecord)}
        if values.pop("format") != FORMAT or not isinstance(values["state"], str):
            return None
        known = {name: value for name, value in values.items() if name in names}
        # A copy that was moved, or is mounted elsewhere now, is where it is found.
        return CopyRecord(**(known | ({} if directory is None else {"directory": str(directory)})))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _home_file(directory: str, config: Config) -> Path:
    return config.home / "staged" / f"{_digest(f'{host_name()} {directory}')}.json"


def _write(file: Path, text: str) -> None:
    with replacing(file, private=True, durable=False) as opened:
        opened.write(text.encode())


# ---------------------------------------------------------------- who works at one


@contextlib.contextmanager
def create_and_lock(directory: Path, *, on_wait: Callable[[int], None]) -> Iterator[RootedDir]:
    """The directory exists, is this user's alone, and no other process works at it. Yields it, open.

    **Blocking**: as long as another one does. The lock goes with the process, however that ends.

    Args:
        directory: Of a copy; made if it is not there.
        on_wait: Told the process id of who holds it, once, when this has to wait.

    Raises:
        CopyError: It cannot be made.
        StoreError: Somebody else owns it.
    """
    is_waiting = False
    with contextlib.ExitStack() as stack:
        while True:
            try:
                _create(directory)
                own = _lock_and_open(stack, directory, directory_lock(directory, within_seconds=0))
                break
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
    """No other process works at a copy that is there. Yields it, open.

    Raises:
        CopyInUseError: One does.
        FileNotFoundError: It is not there any more.
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
    except FileNotFoundError as err:  # not the copy: that is held
        raise CopyError(f"nothing is done with {directory}: /proc is not mounted; mount it") from err
    return stack.enter_context(RootedDir(str(directory), descriptor=descriptor, is_own=True))


def is_held(directory: Path) -> bool:
    """Return whether a process works at a copy now."""
    try:
        with directory_lock(directory, within_seconds=0):
            return False
    except BlockingIOError:
        return True
    except OSError:
        return False


def holder_of(directory: Path) -> int:
    """Return the process that works at a copy, as its record says; 0 when that does not."""
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
    """Return every copy that is known, with the state that it is in now."""
    return [replace(record, state=_state_of(record)) for record in iterate_copies(config)]


def _state_of(record: CopyRecord) -> str:
    directory = Path(record.directory)
    if not directory.is_dir():
        return GONE  # a tmpfs does not outlive the machine's restart
    if record.state in (COPYING, REMOVING):
        return record.state if is_held(directory) else INTERRUPTED
    return record.state


def find_copies(text: str, config: Config) -> list[CopyRecord]:
    """Return the copies that a URL of an origin, or the path of a copy, names.

    Raises:
        NotACopyError: There is none; nothing that prefeed did not make is ever removed.
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
    """The copy is gone, and so is what the home knew of it; one that was gone already is forgotten.

    Links in it are removed and never followed. Files that somebody reads are theirs until they close them.

    Raises:
        CopyInUseError: A process is copying.
        CopyError: Something of it cannot be removed; the next call resumes.
    """
    directory = Path(record.directory)
    try:
        with lock_copy(directory) as own:
            if read_record(directory) is not None:
                with contextlib.suppress(OSError):  # a full disk; the record only tells lists what is going on
                    write_record(replace(record, state=REMOVING), config)
                remove_held(own, config)
    except FileNotFoundError:
        pass
    except OSError as err:
        raise CopyError(f"{err.filename or directory} cannot be removed: {err.strerror}", path=str(directory)) from err
    forget_copy(record.directory, config)


def remove_held(own: RootedDir, config: Config) -> None:
    """Nothing that prefeed made is left of a copy that the caller holds.

    Raises:
        OSError: Something of it cannot be removed: the first of what stays; the rest is gone.
    """
    # Kept as numbers: an error that a local name refers to would keep the frames of all callers until they are collected.
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
    with contextlib.suppress(OSError):  # files that prefeed did not make stay, and other copies
        os.rmdir(own.root)
        os.rmdir(os.path.dirname(own.root))
