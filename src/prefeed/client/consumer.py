"""A loader's voice: tells the server what will be read, and how far it has come.

Never an error, and a wait only where an epoch begins: until the server knows that files may have changed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import tempfile
import threading
import time

import numpy as np
import numpy.typing as npt

from prefeed.client.connection import Connection
from prefeed.client.dataset import NodeDataset, reopen_on
from prefeed.client.node import NodeClient
from prefeed.errors import PrefeedError, ServerError
from prefeed.sources.catalogue import Catalogue
from prefeed.types import EpochWait, ReadCounts
from prefeed.wire import messages as m

_log = logging.getLogger("prefeed")

_RECOVER_SECONDS = 2.0
_RECOVER_ANSWER_SECONDS = 30.0
"""The same for a server that is told of a dataset anew, in a thread: nothing is listed for that."""

_COUNTS_SECONDS = 5.0
"""A server that does not tell its counts, or takes no message, for so long is taken for dead: the training loop waits."""

Ids = npt.NDArray[np.integer]


class Consumer:
    """One loader's plans on the node server.

    When the server dies, a thread starts a new one and gives it what is left of the plan; meanwhile the loader's
    readers go on from the tier and from the origin.

    **Ownership**: the loader creates it and closes it. **Threads and processes**: the loader's process only; a forked
    child's copy does nothing.
    """

    def __init__(self, node: NodeClient, dataset: NodeDataset) -> None:
        """Speak for a loader of this dataset on this connection, which the consumer closes."""
        self._has_begun = False
        self.number = secrets.randbits(62)
        self.dataset = dataset
        self.resident = dataset.config.resident  # of the plans that follow: their objects are kept
        self._connection: Connection | None = node.connection
        node.connection.expect_answers_within(_COUNTS_SECONDS)
        self._pid = os.getpid()
        self._ids: Ids = np.empty(0, dtype=np.int64)
        self._position = 0
        self._start = 0
        self._epoch = 0
        self._announced_to: Connection | None = None
        self._lock = threading.Lock()
        self._recovering: threading.Thread | None = None
        self._recover_at = 0.0
        self._closed = False
        self._rechecked = False

    def begin(self, ids: Ids) -> None:
        """The loader begins an epoch in this order; ids may be empty and come later by ``extend``."""
        self._begin_epoch(ids)
        recheck = self._takes_recheck()
        self._register(ids, upcoming=False, recheck=recheck)
        if recheck:
            self._wait_withdrawn()

    def announce(self, ids: Ids, *, begins: bool = False) -> None:
        """The next epoch will probably have this order.

        Args:
            ids: Its objects in order.
            begins: It is about to begin: from now on files count as they are now.
        """
        self._announced_to = self._connection
        self._rechecked = begins and self._takes_recheck()
        self._register(ids, upcoming=True, recheck=self._rechecked)

    def foresee(self, ids: Ids) -> None:
        """After the epoch that has begun, or was announced last, one of this order will probably follow."""
        connection = self._connection
        if connection is None or self._pid != os.getpid():
            return  # the next server is told of the plan alone
        with contextlib.suppress(OSError):
            name = self._in_transit(connection, self.dataset, ids)
            self._send(m.Foresee(self.number, name))
            if not self.is_connected:
                os.unlink(name)

    def begin_announced(self, ids: Ids) -> None:
        """The epoch that was announced begins."""
        if self._connection is not self._announced_to:
            self.begin(ids)  # it was announced to a server that is gone
            return
        self._begin_epoch(ids)
        recheck = not self._rechecked and self._takes_recheck()
        self._send(m.AdoptUpcoming(self.number, recheck))
        if recheck or self._rechecked:
            self._wait_withdrawn()
        self._rechecked = False

    def extend(self, ids: Ids) -> None:
        """The sampler drew these."""
        self._send(m.ExtendPlan(self.number, ids.astype(np.int64).tobytes()))

    def advance(self, position: int) -> None:
        """The loop has every sample before this index."""
        with self._lock:
            self._position = position
            index = position - self._start
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
        if thread is not None and self._pid == os.getpid():
            thread.join()
        if connection is not None:
            connection.close()

    def read_counts(self) -> ReadCounts | None:
        """Return how the reads went so far; None when no server tells."""
        connection = self._connection
        if connection is None or self._pid != os.getpid():
            return None
        try:
            return NodeClient(connection).read_counts(self.number, within_seconds=_COUNTS_SECONDS)
        except PrefeedError:
            self._lose(connection)
            return None

    @property
    def reads_once(self) -> bool:
        """True when nothing is kept for the next epoch."""
        return not self.dataset.config.resident

    @property
    def is_connected(self) -> bool:
        """False while no server knows of this consumer."""
        return self._connection is not None

    def _takes_recheck(self) -> bool:
        """Files opened by path are asked whether they changed: at the first epoch, and at each if so set."""
        first, self._has_begun = not self._has_begun, True
        return first or self.dataset.config.revalidate

    def _wait_withdrawn(self) -> None:
        """Wait until the server has taken note that files may have changed: a reader that came first would not know."""
        catalogue = self.dataset.manifest
        if isinstance(catalogue, Catalogue) and self.read_counts() is None:  # answered after all that was sent before
            catalogue.withdraw_all()  # nobody could tell what has changed: readers are to ask, or to open the file

    def _begin_epoch(self, ids: Ids) -> None:
        with self._lock:
            self._ids, self._position, self._start = ids, 0, 0
            self._epoch += 1

    def _register(self, ids: Ids, *, upcoming: bool, recheck: bool) -> None:
        if self._pid != os.getpid():
            return
        connection = self._connection
        if connection is None:
            self._recover_in_background()
            return
        with contextlib.suppress(OSError):
            message = self._plan_message(connection, self.dataset, ids, upcoming=upcoming, recheck=recheck)
            self._send(message)
            if not self.is_connected:
                os.unlink(message.ids_file)

    def _send(self, message: m.Message) -> None:
        if self._pid != os.getpid():
            return
        connection = self._connection
        if connection is None:
            self._recover_in_background()
            return
        try:
            connection.send(message)
        except ServerError:
            self._lose(connection)

    def _lose(self, connection: Connection) -> None:
        with self._lock:
            was_there, self._connection = self._connection is not None, None
        connection.close()
        if was_there:
            _log.warning("prefeed: the node server is gone; what it does not hold is read from the origin meanwhile")
        self._recover_in_background()

    def _recover_in_background(self) -> None:
        with self._lock:
            is_busy = self._recovering is not None and self._recovering.is_alive()
            if self._closed or is_busy or time.monotonic() < self._recover_at:
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
                epoch, start, rest = self._epoch, self._position, self._ids[self._position :]
            connection.send(
                self._plan_message(connection, dataset, rest, upcoming=False, recheck=dataset.config.revalidate)
            )
            with self._lock:
                if epoch == self._epoch and not self._closed:  # else another epoch has begun meanwhile
                    connection.expect_answers_within(_COUNTS_SECONDS)
                    self.dataset, self._connection, self._start = dataset, connection, start
                    return True
        return False

    def _plan_message(
        self, connection: Connection, dataset: NodeDataset, ids: Ids, *, upcoming: bool, recheck: bool
    ) -> m.RegisterPlan:
        name = self._in_transit(connection, dataset, ids)
        return m.RegisterPlan(self.number, dataset.number, name, upcoming, self.resident, recheck)

    @staticmethod
    def _in_transit(connection: Connection, dataset: NodeDataset, ids: Ids) -> str:
        """Put the ids into a file of the private directory: a plan of 10 million is 40 MB, too much for a socket."""
        small = dataset.manifest.num_objects < 1 << 32
        suffix, dtype = (".u32", np.uint32) if small else (".i64", np.int64)
        descriptor, name = tempfile.mkstemp(prefix="plan-", suffix=suffix, dir=connection.runtime_dir)
        with os.fdopen(descriptor, "wb") as file:
            np.ascontiguousarray(ids, dtype=dtype).tofile(file)
        return name
