"""A log of entries against a dict, with what its files take, and with values that other writers bring."""

from __future__ import annotations

from contextlib import ExitStack
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from log_tiers import key_of, tier_in_memory, value_of
from prefeed.errors import TierFullError
from prefeed.store import index
from prefeed.store.index import Place
from prefeed.store.log import TRANSIENT
from prefeed.store.segment import PAGE_BYTES, trailer, write_parts
from profiles import examples

BUDGET_BYTES = 400_000
NUMBERS = st.integers(0, 25)
SIZES = st.sampled_from([0, 1, 23, 24, 40, 4050, 4072, 4073, 4096, 8168, 30_000]) | st.integers(0, 9000)


class LogMachine(RuleBasedStateMachine):
    """Puts, frees, clears and opens a tier of few keys, so that they are replaced and share pages."""

    def __init__(self) -> None:
        super().__init__()
        self._stack = ExitStack()
        self._stack.enter_context(mock.patch.object(index, "_FIRST_BUCKETS", 16))
        self._values: dict[bytes, bytes] = {}
        self._granted: list[tuple[bytes, bytes, Place]] = []  # places that are written and not published
        self._late: list[tuple[bytes, Place]] = []  # of writers that a clear has not stopped
        self._transient: dict[bytes, bool] = {}
        self._version = 0
        self._has_strays = False

    @initialize(sums=st.booleans())
    def open(self, sums: bool) -> None:
        self._sums = sums
        self._tier = self._stack.enter_context(tier_in_memory(sums=sums))
        self._writer = self._tier.writer(BUDGET_BYTES)
        self._old_reader = self._tier.reader()

    @rule(group=st.lists(st.tuples(NUMBERS, SIZES, st.booleans()), max_size=12))
    def put(self, group: list[tuple[int, int, bool]]) -> None:
        """Values that stay and values that do not, in one group, also twice with one key: the last one is held."""
        items = []
        for number, size, is_transient in group:
            self._version += 1
            items.append((key_of(number), value_of(number * 1000 + self._version, size), is_transient))
        needed = sum(len(value) + 200 for _, value, _ in items)
        try:
            self._writer.put_many(items)
        except TierFullError:
            assert self._writer.file_bytes() + needed > BUDGET_BYTES * 0.9
        else:
            self._values.update((key, value) for key, value, _ in items)
            self._transient.update((key, is_transient) for key, _, is_transient in items)

    @rule(first=st.sampled_from([100, 150, 200]), size=st.integers(0, 60))
    def put_small(self, first: int, size: int) -> None:
        """So many that the index is doubled."""
        self.put([(number, size, number % 3 == 0) for number in range(first, first + 60)])

    @rule(numbers=st.lists(NUMBERS, max_size=12))
    def free(self, numbers: list[int]) -> None:
        self._writer.free_many([key_of(number) for number in numbers])
        for number in numbers:
            self._values.pop(key_of(number), None)

    @precondition(lambda self: not self._sums)
    @rule(number=NUMBERS, size=SIZES, is_transient=st.booleans())
    def grant(self, number: int, size: int, is_transient: bool) -> None:
        """Another process writes a value."""
        self._version += 1
        key, value = key_of(number), value_of(number * 1000 + self._version, size)
        place = self._writer.grant(size, transient=is_transient)
        if place is None:
            assert (
                self._writer.file_bytes() + sum(len(value) + 200 for _, value, _ in self._granted) + size
                > BUDGET_BYTES * 0.9
            )
            return
        write_parts(self._tier.segments[place.segment], [value, trailer(key)], place.offset)
        self._granted.append((key, value, place))

    @rule(count=st.integers(0, 5), data=st.data())
    def publish(self, count: int, data: st.DataObject) -> None:
        chosen = data.draw(st.permutations(self._granted))[:count]
        self._writer.publish([(key, place) for key, _, place in chosen])
        self._values.update((key, value) for key, value, _ in chosen)
        self._transient.update((key, place.flags == TRANSIENT) for key, _, place in chosen)
        self._granted = [one for one in self._granted if one not in chosen]

    @precondition(lambda self: self._granted)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        chosen = data.draw(st.sampled_from(self._granted))
        assert self._writer.read(chosen[0], chosen[2]) == chosen[1]
        self._writer.release([chosen[2]])
        assert self._writer.read(chosen[0], chosen[2]) is None
        self._granted.remove(chosen)

    @precondition(lambda self: self._late)
    @rule()
    def write_late(self) -> None:
        """A writer that was suspended goes on after its place was taken back by a clear."""
        for key, place in self._late:
            value = (b"late" * (place.length // 4 + 1))[: place.length]
            write_parts(self._tier.segments[place.segment], [value, trailer(key)], place.offset)
        self._late.clear()
        self._has_strays = True

    @precondition(lambda self: len(self._values) > 10)
    @rule()
    def clear(self) -> None:
        self._writer.clear()
        self._values.clear()
        self._late += [(key, place) for key, _, place in self._granted]
        with pytest.raises(TierFullError):
            self._writer.publish([(key, place) for key, _, place in self._granted] or [(key_of(0), Place(0, 1, 0, 0))])
        self._granted.clear()

    @precondition(lambda self: not self._granted)
    @rule()
    def reopen(self) -> None:
        self._writer = self._tier.writer(BUDGET_BYTES)
        assert not self._writer.was_damaged
        assert self._writer.num_impossible == 0

    @rule(number=NUMBERS, start=st.integers(0, 9000), size=st.integers(0, 9000))
    def read_part(self, number: int, start: int, size: int) -> None:
        target, value = bytearray(size), self._values.get(key_of(number))
        count = self._old_reader.read_into(key_of(number), memoryview(target), start)
        assert (None if count is None else target[:count]) == (None if value is None else value[start : start + size])
        assert self._old_reader.size_of(key_of(number)) == (None if value is None else len(value))

    @invariant()
    def validate(self) -> None:
        slack = sum(place.length // PAGE_BYTES + 2 for _, _, place in self._granted)
        self._tier.validate(self._writer, self._values, slack_pages=10**6 if self._has_strays else 1 + slack)
        assert {key: self._old_reader.get(key) for key in self._values} == self._values
        assert all(is_transient == self._transient[key] for key, _, is_transient in self._writer.entries())
        assert self._writer.file_bytes() <= BUDGET_BYTES + 4096

    def teardown(self) -> None:
        self._stack.close()


LogMachine.TestCase.settings = settings(max_examples=examples(40), stateful_step_count=20, deadline=None)
TestLog = LogMachine.TestCase
