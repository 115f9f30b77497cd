"""Creates or updates a local copy of a data set, or of the part of it that fits, for ``prefeed stage``.

::

    lock ─→ list the origin, scan the copy ─→ keep complete, unchanged files
                                            ├→ remove files that the origin no longer has
                                            ├→ copy objects that fit
                                            └→ if the origin is a directory, link the rest
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from prefeed.config import Config
from prefeed.copying.copies import (
    COMPLETE,
    COPYING,
    DATA,
    INCOMING,
    PARTIAL,
    CopyRecord,
    copy_directory,
    create_and_lock,
    read_record,
    remove_held,
    write_record,
)  # fmt: skip
from prefeed.copying.space import (
    BoundedSink,
    SpaceBudget,
    footprint,
    measure_limits,
    measure_space,
    parse_order,
    require_any_fit,
    select_copies,
)
from prefeed.errors import (
    BadTargetNameError,
    CopyError,
    DoesNotFitError,
    EmptyListingError,
    PrefeedError,
    TargetFullError,
)
from prefeed.sources.file_names import FileNames, list_names
from prefeed.sources.listing import LeftOut
from prefeed.sources.mounts import is_within
from prefeed.sources.posix import PosixSource
from prefeed.sources.protocol import Source
from prefeed.sources.urls import canonical_url, open_source
from prefeed.system.machine import host_name
from prefeed.transfer.directory import DirectorySink
from prefeed.transfer.engine import CopyFailure, CopyProgress, CopySummary, copy_objects
from prefeed.transfer.entries import Entry, directories_of, is_copy, split_storable
from prefeed.transfer.flow import CopyLimits
from prefeed.transfer.ordered_walk import OrderedWalk, Problem, WalkEvents
from prefeed.transfer.rooted_dir import RootedDir
from prefeed.types import ListingProgress

_RECORD_SECONDS: Final = 1.0
_RESERVE_NAME: Final = "space-for-the-record"
_RESERVE_BYTES: Final = 1 << 14


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRequest:
    """Arguments of ``stage``.

    Attributes:
        url: URL of the origin as typed. Credentials in it are used but never shown.
        place: Directory on the file system for the copy.
        size_bytes: Maximum space of the copy in bytes; None for no limit.
        order: Paths in the order in which they are copied if not all fit; None for small files first.
        allow_partial: True to accept a partial copy of an origin that is not a directory.
    """

    url: str
    place: Path
    size_bytes: int | None = None
    order: Sequence[str] | None = None
    allow_partial: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """Planned work of a run.

    Attributes:
        num_objects: Objects of the origin.
        total_bytes: Their size in bytes.
        num_kept: Existing copies that are up to date.
        num_to_copy: Objects to copy.
        bytes_to_copy: Their size in bytes.
        num_left: Objects for which there is no space.
        left_bytes: Their size in bytes.
        num_removed: Files to remove, because the origin no longer has them.
        opens_per_gib: Opens of the origin that a GiB of the copy saves per epoch.
        room_bytes: Maximum space of the copy in bytes.
        why: Reason for this maximum.
        has_links: True if objects without a copy become links to the origin.
    """

    num_objects: int
    total_bytes: int
    num_kept: int
    num_to_copy: int
    bytes_to_copy: int
    num_left: int
    left_bytes: int
    num_removed: int
    opens_per_gib: int
    room_bytes: int
    why: str
    has_links: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEvents:
    """Callbacks for the progress of a run, called in the caller's thread."""

    waiting: Callable[[int], None] = lambda _: None
    listing: ListingProgress = lambda _objects, _bytes: None
    planned: Callable[[StagePlan], None] = lambda _: None
    copying: Callable[[CopyProgress], None] = lambda _: None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageResult:
    """Result of a run.

    Attributes:
        record: Current record of the copy.
        plan: Planned work.
        summary: Objects copied in this run.
        failures: Objects that could not be copied, with reasons.
        is_usable: True if each object has a copy or a link, or if a part was accepted.
    """

    record: CopyRecord
    plan: StagePlan
    summary: CopySummary
    failures: tuple[CopyFailure, ...]
    is_usable: bool


