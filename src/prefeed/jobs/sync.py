"""Copying what one place has and another has not; ``prefeed sync``.

::

    source, in key order ─┐
                          ├─ side by side ─→ same: skipped ─ else: copied, verified ──┐
    target, in key order ─┘        └──────→ only at the target: put by                │
                             all copied, all looked at, all mounts as they were ─→ deleted

Nothing is recorded beside the data: what is there says what it is a copy of, and each run compares again. So a run that
was killed is resumed by running it again. What was mounted below the source is recorded in the home (``mounted``).
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
from prefeed.jobs.places import Place, locate_place
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
"""Objects that cannot be copied before the rest is not tried."""

_CHUNK: Final = 256
_CHUNKS_AHEAD: Final = 16

_Task = tuple[Entry, bool]
"""What is to be copied, and whether only if its bytes differ from those that are there."""


def sync(
    source: str, target: str, options: SyncOptions, config: Config, events: SyncEvents | None = None
) -> SyncResult:  # fmt: skip
    """The target has what the source has, as far as the options say; what was there and the same is left alone.

    Safe against a kill at any instant: an object is at the target whole or not at all, and the next run resumes.

    **Blocking**: until it is done. **Threads**: starts its own and ends them; events come in the caller's.

    Args:
        source: A directory, or URL of s3://, gs://, az://, http(s):// or sampleset://.
        target: A directory, or URL of s3://, gs://, az:// or sampleset://.
        options: What to do.
        config: Settings; credentials are looked up below its home.
        events: Who is told how far it is.

    Raises: As ``sync_between``, and as ``places.locate_place``.
    """
    return sync_between(locate_place(source, config), locate_place(target, config), options, config, events)


def sync_between(
    source: Place, target: Place, options: SyncOptions, config: Config, events: SyncEvents | None = None
) -> SyncResult:  # fmt: skip
    """As ``sync``, of places that were looked up already.

    Raises:
        JobSpecError: These places or options cannot be, and nothing was done.
        SourceError, JobError: A place cannot be listed at all, or nothing more can be written; copied files stay, and
            nothing was deleted.
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
            _ = origin.rooted  # open from now on: what is deleted is of the directory that is listed
        return _SyncRun(origin, place, options, config, events or SyncEvents()).run()


def _keep_apart(origin: DirectoryPlace, place: DirectoryPlace) -> None:
    """Neither listing goes into the other place, however it is mounted or linked there.

    Raises:
        JobSpecError: They are one directory, under two names.
    """
    if origin.rooted.identity == place.rooted.identity:
        raise JobSpecError(f"{origin.url} and {place.url} are the same directory, mounted at two places")
    origin.excluded_ids, place.excluded_ids = frozenset({place.rooted.identity}), frozenset({origin.rooted.identity})


def _without_tls(root: str, options: SyncOptions) -> str:
    return root.replace("https://", "http://", 1) if options.no_https else root


