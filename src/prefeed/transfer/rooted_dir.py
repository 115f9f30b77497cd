"""Changing what lies below one directory, and nothing else: every step is taken from an open directory to the next.

A path would be resolved again at each use, and a link may have been put in its way meanwhile. A descriptor stays where it
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

from prefeed.errors import BadTargetNameError, CopyError, JobError, PrefeedError, TargetFullError
from prefeed.system.removing import IS_MOUNT, Boundary, Failed, emptied, removed_at
from prefeed.transfer.entries import Entry, why_unsafe

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
LEFT_ALONE: Final = "nothing in it is removed. Name it itself, or give --no-one-file-system to remove in it too"
_OBSTACLE: Final = frozenset({errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY, errno.ELOOP})
_ONE_DIRECTORY: Final = frozenset({errno.EACCES, errno.EPERM, errno.ENOTCONN, errno.ESTALE})
"""What is said of one directory, though others can be written to."""

_BAD_NAME: Final = frozenset({errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ, errno.EFBIG})


class RootedDir:
    """One directory, and what may be done below it.

    **Threads**: any. **Ownership**: its maker closes it; also a context manager.

    Args:
        root: A directory that is there; it may be a link itself, for it was named.
        descriptor: Of the same, open already; it is this object's from now on.
        is_own: prefeed has made it: nothing at all is done behind a mount below it. Where the kernel does not tell mounts apart,
            the file systems do.

    Attributes:
        one_file_system: What is mounted below is left alone by what removes; False: it is a part of the directory.
        identity: Device and inode.

    Raises:
        OSError: It cannot be opened.
    """

    def __init__(self, root: str, *, descriptor: int | None = None, is_own: bool = False) -> None:
        self.root = root
        self.one_file_system = True
        self._is_own = is_own
        self._descriptor: int | None = (
            os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) if descriptor is None else descriptor
        )
        status = os.fstat(self.descriptor)
        self.identity: tuple[int, int] = (status.st_dev, status.st_ino)
        self._boundary = Boundary.of(self.descriptor)

    def __enter__(self) -> RootedDir:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the directory."""
        descriptor, self._descriptor = self.descriptor, None
        os.close(descriptor)

    @property
    def descriptor(self) -> int:
        """Of the open directory.

        Raises:
            OSError: It was closed: a thread that was left behind finds no other directory under the same number.
        """
        if self._descriptor is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self.root)
        return self._descriptor

    def locate(self, path: str) -> str:
        """Return the full path, for messages."""
        return f"{self.root.rstrip('/')}/{path}"

    def open_inner(self, name: str) -> RootedDir:
        """Return a directory in this one, made if it is not there, as the root of its own; it is no link, and no mount.

        Raises:
            OSError: It is, or cannot be opened.
        """
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=self.descriptor)
        try:
            descriptor = os.open(name, _DIRECTORY, dir_fd=self.descriptor)
        except OSError as err:
            if _is_link(self.descriptor, name):
                raise OSError(errno.ELOOP, "is a link, which is not followed; remove it", self.locate(name)) from err
            raise OSError(err.errno, err.strerror, self.locate(name)) from err
        inner = RootedDir(self.locate(name), descriptor=descriptor, is_own=self._is_own)
        if inner._boundary != self._boundary:
            inner.close()
            raise OSError(errno.EXDEV, "is a mount; unmount it", self.locate(name))
        return inner

    @property
    def within(self) -> Boundary | None:
        """What a removal stays within; None: nothing holds it.

        Raises:
            JobError: The kernel does not tell mounts apart.
        """
        if not self.one_file_system:
            return None
        if self._boundary.mount is None and not self._is_own:
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
            OSError: A directory on the way is missing, or cannot be opened; EXDEV, with the full path of a mount, when
                something is to be removed behind one.
        """
        parts = safe_parts(path)
        with self.directory("/".join(parts[:-1]), make=make, removes=removes) as descriptor:
            yield descriptor, parts[-1]

    @contextlib.contextmanager
    def directory(self, path: str, *, make: bool = False, removes: bool = False) -> Iterator[int]:
        """Yield the open directory of this path; the empty path is the root. Raises as ``parent_of``."""
        within = self.within if removes or self._is_own else None
        descriptor = os.dup(self.descriptor)
        try:
            parts = safe_parts(path) if path else []
            for at, part in enumerate(parts):
                following = _open_step(descriptor, part, make=make, path=path)
                os.close(descriptor)
                descriptor = following
                if within is not None and Boundary.of(descriptor) != within:
                    raise OSError(errno.EXDEV, IS_MOUNT, self.locate("/".join(parts[: at + 1])))
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

    def remove(self, path: str, *, failed: Failed) -> Iterator[int]:
        """Remove what lies at a path, with all that is below it; of the root, all that is in it.

        Yields the size of each file and link that went. Raises as ``parent_of``.

        Args:
            path: Relative to the root; empty: the root.
            failed: Told the relative path of what stays, and why.
        """
        within = self.within
        if not path:
            yield from emptied(self.descriptor, "", within=within, failed=failed)
            return
        with contextlib.suppress(FileNotFoundError), self.parent_of(path, removes=True) as (parent, name):
            yield from removed_at(parent, name, path, within=within, failed=failed)

    def remove_unchanged(self, entry: Entry) -> str:
        """Remove a file or link that is as it was listed; return why it is still there, or an empty text."""
        try:
            with self.parent_of(entry.path, removes=True) as (parent, name):
                status = os.stat(name, dir_fd=parent, follow_symlinks=False)
                if entry.is_file and not stat.S_ISREG(status.st_mode):
                    return "is a link, which is left alone"
                if (status.st_size, status.st_mtime_ns) != (entry.size_bytes, entry.mtime_ns):
                    return "has changed since it was listed"
                os.unlink(name, dir_fd=parent)
        except FileNotFoundError:
            return ""
        except PrefeedError as err:
            return str(err)
        except OSError as err:
            if err.errno == errno.EBUSY:
                return "is in use, perhaps by a mount on it"
            return why_left(err, advice="" if self._is_own else LEFT_ALONE)
        return ""

    def remove_empty(self, path: str) -> bool:
        """Remove a directory; return False when something is in it, or it is none."""
        try:
            with self.parent_of(path, removes=True) as (parent, name):
                os.rmdir(name, dir_fd=parent)
        except (OSError, PrefeedError):
            return False
        return True


def why_left(err: OSError, *, advice: str = LEFT_ALONE) -> str:
    """Return why something that was to be removed is still there; ``advice`` is given where a mount is the reason."""
    reason = err.strerror or str(err)
    if err.errno != errno.EXDEV:
        return reason
    return ": ".join(filter(None, (err.filename, reason, advice)))


def safe_parts(path: str) -> list[str]:
    """Return the names on the way to a path.

    Raises:
        BadTargetNameError: One of them is no name.
    """
    reason = why_unsafe(path)
    if reason is not None:
        raise BadTargetNameError(f"{path!r} {reason}", path=path)
    return path.split("/")


def _open_step(descriptor: int, part: str, *, make: bool, path: str) -> int:
    try:
        return os.open(part, _DIRECTORY, dir_fd=descriptor)
    except FileNotFoundError:
        if not make:
            raise
    except OSError as err:
        if err.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        raise BadTargetNameError(f"{path!r} goes through {_describe_obstacle(descriptor, part)}", path=path) from err
    with contextlib.suppress(FileExistsError):
        os.mkdir(part, dir_fd=descriptor)
    return _open_step(descriptor, part, make=False, path=path)


def _describe_obstacle(descriptor: int, part: str) -> str:
    is_link = _is_link(descriptor, part)
    if is_link:
        return f"{part!r}, which is a link and is not followed"
    return f"{part!r}, which is no directory: remove or rename it there, or --exclude what the source has below it"


def _is_link(descriptor: int, name: str) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode)
    except OSError:
        return False


def raise_translated(err: OSError, where: str) -> NoReturn:
    """Raise the error of the tree that stands for one of a file or directory that was to be written."""
    reason = err.strerror or str(err)
    if err.errno in NO_ROOM:
        raise TargetFullError(f"the file system is full: {where}: {reason}", path=where) from err
    if err.errno in _OBSTACLE:
        raise BadTargetNameError(f"{where}: something else of this name is in the way: {reason}", path=where) from err
    if err.errno == errno.EXDEV:
        raise BadTargetNameError(
            f"{where} lies in a mount below the destination, where files cannot be written atomically: sync that mount separately "
            "",
            path=where,
        ) from err
    if err.errno in _BAD_NAME or err.errno in _ONE_DIRECTORY:
        raise BadTargetNameError(f"{where}: {reason}", path=where) from err
    raise CopyError(f"{where} cannot be written: {reason}; copied files stay", path=where) from err
