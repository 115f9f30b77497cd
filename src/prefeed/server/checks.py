"""Whether files of catalogues have changed since they were read: asked ahead of their readers, once an epoch.

A reader finds an object of a catalogue by its published key. When an epoch begins, the keys of its plan are
withdrawn; each file is then asked for its version, in the order of the plan, and its key published again, or, if it
has changed, its entry freed. A reader that comes first finds no key, asks the server, and waits for the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from prefeed.core.checks import CheckAhead, CheckPace
from prefeed.core.plan import Window
from prefeed.core.schedule import Scheduler
from prefeed.core.table import FETCHING, RESIDENT, TRANSIENT
from prefeed.server.datasets import Dataset
from prefeed.server.fetchers import CheckJob, CheckResult
from prefeed.sources.manifest import version_hash

_MAX_BATCHES: Final = 128
"""Batches under way: threads that ask side by side."""

Ids = npt.NDArray[np.integer]


class Checks:
    """Decides which files to ask, and what follows from the answers.

    Args:
        datasets: Those of the node, by number; this looks at them and adds none.
        scheduler: Told of files that have changed.
        submit: Hands a job to the fetchers.

    **Threads**: the loop's.
    """

    def __init__(
        self, datasets: dict[int, Dataset], scheduler: Scheduler, *, submit: Callable[[CheckJob], None]
    ) -> None:
        self._datasets = datasets
        self._scheduler = scheduler
        self._submit = submit
        self._ahead: dict[int, tuple[int, CheckAhead]] = {}
        self._upcoming: dict[int, tuple[int, Window, bool]] = {}
        self._distrusted: dict[int, set[int]] = {}  # by consumer: opened by path, beside its plan, this epoch
        self._generation = 1
        self._oldest: dict[tuple[int, int], int] = {}  # under way when withdrawn: the oldest answer that counts
        self._waiting: dict[tuple[int, int], list[Callable[[], None]]] = {}
        self._under_way: set[tuple[int, int]] = set()
        self._batches = 0
        self._pace = CheckPace()
        self._began_before: dict[tuple[int, int], int | None] = {}  # version hash as asked since; None: not answered

    # ------------------------------------------------------------ epochs

    def begin(self, consumer: int, dataset: int, order: Window, *, recheck: bool, is_whole: bool) -> None:
        """The consumer begins an epoch: its files are asked again, or only those that never were.

        Args:
            consumer: Who.
            dataset: Of its plan.
            order: Shared with the plan, and extended with it.
            recheck: What was known of the files before counts no longer.
            is_whole: The epoch reads nothing else.
        """
        self._upcoming.pop(consumer, None)
        self._ahead.pop(consumer, None)
        self._distrusted.pop(consumer, None)
        catalogue = self._datasets[dataset].catalogue
        if catalogue is None:
            return
        if recheck and is_whole and order.end:
            self._distrusted[consumer] = set()
            self._withdraw(dataset, order.ids)
        elif recheck:  # it may be any that the sampler draws later, or that is opened by path
            self._withdraw(dataset, None)
        self._ahead[consumer] = (dataset, CheckAhead(order))

    def announce(self, consumer: int, dataset: int, order: Window, *, is_whole: bool) -> None:
        """The consumer will probably read these next; they are asked when it begins."""
        self._upcoming[consumer] = (dataset, order, is_whole)

    def adopt(self, consumer: int, *, recheck: bool) -> None:
        """The consumer begins the epoch that was announced; if it was asked ahead already, nothing more is."""
        upcoming = self._upcoming.pop(consumer, None)
        if upcoming is not None:
            dataset, order, is_whole = upcoming
            self.begin(consumer, dataset, order, recheck=recheck, is_whole=is_whole)

    def extend(self, consumer: int, dataset: int, ids: Ids) -> None:
        """The consumer will read these very soon: its order was extended by them."""
        if consumer in self._ahead:
            self._ahead[consumer][1].pass_all()
        if self._datasets[dataset].catalogue is not None:
            self._ask_all(
                dataset, [object_id for object_id in np.unique(ids).tolist() if self.is_due(dataset, object_id)]
            )

    def advance(self, consumer: int, position: int) -> None:
        """The consumer has what comes before this index of its plan."""
        if consumer in self._ahead:
            self._ahead[consumer][1].advance(position)

    def end(self, consumer: int) -> None:
        """The consumer is gone."""
        self._ahead.pop(consumer, None)
        self._upcoming.pop(consumer, None)
        self._distrusted.pop(consumer, None)

    # ------------------------------------------------------------ asking

    def is_due(self, dataset: int, object_id: int) -> bool:
        """True while bytes are in the tier, or on their way, that may not be the present ones."""
        catalogue = self._datasets[dataset].catalogue
        if catalogue is None or catalogue.is_published(object_id):
            return False
        state = self._scheduler.tables[dataset].state[object_id]
        if state == FETCHING:
            return self._began_before.get((dataset, object_id), 0) is None
        return state in (RESIDENT, TRANSIENT)

    def distrust(self, consumer: int, dataset: int, object_id: int) -> None:
        """A reader of the consumer opens a file that its plan may not name: it may not have been asked this epoch."""
        distrusted = self._distrusted.get(consumer)
        if distrusted is not None and object_id not in distrusted:
            distrusted.add(object_id)
            self._withdraw(dataset, np.array([object_id]))

    def doubt(self, dataset: int, object_id: int) -> None:
        """A reader that has seen the file does not know it as it is held: it is asked again before it is given to a reader."""
        if self._scheduler.tables[dataset].state[object_id] in (RESIDENT, TRANSIENT):
            self._withdraw(dataset, np.array([object_id]))

    def outdate(self, dataset: int, ids: Ids | None) -> None:
        """These files have been written since: what is held of them counts no longer. None: any may have been moved."""
        if ids is None or len(ids):
            self._withdraw(dataset, ids)
        for object_id in () if ids is None else ids.tolist():  # equal size and time do not prove equal bytes
            self._scheduler.invalidate(
                dataset, object_id, fetch_again=False
            )  # the writer's loader reads the file itself

    def wait(self, dataset: int, object_id: int, then: Callable[[], None]) -> None:
        """Ask the file now, unless that is under way, and continue when the answer is there."""
        self._waiting.setdefault((dataset, object_id), []).append(then)
        if (dataset, object_id) not in self._under_way:
            self._ask(dataset, [object_id])

    def is_outdated(self, dataset: int, object_id: int, version: str) -> bool:
        """The bytes go to their reader past the tier; True when the request is of the last epoch and they have changed."""
        since_asked = self._began_before.pop((dataset, object_id), 0)
        return since_asked != 0 and since_asked != version_hash(version)

    def stored(self, dataset: int, object_id: int) -> None:
        """The file was read just now, and is in the tier: readers may find it, unless the request is of the last epoch."""
        catalogue = self._datasets[dataset].catalogue
        if catalogue is None:
            return
        since_asked = self._began_before.pop((dataset, object_id), 0)
        if since_asked == 0 or since_asked == catalogue.version_hash(object_id):
            catalogue.publish(object_id)

    @property
    def has_waiting(self) -> bool:
        """True while a reader waits for an answer."""
        return bool(self._waiting)

    def ask_ahead(self) -> None:
        """Ask as many files ahead of their readers as may be asked at a time."""
        for dataset, ahead in list(self._ahead.values()):
            while self._batches < _MAX_BATCHES:
                ids = ahead.next_batch(
                    self._pace.batch, self._scheduler.tables[dataset].states, self._published(dataset)
                )
                if not len(ids):
                    break
                self._ask(dataset, ids.tolist())

    def take(self, result: CheckResult) -> None:
        """Publish the entries whose files are as they were, free the others, and answer those who wait."""
        dataset, ids = result.job.dataset, result.job.ids
        catalogue = result.job.catalogue
        self._batches -= 1
        self._pace.observe(result.seconds, len(ids))
        again: list[int] = []
        for object_id, version in zip(ids, result.versions, strict=True):
            self._under_way.discard((dataset, object_id))
            if result.job.generation < self._oldest.get((dataset, object_id), 0):
                if (dataset, object_id) in self._waiting:
                    again.append(object_id)
                continue  # asked before the epoch began
            self._oldest.pop((dataset, object_id), None)
            state = self._scheduler.tables[dataset].state[object_id]
            if state == FETCHING and (dataset, object_id) in self._began_before:
                self._began_before[dataset, object_id] = version_hash(version) if version else -1
            if state not in (RESIDENT, TRANSIENT):
                continue
            if catalogue.is_as_seen(object_id, version):
                catalogue.publish(object_id)
            else:
                self._scheduler.invalidate(dataset, object_id)
        for of_dataset, ahead in self._ahead.values():
            if of_dataset == dataset:
                ahead.done(np.array(ids))
        if again:
            self._ask(dataset, again)

    def take_waiting(self, result: CheckResult) -> list[Callable[[], None]]:
        """Return what is to be done for those who waited for these files."""
        dataset = result.job.dataset
        answered = [object_id for object_id in result.job.ids if (dataset, object_id) not in self._under_way]
        return [then for object_id in answered for then in self._waiting.pop((dataset, object_id), ())]

    def _withdraw(self, dataset: int, ids: Ids | None) -> None:
        """Readers ask from now on, and what was asked or requested before now tells nothing; None: all of the dataset."""
        catalogue = self._datasets[dataset].catalogue
        assert catalogue is not None
        catalogue.withdraw(ids)
        self._generation += 1
        asked = [key for key in self._under_way if key[0] == dataset]
        self._oldest.update(dict.fromkeys(asked, self._generation))
        self._ask_in_flight(dataset, ids)

    def _ask_in_flight(self, dataset: int, ids: Ids | None) -> None:
        """Ask the files that are being read: their requests are of the last epoch, and may bring its bytes."""
        table = self._scheduler.tables[dataset]
        if ids is None:
            in_flight = table.ids_in(FETCHING).tolist()
        else:
            in_flight = np.unique(ids[table.states[ids] == FETCHING]).tolist()
        self._began_before.update(((dataset, object_id), None) for object_id in in_flight)
        self._ask_all(dataset, in_flight)

    def _ask_all(self, dataset: int, ids: list[int]) -> None:
        batch = self._pace.batch
        for start in range(0, len(ids), batch):
            self._ask(dataset, ids[start : start + batch])

    def _ask(self, dataset: int, ids: list[int]) -> None:
        catalogue, source = self._datasets[dataset].catalogue, self._datasets[dataset].source
        assert catalogue is not None
        self._under_way.update((dataset, object_id) for object_id in ids)
        self._batches += 1
        self._submit(CheckJob(dataset, ids, catalogue, source, self._generation))

    def _published(self, dataset: int) -> Callable[[Ids], npt.NDArray[np.bool_]]:
        catalogue = self._datasets[dataset].catalogue
        assert catalogue is not None
        keys = np.frombuffer(catalogue.keys, dtype=np.uint64).reshape(-1, 2)  # keys: (capacity, 2)

        def published(ids: Ids) -> npt.NDArray[np.bool_]:
            return np.asarray(keys[ids].any(axis=1))

        return published
