"""Remove data at its origin: given paths below one root, each with its whole tree. Implements jobs of type ``rmr``.

Directories are walked by file descriptor. Symbolic links are removed and not followed. Mounts below the root are not entered unless
``one_file_system`` is False. ``survey`` counts the files, and ``remove`` removes them.
"""

from __future__ import annotations

import contextlib
import errno
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from prefeed.config import Config
from prefeed.errors import BadTargetNameError, JobError, JobSpecError, ObjectNotFoundError, PrefeedError, SourceError
from prefeed.jobs.places import root_of
from prefeed.system.paths import is_in_resolved
from prefeed.transfer.entries import Entry, why_unsafe
from prefeed.transfer.ordered_walk import OrderedWalk, WalkEvents
from prefeed.transfer.rooted_dir import RootedDir, why_left
from prefeed.transfer.store import WRITABLE, StorePlace

_OBJECTS_PER_CALL: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovalPreview:
    """Number and size of the files or objects to remove at a path, and the mounts below it that stay."""

    path: str
    num_files: int
    bytes: int
    mounts: tuple[str, ...] = ()


@dataclass(slots=True)
class RmrResult:
    """Result of a removal.

    Attributes:
        num_removed: Files, links and objects removed.
        bytes_removed: Size of these, in bytes.
        failures: Sentence for each path that was not removed, with the reason.
    """

    num_removed: int = 0
    bytes_removed: int = 0
    failures: list[str] = field(default_factory=list)


def relative_paths(root: str, paths: Sequence[str]) -> list[str]:
    """Convert paths to relative ones, without duplicates and paths below another.

    Args:
        root: Canonical URL.
        paths: Paths relative to the root, or absolute and below it.

    Raises:
        JobSpecError: A path is empty, contains ``..``, is the root itself, or is not below the root.
    """
    if not paths:
        raise JobSpecError(f"name at least one path below {root}")
    found = sorted({_relative(root, path) for path in paths})
    kept: list[str] = []
    for path in found:
        if not any(path.startswith(above + "/") for above in kept):
            kept.append(path)
    return kept


def _relative(root: str, path: str) -> str:
    if not path.strip("/ "):
        raise JobSpecError(f"{path!r} names no path below {root}")
    own = root.rstrip("/") + "/"
    relative = path[len(own) :] if path.startswith(own) else path
    relative = relative.rstrip("/")
    if not relative or path.rstrip("/") == root.rstrip("/"):
        raise JobSpecError(f"{path!r} is the root itself, which stays; name paths below it")
    reason = why_unsafe(relative)
    if reason is not None:
        raise JobSpecError(f"{path!r} {reason}; give a path below {root}, without ..")
    return relative


def survey(root: str, paths: Sequence[str], config: Config, *, one_file_system: bool = True) -> list[RemovalPreview]:
    """Count the files that ``remove`` would remove.

    Args:
        root: Canonical URL of a directory, or s3://, gs://, az://.
        paths: Paths as returned by ``relative_paths``.
        config: Settings.
        one_file_system: False to remove the contents of mounts below the root too.

    Raises:
        JobSpecError: The root does not support removal, or a path goes through a link, or is one that leaves the root.
        ObjectNotFoundError: A path does not exist.
        SourceError: The root cannot be listed.
    """
    with contextlib.closing(_remover(root, config, one_file_system=one_file_system)) as remover:
        found = [remover.survey(path) for path in paths]
        absent = next((one.path for one in found if not one.num_files and not remover.exists(one.path)), None)
        if absent is not None:
            raise ObjectNotFoundError(f"{root} has nothing at {absent!r}; nothing was removed")
        return found


def remove(
    root: str, paths: Sequence[str], config: Config, *, one_file_system: bool = True,
    progress: Callable[[int, int], None] = lambda _files, _bytes: None,
) -> RmrResult:  # fmt: skip
    """Remove the files and objects at paths, and keep the root itself. Failures are in the result.

    **Blocking**: until all are removed. Can be killed at any time: the same command resumes.

    Args:
        root: Canonical URL.
        paths: Paths as returned by ``relative_paths``.
        config: Settings.
        one_file_system: As in ``survey``.
        progress: Called with the number of files and bytes removed so far.

    Raises:
        JobSpecError: As ``survey``.
        SourceError: The store does not respond.
    """
    result = RmrResult()
    with contextlib.closing(_remover(root, config, one_file_system=one_file_system)) as remover:
        for path in paths:
            for size in remover.remove(path, result.failures):
                result.num_removed += 1
                result.bytes_removed += size
                progress(result.num_removed, result.bytes_removed)
    return result


def _remover(root: str, config: Config, *, one_file_system: bool) -> DirectoryRemover | StoreRemover:
    root_of(root)
    if root.startswith("/"):
        return DirectoryRemover(root, one_file_system=one_file_system)
    if root.startswith(WRITABLE):
        return StoreRemover(root, config)
    raise JobSpecError(f"nothing can be removed from {root}: rmr works on directories, s3://, gs:// and az://")


