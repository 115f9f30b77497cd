"""The file systems as another process sees them: paths are resolved below its root directory, which it handed over."""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from xxhash import xxh3_64_hexdigest

from prefeed.sources.filesystems import OWN, FileSystems, Mounted
from prefeed.sources.mounts import mounts_below
from prefeed.system.machine import boot_id

_OPENAT2: Final = 437
_RESOLVE_IN_ROOT: Final = 0x10
_MOST_TRIES: Final = 100
NAMESPACE_DIGITS: Final = 8

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class View:
    """The file systems as a process sees them whose root directory is at hand.

    Paths mean here what they mean to that process: its mounts, links that are absolute, ``chroot``.

    **Ownership**: it closes the descriptor. **Threads**: ``open`` and ``stat`` in any; a descriptor that is in use is
    closed when it is not any more.
    """

    def __init__(self, identity: tuple[int, int, int]) -> None:
        """Stand for the root directory of this identity; ``attach`` says by which descriptor."""
        self.file_systems: FileSystems = FileSystems(opened=self.open)
        self.mark = xxh3_64_hexdigest("\0".join((boot_id(), *map(str, identity))).encode())
        self.listed: set[str] = set()
        self._lock = threading.Lock()
        self._root = -1
        self._users = 0
        self._attached = 0

    def attach(self, root: int, devices: Mapping[str, Mounted]) -> None:
        """Another connection handed over the directory; the descriptor belongs to the view now.

        Args:
            root: The descriptor.
            devices: What the process calls file systems that it sees; see ``FileSystems``.
        """
        with self._lock:
            if not self._attached:
                self.listed.clear()  # a listing may have ended since the last one was gone
            self._attached += 1
            self.file_systems.learn(devices)
            if self._root < 0:
                self._root = root
                return
        os.close(root)

    def detach(self) -> None:
        """One of these connections is closed; after the last one nothing can be read here."""
        with self._lock:
            self._attached -= 1
            if self._attached == 0:
                self.listed.clear()
                self._close_unused()

    @property
    def is_attached(self) -> bool:
        """True while there is a client whose view this is."""
        return self._attached > 0

    def open(self, path: str, flags: int) -> int:
        """Return a descriptor, as ``os.open``."""
        name = os.fsencode(path)
        if b"\0" in name:
            raise ValueError("embedded null byte")
        with self._used() as root:
            return _open_below(root, name, flags)

    def stat(self, path: str) -> os.stat_result:
        """Return what ``os.stat`` says."""
        descriptor = self.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            return os.fstat(descriptor)
        finally:
            os.close(descriptor)

    @contextmanager
    def _used(self) -> Iterator[int]:
        with self._lock:
            if self._root < 0 or not self._attached:
                raise OSError(errno.ESTALE, "the process that showed this directory has ended")
            self._users += 1
            root = self._root
        try:
            yield root
        finally:
            with self._lock:
                self._users -= 1
                if not self._attached:
                    self._close_unused()

    def _close_unused(self) -> None:
        if not self._users and self._root >= 0:
            os.close(self._root)
            self._root = -1


def can_be_shown() -> bool:
    """Return True when this kernel resolves paths below another process's root: Linux 5.6, where nothing forbids it."""
    root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.close(_open_below(root, b"/", os.O_PATH | os.O_CLOEXEC))
    except OSError:
        return False
    finally:
        os.close(root)
    return True


def root_identity(root: int) -> tuple[int, int, int]:
    """Return what tells the root directories of living processes apart: number of the mount, device, inode.

    Each mount namespace has mounts of its own. Where nothing tells the mount (no /proc), it is -1.
    """
    status = os.fstat(root)
    mount = -1
    try:
        with open(f"/proc/self/fdinfo/{root}") as lines:
            mount = next((int(line.split()[1]) for line in lines if line.startswith("mnt_id:")), -1)
    except (OSError, ValueError):
        pass
    return mount, status.st_dev, status.st_ino


def open_own_root() -> int:
    """Return a descriptor of this process's root directory, which only leads further."""
    return os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def mark_of_directory(path: str) -> str:
    """Return what tells the directory, and all that this process sees below it, from others with that path.

    The first ``NAMESPACE_DIGITS`` are this process's: links that lead out of the directory are told by the root directory
    that they are resolved in. Where there is no directory they are all.
    """
    root = open_own_root()
    try:
        namespace = _digest(boot_id(), root_identity(root))[:NAMESPACE_DIGITS]
    finally:
        os.close(root)
    try:
        return namespace + _digest(OWN.identify(os.stat(path), path), mounts_below(os.path.realpath(path)))
    except OSError:
        return namespace


def _digest(*told: object) -> str:
    return xxh3_64_hexdigest("\0".join(map(repr, told)).encode(errors="surrogateescape"))


class Views:
    """The views that clients of a server showed it; its own is None.

    **Threads**: the loop's.
    """

    def __init__(self) -> None:
        own = open_own_root()
        try:
            self._own = root_identity(own)
        finally:
            os.close(own)
        self._views: dict[tuple[int, int, int], View] = {}

    def attach(self, root: int, devices: Mapping[str, Mounted]) -> View | None:
        """Return the view of a client that handed over its root directory; None when it sees what this process sees.

        The descriptor is closed, now or by the view.

        Raises:
            OSError: This kernel cannot resolve paths there.
        """
        try:
            identity = root_identity(root)
            if identity == self._own and identity[0] >= 0:
                OWN.learn()
                os.close(root)
                return None
            if not can_be_shown():
                raise OSError(errno.ENOSYS, "this kernel does not resolve paths below the root of another process")
        except BaseException:
            os.close(root)
            raise
        view = self._views.setdefault(identity, View(identity))
        view.attach(root, devices)
        return view

    def look_again(self) -> None:
        """File systems may have been mounted since, by this process or another."""
        OWN.look_again()
        for view in self._views.values():
            view.file_systems.look_again()


def _open_below(root: int, name: bytes, flags: int) -> int:
    how = (ctypes.c_uint64 * 3)(flags, 0, _RESOLVE_IN_ROOT)
    failure = 0
    for _ in range(_MOST_TRIES):
        descriptor = _libc.syscall(_OPENAT2, root, name, how, ctypes.sizeof(how))
        if descriptor >= 0:
            return int(descriptor)
        failure = ctypes.get_errno()
        if failure not in (errno.EAGAIN, errno.EINTR):  # something was renamed or mounted meanwhile
            break
    raise OSError(failure, os.strerror(failure), os.fsdecode(name))
