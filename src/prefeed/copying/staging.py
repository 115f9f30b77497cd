"""Making a local copy of a data set, or of the part of it that fits; ``prefeed stage``.

::

    lock ─→ list the origin, scan the copy ─→ what is whole and unchanged stays
                                            ├→ what the origin has no more is removed
                                            ├→ what fits is copied
                                            └→ of a directory, the rest becomes links to it
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

from prefeed.config import Config
from prefeed.copying.comparison import Comparison, compare
from prefeed.copying.directory import DirectorySink, probe_folds_case, probe_time_step
from prefeed.copying.engine import CopyFailure, CopyProgress, CopySummary, copy_objects
from prefeed.copying.flow import CopyLimits
from prefeed.copying.holding import made_and_held
from prefeed.copying.records import (
    COMPLETE,
    COPYING,
    DATA,
    INCOMING,
    PARTIAL,
    CopyRecord,
    copy_directory,
    read_record,
    write_record,
)  # fmt: skip
from prefeed.copying.room import Ledger, look_at, machine_room
from prefeed.copying.runs import StageEvents, StagePlan, StageRequest, StageResult
from prefeed.copying.survey import PosixTree, list_all, scan_copy
from prefeed.copying.unstaging import remove_held
from prefeed.copying.versions import FoundFile, is_copy_of
from prefeed.errors import BadTargetNameError, CopyError, DoesNotFitError, PrefeedError, TargetFullError
from prefeed.sources.protocol import Source
from prefeed.sources.urls import canonical_url, open_source
from prefeed.system.machine import host_name
from prefeed.system.paths import overlap
from prefeed.system.removing import remove_tree
from prefeed.types import ObjectInfo

_RECORD_SECONDS: Final = 1.0
_SPARE: Final = "room-for-the-record"
_SPARE_BYTES: Final = 1 << 14


def stage(request: StageRequest, config: Config, events: StageEvents | None = None) -> StageResult:
    """A copy of the origin lies in the place, as far as there is room; what a former run left there is used.

    Whatever ends this, the next call goes on from there: a file that is in the copy is whole.

    **Blocking**: for as long as it takes, and before that while another process works at the same copy.

    Raises:
        SourceError: The origin cannot be listed, or answers no more.
        DoesNotFitError: There is no room for all of an origin that is no directory, and a part was not asked for.
        CopyError: The place cannot be written.
    """
    url = canonical_url(request.url)
    directory = copy_directory(request.place, url)
    events = events or StageEvents()
    _refuse_overlap(url, directory)
    with (
        made_and_held(directory, on_wait=events.waiting),
        contextlib.closing(_open(request.url, url, directory, config)) as source,
    ):
        try:
            return _Staging(source, directory, request, config, events).run()
        except OSError as err:
            if isinstance(err, PrefeedError):  # some of the origin's errors are OSErrors too
                raise
            where = err.filename or directory
            raise CopyError(f"{where}: {err.strerror}; what was copied stays", path=str(directory)) from err


def _open(typed: str, url: str, directory: Path, config: Config) -> Source:
    return PosixTree(url, directory) if url.startswith("/") else open_source(typed, config)


def _refuse_overlap(url: str, directory: Path) -> None:
    if url.startswith("/") and overlap(url, str(directory)):
        raise CopyError(f"{directory} and {url} lie in one another; name another place with --to")


class _Staging:
    """One run, in the caller's thread; the directory is held."""

    def __init__(
        self, source: Source, directory: Path, request: StageRequest, config: Config, events: StageEvents
    ) -> None:
        self._source, self._directory, self._request = source, directory, request
        self._config, self._events = config, events
        self._data, self._incoming = directory / DATA, directory / INCOMING
        before = read_record(directory)
        self._is_new = before is None
        before = before or CopyRecord(source=source.url, directory=str(directory), state=COPYING)
        self._record = replace(
            before, state=COPYING, started=time.time(), finished=0.0, pid=os.getpid(), host=host_name()
        )
        self._recorded = 0.0
        self._has_links = isinstance(source, PosixTree)

    def run(self) -> StageResult:
        self._prepare()
        step_ns = probe_time_step(self._incoming)
        try:
            found = self._survey(step_ns)
            plan = self._plan_of(found)
            self._events.planned(plan)
            self._require_room(found, plan)
        except BaseException:
            if self._is_new:
                remove_held(self._directory, self._config)
            raise
        self._save(replace(self._record, num_files=found.num_kept, bytes=found.kept_bytes))
        self._remove(found)
        sink = DirectorySink(self._data, self._incoming, Ledger(found.left_bytes, self._look))
        full = self._arrange(found, sink)
        summary = self._copy(found, sink)
        return self._finish(found, plan, sink, summary, step_ns=step_ns, full=full)

    # ---------------------------------------------------------------- before

    def _prepare(self) -> None:
        """An empty directory for files that are being written: what a killed run left of them goes."""
        if self._data.is_symlink():  # what is removed below it would be somebody else's
            raise CopyError(
                f"{self._data} is a link, which is not followed: remove it, and stage again", path=str(self._data)
            )
        self._data.mkdir(mode=0o700, exist_ok=True)
        if self._incoming.exists():
            remove_tree(self._incoming)
        self._incoming.mkdir(mode=0o700)
        if self._is_new:
            write_record(self._record, self._config)
        with contextlib.suppress(OSError):  # goes with the directory, before the last record is written
            (self._incoming / _SPARE).write_bytes(bytes(_SPARE_BYTES))

    def _survey(self, step_ns: int) -> Comparison:
        order = None if self._request.order is None else list(self._request.order)
        return compare(
            list_all(self._source, self._events.listing),
            *scan_copy(self._data),
            root=self._source.url,
            order=order,
            step_ns=step_ns,
            folds_case=probe_folds_case(self._incoming),
            room=self._room,
        )

    def _look(self) -> tuple[int, str]:
        return look_at(self._data, self._config)

    def _room(self, own_bytes: int) -> tuple[int, str]:
        """Return what the copy may take with what it takes already, and why not more."""
        allowed, why = self._look()
        asked = self._request.size_bytes
        if asked is not None and asked <= allowed + own_bytes:
            return asked, "--size allows no more"
        return allowed + own_bytes, why

    def _plan_of(self, found: Comparison) -> StagePlan:
        chosen_bytes = found.kept_bytes + found.bytes_to_copy
        num_chosen = found.num_kept + len(found.to_copy)
        return StagePlan(
            num_objects=found.num_objects,
            total_bytes=found.total_bytes,
            num_kept=found.num_kept,
            num_to_copy=len(found.to_copy),
            bytes_to_copy=found.bytes_to_copy,
            num_left=len(found.left),
            left_bytes=sum(max(0, info.size_bytes) for info in found.left),
            num_removed=len(found.vanished),
            opens_per_gib=num_chosen * 1024**3 // max(1, chosen_bytes),
            room_bytes=found.room_bytes,
            why=found.why,
            has_links=self._has_links,
        )

    def _require_room(self, found: Comparison, plan: StagePlan) -> None:
        if found.left and not self._has_links and not self._request.allow_partial:
            raise DoesNotFitError(
                f"{self._source.url} has {plan.total_bytes:,} bytes in {plan.num_objects:,} objects, and "
                f"{self._request.place} has room for {plan.room_bytes:,}: {plan.why}. Name another place with --to, or "
                "take a part of it with --partial",
                needed_bytes=plan.total_bytes,
                room_bytes=plan.room_bytes,
            )
        free = machine_room(self._data, self._config).free_files
        new = plan.num_to_copy + (plan.num_left if self._has_links else 0)
        if free is not None and new > free:
            raise DoesNotFitError(
                f"{plan.num_to_copy:,} files are to be made, and the file system of {self._request.place} takes {free:,} "
                "more; name another place with --to",
                needed_files=new,
                free_files=free,
            )

    # ---------------------------------------------------------------- the tree

    def _remove(self, found: Comparison) -> None:
        """What is not to be there goes, before anything is written: its room is part of the plan."""
        for path in (*found.vanished, *(() if self._has_links else found.dropped)):
            (self._data / path).unlink(missing_ok=True)
        wanted = found.directories | set(self._source.directories if isinstance(self._source, PosixTree) else ())
        for directory in reversed(found.directories_there):
            if directory not in wanted:
                with contextlib.suppress(OSError):  # something else lies in it
                    (self._data / directory).rmdir()

    def _arrange(self, found: Comparison, sink: DirectorySink) -> str | None:
        """Directories and links are there; returns why not all, when the place is full."""
        if not isinstance(self._source, PosixTree):
            return None
        try:
            for directory in self._source.directories:
                sink.make_directory(directory)
            for info in found.left:
                self._link(info, sink)
        except TargetFullError as err:
            return str(err)
        return None

    def _link(self, info: ObjectInfo, sink: DirectorySink) -> None:
        target = self._source.locate(info.path)
        try:
            if os.readlink(self._data / info.path) == target:
                return
        except OSError:  # no link, or nothing
            pass
        sink.link(info.path, target)

    def _copy(self, found: Comparison, sink: DirectorySink) -> CopySummary:
        limits = CopyLimits(
            max_in_flight=self._config.max_in_flight, retry_deadline_seconds=self._config.retry_deadline
        )  # fmt: skip
        return copy_objects(self._source, found.to_copy, sink, limits=limits, progress=self._progressed)

    def _progressed(self, progress: CopyProgress) -> None:
        self._events.copying(progress)
        if progress.seconds - self._recorded >= _RECORD_SECONDS:
            self._recorded = progress.seconds
            with contextlib.suppress(OSError):  # the place is full, perhaps: the files matter more
                write_record(self._with(progress.num_copied, progress.bytes_copied), self._config)

    # ---------------------------------------------------------------- after

    def _finish(
        self, found: Comparison, plan: StagePlan, sink: DirectorySink, summary: CopySummary, *, step_ns: int, full: str | None
    ) -> StageResult:  # fmt: skip
        """Names without a copy become links where they can; the record says how it stands."""
        absent = self._not_copied(found, summary, step_ns=step_ns)
        linked = list(found.left) if self._has_links else []
        missing = [] if self._has_links else [*found.left, *absent]
        for info in absent if self._has_links else []:
            try:
                self._link(info, sink)
                linked.append(info)
            except (TargetFullError, BadTargetNameError) as err:
                missing.append(info)
                full = full or (str(err) if isinstance(err, TargetFullError) else None)
        num_missing = len(missing) + len(found.refused)
        refused = (
            CopyFailure(path=path, code="bad-target-name", message=f"{path!r} {reason}")
            for path, reason in found.refused.items()
        )
        record = replace(
            self._with(summary.num_copied, summary.bytes_copied),
            state=PARTIAL if linked or num_missing or full else COMPLETE,
            num_linked=len(linked),
            linked_bytes=sum(max(0, info.size_bytes) for info in linked),
            num_missing=num_missing,
            finished=time.time(),
        )
        remove_tree(self._incoming, ignore_errors=True)
        self._save(record)
        return StageResult(
            record=record,
            plan=plan,
            summary=replace(summary, full=summary.full or full),
            failures=(*refused, *summary.failures),
            is_usable=not num_missing or self._request.allow_partial,
        )

    def _not_copied(self, found: Comparison, summary: CopySummary, *, step_ns: int) -> list[ObjectInfo]:
        failed = {failure.path for failure in summary.failures}
        if summary.full is None:
            return [info for info in found.to_copy if info.path in failed]
        return [info for info in found.to_copy if info.path in failed or not self._is_copied(info, step_ns)]

    def _is_copied(self, info: ObjectInfo, step_ns: int) -> bool:
        try:
            found = FoundFile.of(os.lstat(self._data / info.path))
        except OSError:
            return False
        return is_copy_of(info, found, step_ns=step_ns)

    def _with(self, num_copied: int, bytes_copied: int) -> CopyRecord:
        record = self._record
        return replace(record, num_files=record.num_files + num_copied, bytes=record.bytes + bytes_copied)

    def _save(self, record: CopyRecord) -> None:
        self._record = record
        write_record(record, self._config)
