"""Removing a directory with all that is below it, and nothing else: no link is followed, and no mount is entered.

Every step is taken from one open directory to the next, so what others put in the way meanwhile is not walked into. What
is mounted below a directory belongs to somebody else, also when it is a bind mount of the same file system, which
``st_dev`` cannot tell: the number of the mount does.
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
    """What an open directory is a part of, and what a removal stays within.

    Attributes:
        mount: The number of the mount; None when the kernel does not say.
        device: The file system; subvolumes of btrfs have one each.
    """

    mount: int | None
    device: int

    @classmethod
    def of(cls, descriptor: int) -> Boundary:
        """Return that of an open directory."""
        return cls(mount_number(descriptor), os.fstat(descriptor).st_dev)


Failed = Callable[[str, OSError], None]
"""Told the path of what stays, and why."""


def remove_at(
    parent: int, name: str, where: str, *, within: Boundary | None, failed: Failed
) -> Generator[int, None, bool]:  # fmt: skip
    """Remove a name in an open directory, with all below it; yield the size of each file and link that went.

    Args:
        parent: Descriptor of the directory.
        name: In it.
        where: The same as a path, for ``failed``.
        within: Directories that are of another mount or file system stay, with all above them; None: none are.
        failed: Told what stays. Names that have vanished meanwhile do not count.

    Returns:
        Whether it is gone.
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
    """Remove all that is in an open directory; as ``remove_at``. Returns whether nothing was left."""
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
    """The directory is gone, with all below it; as ``shutil.rmtree``, but what is mounted there or below stays.

    Args:
        path: No link.
        ignore_errors: What cannot be removed stays, without a word.

    Raises:
        OSError: The first of what could not be removed; the rest is gone.
    """
    top = os.fspath(path).rstrip("/")
    name = os.path.basename(top)
    # Kept as numbers: an error that a local name refers to would keep the frames of all callers until they are collected.
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
