"""Removing data at its origin: only what is named, below one root. Beside it a sync with ``delete_src`` does that.

A path is removed with all that is below it. It is walked by open directories, and no link is followed: one that is met is
removed itself, and what it leads to stays. Nothing that is mounted below the root is entered, unless that was asked for.
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
    """What lies at one of the paths: how many files or objects, their size in bytes, and mounts below that stay."""

    path: str
    num_files: int
    bytes: int
    mounts: tuple[str, ...] = ()


@dataclass(slots=True)
class RmrResult:
    """How a removal ended; ``failures`` are sentences.

    Attributes:
        num_removed: Files, links and objects that are gone.
        bytes_removed: Their size.
        failures: What is still there, and why.
    """

    num_removed: int = 0
    bytes_removed: int = 0
    failures: list[str] = field(default_factory=list)


def relative_paths(root: str, paths: Sequence[str]) -> list[str]:
    """Return paths below a root as relative ones, each once, without those below another.

    Args:
        root: Canonical URL.
        paths: Relative to the root, or absolute and below it.

    Raises:
        JobSpecError: A path is empty, has ``..`` in it, or is not below the root; or the root itself was named.
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
    """Return what would be removed; nothing is.

    Args:
        root: Canonical URL of a directory, or s3://, gs://, az://.
        paths: As ``relative_paths`` returns them.
        config: Settings.
        one_file_system: What is mounted below the root stays; False: it goes too.

    Raises:
        JobSpecError: Nothing can be removed there, or a path goes through a link or to one that leaves the root.
        ObjectNotFoundError: There is nothing at a path.
        SourceError: It cannot be listed.
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
    """What is at the paths is gone, as far as the result does not say otherwise; the root itself stays.

    **Blocking**: until it is done. Safe to kill: what is gone is gone, and the same command resumes.

    Args:
        root: Canonical URL.
        paths: As ``relative_paths`` returns them.
        config: Settings.
        one_file_system: As ``survey``.
        progress: Told files and bytes removed so far.

    Raises:
        JobSpecError: As ``survey``.
        SourceError: The store does not answer.
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
    """Removes below one directory. **Ownership**: its maker closes it."""

    def __init__(self, root: str, *, one_file_system: bool = True) -> None:
        try:
            self._rooted = RootedDir(root)
        except OSError as err:
            raise ObjectNotFoundError(f"{root} is no directory that can be opened: {err.strerror}", path=root) from err
        self._rooted.one_file_system = one_file_system

    def survey(self, path: str) -> RemovalPreview:
        """Return what lies there."""
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
        except ObjectNotFoundError as err:  # the open directory is there
            raise JobError(
                f"nothing below {self._rooted.root} is removed: /proc is not mounted, and what there is cannot be counted; mount it"
            ) from err
        except (OSError, BadTargetNameError, SourceError) as err:
            if isinstance(err, OSError) and err.errno == errno.EXDEV:
                mounts.append(path)  # else gone, or closed to this user: the removal will say so
        return RemovalPreview(path=path, num_files=count, bytes=size, mounts=tuple(mounts))

    def exists(self, path: str) -> bool:
        """Return whether something is there, an empty directory too."""
        return not path or self._rooted.status(path) is not None

    def remove(self, path: str, failures: list[str]) -> Iterator[int]:
        """Remove what lies there; yield the size of each file that went."""

        def failed(where: str, err: OSError) -> None:
            failures.append(f"{self._rooted.locate(where)}: {why_left(err)}")

        self._require_inside(path)
        try:
            yield from self._rooted.remove(path, failed=failed)
        except OSError as err:
            failed(path, err)

    def close(self) -> None:
        """Let go of the directory."""
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
    """Removes objects below one prefix. **Ownership**: its maker closes it."""

    def __init__(self, root: str, config: Config) -> None:
        self._place = StorePlace(root, config)

    def survey(self, path: str) -> RemovalPreview:
        """Return what lies there."""
        count = size = 0
        for one in self._place.list_below(path):
            count += 1
            size += one.size_bytes
        return RemovalPreview(path=path, num_files=count, bytes=size)

    def exists(self, path: str) -> bool:
        """Return whether something is there: a store has nothing but objects."""
        return not path

    def remove(self, path: str, failures: list[str]) -> Iterator[int]:
        """Remove what lies there; yield the size of each object that went."""
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
        # ``a/``, as consoles make it for a directory, is listed as ``a``, and the client has no way to name it.
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
        """Let go of connections."""
        self._place.close()
