"""Copying what one place has and another has not; ``prefeed job sync``.

::

    source, in key order ─┐
                          ├─ side by side ─→ same: skipped ─ else: copied, verified ──┐
    target, in key order ─┘        └──────→ only at the target: put by                │
                                                     all copied, nothing failed ─→ deleted

Nothing is recorded beside the data: what is there says what it is a copy of, and each run compares anew. So a run that
was killed is gone on with by running it again.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import Final

from prefeed.config import Config
from prefeed.copying.engine import CopyFailure, CopyProgress, CopySummary, copy_objects
from prefeed.copying.flow import CopyLimits
from prefeed.errors import EmptyListingError, JobError, JobSpecError, ObjectNotFoundError
from prefeed.jobs.bandwidth import MBIT_BYTES, Bandwidth, PacedSource
from prefeed.jobs.directory_place import DirectoryPlace
from prefeed.jobs.listed import Listed, is_newer, side_by_side
from prefeed.jobs.options import SyncEvents, SyncOptions, SyncProgress, SyncResult
from prefeed.jobs.ordering import Spool
from prefeed.jobs.patterns import Rules
from prefeed.jobs.places import Ends, Root, Target, TargetSink, located, open_root, open_target, refuse_overlap
from prefeed.prefetching import BackgroundGenerator
from prefeed.sources.protocol import RangeSource
from prefeed.types import ObjectInfo

MOST_FAILURES: Final = 10_000
"""Objects that cannot be copied before the rest is not tried."""

_CHUNK: Final = 256
_CHUNKS_AHEAD: Final = 16

_Task = tuple[Listed, bool]
"""What is to be copied, and whether only if its bytes differ from those that are there."""


def sync(
    source: str, target: str, options: SyncOptions, config: Config, events: SyncEvents | None = None
) -> SyncResult:  # fmt: skip
    """The target has what the source has, as far as the options say; what was there and the same is left alone.

    Safe against a kill at any instant: an object is at the target whole or not at all, and the next run goes on.

    **Blocking**: until it is done. **Threads**: starts its own and ends them; events come in the caller's.

    Args:
        source: A directory, or URL of s3://, gs://, az://, http(s):// or sampleset://.
        target: A directory, or URL of s3://, gs://, az:// or sampleset://.
        options: What to do.
        config: Settings; credentials are looked up below its home.
        events: Who is told how far it is.

    Raises:
        JobSpecError: These places or options cannot be, and nothing was done.
        SourceError, JobError: A listing failed, or nothing more can be written; what was copied stays, and nothing was
            deleted.
    """
    source_root, source_config = located(source, config)
    target_root, target_config = located(target, config)
    ends = Ends(source=_plain(source_root, options), target=_plain(target_root, options))
    refuse_overlap(ends)
    _refuse_contradictions(ends, options)
    with contextlib.ExitStack() as stack:
        origin = stack.enter_context(contextlib.closing(open_root(ends.source, source_config)))
        place = stack.enter_context(contextlib.closing(open_target(ends.target, target_config, make=not options.dry)))
        if isinstance(origin, DirectoryPlace) and isinstance(place, DirectoryPlace) and os.path.isdir(ends.target):
            _keep_apart(origin, place)
        return _Sync(origin, place, options, config, events or SyncEvents()).run()


def _keep_apart(origin: DirectoryPlace, place: DirectoryPlace) -> None:
    """Neither listing goes into the other place, however it is mounted or linked there.

    Raises:
        JobSpecError: They are one directory, under two names.
    """
    if origin.beneath.identity == place.beneath.identity:
        raise JobSpecError(f"{origin.url} and {place.url} are the same directory, mounted at two places")
    origin.enters_not, place.enters_not = frozenset({place.beneath.identity}), frozenset({origin.beneath.identity})


def _plain(root: str, options: SyncOptions) -> str:
    return root.replace("https://", "http://", 1) if options.no_https else root


def _refuse_contradictions(ends: Ends, options: SyncOptions) -> None:
    for url in (ends.source, ends.target) if options.no_https else ():
        if not url.startswith(("/", "http://")):
            raise JobSpecError(
                f"--no-https: the endpoint of {url} says how it is spoken to; give one that begins with http:// in "
                "credentials.json or AWS_ENDPOINT_URL"
            )
    if ends.source.startswith("http") and (options.update or options.delete_src):
        what = "--update needs the times of objects" if options.update else "--delete-src removes"
        raise JobSpecError(
            f"{what}, and {ends.source} is a web server, which {'tells none' if options.update else 'cannot'}"
        )
    if options.update and options.force_update:
        raise JobSpecError("give either --update, which copies what is newer, or --force-update, which copies all")
    if options.threads is not None and options.threads < 1:
        raise JobSpecError(f"--threads must be at least 1: {options.threads}")
    if options.bwlimit_mbit < 0:
        raise JobSpecError(f"--bwlimit must not be negative: {options.bwlimit_mbit}")
    if options.start and options.end and options.start > options.end:
        raise JobSpecError(f"--start {options.start!r} comes after --end {options.end!r}: nothing would be taken")


class _Sync:
    """One run, in the caller's thread. Counts are written by the thread that lists, and read anywhere."""

    def __init__(self, origin: Root, place: Target, options: SyncOptions, config: Config, events: SyncEvents) -> None:
        self._origin, self._place = origin, place
        self._options, self._config, self._events = options, config, events
        self._rules = Rules(options.rules, start=options.start, end=options.end)
        self._started = time.monotonic()
        self._num_listed = self._num_skipped = self._num_to_copy = self._bytes_to_copy = 0
        self._num_failed = 0
        self._empty: set[str] = set()
        self._folded: dict[str, str] | None = None
        self._stopped = threading.Event()

    def run(self) -> SyncResult:
        self._config.home.mkdir(parents=True, exist_ok=True)
        with (
            contextlib.closing(Spool(self._config.home)) as extra,
            contextlib.closing(Spool(self._config.home)) as done,
        ):
            if self._options.dry:
                summary = self._pretend(extra, done)
            else:
                summary = self._copy(extra, done)
            result = self._result_of(summary)
            if self._options.delete_dst or self._options.delete_src:
                result = self._delete(result, extra, done)
        return replace(result, seconds=time.monotonic() - self._started)

    # ---------------------------------------------------------------- what is to be done

    def _tasks(self, extra: Spool, done: Spool) -> Iterator[_Task]:
        """Yield what is to be copied; put by what is at the target alone, and what may go from the source."""
        theirs = self._place.list_target(self._rules)
        for our, their in side_by_side(self._origin.list_in_order(self._rules), theirs):
            if our is None:
                if their is not None and self._options.delete_dst:
                    extra.add(their)
                continue
            self._require_own_name(our.path)
            self._num_listed += 1
            task = self._task_of(our, their)
            if task is None:
                self._num_skipped += 1
                continue
            if our.etag and not our.size_bytes:
                self._empty.add(our.path)
            if self._options.delete_src:
                done.add(our)
            self._num_to_copy += 1
            self._bytes_to_copy += max(0, our.size_bytes)
            yield task

    def _require_own_name(self, path: str) -> None:
        """Where ``A`` and ``a`` are one name, the second would overwrite the first, which may be deleted at the source then."""
        if self._folded is None:
            return
        other = self._folded.setdefault(path.casefold(), path)
        if other != path:
            raise JobError(
                f"{other!r} and {path!r} of {self._origin.url} are one name in {self._place.url}, whose file system does not "
                "tell upper from lower case: rename or --exclude one of them; nothing was deleted"
            )

    def _task_of(self, our: Listed, their: Listed | None) -> _Task | None:
        options = self._options
        if their is None or options.force_update:
            return our, False
        is_same = self._place.is_same(our, their)
        if options.update and their.is_file and not is_newer(our, their) and not is_same:
            return None  # other bytes that are not older: theirs stay
        # Nothing is deleted that is only believed to be there: --delete-src reads what was not copied just now.
        if is_same and not options.check and not options.delete_src:
            return None
        return our, is_same

    # ---------------------------------------------------------------- copying

    def _copy(self, extra: Spool, done: Spool) -> CopySummary:
        source = self._paced(self._origin.source())
        sink = self._place.open_sink(source, perms=self._options.perms)
        self._folded = {} if sink.folds_case else None
        with (
            contextlib.closing(sink),
            BackgroundGenerator(_chunked(self._tasks(extra, done)), _CHUNKS_AHEAD) as chunks,
        ):
            try:
                summary = copy_objects(
                    source, self._expected(chunks, sink), sink, limits=self._limits(), progress=self._progressed
                )
            finally:
                self._stopped.set()
            self._make_directories(sink)
        self._num_skipped += sink.num_same
        return replace(
            summary,
            failures=tuple(failure for failure in summary.failures if not self._is_marker(failure)),
            num_copied=summary.num_copied - sink.num_same,
            bytes_copied=summary.bytes_copied - sink.bytes_same,
        )

    def _is_marker(self, failure: CopyFailure) -> bool:
        """Return whether it is about no object: ``a/``, which consoles make for a directory, is listed as ``a``."""
        return failure.path in self._empty and failure.code == ObjectNotFoundError.code

    def _expected(self, chunks: Iterable[list[_Task]], sink: TargetSink) -> Iterator[ObjectInfo]:
        for chunk in chunks:
            for listed, compare in chunk:
                if self._num_failed >= MOST_FAILURES:
                    raise JobError(f"{MOST_FAILURES:,} objects could not be copied; the rest is not tried")
                sink.expect(listed, compare=compare)
                yield listed.info

    def _limits(self) -> CopyLimits:
        return CopyLimits(
            max_in_flight=self._options.threads or self._config.max_in_flight,
            retry_deadline_seconds=self._config.retry_deadline,
        )

    def _paced(self, source: RangeSource) -> RangeSource:
        if not self._options.bwlimit_mbit:
            return source
        limit = Bandwidth(self._options.bwlimit_mbit * MBIT_BYTES)
        return PacedSource(source, limit, wait=self._stopped.wait)

    def _progressed(self, copying: CopyProgress) -> None:
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

    def _pretend(self, extra: Spool, done: Spool) -> CopySummary:
        count = 0
        for listed, compare in self._tasks(extra, done):
            if compare:
                self._num_skipped += 1
            else:
                count += 1
                self._events.would("copy", self._origin.source().locate(listed.path))
        return CopySummary(num_copied=count, bytes_copied=self._bytes_to_copy, failures=(), full=None, seconds=0.0)

    # ---------------------------------------------------------------- deleting

    def _delete(self, result: SyncResult, extra: Spool, done: Spool) -> SyncResult:
        """Delete what is to go, now that all was copied; nothing when something was not."""
        if not self._num_listed and self._options.delete_dst:
            raise EmptyListingError(
                f"{self._origin.url} has nothing that is to be copied: nothing was deleted, for a storage that is not "
                "mounted must not empty its copy. Check the source, and --exclude"
            )
        if self._options.delete_dst and isinstance(self._origin, DirectoryPlace) and self._origin.broken_links:
            raise JobError(
                f"{self._origin.source().locate(self._origin.broken_links[0])} is a link that leads nowhere: nothing was deleted, "
                "for what it led to may only not be mounted. Remove or --exclude it, or mount what it leads to"
            )
        if not result.is_complete:
            self._events.note("nothing was deleted, because not everything could be copied")
            return result
        if self._options.delete_dst:
            num_deleted, failures = self._delete_from(self._place, extra, keep=self._folded or ())
            result = _with_failures(replace(result, num_deleted_dst=num_deleted), failures)
            self._remove_directories()
        if self._options.delete_src:
            num_deleted, failures = self._delete_from(self._origin, done)
            result = _with_failures(replace(result, num_deleted_src=num_deleted), failures)
        return result

    def _delete_from(self, place: Root, listed: Spool, *, keep: Collection[str] = ()) -> tuple[int, list[CopyFailure]]:
        """Return how many went, and what did not; ``keep``: names in lower case that others have by now."""
        if self._options.dry:
            for one in listed:
                self._events.would("delete", place.source().locate(one.path))
            return listed.num_listed, []
        num_deleted, failures = 0, []
        for one, reason in place.remove_unchanged(one for one in listed if not keep or one.path.casefold() not in keep):
            if reason:
                where = place.source().locate(one.path)
                failures.append(
                    CopyFailure(path=one.path, code="not-deleted", message=f"{where} was not deleted: {reason}")
                )
            else:
                num_deleted += 1
        return num_deleted, failures

    def _remove_directories(self) -> None:
        """With ``dirs``: directories that the source does not have go, if nothing is in them."""
        place, origin = self._place, self._origin
        if self._options.dry or not self._options.dirs or self._options.start or self._options.end:
            return  # behind the last key the source was not looked at
        if isinstance(place, DirectoryPlace) and isinstance(origin, DirectoryPlace):
            wanted = set(origin.directories)
            for path in reversed(place.directories_there(self._rules)):
                if path not in wanted:
                    place.beneath.remove_empty(path)

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


def _with_failures(result: SyncResult, failures: list[CopyFailure]) -> SyncResult:
    return replace(
        result, failures=(*result.failures, *failures)[:MOST_FAILURES], num_failed=result.num_failed + len(failures)
    )


def _chunked(tasks: Iterable[_Task]) -> Iterator[list[_Task]]:
    """Yield what comes in pieces: a queue between two threads costs as much for one as for many."""
    chunk: list[_Task] = []
    for task in tasks:
        chunk.append(task)
        if len(chunk) >= _CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
