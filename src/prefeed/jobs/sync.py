"""Copy the objects that a target lacks from a source. Implements ``prefeed sync``.

::

    source, in key order ─┐
                          ├─ merge ─→ same: skipped ─ different: copied, verified ──┐
    target, in key order ─┘      └──→ only at the target: stored in ``extra``       │
                             all copied, all listed, all mounts unchanged ─→ deleted

Each run compares source and target again and stores no state next to the data. To resume a killed run, run it again. Mounts below the
source are recorded in the home (``transfer.mounted``), because data that is not mounted must not look deleted.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Final

from prefeed.config import Config
from prefeed.errors import CopyError, EmptyListingError, JobError, JobSpecError, ObjectNotFoundError, SourceError
from prefeed.jobs.options import SyncEvents, SyncOptions, SyncProgress, SyncResult
from prefeed.jobs.places import JobLocation, locate_place
from prefeed.prefetching import BackgroundGenerator
from prefeed.sources.listing import LeftOut
from prefeed.sources.mounts import is_within
from prefeed.sources.protocol import RangeSource
from prefeed.transfer.directory import DirectoryPlace
from prefeed.transfer.engine import CopyFailure, CopyProgress, CopySummary, copy_objects
from prefeed.transfer.entries import Entry, is_newer, merge_listings, parents_of
from prefeed.transfer.flow import MBIT_BYTES, BandwidthLimit, CopyLimits, PacedSource
from prefeed.transfer.mounted import SOURCE, TARGET, MountRecord, first_below, is_below
from prefeed.transfer.ordering import Spool
from prefeed.transfer.patterns import Rules
from prefeed.transfer.places import Root, Target, TargetSink, open_root, open_target

MOST_FAILURES: Final = 10_000
"""Number of failed objects after which a sync gives up."""

_CHUNK: Final = 256
_CHUNKS_AHEAD: Final = 16

_Task = tuple[Entry, bool]
"""An object to copy, and True if only different contents need a copy."""


def sync(
    source: str, target: str, options: SyncOptions, config: Config, events: SyncEvents | None = None
) -> SyncResult:  # fmt: skip
    """Copy new and changed objects from a source to a target, as the options specify.

    Can be killed at any time: objects are written atomically, and the next run resumes.

    **Blocking**: until all is copied. **Threads**: starts and ends its own. Events are called in the caller's thread.

    Args:
        source: A directory, or URL of s3://, gs://, az://, http(s):// or sampleset://.
        target: A directory, or URL of s3://, gs://, az:// or sampleset://.
        options: Options of the sync.
        config: Settings, whose home contains the credentials.
        events: Callbacks for progress and notes.

    Raises: As ``sync_between``, and as ``places.locate_place``.
    """
    return sync_between(locate_place(source, config), locate_place(target, config), options, config, events)


def sync_between(
    source: JobLocation, target: JobLocation, options: SyncOptions, config: Config, events: SyncEvents | None = None
) -> SyncResult:  # fmt: skip
    """Sync two resolved places. See ``sync``.

    Raises:
        JobSpecError: The places or options are not possible. Nothing was done.
        SourceError, JobError: A place cannot be listed, or nothing more can be written. Copied files are kept, and nothing was
            deleted.
    """
    source_root, target_root = _without_tls(source.url, options), _without_tls(target.url, options)
    refuse_overlap(source_root, target_root)
    _refuse_contradictions(source_root, target_root, options)
    with contextlib.ExitStack() as stack:
        origin = stack.enter_context(contextlib.closing(open_root(source_root, source.settings)))
        place = stack.enter_context(contextlib.closing(open_target(target_root, target.settings, make=not options.dry)))
        for one in (origin, place):
            if isinstance(one, DirectoryPlace):
                one.one_file_system = options.one_file_system
        if isinstance(origin, DirectoryPlace) and isinstance(place, DirectoryPlace) and os.path.isdir(target_root):
            _keep_apart(origin, place)
        if isinstance(origin, DirectoryPlace) and options.delete_src and not options.dry:
            _ = origin.rooted  # Open the directory now, so that deletions apply to the directory that is listed.
        return _SyncRun(origin, place, options, config, events or SyncEvents()).run()


def _keep_apart(origin: DirectoryPlace, place: DirectoryPlace) -> None:
    """Exclude each place from the listing of the other, even if it is mounted or linked there.

    Raises:
        JobSpecError: Both places are the same directory.
    """
    if origin.rooted.identity == place.rooted.identity:
        raise JobSpecError(f"{origin.url} and {place.url} are the same directory, mounted at two places")
    origin.excluded_ids, place.excluded_ids = frozenset({place.rooted.identity}), frozenset({origin.rooted.identity})


def _without_tls(root: str, options: SyncOptions) -> str:
    return root.replace("https://", "http://", 1) if options.no_https else root


def refuse_overlap(source: str, target: str) -> None:
    """Check that neither place contains the other.

    Raises:
        JobSpecError: The places overlap or are the same.
    """
    lies = is_within(source, target), is_within(target, source)
    if all(lies):
        raise JobSpecError(f"{source} and {target} are the same place")
    if any(lies):
        raise JobSpecError(f"{source} and {target} overlap, one inside the other: name separate places")


def _refuse_contradictions(source: str, target: str, options: SyncOptions) -> None:
    for url in (source, target) if options.no_https else ():
        if not url.startswith(("/", "http://")):
            raise JobSpecError(
                f"--no-https: the endpoint of {url} names the protocol; give one that begins with http:// in "
                "credentials.json or AWS_ENDPOINT_URL"
            )
    if source.startswith("http") and (options.update or options.delete_src):
        what = "--update needs the times of objects" if options.update else "--delete-src removes"
        raise JobSpecError(
            f"{what}, and {source} is a web server, which does not {'send them' if options.update else 'delete'}"
        )
    if options.update and options.force_update:
        raise JobSpecError(
            "give either --update, which copies newer objects, or --force-update, which copies all objects"
        )
    if options.threads is not None and options.threads < 1:
        raise JobSpecError(f"--threads must be at least 1: {options.threads}")
    if options.bwlimit_mbit < 0:
        raise JobSpecError(f"--bwlimit must not be negative: {options.bwlimit_mbit}")
    if options.start and options.end and options.start > options.end:
        raise JobSpecError(f"--start {options.start!r} comes after --end {options.end!r}: nothing would be copied")


class _SyncRun:
    """One run of a sync, in the caller's thread. The listing thread updates the counts, and any thread reads them."""

    def __init__(self, origin: Root, place: Target, options: SyncOptions, config: Config, events: SyncEvents) -> None:
        self._origin, self._place = origin, place
        self._options, self._config, self._events = options, config, events
        self._rules = Rules(options.rules, start=options.start, end=options.end)
        self._started = time.monotonic()
        self._num_listed = self._num_skipped = self._num_to_copy = self._bytes_to_copy = 0
        self._num_failed = 0
        self._left_out = LeftOut()
        self._folded: dict[str, str] | None = None
        self._stopped = threading.Event()
        self._unlisted: CopyFailure | None = None
        self._record = MountRecord(origin.url, place.url, config)
        for side, one in ((SOURCE, origin), (TARGET, place)):
            if isinstance(one, DirectoryPlace) and not options.dry:
                one.on_mount = partial(self._record.add, side)

    def run(self) -> SyncResult:
        self._config.home.mkdir(parents=True, exist_ok=True)
        with (
            contextlib.closing(Spool(self._config.home)) as extra,
            contextlib.closing(Spool(self._config.home)) as done,
        ):
            if self._options.dry:
                summary = self._dry_run(extra, done)
            else:
                summary = self._copy(extra, done)
            result = _with_failures(
                self._result_of(summary), self._listing_failures(), num_more=self._num_unlisted_failures()
            )
            lost = self._lost_originals(extra) if self._options.delete_dst else {}
            if self._options.delete_dst or self._options.delete_src:
                result = self._delete(result, extra, done, [*lost.values(), *self._lost_copies()])
            self._record_originals(lost, is_whole=not lost and result.is_complete)
        return replace(result, seconds=time.monotonic() - self._started)

    # ---------------------------------------------------------------- comparing

    def _tasks(self, extra: Spool, done: Spool) -> Iterator[_Task]:
        """Yield the objects to copy. Add those only at the target to ``extra``, and those to delete at the source to ``done``."""
        theirs = self._place.list_target(self._rules)
        for our, their in self._copyable(merge_listings(self._list_source(), theirs)):
            if our is None:
                if their is not None and self._options.delete_dst:
                    extra.add(their)
                continue
            self._check_case(our.path)
            self._num_listed += 1
            task = self._task_of(our, their)
            if task is None:
                self._num_skipped += 1
                continue
            if self._options.delete_src:
                done.add(our)
            self._num_to_copy += 1
            self._bytes_to_copy += max(0, our.size_bytes)
            yield task

    def _copyable(
        self, pairs: Iterable[tuple[Entry | None, Entry | None]]
    ) -> Iterator[tuple[Entry | None, Entry | None]]:
        """Yield the pairs, except for source objects that the target cannot store, which are counted.

        For example, an object may have the same name as the directory of other objects. This is known when the first of those is
        listed, so an object is held back while names with its name as a prefix follow.
        """
        has_directories = isinstance(self._place, DirectoryPlace) and not isinstance(self._origin, DirectoryPlace)
        held: list[tuple[Entry, Entry | None]] = []
        for our, their in pairs:
            if our is None:
                yield our, their
                continue
            reason = self._place.why_unwritable(our.path)
            if reason is not None:
                self._left_out.add(our.path, reason)
                continue
            while held and not our.path.startswith(held[-1][0].path):
                yield held.pop()
            if held and our.path.startswith(held[-1][0].path + "/"):
                self._left_out.add(held.pop()[0].path, "is also the directory of other objects")
            held.append((our, their))
            if not has_directories:
                yield held.pop()
        yield from held
        self._left_out.warn(self._origin.url, what=f"copied to {self._place.url}")

    def _list_source(self) -> Iterator[Entry]:
        """Yield the objects of the source. If the listing breaks off, end early and record the failure.

        Raises:
            SourceError: The listing fails before the first object.
        """
        try:
            yield from self._origin.list_in_order(self._rules)
        except SourceError as err:
            if not self._num_listed:
                raise
            self._unlisted = CopyFailure(
                path="", code=err.code, message=f"the listing of {self._origin.url} broke off: {err}"
            )

    def _check_case(self, path: str) -> None:
        """Check for names that differ only in case, if the target ignores case and would overwrite the first."""
        if self._folded is None:
            return
        other = self._folded.setdefault(path.casefold(), path)
        if other != path:
            raise JobError(
                f"{other!r} and {path!r} of {self._origin.url} are one name in {self._place.url}, whose file system ignores case"
                ": rename or --exclude one of them; nothing was deleted"
            )

    def _task_of(self, our: Entry, their: Entry | None) -> _Task | None:
        options = self._options
        if their is None and options.update and isinstance(self._place, DirectoryPlace) and self._place.hides(our.path):
            return None  # The target may have a newer object that could not be listed.
        if their is None or options.force_update:
            return our, False
        is_same = self._place.is_same(our, their)
        if options.update and their.is_file and not is_newer(our, their) and not is_same:
            return None  # The target's object differs and is not older, so it stays.
        # --delete-src compares contents, because equal times and sizes do not prove that the copy is identical.
        if is_same and not options.delete_src:
            return None
        return our, is_same

    # ---------------------------------------------------------------- copying

    def _copy(self, extra: Spool, done: Spool) -> CopySummary:
        source = self._limit_bandwidth(self._origin.source())
        sink = self._place.open_sink(source, perms=self._options.perms, durable=self._options.delete_src)
        self._folded = {} if sink.folds_case else None
        with (
            contextlib.closing(sink),
            BackgroundGenerator(_to_chunks(self._tasks(extra, done)), _CHUNKS_AHEAD) as chunks,
        ):
            try:
                summary = copy_objects(
                    source,
                    self._entries_to_copy(chunks, sink),
                    sink,
                    limits=self._limits(),
                    progress=self._report_progress,
                )
                self._make_directories(sink)
            except CopyError as err:
                raise JobError(err.message, **err.details) from err
            finally:
                self._stopped.set()
            if self._options.delete_src:
                sink.make_durable()
        self._num_skipped += sink.num_same
        return replace(
            summary,
            failures=tuple(failure for failure in summary.failures if not self._was_removed(failure)),
            num_copied=summary.num_copied - sink.num_same,
            bytes_copied=summary.bytes_copied - sink.bytes_same,
        )

    def _was_removed(self, failure: CopyFailure) -> bool:
        """Return True if the file was removed after the listing, which does not count as a failure."""
        if failure.code != ObjectNotFoundError.code or not isinstance(self._origin, DirectoryPlace):
            return False
        return self._origin.was_removed(failure.path)

    def _entries_to_copy(self, chunks: Iterable[list[_Task]], sink: TargetSink) -> Iterator[Entry]:
        for chunk in chunks:
            for entry, compare in chunk:
                if self._num_failed >= MOST_FAILURES:
                    raise JobError(f"{MOST_FAILURES:,} objects could not be copied; the rest is not tried")
                if compare:
                    sink.expect_same(entry.path)
                yield entry

    def _limits(self) -> CopyLimits:
        return CopyLimits(
            max_in_flight=self._options.threads or self._config.limits.max_in_flight,
            retry_deadline_seconds=self._config.limits.retry_seconds,
        )

    def _limit_bandwidth(self, source: RangeSource) -> RangeSource:
        if not self._options.bwlimit_mbit:
            return source
        limit = BandwidthLimit(self._options.bwlimit_mbit * MBIT_BYTES)
        return PacedSource(source, limit, wait=self._stopped.wait)

    def _report_progress(self, copying: CopyProgress) -> None:
        self._num_failed = copying.num_failed
        self._events.progress(
            SyncProgress(
                num_listed=self._num_listed,
                num_skipped=self._num_skipped,
                num_to_copy=self._num_to_copy,
                bytes_to_copy=self._bytes_to_copy,
                copying=copying,
            )
        )

    def _make_directories(self, sink: TargetSink) -> None:
        if self._options.dirs and isinstance(self._origin, DirectoryPlace):
            for path in self._origin.directories:
                sink.make_directory(path)

    def _dry_run(self, extra: Spool, done: Spool) -> CopySummary:
        count = 0
        for entry, compare in self._tasks(extra, done):
            if compare:
                self._num_skipped += 1
            else:
                count += 1
                self._events.would("copy", self._origin.source().locate(entry.path))
        return CopySummary(num_copied=count, bytes_copied=self._bytes_to_copy, failures=(), full=None, seconds=0.0)

    # ---------------------------------------------------------------- listing failures and mounts

    def _listing_failures(self) -> list[CopyFailure]:
        """Return the paths that could not be listed, and the mounts that changed during the run."""
        found = [] if self._unlisted is None else [self._unlisted]
        for place in (self._origin, self._place):
            if not isinstance(place, DirectoryPlace):
                continue
            found += [CopyFailure(path=one.path, code=one.error.code, message=str(one.error)) for one in place.problems]
            found += [_mount_failure("", said) for said in place.mounts.changes()]
        return found

    def _num_unlisted_failures(self) -> int:
        places = [place for place in (self._origin, self._place) if isinstance(place, DirectoryPlace)]
        return sum(place.num_problems - len(place.problems) for place in places)

    def _lost_originals(self, extra: Spool) -> dict[str, CopyFailure]:
        """Return failures, by path below the source, for copies whose originals may only be unmounted."""
        if not isinstance(self._origin, DirectoryPlace):
            return {}
        mounts, before = self._origin.mounts, self._record.before[SOURCE]
        gone = {path for path, point in before.items() if mounts.points.get(path) != point}
        # With one_file_system, mounts were not entered, so it is unknown whether they are empty.
        empty = set() if self._options.one_file_system else mounts.empty
        below = first_below((one.path for one in extra), gone | empty)
        return {
            path: self._lost_failure(path, first, before[path] if path in gone else "") for path, first in below.items()
        }

    def _lost_failure(self, path: str, first: str, was: str) -> CopyFailure:
        where = _join(self._origin.url, path)
        how = f"{was} was mounted there at the last sync, and is not now" if was else "the mount there is empty"
        copy = self._place.source().locate(path) if path else self._place.url
        remembered = f", or {self._record.file}, which remembers the mount" if was else ""
        return _mount_failure(
            path,
            f"{where}: {how}. Nothing was deleted, for {self._place.source().locate(first)} may be the copy of data that is only "
            f"not mounted. Mount it; or, if it is gone for good, remove its copy ({copy}){remembered}",
        )

    def _lost_copies(self) -> list[CopyFailure]:
        """Return failures for missing mounts of the target, which hide earlier copies and will hide those of this run."""
        if not isinstance(self._place, DirectoryPlace):
            return []
        now = self._place.mounts.points
        return [
            _mount_failure(
                path,
                f"{_join(self._place.url, path)}: {point} was mounted there at the last sync, and is not now. Nothing was "
                f"deleted. Mount it; or, if it is gone for good, remove {self._record.file}, which remembers it",
            )
            for path, point in self._record.before[TARGET].items()
            if now.get(path) != point and self._is_listed(path)
        ]

    def _is_listed(self, path: str) -> bool:
        """Return True if the rules include a directory in listings."""
        rules = self._rules
        return not path or (all(map(rules.takes_below, (path, *parents_of(path)))) and not rules.is_past_end(path))

    def _record_originals(self, lost: Collection[str], *, is_whole: bool) -> None:
        """Record the mounts below the source. Earlier mounts are dropped if no copy at the target depends on them."""
        if self._options.dry or not isinstance(self._origin, DirectoryPlace):
            return
        is_settled = is_whole and self._options.delete_dst and not self._options.start and not self._options.end
        kept = {
            path: point for path, point in self._record.before[SOURCE].items()
            if path in lost or not is_settled or not self._is_listed(path)
        }  # fmt: skip
        self._record.replace(SOURCE, {**self._origin.mounts.points, **kept})

    # ---------------------------------------------------------------- deleting

    def _delete(self, result: SyncResult, extra: Spool, done: Spool, lost: list[CopyFailure]) -> SyncResult:
        """Delete objects at the target and the source, only if everything was copied and listed."""
        result = _with_failures(result, [*lost, *self._unknown_mounts()])
        if not result.is_complete:
            self._events.note("nothing was deleted, because some objects could not be copied or checked")
            return result
        if not self._num_listed and self._options.delete_dst:
            raise EmptyListingError(
                f"{self._origin.url} has no objects to copy: nothing was deleted, because the source may not be mounted. "
                "Check the source, and --exclude"
            )
        if self._options.delete_dst and isinstance(self._origin, DirectoryPlace) and self._origin.broken_links:
            raise JobError(
                f"{self._origin.source().locate(self._origin.broken_links[0])} is a broken link: nothing was deleted, because its "
                "target may only not be mounted. Remove or --exclude the link, or mount its target"
            )
        if self._options.delete_dst and (left_out := self._origin.describe_left_out(extra)):
            raise JobError(
                f"the listing of {self._origin.url} leaves out {left_out}: nothing was deleted, because copies of it may be. Run it again "
                "if that is new there; mend the index of a web server; a store must answer ListObjectsV2"
            )
        if self._options.delete_dst:
            num_deleted, failures = self._delete_from(self._place, self._deletable(extra), keep=self._folded or ())
            result = _with_failures(replace(result, num_deleted_dst=num_deleted), failures)
            self._remove_directories()
        if self._options.delete_src:
            num_deleted, failures = self._delete_originals(done)
            result = _with_failures(replace(result, num_deleted_src=num_deleted), failures)
        return result

    def _unknown_mounts(self) -> list[CopyFailure]:
        """Return failures for places whose mounts the kernel does not report, so that deleting is unsafe."""
        if self._options.one_file_system is False:
            return []
        return [
            _mount_failure(
                "",
                f"{place.url}: nothing was deleted, because the kernel does not report mounts there (statx of Linux 5.8, or "
                "/proc). Mount /proc, or give --no-one-file-system if nothing is mounted there",
            )
            for place in (self._origin, self._place) if isinstance(place, DirectoryPlace) and not place.mounts.is_known
        ]  # fmt: skip

    def _deletable(self, extra: Iterable[Entry]) -> Iterator[Entry]:
        """Yield the extra objects. With ``one_file_system``, exclude those below a mount of either side."""
        points: set[str] = set()
        if self._options.one_file_system:
            for place in (self._origin, self._place):
                points |= place.mounts.points.keys() - {""} if isinstance(place, DirectoryPlace) else set()
        return (one for one in extra if not is_below(one.path, points))

    def _delete_originals(self, done: Spool) -> tuple[int, list[CopyFailure]]:
        """Delete the objects at the source that have an identical copy at the target. See ``_delete_from``."""
        kept: list[CopyFailure] = []

        def safe() -> Iterator[Entry]:
            for one in done:
                reason = self._why_not_copied(one)
                if reason:
                    kept.append(self._not_deleted(self._origin, one, reason))
                else:
                    yield one

        num_deleted, failures = self._delete_from(self._origin, safe())
        return num_deleted, [*kept, *failures]

    def _why_not_copied(self, one: Entry) -> str:
        origin, place, original = self._origin, self._place, None
        if self._options.dry or not isinstance(place, DirectoryPlace):
            return ""
        if isinstance(origin, DirectoryPlace):
            try:
                original = origin.status(one.path)
            except OSError as err:
                return f"it cannot be looked at: {err.strerror}"
            if original is None:
                return ""  # Another process removed the original.
        return place.why_not_copied(one, original, folds_case=self._folded is not None)

    def _delete_from(
        self, place: Root, listed: Iterable[Entry], *, keep: Collection[str] = ()
    ) -> tuple[int, list[CopyFailure]]:
        """Delete objects except those in ``keep``, the case-folded names of copies; return their number and the failures."""
        num_deleted, failures = 0, []
        if self._options.dry:
            for one in listed:
                num_deleted += 1
                self._events.would("delete", place.source().locate(one.path))
            return num_deleted, []
        for one, reason in place.remove_unchanged(one for one in listed if not keep or one.path.casefold() not in keep):
            if reason:
                failures.append(self._not_deleted(place, one, reason))
            else:
                num_deleted += 1
        return num_deleted, failures

    def _not_deleted(self, place: Root, one: Entry, reason: str) -> CopyFailure:
        where = place.source().locate(one.path)
        return CopyFailure(path=one.path, code="not-deleted", message=f"{where} was not deleted: {reason}")

    def _remove_directories(self) -> None:
        """With ``dirs``, remove empty directories of the target that the source does not have."""
        place, origin = self._place, self._origin
        if self._options.dry or not self._options.dirs or self._options.start or self._options.end:
            return  # The source was not listed outside of the given keys.
        if isinstance(place, DirectoryPlace) and isinstance(origin, DirectoryPlace):
            wanted = set(origin.directories)
            not_entered = origin.mounts.points.keys() - {""} if self._options.one_file_system else set()
            for path in reversed(place.list_directories(self._rules)):
                if path not in wanted and not is_below(path, not_entered):
                    place.rooted.remove_empty(path)

    def _result_of(self, summary: CopySummary) -> SyncResult:
        return SyncResult(
            num_listed=self._num_listed,
            num_copied=summary.num_copied,
            bytes_copied=summary.bytes_copied,
            num_skipped=self._num_skipped,
            num_deleted_src=0,
            num_deleted_dst=0,
            failures=summary.failures,
            num_failed=len(summary.failures),
            full=summary.full or "",
            seconds=summary.seconds,
        )


def _join(root: str, path: str) -> str:
    return f"{root.rstrip('/')}/{path}".rstrip("/") or "/"


def _mount_failure(path: str, said: str) -> CopyFailure:
    return CopyFailure(path=path, code="mount-changed", message=said)


def _with_failures(result: SyncResult, failures: list[CopyFailure], *, num_more: int = 0) -> SyncResult:
    return replace(
        result,
        failures=(*result.failures, *failures)[:MOST_FAILURES],
        num_failed=result.num_failed + len(failures) + num_more,
    )


def _to_chunks(tasks: Iterable[_Task]) -> Iterator[list[_Task]]:
    """Yield the tasks in chunks, because passing one task between threads takes as long as passing many."""
    chunk: list[_Task] = []
    for task in tasks:
        chunk.append(task)
        if len(chunk) >= _CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