class DirectoryRemover:
    """Removes files below one directory. **Ownership**: the caller closes it."""

    def __init__(self, root: str, *, one_file_system: bool = True) -> None:
        try:
            self._rooted = RootedDir(root)
        except OSError as err:
            raise ObjectNotFoundError(f"{root} cannot be opened as a directory: {err.strerror}", path=root) from err
        self._rooted.one_file_system = one_file_system

    def survey(self, path: str) -> RemovalPreview:
        """Count the files and objects at a path."""
        self._require_inside(path)
        count = size = 0
        mounts: list[str] = []
        within = self._rooted.within

        def on_mount(below: str, _: int | None) -> bool:
            if below and within is not None:
                mounts.append(f"{path}/{below}" if path else below)
            return not below or within is None

        try:
            status = self._rooted.status(path) if path else None
            if status is None or stat.S_ISDIR(status.st_mode):
                with self._rooted.directory(path, removes=True) as descriptor:
                    for entry in OrderedWalk(
                        path, descriptor=descriptor, follow=False, events=WalkEvents(mount=on_mount)
                    ):
                        count += 1
                        size += entry.size_bytes
            else:
                count, size = 1, status.st_size
        except ObjectNotFoundError as err:  # The directory is open, so only /proc can be missing.
            raise JobError(
                f"nothing below {self._rooted.root} is removed: /proc is not mounted, and what there is cannot be counted; mount it"
            ) from err
        except (OSError, BadTargetNameError, SourceError) as err:
            if isinstance(err, OSError) and err.errno == errno.EXDEV:
                mounts.append(path)  # The removal reports all other errors.
        return RemovalPreview(path=path, num_files=count, bytes=size, mounts=tuple(mounts))

    def exists(self, path: str) -> bool:
        """Return True if a path exists, even as an empty directory."""
        return not path or self._rooted.status(path) is not None

    def remove(self, path: str, failures: list[str]) -> Iterator[int]:
        """Remove the tree at a path; yield the size of each removed file."""

        def failed(where: str, err: OSError) -> None:
            failures.append(f"{self._rooted.locate(where)}: {why_left(err)}")

        self._require_inside(path)
        try:
            yield from self._rooted.remove(path, failed=failed)
        except OSError as err:
            failed(path, err)

    def close(self) -> None:
        """Close the directory."""
        self._rooted.close()

    def _require_inside(self, path: str) -> None:
        try:
            status = self._rooted.status(path) if path else None
            if status is not None:
                with self._rooted.parent_of(path, removes=True):
                    pass
        except BadTargetNameError as err:
            raise JobSpecError(f"{err}: name its real path; nothing was removed") from err
        except OSError as err:
            raise JobError(f"{self._rooted.locate(path)}: {why_left(err)}") from err
        if status is not None and stat.S_ISLNK(status.st_mode):
            if not is_in_resolved(self._rooted.locate(path), self._rooted.root):
                raise JobSpecError(
                    f"{path!r} is a link that leaves {self._rooted.root}: nothing was removed; unlink it yourself if that is "
                    "what you want"
                )


class StoreRemover:
    """Removes objects below one prefix. **Ownership**: the caller closes it."""

    def __init__(self, root: str, config: Config) -> None:
        self._place = StorePlace(root, config)

    def survey(self, path: str) -> RemovalPreview:
        """Count the files and objects at a path."""
        count = size = 0
        for one in self._place.list_below(path):
            count += 1
            size += one.size_bytes
        return RemovalPreview(path=path, num_files=count, bytes=size)

    def exists(self, path: str) -> bool:
        """Return True only for the root, because a store has no empty directories."""
        return not path

    def remove(self, path: str, failures: list[str]) -> Iterator[int]:
        """Remove the objects at a path; yield the size of each removed object."""
        empty: list[Entry] = []
        listed = self._place.list_below(path)
        while group := list(islice(listed, _OBJECTS_PER_CALL)):
            try:
                self._place.remove([one.path for one in group])
            except PrefeedError as err:
                if err.retryable:
                    raise
                failures.append(str(err))
                return
            yield from (one.size_bytes for one in group if one.size_bytes)
            empty += (one for one in group if not one.size_bytes)
        # Consoles create an object ``a/`` for a directory. The client lists it as ``a`` and cannot remove it.
        left = {one.path for one in self._place.list_below(path)} if empty else set()
        for one in empty:
            if one.path in left:
                where = self._place.locate(one.path)
                failures.append(
                    f"{where}/ marks a directory and was not removed; remove it with the tools of the store"
                )
            else:
                yield 0

    def close(self) -> None:
        """Close the connections."""
        self._place.close()