def refuse_overlap(source: str, target: str) -> None:
    """Refuse places that lie in one another.

    Raises:
        JobSpecError: They do, or are the same.
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
            f"{what}, and {source} is a web server, which {'tells none' if options.update else 'cannot'}"
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
    """One run, in the caller's thread. Counts are written by the thread that lists, and read anywhere."""

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

    # ---------------------------------------------------------------- what is to be done

    def _tasks(self, extra: Spool, done: Spool) -> Iterator[_Task]:
        """Yield what is to be copied; put by what is at the target alone, and what may go from the source."""
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
        """Yield the pairs without objects of the source that cannot be at the target, which are counted.

        An object may have the name of a directory of others. That shows when the first of those is listed, so an object is held back
        while names that begin with its name follow.
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
        """Yield what the source lists; a listing that breaks off in the middle ends there, and that is put by.

        Raises:
            SourceError: It lists nothing at all.
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
        """Where ``A`` and ``a`` are one name, the second would overwrite the first, which may be deleted at the source then."""
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
            return None  # a newer one may be there, and could not be looked at
        if their is None or options.force_update:
            return our, False
        is_same = self._place.is_same(our, their)
        if options.update and their.is_file and not is_newer(our, their) and not is_same:
            return None  # other bytes that are not older: theirs stay
        # Nothing is deleted that is only believed to be there: --delete-src reads what was not copied just now.
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
        """Return whether it is about a file that was removed after it was listed, which is no failure of a copy."""
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

    # ---------------------------------------------------------------- what is not known

    def _listing_failures(self) -> list[CopyFailure]:
        """Return what the listings could not tell, and mounts that came or went meanwhile."""
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
        """Return, by path below the source, what is to be deleted and may only not be mounted there."""
        if not isinstance(self._origin, DirectoryPlace):
            return {}
        mounts, before = self._origin.mounts, self._record.before[SOURCE]
        gone = {path for path, point in before.items() if mounts.points.get(path) != point}
        empty = set() if self._options.one_file_system else mounts.empty  # else they were not looked into
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
        """Return which mounts of the target are missing: what was copied to them is not there, and what is copied now will be hidden."""
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
        """Return whether listings come by a directory."""
        rules = self._rules
        return not path or (all(map(rules.takes_below, (path, *parents_of(path)))) and not rules.is_past_end(path))

    def _record_originals(self, lost: Collection[str], *, is_whole: bool) -> None:
        """Record what is mounted below the source; what was is forgotten when nothing at the target depends on it."""
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
        """Delete what is to go, now that all was copied; nothing when something was not, or is not known."""
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
        """Return why nothing may be deleted where the kernel does not tell mounts apart."""
        if self._options.one_file_system is False:
            return []
        return [
            _mount_failure(
                "",
                f"{place.url}: nothing was deleted, because the kernel does not say what is mounted there (statx of Linux 5.8, or "
                "/proc). Mount /proc, or give --no-one-file-system if nothing is mounted there",
            )
            for place in (self._origin, self._place) if isinstance(place, DirectoryPlace) and not place.mounts.is_known
        ]  # fmt: skip

    def _deletable(self, extra: Iterable[Entry]) -> Iterator[Entry]:
        """Yield what the source does not have, and may have: with ``one_file_system`` not what is below mounts, on either side."""
        points: set[str] = set()
        if self._options.one_file_system:
            for place in (self._origin, self._place):
                points |= place.mounts.points.keys() - {""} if isinstance(place, DirectoryPlace) else set()
        return (one for one in extra if not is_below(one.path, points))

    def _delete_originals(self, done: Spool) -> tuple[int, list[CopyFailure]]:
        """As ``_delete_from``, of what the target has."""
        kept: list[CopyFailure] = []

        def safe() -> Iterator[Entry]:
            for one in done:
                reason = self._why_not_kept(one)
                if reason:
                    kept.append(self._not_deleted(self._origin, one, reason))
                else:
                    yield one

        num_deleted, failures = self._delete_from(self._origin, safe())
        return num_deleted, [*kept, *failures]

    def _why_not_kept(self, one: Entry) -> str:
        origin, place, original = self._origin, self._place, None
        if self._options.dry or not isinstance(place, DirectoryPlace):
            return ""
        if isinstance(origin, DirectoryPlace):
            try:
                original = origin.status(one.path)
            except OSError as err:
                return f"it cannot be looked at: {err.strerror}"
            if original is None:
                return ""  # somebody else has removed it
        return place.why_not_copied(one, original, folds_case=self._folded is not None)

    def _delete_from(
        self, place: Root, listed: Iterable[Entry], *, keep: Collection[str] = ()
    ) -> tuple[int, list[CopyFailure]]:
        """Return how many went, and what did not; ``keep``: names in lower case that others have by now."""
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
        """With ``dirs``: directories that the source does not have go, if nothing is in them."""
        place, origin = self._place, self._origin
        if self._options.dry or not self._options.dirs or self._options.start or self._options.end:
            return  # behind the last key the source was not looked at
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
    """Yield what comes in pieces: a queue between two threads costs as much for one as for many."""
    chunk: list[_Task] = []
    for task in tasks:
        chunk.append(task)
        if len(chunk) >= _CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