def stage(request: StageRequest, config: Config, events: StageEvents | None = None) -> StageResult:
    """Create or update the copy of an origin, as far as there is space.

    If this call is interrupted, the next one resumes: a file in the copy is always complete.

    **Blocking**: until the copy is done. If another process works on the same copy, this call first waits for it.

    Raises:
        SourceError: Listing failed, or the origin no longer responds.
        DoesNotFitError: No object fits; or the origin is not a directory, not all fit, and ``allow_partial`` is False.
        CopyError: The place is not writable.
    """
    url = canonical_url(request.url)
    directory = copy_directory(request.place, url)
    events = events or StageEvents()
    _refuse_overlap(url, directory)
    with (
        create_and_lock(directory, on_wait=events.waiting) as own,
        contextlib.closing(_open(request.url, url, directory, config)) as source,
    ):
        try:
            return _StageRun(source, own, request, config, events).run()
        except OSError as err:
            if isinstance(err, PrefeedError):  # some errors of origins are also OSErrors
                raise
            where = err.filename or directory
            raise CopyError(f"{where}: {err.strerror}; copied files stay", path=str(directory)) from err


def _open(typed: str, url: str, directory: Path, config: Config) -> Source:
    return PosixTree(url, directory) if url.startswith("/") else open_source(typed, config)


def _refuse_overlap(url: str, directory: Path) -> None:
    if is_within(url, str(directory)) or is_within(str(directory), url):
        raise CopyError(f"{directory} and {url} overlap; name another place with --to")


