"""The hit path, and what happens off it.

read(id) ─→ tier ─hit→ bytes
              │ miss
              ↓
           server ─stored→ tier ─→ bytes          late or missed: it fetches, others wait for the same request
              │ bytes ───────────→ bytes          no room to store it
              │ failed ──────────→ origin's error
              ↓ no server, no answer, no room, lost; the server was refused
           origin ───────────────→ bytes, or the origin's error
"""

from __future__ import annotations

import contextlib
import os
import time
from array import array
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeGuard

from prefeed.client.connection import Connection
from prefeed.client.counted_reads import CountedReads
from prefeed.client.dataset import NodeDataset, reopen_on
from prefeed.client.lending import Lent
from prefeed.client.node import NodeClient, access_told, open_as_made
from prefeed.client.once import is_reading_once
from prefeed.client.sharing import IdleReaders, Shared
from prefeed.client.tiers import tier_of
from prefeed.client.writes import written_files
from prefeed.core.actions import Outcome
from prefeed.errors import AccessDeniedError, PrefeedError, ServerError, SourceError, error_of
from prefeed.run_summary import counters
from prefeed.sources.answers import read_origin
from prefeed.sources.catalogue import Catalogue
from prefeed.sources.protocol import Source
from prefeed.sources.urls import is_of_store, unveiled
from prefeed.store.log import StoredValue
from prefeed.types import ENTRY_KEY_BYTES, Buffer
from prefeed.wire import messages as m

_LENT_FROM_BYTES = 256 * 1024
"""From this size on, parts of a file are copied as they are read: copying all of it takes longer than opening it."""

_REPORT_EVERY = 16
"""Most reads between two reports to the server: it frees what was consumed by these."""

_REPORTS_A_LOOKAHEAD = 8
_LARGE_REPORT_PAUSE_SECONDS = 0.002
"""Large objects are reported sooner: the server fetches no further while a whole lookahead is not known to be read.

Many objects that are read in parts come within this pause, and none of them is waited for.
"""

_PART_REPORT_PAUSE_SECONDS = 0.01
"""Parts that the tier holds are reported no more often, while they are small: each report wakes the server."""

_RECONNECT_SECONDS = 5.0
_MOST_TIMES = 9
"""The pause is this many times what looking for the server took: to find out that it is held up takes seconds."""

_REPORT_SECONDS = 1.0
"""A server that takes no report for this long is left alone: a reader that has found its object does not wait for it."""

_RENEW_SECONDS = 60.0
"""Pause between two times that a reader tells the server how to reach the origin."""

_GRACE_SECONDS = 5.0
"""A reader waits that much longer for the server than a request to the origin may take; then it reads the origin."""


class _Answer(NamedTuple):
    """What the server gave: the bytes, None if only the origin can; the object's id, None if it is not known."""

    data: Buffer | StoredValue | None = None
    object_id: int | None = None
    was_held: bool = False  # when it was asked: that is a hit


