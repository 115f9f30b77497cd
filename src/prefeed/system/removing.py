"""Removes directory trees without following links or entering mounts.

Each step opens the next directory relative to the open one above it, so that a path cannot be redirected. A mount below the tree is not part
of it, even a bind mount of the same file system, which only the mount number distinguishes.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Generator
from typing import Final, NamedTuple

from prefeed.system.machine import mount_number

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

IS_MOUNT: Final = "it is a mount, which is not entered"


class Boundary(NamedTuple):
    """Mount and file system of an open directory, which a removal does not leave.

    Attributes:
        mount: Mount number; None if the kernel does not report it.
        device: Device of the file system. Each btrfs subvolume has its own.
    """

    mount: int | None
    device: int

    @classmethod
    def of(cls, descriptor: int) -> Boundary:
        """Read the boundary of an open directory."""
        return cls(mount_number(descriptor), os.fstat(descriptor).st_dev)


Failed = Callable[[str, OSError], None]
"""Receives the path that could not be removed, and the reason."""


def remove_at(
    parent: int, name: str, where: str, *, within: Boundary | None, failed: Failed
) -> Generator[int, None, bool]:  # fmt: skip
    """Remove a name in an open directory, with everything below. Yield the size of each removed file and link.

    Args:
        parent: Descriptor of the directory.
        name: Name in the directory.
        where: Path of the name for ``failed``.
        within: Boundary. Directories outside and their parents stay. None for no boundary.
        failed: Function that receives failures. Names that vanish in the meantime are no failures.

    Returns:
        True if the name no longer exists.
    """
    try:
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if not stat.S_ISDIR(status.st_mode):
            os.unlink(name, dir_fd=parent)
            yield status.st_size
            return True
        descriptor = os.open(name, _DIRECTORY, dir_fd=parent)
    except FileNotFoundError:
        return True
    except OSError as err:
        failed(where, err)
        return False
    try:
        if within is not None and Boundary.of(descriptor) != within:
            failed(where, OSError(errno.EXDEV, IS_MOUNT))
            return False
        is_empty = yield from empty_directory(descriptor, where, within=within, failed=failed)
    finally:
        os.close(descriptor)
    if is_empty:
        try:
            os.rmdir(name, dir_fd=parent)
        except FileNotFoundError:
            pass
        except OSError as err:
            failed(where, err)
            return False
    return is_empty


def empty_directory(
    descriptor: int, where: str, *, within: Boundary | None, failed: Failed
) -> Generator[int, None, bool]:  # fmt: skip
    """Remove the content of an open directory, as ``remove_at`` does. Return True if the directory is empty."""
    try:
        names = os.listdir(descriptor)
    except OSError as err:
        failed(where, err)
        return False
    is_empty = True
    for name in names:
        path = f"{where}/{name}" if where else name
        is_empty &= yield from remove_at(descriptor, name, path, within=within, failed=failed)
    return is_empty


def remove_tree(path: str | os.PathLike[str], *, ignore_errors: bool = False) -> None:
    """Remove a directory tree like ``shutil.rmtree``, except mounts in it.

    Args:
        path: Directory, not a link to one.
        ignore_errors: True to leave files that cannot be removed, without an error.

    Raises:
        OSError: First failure. All other files are removed.
    """
    top = os.fspath(path).rstrip("/")
    name = os.path.basename(top)
    # Kept as numbers, because an exception in a local variable keeps the frames of all callers in memory.
    failures: list[tuple[int, str, str]] = []

    def failed(where: str, err: OSError) -> None:
        failures.append((err.errno or errno.EIO, err.strerror or str(err), where))

    try:
        parent = os.open(os.path.dirname(top) or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            for _ in remove_at(parent, name, top, within=Boundary.of(parent), failed=failed):
                pass
        finally:
            os.close(parent)
    except OSError as err:
        failed(top, err)
    if failures and not ignore_errors:
        raise OSError(*failures[0])