class _StageRun:
    """One run in the caller's thread, which holds the lock of the copy."""

    def __init__(
        self, source: Source, own: RootedDir, request: StageRequest, config: Config, events: StageEvents
    ) -> None:  # fmt: skip
        self._source, self._own, self._request = source, own, request
        self._config, self._events = config, events
        before = read_record(Path(own.root))
        self._is_new = before is None
        before = before or CopyRecord(source=source.url, directory=own.root, state=COPYING)
        self._record = replace(
            before, state=COPYING, started=time.time(), finished=0.0, pid=os.getpid(), host=host_name()
        )
        self._recorded = 0.0
        self._has_links = isinstance(source, PosixTree)

    def run(self) -> StageResult:
        with self._own.open_inner(DATA) as self._data:
            with contextlib.closing(DirectorySink(self._data, work=(self._own, INCOMING), mode=0o600)) as sink:
                result = self._run(sink)
            self._save(result.record)  # uses the space freed by the work directory
        return result

    def _run(self, sink: DirectorySink) -> StageResult:
        if self._is_new:
            write_record(self._record, self._config)
        self._reserve_space()
        try:
            found = self._survey(sink)
            plan = self._create_plan(found)
            self._events.planned(plan)
            self._require_space(found, plan)
        except BaseException:
            if self._is_new:
                remove_held(self._own, self._config)
            raise
        self._save(replace(self._record, num_files=found.num_kept, bytes=found.kept_bytes))
        self._remove(found)
        full = self._create_links(found, sink)
        summary = self._copy(found, BoundedSink(sink, SpaceBudget(found.left_bytes, self._measure_space)))
        return self._finish(found, plan, sink, summary, full=full)

    # ---------------------------------------------------------------- planning

    def _reserve_space(self) -> None:
        """Reserve space for the last record with a file, which is removed before that record is written."""
        with contextlib.suppress(OSError), self._own.directory(INCOMING) as incoming:
            file = os.open(_RESERVE_NAME, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=incoming)
            with open(file, "wb") as spare:
                spare.write(bytes(_RESERVE_BYTES))

    def _survey(self, sink: DirectorySink) -> Comparison:
        found = compare(
            _list_origin(self._source, self._events.listing),
            *_scan(self._data),
            root=self._source.url,
            order=None if self._request.order is None else list(self._request.order),
            step_ns=sink.step_ns,
            folds_case=sink.folds_case,
            compute_budget=self._compute_budget,
        )
        # Missing files may be in an unreadable directory.
        is_hidden = isinstance(self._source, PosixTree) and self._source.left_out.count
        return replace(found, vanished=[]) if is_hidden else found

    def _measure_space(self) -> tuple[int, str]:
        return measure_space(Path(self._data.root), self._config)

    def _compute_budget(self, own_bytes: int) -> tuple[int, str]:
        """Return the maximum space of the copy, including the existing part, and the reason for it."""
        allowed, why = self._measure_space()
        asked = self._request.size_bytes
        if asked is not None and asked <= allowed + own_bytes:
            return asked, "--size allows no more"
        return allowed + own_bytes, why

    def _create_plan(self, found: Comparison) -> StagePlan:
        chosen_bytes = found.kept_bytes + found.bytes_to_copy
        num_chosen = found.num_kept + len(found.to_copy)
        return StagePlan(
            num_objects=found.num_objects,
            total_bytes=found.total_bytes,
            num_kept=found.num_kept,
            num_to_copy=len(found.to_copy),
            bytes_to_copy=found.bytes_to_copy,
            num_left=len(found.left),
            left_bytes=sum(max(0, entry.size_bytes) for entry in found.left),
            num_removed=len(found.vanished),
            opens_per_gib=num_chosen * 1024**3 // max(1, chosen_bytes),
            room_bytes=found.room_bytes,
            why=found.why,
            has_links=self._has_links,
        )

    def _require_space(self, found: Comparison, plan: StagePlan) -> None:
        require_any_fit(found.left, plan.num_to_copy + plan.num_kept, plan.room_bytes, plan.why, self._request.place)
        if found.left and not self._has_links and not self._request.allow_partial:
            raise DoesNotFitError(
                f"{self._source.url} has {plan.total_bytes:,} bytes in {plan.num_objects:,} objects, and "
                f"{self._request.place} has space for {plan.room_bytes:,}: {plan.why}. Name another place with --to, or "
                "copy a part of it with --partial",
                needed_bytes=plan.total_bytes,
                room_bytes=plan.room_bytes,
            )
        free = measure_limits(Path(self._data.root), self._config).free_files
        new = plan.num_to_copy + (plan.num_left if self._has_links else 0)
        if free is not None and new > free:
            raise DoesNotFitError(
                f"{plan.num_to_copy:,} new files are needed, and the file system of {self._request.place} has room for {free:,} "
                "more; name another place with --to",
                needed_files=new,
                free_files=free,
            )

    # ---------------------------------------------------------------- changes

    def _remove(self, found: Comparison) -> None:
        """Remove obsolete files first, because the plan uses their space."""
        for one in (*found.vanished, *(() if self._has_links else found.dropped)):
            if reason := self._data.remove_unchanged(one):
                where = self._data.locate(one.path)
                raise CopyError(f"{where} cannot be removed: {reason}; stage again", path=where)
        wanted = found.directories | set(self._source.directories if isinstance(self._source, PosixTree) else ())
        for directory in reversed(found.existing_directories):
            if directory not in wanted:
                self._data.remove_empty(directory)  # fails if it is not empty

    def _create_links(self, found: Comparison, sink: DirectorySink) -> str | None:
        """Create directories and links. Return the error message if the place is full, else None."""
        if not isinstance(self._source, PosixTree):
            return None
        try:
            for directory in self._source.directories:
                sink.make_directory(directory)
            for entry in found.left:
                self._link(entry, sink)
        except TargetFullError as err:
            return str(err)
        return None

    def _link(self, entry: Entry, sink: DirectorySink) -> None:
        target = self._source.locate(entry.path)
        try:
            with self._data.parent_of(entry.path) as (parent, name):
                if os.readlink(name, dir_fd=parent) == target:
                    return
        except OSError:  # not a link, or missing
            pass
        sink.link(entry.path, target)

    def _copy(self, found: Comparison, sink: BoundedSink) -> CopySummary:
        limits = CopyLimits(
            max_in_flight=self._config.limits.max_in_flight, retry_deadline_seconds=self._config.limits.retry_seconds
        )  # fmt: skip
        return copy_objects(self._source, found.to_copy, sink, limits=limits, progress=self._record_progress)

    def _record_progress(self, progress: CopyProgress) -> None:
        self._events.copying(progress)
        if progress.seconds - self._recorded >= _RECORD_SECONDS:
            self._recorded = progress.seconds
            with contextlib.suppress(OSError):  # a full place; the files matter more
                write_record(self._add_copied(progress.num_copied, progress.bytes_copied), self._config)

    # ---------------------------------------------------------------- result

    def _finish(
        self, found: Comparison, plan: StagePlan, sink: DirectorySink, summary: CopySummary, *, full: str | None
    ) -> StageResult:  # fmt: skip
        """Link objects that were not copied, and return the result with the final record."""
        absent = self._find_uncopied(found, summary, step_ns=sink.step_ns)
        linked = list(found.left) if self._has_links else []
        missing = [] if self._has_links else [*found.left, *absent]
        for entry in absent if self._has_links else []:
            try:
                self._link(entry, sink)
                linked.append(entry)
            except (TargetFullError, BadTargetNameError) as err:
                missing.append(entry)
                full = full or (str(err) if isinstance(err, TargetFullError) else None)
        num_missing = len(missing) + len(found.refused)
        refused = (
            CopyFailure(path=path, code="bad-target-name", message=f"{path!r} {reason}")
            for path, reason in found.refused.items()
        )
        record = replace(
            self._add_copied(summary.num_copied, summary.bytes_copied),
            state=PARTIAL if linked or num_missing or full else COMPLETE,
            num_linked=len(linked),
            linked_bytes=sum(max(0, entry.size_bytes) for entry in linked),
            num_missing=num_missing,
            finished=time.time(),
        )
        return StageResult(
            record=record,
            plan=plan,
            summary=replace(summary, full=summary.full or full),
            failures=(*refused, *summary.failures),
            is_usable=not num_missing or self._request.allow_partial,
        )

    def _find_uncopied(self, found: Comparison, summary: CopySummary, *, step_ns: int) -> list[Entry]:
        failed = {failure.path for failure in summary.failures}
        if summary.full is None:
            return [entry for entry in found.to_copy if entry.path in failed]
        return [entry for entry in found.to_copy if entry.path in failed or not self._is_copied(entry, step_ns)]

    def _is_copied(self, entry: Entry, step_ns: int) -> bool:
        try:
            status = self._data.status(entry.path)
        except (OSError, BadTargetNameError):
            return False
        if status is None:
            return False
        found = Entry(entry.path, status.st_size, status.st_mtime_ns, "", stat.S_ISREG(status.st_mode))
        return _has_copy(entry, found, step_ns)

    def _add_copied(self, num_copied: int, bytes_copied: int) -> CopyRecord:
        record = self._record
        return replace(record, num_files=record.num_files + num_copied, bytes=record.bytes + bytes_copied)

    def _save(self, record: CopyRecord) -> None:
        self._record = record
        write_record(record, self._config)


