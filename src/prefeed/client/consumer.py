"""A loader's voice: tells the server what will be read, and how far it has come.

Never an error, and a wait only where an epoch begins: until the server knows that files may have changed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import threading
import time
from collections.abc import Sequence
from math import inf

import numpy as np

from prefeed.client.connection import Connection
from prefeed.client.dataset import NodeDataset, reopen_on
from prefeed.client.node import NodeClient
from prefeed.core.plan import Ids, Window
from prefeed.errors import PrefeedError, ServerBusyError, ServerError
from prefeed.sources.urls import root_of
from prefeed.system.thread_lock import ThreadLock
from prefeed.types import EpochWait, ReadCounts
from prefeed.wire import messages as m
from prefeed.wire.endpoint import put_in_transit

_log = logging.getLogger("prefeed")

_RECOVER_SECONDS = 2.0
_COUNTS_SECONDS = 5.0
"""A server that does not tell its counts, or takes no message, for that long is busy: the training loop waits, and continues without."""

_RECOVER_ANSWER_SECONDS = 30.0
"""The same for a server that is told of a dataset again, in a thread: nothing is listed for that."""


class Consumer:
    """One loader's plans on the node server.

    When the server dies, a thread starts a new one and gives it what is left of the plan; meanwhile the loader's
    readers continue from the tier and from the origin. A server that is busy is told what it takes, and is waited for only
    where an epoch begins.

    **Ownership**: the loader creates it and closes it. **Threads and processes**: the loader's process only; a forked
    child's copy does nothing.

    Attributes:
        round_trip_seconds: How long ``read_counts`` waits for the server, the shortest so far; None before the first.
    """

    def __init__(self, node: NodeClient, dataset: NodeDataset) -> None:
        """Speak for a loader of this dataset on this connection, which the consumer closes."""
        self._has_begun = False
        self.number: int = secrets.randbits(62)
        self.dataset: NodeDataset = dataset
        self.resident: bool = not dataset.config.read_once  # of the plans that follow: their objects are kept
        self._connection: Connection | None = node.connection
        node.connection.expect_answers_within(_COUNTS_SECONDS)
        self._pid = os.getpid()
        self._order = Window(np.empty(0, dtype=np.int64))
        self._is_partial = False
        self._position = 0
        self._start = 0
        self._told = 0
        self._revision = 0  # another one for each epoch, and whenever more of its order is known
        self._is_busy = False
        self._announced_to: Connection | None = None
        self._lock = ThreadLock()  # a finalizer may close this in a thread that holds it
        self._recovering: threading.Thread | None = None
        self._recover_at = 0.0
        self._closed = False
        self._rechecked = False
        self.round_trip_seconds: float | None = None

    def begin(self, ids: Ids, *, is_partial: bool = False) -> None:
        """The loader begins an epoch in this order.

        Args:
            ids: Its objects in order, or the first of them.
            is_partial: The epoch may read others: more come by ``extend``, or a stage cache held samples that it may have to make again.
        """
        self._begin_epoch(ids, is_partial=is_partial)
        recheck = self._takes_recheck()
        self._register(ids, upcoming=False, recheck=recheck, is_partial=is_partial)
        if recheck:
            self._wait_withdrawn()

    def announce(self, ids: Ids, *, begins: bool = False, is_partial: bool = False) -> None:
        """The next epoch will probably have this order.

        Args:
            ids: Its objects in order, or the first of them.
            begins: It is about to begin: from now on files count as they are now.
            is_partial: As for ``begin``.
        """
        self._announced_to = self._connection
        self._rechecked = begins and self._takes_recheck()
        self._register(ids, upcoming=True, recheck=self._rechecked, is_partial=is_partial)

    def keep(self, *, resident: bool) -> None:
        """What is fetched for its plans from now on is kept, or freed once it was read; also of the plans that follow."""
        if resident != self.resident:
            self.resident = resident
            self._send(m.KeepPlans(self.number, resident))

    def foresee(self, ids: Ids) -> None:
        """After the epoch that has begun, or was announced last, one of this order will probably follow."""
        connection = self._connection
        if connection is None or self._pid != os.getpid():
            return  # the next server is told of the plan alone
        with contextlib.suppress(OSError):
            name = self._in_transit(connection, self.dataset, ids)
            self._send(m.Foresee(self.number, name))
            self._remove_untold(name)

    def begin_announced(self, ids: Ids, *, is_partial: bool = False) -> None:
        """The epoch that was announced begins; arguments as for ``begin``."""
        if self._connection is not self._announced_to:
            self.begin(ids, is_partial=is_partial)  # it was announced to a server that is gone
            return
        self._begin_epoch(ids, is_partial=is_partial)
        recheck = not self._rechecked and self._takes_recheck()
        self._send(m.AdoptUpcoming(self.number, recheck))
        if recheck or self._rechecked:
            self._wait_withdrawn()
        self._rechecked = False

    def extend(self, ids: Ids, *, are_read_soon: bool = True) -> None:
        """The sampler drew these.

        Args:
            ids: Objects that follow in the order.
            are_read_soon: Torch has asked for them; else they are read ahead of it.
        """
        with self._lock:
            self._order.extend(ids, needed_from=self._position)
            self._revision += 1
        if self._is_heard():
            self._tell_more(are_read_soon=are_read_soon)

    def advance(self, position: int) -> None:
        """The loop has every sample before this index."""
        with self._lock:
            self._position = position
            index = position - self._start
        if self._is_heard():  # else the next one tells as much
            self._send(m.Position(self.number, index))

    def epoch_ended(self, epoch: EpochWait) -> None:
        """The loop has the last batch of an epoch."""
        self._send(m.EpochEnded(epoch))

    def close(self) -> None:
        """The loader is gone."""
        with self._lock:
            connection, self._connection = self._connection, None
            self._closed = True
        thread = self._recovering
        if thread is not None and thread is not threading.current_thread() and self._pid == os.getpid():
            thread.join()
        if connection is not None:
            connection.close()

    def read_counts(self) -> ReadCounts | None:
        """Return how the reads went so far; None when no server tells."""
        connection = self._connection
        if connection is None or self._pid != os.getpid():
            return None
        began = time.perf_counter()
        try:
            counts = NodeClient(connection).read_counts(self.number, within_seconds=_COUNTS_SECONDS)
            self._is_busy = False
            self.round_trip_seconds = min(time.perf_counter() - began, self.round_trip_seconds or inf)
            return counts
        except ServerBusyError as err:
            self._say_busy(err)
            return None
        except PrefeedError:
            self._lose(connection)
            return None

    def suppose(self, samples: Ids, paths: Sequence[str]) -> bool:
        """Samples probably open these files: a plan can be made of them, as soon as the learned map has them.

        Args:
            samples: Sample and number of its files, shape (num_samples, 2), of a dataset whose files are learned.
            paths: Of all samples, one after the other.

        Returns:
            False when no server was told. **Blocking**: never.
        """
        connection = self._connection
        if connection is None or not self._is_heard():
            return False
        with contextlib.suppress(OSError):
            rows = np.ascontiguousarray(samples, dtype=np.int64).tobytes()
            count = np.array([len(samples)], dtype=np.int64).tobytes()
            name = put_in_transit(connection.runtime_dir, [count, rows, b"\0".join(map(os.fsencode, paths))])
            self._send(m.Suppose(self.dataset.number, name))
            self._remove_untold(name)
        return self.is_connected

    @property
    def origin(self) -> str:
        """Where its objects lie: a URL without credentials, or the directory above the files of a catalogue."""
        return root_of(self.dataset.manifest)

    @property
    def reads_once(self) -> bool:
        """True when nothing is kept for the next epoch."""
        return self.dataset.config.read_once

    @property
    def is_connected(self) -> bool:
        """False while no server knows of this consumer."""
        return self._connection is not None

    def _is_heard(self) -> bool:
        """Return True when a server takes what it is told now; another one is looked for when there is none."""
        connection = self._connection
        if self._pid != os.getpid():
            return False
        if connection is None:
            self._recover_in_background()
            return False
        try:
            return connection.has_taken_all()
        except ServerError:
            self._lose(connection)
            return False

    def _tell_more(self, *, are_read_soon: bool) -> None:
        """Tell what is known of the order, and was not told yet: a server that was busy has missed some of it."""
        connection = self._connection
        with self._lock:
            told, position, self._told = self._told, self._position, self._order.end
            missed = told < position
            ids = self._order.part(position if missed else told, self._told)
            if missed:
                self._start = position
        if connection is None or not len(ids):
            return
        if missed:
            self._register(ids, upcoming=False, recheck=False, is_partial=True)
        elif are_read_soon:
            self._send(m.ExtendPlan(self.number, ids.astype(np.int64).tobytes()))
        else:
            with contextlib.suppress(OSError):
                name = self._in_transit(connection, self.dataset, ids)
                self._send(m.ExtendPlan(self.number, ids_file=name))
                self._remove_untold(name)

    def was_elsewhere(self) -> None:
        """An epoch was read without the server, and files may have been written that it was not told of: the next one asks them all."""
        self._has_begun = False

    def _takes_recheck(self) -> bool:
        """Files opened by path are asked whether they changed: at the first epoch, and at each if so set."""
        first, self._has_begun = not self._has_begun, True
        return first or self.dataset.config.revalidate

    def _wait_withdrawn(self) -> None:
        """Wait until the server has taken note that files may have changed: a reader that came first would not know."""
        catalogue = self.dataset.manifest
        if catalogue.grows and self.read_counts() is None:  # answered after all that was sent before
            catalogue.withdraw_all()  # it is not known what has changed: readers are to ask, or to open the file

    def _begin_epoch(self, ids: Ids, *, is_partial: bool) -> None:
        with self._lock:
            self._order, self._is_partial, self._position, self._start = Window(ids), is_partial, 0, 0
            self._told = self._order.end
            self._revision += 1

    def _register(self, ids: Ids, *, upcoming: bool, recheck: bool, is_partial: bool) -> None:
        if self._pid != os.getpid():
            return
        connection = self._connection
        if connection is None:
            self._recover_in_background()
            return
        with contextlib.suppress(OSError):
            message = self._plan_message(
                connection, self.dataset, ids, upcoming=upcoming, recheck=recheck, is_partial=is_partial
            )
            self._send(message)
            self._remove_untold(message.ids_file)

    def _remove_untold(self, name: str) -> None:
        if not self.is_connected:
            os.unlink(name)

    def _send(self, message: m.Message) -> None:
        if self._pid != os.getpid():
            return
        connection = self._connection
        if connection is None:
            self._recover_in_background()
            return
        try:
            connection.send_nowait(message)
        except ServerBusyError as err:
            self._say_busy(err)
            self._lose(connection, is_gone=False)
        except ServerError:
            self._lose(connection)

    def _say_busy(self, err: ServerBusyError) -> None:
        """Say it once, until it has answered again."""
        was_busy, self._is_busy = self._is_busy, True
        if not was_busy:
            _log.warning(
                "prefeed: %s; training continues, and objects that are not in memory are read from the origin", str(err)
            )

    def _lose(self, connection: Connection, *, is_gone: bool = True) -> None:
        with self._lock:
            was_there = self._connection is connection  # else another one has taken its place meanwhile
            if was_there:
                self._connection = None
        connection.close()
        if was_there and is_gone:
            _log.warning(
                "prefeed: the node server is gone; until another one runs, objects that are not in memory are read from the origin"
            )
        self._recover_in_background()

    def _recover_in_background(self) -> None:
        with self._lock:
            is_busy = self._recovering is not None and self._recovering.is_alive()
            is_found = self._connection is not None  # by a thread that has just ended
            if self._closed or is_busy or is_found or time.monotonic() < self._recover_at:
                return
            self._recover_at = time.monotonic() + _RECOVER_SECONDS
            self._recovering = threading.Thread(target=self._recover, name="prefeed-recover", daemon=True)
        self._recovering.start()

    def _recover(self) -> None:
        try:
            connection = Connection.open(self.dataset.config, answer_seconds=_RECOVER_ANSWER_SECONDS)
        except (PrefeedError, OSError):
            return
        try:
            if self._hand_over(connection, reopen_on(NodeClient(connection), self.dataset)):
                return
        except (PrefeedError, OSError):
            pass
        connection.close()

    def _hand_over(self, connection: Connection, dataset: NodeDataset) -> bool:
        """Give the server what is left of the plan, and use it from then on; False when the loader is gone."""
        while not self._closed:
            with self._lock:
                revision, is_partial, start = self._revision, self._is_partial, self._position
                rest = self._order.part(start, self._order.end).copy()
            connection.send(
                self._plan_message(
                    connection,
                    dataset,
                    rest,
                    upcoming=False,
                    recheck=dataset.config.revalidate,
                    is_partial=is_partial,
                )
            )
            with self._lock:
                if revision == self._revision and not self._closed:  # else another epoch has begun, or was read ahead
                    connection.expect_answers_within(_COUNTS_SECONDS)
                    self.dataset, self._connection, self._start = dataset, connection, start
                    self._told = self._order.end
                    return True
        return False

    def _plan_message(
        self, connection: Connection, dataset: NodeDataset, ids: Ids, *, upcoming: bool, recheck: bool, is_partial: bool
    ) -> m.RegisterPlan:
        name = self._in_transit(connection, dataset, ids)
        return m.RegisterPlan(self.number, dataset.number, name, upcoming, self.resident, recheck, is_partial)

    @staticmethod
    def _in_transit(connection: Connection, dataset: NodeDataset, ids: Ids) -> str:
        """Put the ids into a file of the private directory: a plan of 10 million is 40 MB, too much for a socket."""
        small = dataset.manifest.num_objects < 1 << 32
        suffix, dtype = (".u32", np.uint32) if small else (".i64", np.int64)
        return put_in_transit(connection.runtime_dir, [np.ascontiguousarray(ids, dtype=dtype).data], suffix=suffix)
