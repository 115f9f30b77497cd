"""A log of entries against a dict, with what its files take."""

from __future__ import annotations

from contextlib import ExitStack
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from log_tiers import key_of, tier_in_memory, value_of
from prefeed.errors import TierFullError
from prefeed.store import index
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
        self._version = 0

    @initialize(sums=st.booleans())
    def open(self, sums: bool) -> None:
        self._tier = self._stack.enter_context(tier_in_memory(sums=sums))
        self._writer = self._tier.writer(BUDGET_BYTES)
        self._old_reader = self._tier.reader()

    @rule(group=st.lists(st.tuples(NUMBERS, SIZES), max_size=12))
    def put(self, group: list[tuple[int, int]]) -> None:
        self._version += 1
        items = [(key_of(number), value_of(number * 1000 + self._version, size), False) for number, size in group]
        needed = sum(len(value) + 200 for _, value, _ in items)
        try:
            self._writer.put_many(items)
        except TierFullError:
            assert self._writer.file_bytes() + needed > BUDGET_BYTES * 0.9
        else:
            self._values.update((key, value) for key, value, _ in items)

    @rule(first=st.sampled_from([100, 150, 200]), size=st.integers(0, 60))
    def put_small(self, first: int, size: int) -> None:
        """So many that the index is doubled."""
        self.put([(number, size) for number in range(first, first + 60)])

    @rule(numbers=st.lists(NUMBERS, max_size=12))
    def free(self, numbers: list[int]) -> None:
        self._writer.free_many([key_of(number) for number in numbers])
        for number in numbers:
            self._values.pop(key_of(number), None)

    @precondition(lambda self: len(self._values) > 10)
    @rule()
    def clear(self) -> None:
        self._writer.clear()
        self._values.clear()

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
        self._tier.validate(self._writer, self._values)
        assert {key: self._old_reader.get(key) for key in self._values} == self._values
        assert self._writer.file_bytes() <= BUDGET_BYTES + 4096

    def teardown(self) -> None:
        self._stack.close()


LogMachine.TestCase.settings = settings(max_examples=examples(40), stateful_step_count=20, deadline=None)
TestLog = LogMachine.TestCase