# ---------------------------------------------------------------- comparison


class PosixTree(PosixSource):
    """Directory source that also records directories, because an empty one is a class of an ImageFolder, too.

    Args:
        root: Directory.
        target: Directory of the copy. Links to it are not followed, because the copy would contain its predecessor.
    """

    def __init__(self, root: str, target: Path) -> None:
        super().__init__(root)
        self.directories: list[str] = []
        status = target.stat()
        self._target = (status.st_dev, status.st_ino)

    def list_names(self, *, progress: ListingProgress | None = None) -> FileNames:
        """List the names of all files, and record the directories."""
        names = list_names(self.url, progress=progress, avoid=frozenset({self._target}))
        self.directories = [os.fsdecode(directory.path) for directory in names.directories if directory.path]
        return names


def _list_origin(source: Source, progress: ListingProgress) -> list[Entry]:
    """List all objects of the origin. Each takes about 300 bytes of memory.

    Raises:
        EmptyListingError: No objects were found. Storage that is not mounted must not empty its copy.
        SourceError: The listing failed.
    """
    entries: list[Entry] = []
    listed_bytes = 0
    for batch in source.list_objects():
        entries += map(Entry.of, batch)
        listed_bytes += sum(max(0, info.size_bytes) for info in batch)
        progress(len(entries), listed_bytes)
    if not entries:
        left_out = getattr(source, "left_out", LeftOut()).described()
        why = f"nothing that can be read: {left_out}" if left_out else "no objects"
        raise EmptyListingError(f"{source.url} has {why} below it; check the path, and that it is mounted")
    return entries


