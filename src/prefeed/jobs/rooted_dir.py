"""Changing what lies below one directory, and nothing else: every step is taken from an open directory to the next.

A path would be followed anew at each use, and a link may have been put in its way meanwhile. A descriptor stays where it
is: what is opened from it without following links lies below the root, whatever others do. What is removed is also of
the root's own mount: each directory on the way is asked for its mount once it is open.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from typing import Final, NoReturn

from prefeed.copying.names import why_unsafe
from prefeed.errors import BadTargetNameError, JobError, PrefeedError, TargetFullError
from prefeed.system.removing import Boundary

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
LEFT_ALONE: Final = "nothing in it is removed. Name it itself, or give --no-one-file-system to remove in it too"
_IN_THE_WAY: Final = frozenset({errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY, errno.ELOOP})
_NOT_THERE: Final = frozenset({errno.EACCES, errno.EPERM, errno.ENOTCONN, errno.ESTALE})
"""What is said of one directory, though others can be written to."""

_BAD_NAME: Final = frozenset({errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ, errno.EFBIG})


class Beneath:
    """One directory, and what may be done below it.

    **Threads**: any. **Ownership**: whoever makes it closes it; also a context manager.

    Args:
        root: A directory that is there; it may be a link itself, for it was named.

    Attributes:
        one_file_system: What is mounted below is left alone by what removes; False: it is a part of the directory.

    Raises:
        OSError: It cannot be opened.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self.one_file_system = True
        self.descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        status = os.fstat(self.descriptor)
        self.identity = (status.st_dev, status.st_ino)
        self._boundary = Boundary.of(self.descriptor)

    def __enter__(self) -> Beneath:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the directory."""
        os.close(self.descriptor)

    @property
    def within(self) -> Boundary | None:
        """What a removal stays within; None: nothing holds it.

        Raises:
            JobError: The kernel does not tell mounts apart.
        """
        if not self.one_file_system:
            return None
        if self._boundary.mount is None:
            raise JobError(
                f"nothing below {self.root} is removed: the kernel does not say what is mounted there (statx of Linux 5.8, or "
                "/proc). Mount /proc, or give --no-one-file-system if nothing is mounted there",
                path=self.root,
            )
        return self._boundary

    @contextlib.contextmanager
    def parent_of(self, path: str, *, make: bool = False, removes: bool = False) -> Iterator[tuple[int, str]]:
        """Yield the open directory that a path lies in, and its name there.

        Args:
            path: Relative to the root.
            make: Directories on the way are made where they are missing.
            removes: Something is to be removed: nothing that is mounted on the way is entered.

        Raises:
            BadTargetNameError: The path could lead out of the root, by its own parts or by a link on the way.
            JobError: It leads into a mount, and something is to be removed.
            OSError: A directory on the way is missing, or cannot be opened.
        """
        parts = safe_parts(path)
        with self.directory("/".join(parts[:-1]), make=make, removes=removes) as descriptor:
            yield descriptor, parts[-1]

    @contextlib.contextmanager
    def directory(self, path: str, *, make: bool = False, removes: bool = False) -> Iterator[int]:
        """Yield the open directory of this path; the empty path is the root. Raises as ``parent_of``."""
        within = self.within if removes else None
        descriptor = os.dup(self.descriptor)
        try:
            parts = safe_parts(path) if path else []
            for at, part in enumerate(parts):
                following = _step(descriptor, part, make=make, path=path)
                os.close(descriptor)
                descriptor = following
                if within is not None and Boundary.of(descriptor) != within:
                    where = f"{self.root.rstrip('/')}/{'/'.join(parts[: at + 1])}"
                    raise JobError(f"{where} is a mount, or a file system of its own: {LEFT_ALONE}", path=where)
            yield descriptor
        finally:
            os.close(descriptor)

    def status(self, path: str) -> os.stat_result | None:
        """Return what ``lstat`` says; None when nothing is there."""
        try:
            with self.parent_of(path) as (parent, name):
                return os.stat(name, dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def remove_empty(self, path: str) -> bool:
        """Remove a directory; return False when something is in it, or it is none."""
        try:
            with self.parent_of(path, removes=True) as (parent, name):
                os.rmdir(name, dir_fd=parent)
        except (OSError, PrefeedError):
            return False
        return True


def safe_parts(path: str) -> list[str]:
    """Return the names on the way to a path.

    Raises:
        BadTargetNameError: One of them is no name.
    """
    reason = why_unsafe(path)
    if reason is not None:
        raise BadTargetNameError(f"{path!r} {reason}", path=path)
    return path.split("/")


def _step(descriptor: int, part: str, *, make: bool, path: str) -> int:
    try:
        return os.open(part, _DIRECTORY, dir_fd=descriptor)
    except FileNotFoundError:
        if not make:
            raise
    except OSError as err:
        if err.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        raise BadTargetNameError(f"{path!r} goes through {_kind(descriptor, part)}", path=path) from err
    with contextlib.suppress(FileExistsError):
        os.mkdir(part, dir_fd=descriptor)
    return _step(descriptor, part, make=False, path=path)


def _kind(descriptor: int, part: str) -> str:
    try:
        is_link = stat.S_ISLNK(os.stat(part, dir_fd=descriptor, follow_symlinks=False).st_mode)
    except OSError:
        is_link = False
    return f"{part!r}, which is a link and is not followed" if is_link else f"{part!r}, which is no directory"


def raise_translated(err: OSError, where: str) -> NoReturn:
    """Raise the error of the tree that stands for one of a file below the root."""
    reason = err.strerror or str(err)
    if err.errno in _NO_ROOM:
        raise TargetFullError(f"the file system is full: {where}: {reason}", path=where) from err
    if err.errno in _IN_THE_WAY:
        raise BadTargetNameError(f"{where}: something else of this name is in the way: {reason}", path=where) from err
    if err.errno == errno.EXDEV:
        raise BadTargetNameError(
            f"{where} lies in a mount below the destination, where files cannot be put whole: make that a destination of "
            "its own",
            path=where,
        ) from err
    if err.errno in _BAD_NAME or err.errno in _NOT_THERE:
        raise BadTargetNameError(f"{where}: {reason}", path=where) from err
    raise JobError(f"{where} cannot be changed: {reason}; what was done stays", path=where) from err
