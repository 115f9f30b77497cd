"""Every tier, real and fake, against one contract."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefeed.errors import TierFullError
from prefeed.store.layout import stored_bytes
from prefeed.store.reader import TierReader
from prefeed.store.writer import TierWriter
from profiles import examples
from sandbox import Sandbox
from tier_contract import MemoryTier, ReadableTier, TierContract, WritableTier, key_of, value_of

BUDGET_BYTES = 8 * 1024**2


@dataclass
class Ends:
    writer: WritableTier
    reader: ReadableTier


class TestMemoryTier(TierContract):
    @pytest.fixture
    def tiers(self) -> Ends:
        tier = MemoryTier(BUDGET_BYTES)
        return Ends(tier, tier)


class TestLmdbTierOnTmpfs(TierContract):
    @pytest.fixture
    def tiers(self, sandbox: Sandbox) -> Iterator[Ends]:
        writer = TierWriter.open(sandbox.memory_dir / "store", budget_bytes=BUDGET_BYTES)
        reader = TierReader(writer.directory)
        yield Ends(writer, reader)
        reader.close()
        writer.destroy()


class TestLmdbTierOnDisk(TierContract):
    @pytest.fixture
    def tiers(self, sandbox: Sandbox) -> Iterator[Ends]:
        writer = TierWriter.open(sandbox.root / "store", budget_bytes=BUDGET_BYTES)
        reader = TierReader(writer.directory)
        yield Ends(writer, reader)
        reader.close()
        writer.destroy()


class TestLmdbTierWithoutPopulate(TierContract):
    """A kernel before 5.14, or a file system whose mappings cannot be told apart."""

    @pytest.fixture
    def tiers(self, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ends]:
        monkeypatch.setattr("prefeed.store.reservation._mapped_address", lambda path: None)
        writer = TierWriter.open(sandbox.memory_dir / "store", budget_bytes=BUDGET_BYTES)
        reader = TierReader(writer.directory)
        yield Ends(writer, reader)
        reader.close()
        writer.destroy()


_puts = st.tuples(st.integers(0, 30), st.integers(0, 200_000), st.booleans())
_groups = st.tuples(st.lists(_puts, max_size=12), st.lists(st.integers(0, 30), max_size=12))


@given(groups=st.lists(_groups, max_size=15))
@settings(max_examples=examples(60))
def test_the_lmdb_tier_is_the_dict_tier(groups: list[tuple[list[tuple[int, int, bool]], list[int]]]) -> None:
    sandbox = Sandbox.create()
    real = TierWriter.open(sandbox.memory_dir / "store", budget_bytes=4 * 1024**2)
    fake = MemoryTier(real.capacity_bytes)
    reader = TierReader(real.directory)
    try:
        for puts, deletes in groups:
            group = [(key_of(number), value_of(size, size), transient) for number, size, transient in puts]
            outcomes = []
            for tier in (real, fake):
                try:
                    tier.apply(group, [key_of(number) for number in deletes])
                    outcomes.append("stored")
                except TierFullError:
                    outcomes.append("full")
            assert outcomes[0] == outcomes[1] or _touches_a_key_twice(group, fake)
            if outcomes[0] != outcomes[1]:
                return
            assert sorted(real.entries()) == sorted(fake.entries())
            assert real.used_bytes == fake.used_bytes == sum(stored_bytes(size) for _, size, _ in real.entries())
            for number in range(31):
                assert reader.get(key_of(number)) == fake.get(key_of(number))
    finally:
        reader.close()
        real.destroy()
        sandbox.remove()


def _touches_a_key_twice(group: list[tuple[bytes, bytes, bool]], tier: MemoryTier) -> bool:
    """Whether the group replaces values: while it does, LMDB holds the old one and the new one."""
    keys = [key for key, _, _ in group]
    return len(set(keys)) < len(keys) or any(tier.get(key) is not None for key in keys)