def _scan(data: RootedDir) -> tuple[dict[str, Entry], list[str]]:
    """Scan a copy. Return its files and links by path, and its directories, parents first.

    Raises:
        CopyError: The copy contains a mount, which prefeed must not change, or an unreadable directory.
    """
    directories: list[str] = []

    def on_mount(path: str, _: int | None) -> bool:
        if path:
            where = data.locate(path)
            raise CopyError(f"{where} is a mount inside a copy: unmount it, and stage again", path=where)
        return True

    def on_problem(problem: Problem) -> None:
        raise CopyError(f"{problem.error}; copied files stay", path=data.root)

    events = WalkEvents(directory=directories.append, problem=on_problem, mount=on_mount)
    return {
        one.path: one for one in OrderedWalk(data.root, descriptor=data.descriptor, follow=False, events=events)
    }, directories


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Differences between an origin and its copy.

    Attributes:
        num_objects: Listed objects.
        total_bytes: Their size in bytes.
        to_copy: Objects to copy because the copy is missing or outdated, first to last.
        bytes_to_copy: Their size in bytes.
        left: Objects for which there is no space.
        dropped: Existing files of ``left``, which are removed or replaced by links.
        vanished: Existing files and links that are not listed.
        refused: Paths that cannot be stored there, with reasons.
        num_kept: Up-to-date copies.
        kept_bytes: Their size in bytes.
        directories: Directories of the listed objects.
        existing_directories: Directories of the copy, parents first.
        room_bytes: Maximum space of the copy in bytes.
        left_bytes: Part of it that is not used by kept copies.
        why: Reason for the maximum.
    """

    num_objects: int
    total_bytes: int
    to_copy: list[Entry]
    bytes_to_copy: int
    left: list[Entry]
    dropped: list[Entry]
    vanished: list[Entry]
    refused: Mapping[str, str]
    num_kept: int
    kept_bytes: int
    directories: set[str]
    existing_directories: list[str]
    room_bytes: int
    left_bytes: int
    why: str


def compare(
    listed: Sequence[Entry],
    files: Mapping[str, Entry],
    directories: list[str],
    *,
    root: str,
    order: Sequence[str] | None,
    step_ns: int,
    folds_case: bool,
    compute_budget: Callable[[int], tuple[int, str]],
) -> Comparison:
    """Compare a listing with an existing copy and select the objects to copy.

    Args:
        listed: All objects of the origin.
        files: Existing files and links by path.
        directories: Existing directories.
        root: URL of the origin.
        order: See ``StageRequest.order``.
        step_ns: See ``is_copy``.
        folds_case: See ``split_storable``.
        compute_budget: Receives the space of existing files in bytes. Returns the maximum space of the copy and the reason for it.

    Raises:
        CopyError: No path of the order exists at the origin.
    """
    entries, refused = split_storable(listed, folds_case=folds_case)
    are_there = np.fromiter(
        (_has_copy(entry, files.get(entry.path), step_ns) for entry in entries), np.bool_, len(entries)
    )
    room_bytes, why = compute_budget(sum(footprint(found.size_bytes) for found in files.values() if found.is_file))
    positions = None if order is None else parse_order(order, root=root)
    if positions and not any(entry.path in positions for entry in entries):
        raise CopyError(
            f"none of the {len(positions):,} paths of the order, such as {next(iter(positions))!r}, is at {root}; write them one per "
            "line, relative to it"
        )
    choice = select_copies(entries, budget_bytes=room_bytes, is_there=are_there, positions=positions)
    to_copy = [entries[i] for i in choice.order.tolist() if not are_there[i]]
    left = [entries[i] for i in np.flatnonzero(~choice.chosen).tolist()]
    kept = [entries[i] for i in np.flatnonzero(choice.chosen & are_there).tolist()]
    # Count an outdated copy as free. Until it is replaced, the copy temporarily takes a little more.
    kept_footprint = sum(footprint(files[entry.path].size_bytes) for entry in kept)
    paths = {entry.path for entry in entries}
    return Comparison(
        num_objects=len(listed),
        total_bytes=sum(max(0, entry.size_bytes) for entry in listed),
        to_copy=to_copy,
        bytes_to_copy=sum(max(0, entry.size_bytes) for entry in to_copy),
        left=left,
        dropped=[files[entry.path] for entry in left if entry.path in files],
        vanished=[found for path, found in files.items() if path not in paths],
        refused=refused,
        num_kept=len(kept),
        kept_bytes=sum(files[entry.path].size_bytes for entry in kept),
        directories=directories_of(paths),
        existing_directories=directories,
        room_bytes=room_bytes,
        left_bytes=room_bytes - kept_footprint,
        why=why,
    )


def _has_copy(entry: Entry, found: Entry | None, step_ns: int) -> bool:
    if found is None:
        return False
    if entry.size_bytes < 0 and not entry.version:
        return found.is_file  # without size and version, assume a copy, so that an interrupted run can resume
    return is_copy(entry, found, step_ns=step_ns)
