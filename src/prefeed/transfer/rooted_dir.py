"""Changes files below one directory and nowhere else.

A path could be redirected by a new link between two uses. Therefore each step opens the next directory relative to the open descriptor above
it, without following links. Removals also stay on the root's mount: the mount of each directory on the way is checked once it is open.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from typing import Final, NoReturn

from prefeed.errors import BadTargetNameError, CopyError, JobError, PrefeedError, TargetFullError
from prefeed.system.removing import IS_MOUNT, Boundary, Failed, empty_directory, remove_at
from prefeed.transfer.entries import Entry, why_unsafe

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
LEFT_ALONE: Final = "nothing in it is removed. Name it itself, or give --no-one-file-system to remove in it too"
_OBSTACLE: Final = frozenset({errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY, errno.ELOOP})
_ONE_DIRECTORY: Final = frozenset({errno.EACCES, errno.EPERM, errno.ENOTCONN, errno.ESTALE})
"""Error codes that concern one directory. Other directories may be writable."""

_BAD_NAME: Final = frozenset({errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ, errno.EFBIG})


class RootedDir:
    """A root directory and the operations below it.

    **Threads**: any. **Ownership**: the creator closes it; also a context manager.

    Args:
        root: An existing directory, or a link to one.
        descriptor: Open descriptor of the same directory, which this object then owns.
        is_own: True for a directory of prefeed, in which no operation crosses a mount. Without mount numbers from the kernel, file systems are
            compared instead.

    Attributes:
        one_file_system: True if removals leave mounts below the root alone; False if mounts are part of the directory.
        identity: Device and inode.

    Raises:
        OSError: The directory cannot be opened.
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
        """Close the descriptor."""
        descriptor, self._descriptor = self.descriptor, None
        os.close(descriptor)

    @property
    def descriptor(self) -> int:
        """Descriptor of the open directory.

        Raises:
            OSError: The directory was closed. Otherwise a leftover thread could use a reused number.
        """
        if self._descriptor is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self.root)
        return self._descriptor

    def locate(self, path: str) -> str:
        """Return the full path for messages."""
        return f"{self.root.rstrip('/')}/{path}"

    def open_inner(self, name: str) -> RootedDir:
        """Open a directory in this one as a root, creating it if needed.

        Raises:
            OSError: The directory is a link or a mount, or cannot be opened.
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
        """Boundary of removals; None if there is no boundary.

        Raises:
            JobError: The kernel does not report mounts.
        """
        if not self.one_file_system:
            return None
        if self._boundary.mount is None and not self._is_own:
            raise JobError(
                f"nothing below {self.root} is removed: the kernel does not report mounts there (statx of Linux 5.8, or "
                "/proc). Mount /proc, or give --no-one-file-system if nothing is mounted there",
                path=self.root,
            )
        return self._boundary

    @contextlib.contextmanager
    def parent_of(self, path: str, *, make: bool = False, removes: bool = False) -> Iterator[tuple[int, str]]:
        """Open the directory that contains a path. Yield its descriptor and the last name.

        Args:
            path: Relative to the root.
            make: True to create missing directories.
            removes: True for a removal, which does not enter mounts.

        Raises:
            BadTargetNameError: A part of the path is invalid, or is a link or no directory.
            OSError: A directory is missing or cannot be opened. EXDEV, with the full path of a mount, for a removal in one.
        """
        parts = safe_parts(path)
        with self.directory("/".join(parts[:-1]), make=make, removes=removes) as descriptor:
            yield descriptor, parts[-1]

    @contextlib.contextmanager
    def directory(self, path: str, *, make: bool = False, removes: bool = False) -> Iterator[int]:
        """Open a directory and yield its descriptor; ``""`` is the root. Raises as ``parent_of``."""
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
        """Stat a path without following links. Return None if it does not exist."""
        try:
            with self.parent_of(path) as (parent, name):
                return os.stat(name, dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def remove(self, path: str, *, failed: Failed) -> Iterator[int]:
        """Remove a file, link or directory with its content. Of the root, remove only the content.

        Yields the size of each removed file and link. Raises as ``parent_of``.

        Args:
            path: Relative to the root; empty for the root.
            failed: Function that receives the relative path and the reason of each failure.
        """
        within = self.within
        if not path:
            yield from empty_directory(self.descriptor, "", within=within, failed=failed)
            return
        with contextlib.suppress(FileNotFoundError), self.parent_of(path, removes=True) as (parent, name):
            yield from remove_at(parent, name, path, within=within, failed=failed)

    def remove_unchanged(self, entry: Entry) -> str:
        """Remove a file or link that is unchanged since its listing. Return the reason if it remains, else ``""``."""
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
        """Remove an empty directory. Return False if that fails, for example because it is not empty."""
        try:
            with self.parent_of(path, removes=True) as (parent, name):
                os.rmdir(name, dir_fd=parent)
        except (OSError, PrefeedError):
            return False
        return True


def why_left(err: OSError, *, advice: str = LEFT_ALONE) -> str:
    """Return why a removal failed. ``advice`` is added if a mount is the reason."""
    reason = err.strerror or str(err)
    if err.errno != errno.EXDEV:
        return reason
    return ": ".join(filter(None, (err.filename, reason, advice)))


def safe_parts(path: str) -> list[str]:
    """Split a path into its parts.

    Raises:
        BadTargetNameError: A part is not a valid name.
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
    return f"{part!r}, which is not a directory: remove or rename it there, or --exclude what the source has below it"


def _is_link(descriptor: int, name: str) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode)
    except OSError:
        return False


def raise_translated(err: OSError, where: str) -> NoReturn:
    """Raise the prefeed error for an ``OSError`` of a file or directory that was being written."""
    reason = err.strerror or str(err)
    if err.errno in NO_ROOM:
        raise TargetFullError(f"the file system is full: {where}: {reason}", path=where) from err
    if err.errno in _OBSTACLE:
        raise BadTargetNameError(f"{where}: something else of this name is in the way: {reason}", path=where) from err
    if err.errno == errno.EXDEV:
        raise BadTargetNameError(
            f"{where} is in a mount below the destination, where files cannot be written atomically; sync that mount separately",
            path=where,
        ) from err
    if err.errno in _BAD_NAME or err.errno in _ONE_DIRECTORY:
        raise BadTargetNameError(f"{where}: {reason}", path=where) from err
    raise CopyError(f"{where} cannot be written: {reason}; copied files stay", path=where) from err