class ObjectReader(CountedReads):
    """Reads objects of one dataset for one consumer.

    **Threads and processes.** One thread at a time; others read through ``for_thread``. May be made before a fork and pickled to a spawned worker:
    store, socket and source are opened at first use in each process.
    **Blocking.** A hit never waits. A miss waits for the server, and for the origin when there is none.
    """

    def __init__(self, dataset: NodeDataset, *, consumer: int = 0, shared: Shared | None = None) -> None:
        """Read for a consumer; readers that are given the same ``shared`` take turns."""
        self.dataset: NodeDataset = dataset
        self.consumer = consumer
        self._shared = shared
        self._written = None
        if not dataset.manifest.grows:
            self._written = written_files(dataset) if shared is None else shared.written(dataset)
        self._keys = dataset.manifest.keys
        self._tier = tier_of(dataset.instance)
        self._pid = os.getpid()
        self.last_key: bytes = b""  # of the bytes given last; empty when not known
        self._connection: Connection | None = None
        self._source: Source | None = None
        self._retry_at = 0.0
        self._is_held_up = False  # the server did not answer when it was looked for last
        self._consumed = array("q")
        self._opened = array("q")
        self._lends = dataset.manifest.grows  # who opens files by path may want a part of one
        self._lent: list[tuple[int, Lent]] = []  # by object: the sample that reads parts of it is being made
        self._refusal: SourceError | None = None  # that the server met, of the object that was asked for last
        self._renewed_at = -_RENEW_SECONDS
        self._reported_at = 0.0
        CountedReads.__init__(self)
        self._most_unreported_bytes = dataset.config.limits.lookahead_bytes // _REPORTS_A_LOOKAHEAD
        self._of_threads: IdleReaders[ObjectReader] = IdleReaders()

    def __reduce__(self) -> tuple[object, ...]:
        return (_make_reader, (self.dataset, self.consumer))

    def read(self, object_id: int) -> Buffer:
        """Return the object's bytes.

        Raises:
            SourceError: The origin has no such object, or refuses it; the message holds its full path.
        """
        written = self._written
        if written is not None and written.any() and self._is_written(object_id):
            self.pass_by(object_id)
            return self._read_direct(object_id)
        data = self.try_read(object_id)
        if isinstance(data, Lent):
            data = data.read(0, len(data))
        if data is not None:
            return data
        return self._read_direct(object_id) if self._refusal is None else self._read_refused(object_id, self._refusal)

    def try_read(self, object_id: int) -> Buffer | Lent | None:
        """Return the object's bytes, or None when only the origin can give them.

        Those of a large file that is opened by path stay in the tier, and are lent; see ``sample_made``.

        Raises:
            SourceError: As the server learned it from the origin.
        """
        if self._pid != os.getpid():
            self._start_anew()
        start = object_id * ENTRY_KEY_BYTES
        self.last_key = bytes(self._keys[start : start + ENTRY_KEY_BYTES])
        data: Buffer | StoredValue | None = self._take(self.last_key)
        self._consumed.append(object_id)
        is_hit = data is not None
        if is_hit:
            self._hits += 1
        else:
            answer = self._ask_object(object_id)
            data, is_hit = self._came(answer), answer.was_held
        return self._counted(data, object_id, is_hit=is_hit)

    def try_part(self, object_id: int, start: int, size_bytes: int, *, object_bytes: int) -> bytes | None:
        """Return a part of an object that the tier holds, shorter at its end; None: the tier does not hold it.

        The object, of ``object_bytes``, counts as read when its last byte is.
        """
        if self._pid != os.getpid():
            self._start_anew()
        at = object_id * ENTRY_KEY_BYTES
        if self._tier is None:
            return None
        data = self._tier.read(bytes(self._keys[at : at + ENTRY_KEY_BYTES]), start, size_bytes)
        if data is not None and start + len(data) >= object_bytes:
            self._consumed.append(object_id)
            self._hits += 1
            self._hit_bytes += object_bytes
            self._unreported_bytes += len(data)
            are_large = self._unreported_bytes > self._most_unreported_bytes
            if are_large or len(self._consumed) >= _REPORT_EVERY:
                pause = _LARGE_REPORT_PAUSE_SECONDS if are_large else _PART_REPORT_PAUSE_SECONDS
                if time.monotonic() - self._reported_at >= pause:
                    self._report()
        return data

    def find(self, key: bytes, path: str) -> Buffer | Lent | None:
        """Return the bytes that the tier has of a file under this key, which count as a hit; None when it has none."""
        if self._pid != os.getpid():
            self._start_anew()
        data = self._take(key)
        if data is not None:
            self.last_key = key
            self._hits += 1
            self._hit_bytes += len(data)
            self._unreported_bytes += len(data)
            if self._hits >= _REPORT_EVERY:
                self._report()
        return Lent(data, path) if isinstance(data, StoredValue) else data

    def try_read_file(self, path: str, *, in_doubt: bool = False) -> tuple[Buffer | Lent | None, int | None]:
        """Return the bytes of a file that has no object id yet, or None, and the id that it has now, or None.

        The dataset must be a catalogue; it takes the file in. The server reads it.

        Args:
            path: Absolute.
            in_doubt: The file was asked for its version, and ``find`` has no such bytes.

        Raises:
            SourceError: As the server learned it from the origin.
        """
        if self._pid != os.getpid():
            self._start_anew()
        connection = self._connect()
        answer = _Answer()
        if connection is not None:
            token = connection.next_token()
            number, name = self.dataset.number, os.fsencode(path)
            question = m.DemandFile(token, self.consumer, number, name, in_doubt, is_reading_once())
            answer = self._ask(connection, question)
        object_id = answer.object_id
        if object_id is None:
            self._counted(None, -1)
            return None, None
        self._consumed.append(object_id)
        return self._counted(self._came(answer), object_id, is_hit=answer.was_held), object_id

    def pass_by(self, object_id: int | None) -> None:
        """A file is read, but not by this: what waits in the tier for its reader, if it has an id, is not waited for."""
        if self._pid != os.getpid():
            self._start_anew()
        if object_id is not None:
            self._consumed.append(object_id)
        self._counted(None, -1)

    def for_thread(self) -> AbstractContextManager[ObjectReader]:
        """Inside it, a reader of a catalogue for the same consumer that no other thread uses; this one reports what it has read."""
        return self._of_threads.one(self._again)

    def _again(self) -> ObjectReader:
        manifest = self.dataset.manifest  # mapped again as it grows, so each thread has a mapping of its own
        own = Catalogue.open(manifest.directory, manifest.uid)
        return ObjectReader(replace(self.dataset, manifest=own), consumer=self.consumer)

    def passed_in_own_threads(self, num_files: int) -> None:
        """Count files that threads of the dataset's own have opened, whose sample is not known: the next report has them."""
        self._direct_reads += num_files
        self._in_own_threads += num_files

    def learn(self, sample: int, object_ids: Sequence[int]) -> None:
        """Tell the server, with the next report, which objects a sample opened."""
        self._opened.extend((sample, len(object_ids), *object_ids))

    def read_many(self, object_ids: Sequence[int]) -> list[Buffer]:
        """Return the bytes of each object."""
        return [self.read(object_id) for object_id in object_ids]

    def sample_made(self) -> list[Lent]:
        """Report open files of the sample as consumed, so that the server may free their bytes; return these files."""
        given = [lent for _, lent in self._lent]
        if given:
            self._consumed.extend(object_id for object_id, _ in self._lent)
            lent_bytes = sum(map(len, given))
            self._hit_bytes += sum(lent.num_read for lent in given if lent.is_hit)
            self._unreported_bytes += lent_bytes
            self._unread_bytes += lent_bytes - sum(lent.num_read for lent in given)
            self._lent.clear()
            self._report_if_due()
        for other in self._of_threads.each():
            given += other.sample_made()
        return given

    def report(self) -> None:
        """Tell the server what was consumed since the last report; while there is none, counts wait for the next."""
        self.sample_made()
        self._report()
        self._of_threads.report()

    def report_misses(self) -> None:
        """Report the reads since the last report if one of them was no hit. Hits wait for more reads: a report wakes the server."""
        if self._from_origin or self._direct_reads:
            self.report()

    def _report(self) -> None:
        if self._opened:
            records = m.SamplesOpened(self.dataset.number, self._opened.tobytes())
            del self._opened[:]
            self._send(records)
        if not (self._consumed or self._hits or self._direct_reads):
            return
        message = m.Consumed(
            self.consumer,
            self.dataset.number,
            self._consumed.tobytes(),
            self._hits,
            self._direct_reads,
            self._hit_bytes,
            self._in_own_threads,
        )
        del self._consumed[:]
        self.count_reads()
        self._unreported_bytes = self._unread_bytes = self._counted_bytes = 0
        self._reported_at = time.monotonic()
        if self._send(message):
            self._hits = self._direct_reads = self._in_own_threads = self._hit_bytes = 0
            self._counted_hits = self._counted_direct = self._counted_own_threads = 0

    def close(self) -> None:
        """Report what is left and let go of the socket, the tier and the source; a later read opens them again."""
        if self._pid != os.getpid():
            return
        self._retry_at = 0.0  # what is not reported now is never reported
        self.report()
        self._of_threads.close_idle()
        if self._shared is None:
            self._disconnect()
        self._connection = None
        if self._source is not None:
            self._source.close()
            self._source = None
        if self._written is not None and self._shared is None:
            self._written.close()

    def _counted(
        self, data: Buffer | StoredValue | None, object_id: int, *, is_hit: bool = False
    ) -> Buffer | Lent | None:
        """Count the object that was consumed last, and return it; one that is lent is consumed when its sample is made."""
        if isinstance(data, StoredValue):
            lent = Lent(data, self.dataset.manifest.path(object_id))
            lent.is_hit = is_hit
            self._lent.append((self._consumed.pop(), lent))
            return lent
        if data is None:
            self._direct_reads += 1
        else:
            self._unreported_bytes += len(data)
            self._hit_bytes += len(data) if is_hit else 0
        if len(self._consumed) >= _REPORT_EVERY or self._unreported_bytes > self._most_unreported_bytes:
            self._report_if_due()
        return data

    def _report_if_due(self) -> None:
        if len(self._consumed) >= _REPORT_EVERY:
            self._report()
        elif self._unreported_bytes > self._most_unreported_bytes:
            if time.monotonic() - self._reported_at >= _LARGE_REPORT_PAUSE_SECONDS:
                self._report()

    def _take(self, key: bytes) -> Buffer | StoredValue | None:
        if self._tier is None:
            return None
        return self._tier.lend(key, _LENT_FROM_BYTES) if self._lends else self._tier.get(key)

    def _came(self, answer: _Answer) -> Buffer | StoredValue | None:
        """Count what the server gave: a hit if it had that when it was asked."""
        data = answer.data
        if data is None:
            return None
        if answer.was_held:
            self._hits += 1
        else:
            self._from_origin += 1
            self._from_origin_bytes += len(data)
            if isinstance(data, StoredValue):  # none of it was read from the cache yet
                self._unread_bytes -= len(data)
        return data

    def _ask_object(self, object_id: int) -> _Answer:
        """Ask the server for an object that the tier does not hold."""
        self._refusal = None
        connection = self._connect()
        if connection is None:
            return _Answer()
        token, number = connection.next_token(), self.dataset.number
        return self._ask(connection, m.Demand(token, self.consumer, number, object_id, is_reading_once()))

    def _ask(self, connection: Connection, question: m.Demand | m.DemandFile) -> _Answer:
        self.last_key = b""
        try:
            answer = connection.request(question, m.Answered)
            object_id = question.object_id if isinstance(question, m.Demand) else answer.object_id
            if answer.outcome == Outcome.STORED:
                return _Answer(self._look_again(connection, object_id, answer.key), object_id, answer.was_held)
        except ServerError:
            self._disconnect()
            return _Answer()
        except PrefeedError:
            return _Answer()  # the server does not know the dataset: it is another one than opened it
        if answer.outcome == Outcome.FAILED:
            error = error_of(answer.code, answer.text, PrefeedError)
            if not self._may_be_granted(error):
                try:
                    raise error
                finally:
                    del error  # its traceback refers to this frame
            self._refusal = error
            return _Answer(None, object_id)
        if answer.outcome != Outcome.INLINE:
            return _Answer(None, object_id)
        self.last_key = answer.key
        return _Answer(answer.data, object_id, answer.was_held)

    def _send(self, message: m.Message) -> bool:
        """Return True when the message is on its way."""
        connection = self._connect(is_asking=False)
        if connection is None:
            return False
        try:
            connection.send(message, within_seconds=_REPORT_SECONDS)
        except ServerError:
            self._disconnect()
            return False
        return True

    def _look_again(self, connection: Connection, object_id: int, stored_key: bytes) -> Buffer | StoredValue | None:
        manifest = self.dataset.manifest
        manifest.refresh()
        self._keys = manifest.keys
        key = self.last_key = stored_key or manifest.key(object_id)
        data = self._take(key)
        if data is None and self._tier is not None:  # freed meanwhile
            connection.request(m.Lost(connection.next_token(), self.dataset.number, object_id), m.Answered)
        return data

    def _is_written(self, object_id: int) -> bool:
        assert self._written is not None
        root, path = self.dataset.manifest.url, self.dataset.manifest.path(object_id)
        names = (f"{place.rstrip('/')}/{path}" for place in (root, os.path.realpath(root)))
        return any(self._written.covers(name) for name in names)

    def _may_be_granted(self, error: PrefeedError) -> TypeGuard[SourceError]:
        """Return True for what this process may read although the server may not: it has rights and tokens of its own.

        With a catalogue, the reader opens the file itself when the server has not read it.
        """
        if self.dataset.manifest.grows:
            return False
        if isinstance(error, AccessDeniedError):
            return True
        # Files may also be mounted here, and not where the server was started.
        return isinstance(error, SourceError) and not is_of_store(self.dataset.manifest.url)

    def _read_direct(self, object_id: int) -> Buffer:
        data = self._read_origin(object_id)
        counters.add(counters.ORIGIN_BYTES, len(data))  # the read is counted already
        return data

    def _read_origin(self, object_id: int) -> Buffer:
        is_fresh = self._source is None
        if self._source is None:
            self._source = open_as_made(self.dataset.url, self.dataset.config, self.dataset.made_with)
        manifest, config = self.dataset.manifest, self.dataset.config
        path = manifest.path(object_id)
        listed = manifest.listed(object_id)
        try:
            return read_origin(self._source, path, config, listed=listed)
        except AccessDeniedError:
            if is_fresh:
                raise
        self._source.close()  # its token may have expired since: ask for a new one, once
        self._source = open_as_made(self.dataset.url, config, self.dataset.made_with)
        return read_origin(self._source, path, config, listed=listed)

    def _read_refused(self, object_id: int, refusal: SourceError) -> Buffer:
        """Return the bytes of an object that the server was refused, and let the server speak as this process does.

        Raises:
            SourceError: The origin's answer to this process; it says so when both were refused.
        """
        try:
            data = self._read_direct(object_id)
        except AccessDeniedError as err:
            both = f"{err.message} (the node server was refused before: {refusal.message})"
            raise type(err)(both, **err.details) from err
        now = time.monotonic()
        if now - self._renewed_at >= _RENEW_SECONDS and is_of_store(self.dataset.manifest.url):
            self._renewed_at = now
            with contextlib.suppress(PrefeedError):
                options, proxies = access_told(self.dataset.url, self.dataset.config, self.dataset.made_with)
                self._send(m.RenewAccess(self.dataset.number, unveiled(self.dataset.url), options, proxies))
        return data

    def _connect(self, *, is_asking: bool = True) -> Connection | None:
        """Return a connection to the server, None when there is none; who only reports waits no second time for one held up."""
        if self._connection is not None and self._connection.is_closed:
            self._connection = None  # another reader that shares it has found it broken
        if self._connection is None and time.monotonic() >= self._retry_at:
            began = time.monotonic()
            patience = self.dataset.config.limits.request_seconds + _GRACE_SECONDS
            try:
                open_one = partial(
                    Connection.open,
                    self.dataset.config,
                    autostart=False,
                    answer_seconds=_REPORT_SECONDS if self._is_held_up and not is_asking else patience,
                )
                shared = self._shared
                self._connection = (
                    open_one() if shared is None else shared.connection(self.dataset.config.home, open_one)
                )
                self._use(reopen_on(NodeClient(self._connection), self.dataset))
                self._connection.expect_answers_within(patience)
                self._is_held_up = False
            except (PrefeedError, OSError):
                took = time.monotonic() - began
                self._is_held_up = took > _REPORT_SECONDS / 2
                self._disconnect(_MOST_TIMES * took)
        return self._connection

    def _use(self, dataset: NodeDataset) -> None:
        """Read from the tier of the server that the dataset is open on."""
        self._tier = tier_of(dataset.instance)
        self.dataset = dataset

    def _disconnect(self, pause_seconds: float = 0.0) -> None:
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.close()
        self._connection = None
        self._retry_at = time.monotonic() + max(_RECONNECT_SECONDS, pause_seconds)

    def _start_anew(self) -> None:
        """Leave the parent's socket and source alone: this is a forked child."""
        if self._connection is not None:
            self._connection.close()
        self._connection, self._source = None, None
        self._pid = os.getpid()
        self._retry_at, self._is_held_up = 0.0, False
        del self._consumed[:]
        del self._opened[:]
        self._lent.clear()
        self._reset_counts()


def _make_reader(dataset: NodeDataset, consumer: int) -> ObjectReader:
    return ObjectReader(dataset, consumer=consumer)
