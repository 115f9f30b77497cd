"""Who reads on this node: the plans of every consumer, how far each has come, and how its reads went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from prefeed.core import table as states
from prefeed.core.inventory import Holdings, Key
from prefeed.core.plan import Ids, Plan
from prefeed.types import ReadCounts


@dataclass(slots=True)
class _Consumer:
    dataset: int
    counts: ReadCounts = field(default_factory=ReadCounts)
    plan: Plan | None = None
    upcoming: Plan | None = None
    following: Ids | None = None

    @property
    def plans(self) -> list[Plan]:
        return [plan for plan in (self.plan, self.upcoming) if plan is not None]


class Consumers:
    """Keeps the plans of all consumers, and tells the books which objects they expect.

    Args:
        holdings: Told of every reader that is expected, and of each that is done or will not come.

    Attributes:
        counts: How the reads of all went.
        passed_unread: Accesses that a position passed and that no reader reported.

    **Invariants**: see ``validate``.
    """

    def __init__(self, holdings: Holdings) -> None:
        self.counts: ReadCounts = ReadCounts()
        self.passed_unread: int = 0
        self._holdings = holdings
        self._consumers: dict[int, _Consumer] = {}

    # ------------------------------------------------------------ plans

    def register(self, plan: Plan) -> None:
        """The plan's consumer begins an epoch; its earlier plan is over, its counts continue."""
        old = self._consumers.pop(plan.consumer, None)
        entry = _Consumer(plan.dataset)
        if old is not None:
            self._drop(old)
            entry.counts = old.counts
        entry.plan = plan
        self._consumers[plan.consumer] = entry

    def announce(self, plan: Plan) -> None:
        """The plan's consumer will probably read these next."""
        entry = self._consumers.setdefault(plan.consumer, _Consumer(plan.dataset))
        self._end_plan(entry.upcoming)
        entry.upcoming, entry.following = plan, None

    def foresee(self, consumer: int, ids: Ids) -> int | None:
        """After its plans the consumer will probably read these: return its dataset; None when it has no plan."""
        entry = self._consumers.get(consumer)
        if entry is None or not entry.plans:
            return None
        entry.following = ids
        return entry.dataset

    def adopt_upcoming(self, consumer: int) -> int | None:
        """The upcoming plan is the present one now: return its dataset; None when there is no such plan."""
        entry = self._consumers.get(consumer)
        if entry is None or entry.upcoming is None:
            return None
        self._end_plan(entry.plan)
        entry.plan, entry.upcoming = entry.upcoming, None
        entry.dataset = entry.plan.dataset
        return entry.dataset

    def extend(self, consumer: int, ids: Ids) -> bool:
        """The sampler went on; True when this is where the plan was cut."""
        plan = self.plan_of(consumer)
        if plan is None or plan.window.is_cut:
            return False
        plan.extend(ids)
        return plan.window.is_cut

    def keep(self, consumer: int, *, resident: bool) -> list[Plan]:
        """The consumer's plans keep what they fetch from now on, or read it once: return those for which that is new."""
        entry = self._consumers.get(consumer)
        changed = [] if entry is None else [plan for plan in entry.plans if plan.resident != (resident or plan.warm)]
        for plan in changed:
            plan.resident = resident
        return changed

    def end(self, consumer: int) -> bool:
        """The consumer is gone; True when it was one that reads once, and has given room back."""
        entry = self._consumers.pop(consumer, None)
        if entry is None:
            return False
        streams = not all(plan.resident for plan in entry.plans)
        self._drop(entry)
        return streams

    # ------------------------------------------------------------ progress

    def consumed(self, consumer: int, dataset: int, ids: Sequence[int]) -> None:
        """The consumer's workers read these objects, whichever way."""
        entry = self._consumers.get(consumer)
        plans = [] if entry is None else [plan for plan in entry.plans if plan.dataset == dataset]
        state = self._holdings.tables[dataset].state
        for object_id in ids:
            if any(plan.try_consume(object_id) for plan in plans):
                self._holdings.unexpect((dataset, object_id))
            elif plans and state[object_id] != states.RESIDENT and not plans[0].take_expected_report(object_id):
                plans[0].skip_once(object_id)

    def advance(self, consumer: int, position: int) -> None:
        """The consumer's loop has the samples before this index of its plan."""
        plan = self.plan_of(consumer)
        if plan is not None:
            for object_id in plan.advance(position):
                self.passed_unread += 1
                self._holdings.unexpect((plan.dataset, object_id))

    def pass_over(self, consumer: int, dataset: int, object_id: int) -> None:
        """The reader gets the bytes by its question: no fetch ahead for this access, should it not be planned yet."""
        entry = self._consumers.get(consumer)
        plans = [] if entry is None else [plan for plan in entry.plans if plan.dataset == dataset]
        # Where the present plan is over, the reader is in the next epoch, whose beginning the loop has yet to tell.
        plan = next((plan for plan in plans if plan.position < len(plan)), plans[-1] if plans else None)
        if plan is not None and object_id not in plan.outstanding:
            plan.skip_once(object_id)
            plan.expect_report(object_id)

    def add_missing(self, dataset: int, object_id: int) -> None:
        """Let the plans of the dataset fetch an object again that was invalidated."""
        for plan in self.plans():
            if plan.dataset == dataset and not plan.warm:
                plan.add_missing(object_id, len(self._holdings.tables[dataset]))

    # ------------------------------------------------------------ what there is

    def plan_of(self, consumer: int) -> Plan | None:
        """Return the plan that the consumer follows now."""
        entry = self._consumers.get(consumer)
        return None if entry is None else entry.plan

    def counts_of(self, consumer: int) -> ReadCounts | None:
        """Return how the consumer's reads went since it was registered first; None when it is not registered."""
        entry = self._consumers.get(consumer)
        return None if entry is None else entry.counts

    def count(self, consumer: int, **reads: int) -> None:
        """Add reads, by the names of ``ReadCounts``, to those of all, and to the consumer's when it is registered."""
        self.counts = _plus(self.counts, reads)
        entry = self._consumers.get(consumer)
        if entry is not None:
            entry.counts = _plus(entry.counts, reads)

    def reads_once(self, consumer: int, dataset: int) -> bool:
        """Return True when the consumer has a plan for the dataset, and keeps nothing of it."""
        entry = self._consumers.get(consumer)
        plans = [] if entry is None else entry.plans
        return bool(plans) and plans[0].dataset == dataset and not plans[0].resident

    def plans(self) -> list[Plan]:
        """Return every plan, present and upcoming."""
        return [plan for entry in self._consumers.values() for plan in entry.plans]

    def present(self) -> list[tuple[Plan, bool]]:
        """Return the plan that each consumer follows now, and whether it is known what it reads next."""
        return [
            (entry.plan, entry.upcoming is not None or entry.following is not None)
            for entry in self._consumers.values()
            if entry.plan is not None
        ]

    @property
    def num_plans(self) -> int:
        """Consumers with a plan."""
        return sum(1 for entry in self._consumers.values() if entry.plan is not None)

    def live_datasets(self) -> set[int]:
        """Return the datasets that some consumer reads."""
        return {entry.dataset for entry in self._consumers.values()}

    def kept_datasets(self) -> set[int]:
        """Return those of them that some consumer reads to keep."""
        return {entry.dataset for entry in self._consumers.values() if any(plan.resident for plan in entry.plans)}

    def orders_after(self, dataset: int) -> list[Ids] | None:
        """Return what consumers read of the dataset after their plans; None when one that keeps does not say, or none does."""
        keepers = [
            entry for entry in self._consumers.values()
            if entry.dataset == dataset and any(plan.resident for plan in entry.plans)
        ]  # fmt: skip
        orders = [entry.following for entry in keepers if entry.following is not None]
        return orders if orders and len(orders) == len(keepers) else None

    def validate(self) -> dict[Key, int]:
        """Check the plans; return how many readers they expect, by object."""
        expected: dict[Key, int] = {}
        for plan in self.plans():
            plan.validate()
            for object_id, indices in plan.outstanding.items():
                key = (plan.dataset, object_id)
                expected[key] = expected.get(key, 0) + len(indices)
        return expected

    # ------------------------------------------------------------ inside

    def _drop(self, entry: _Consumer) -> None:
        self._end_plan(entry.plan)
        self._end_plan(entry.upcoming)

    def _end_plan(self, plan: Plan | None) -> None:
        if plan is None:
            return
        for object_id in plan.drop_outstanding():
            self._holdings.unexpect((plan.dataset, object_id))


def _plus(counts: ReadCounts, more: dict[str, int]) -> ReadCounts:
    return replace(counts, **{name: getattr(counts, name) + number for name, number in more.items()})
