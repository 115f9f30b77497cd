"""The byte budget of a tier: who may stay, who is lent room, who is refused.

Never evict (docs/adr/0002-policy.md): with one job and a fresh shuffle an epoch every object is used once before and once
after the epoch boundary, so no choice of what to keep beats any other, and the cheapest is to keep what came
first. What does not fit streams through a small lent part and is freed once consumed.

    budget  |------------------ resident ------------------|-- lent --|
            grows until it meets the lent part, then stays   transients

A plan that is read once keeps nothing: all of it streams, through as much as those that keep leave, half of the
budget at most; through the whole budget where nobody keeps. What was kept before stays as long as it leaves the part
that is always lent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

LENT_SHARE: Final = 0.01
"""Part of the budget lent to transients when not everything fits: 1 % costs at most 1 % of the hit ratio."""

FITS_SHARE: Final = 0.99
"""A working set fits when its estimate is below this part of the budget."""

MIN_LENT_OBJECTS: Final = 24
"""Mean objects that the lent part always holds, however small the budget."""


@dataclass(slots=True)
class Residency:
    """Bytes reserved, by kind. Reserved before the fetch, released after the entry is gone from the store.

    Attributes:
        budget_bytes: Most bytes that values may take, as stored.
        lent_bytes: Most that transients may take, and that new residents leave to them; 0 while everything fits.
        always_lent_bytes: Part of it that residents are freed for, should they take more.
        resident_bytes, transient_bytes: Reserved now.

    Invariants: neither is negative; nothing is reserved beyond ``budget_bytes``, which may be lowered below what is
    reserved: then nothing more is reserved until enough was released.
    """

    budget_bytes: int
    lent_bytes: int = 0
    always_lent_bytes: int = 0
    resident_bytes: int = 0
    transient_bytes: int = 0

    def plan_lending(
        self, demanded_bytes: int, mean_object_bytes: int, *, keeps: bool = True, streams: bool = False
    ) -> None:
        """Set the lent part.

        Args:
            demanded_bytes: About what everything that some plan keeps would cost; nothing is lent when all of it fits.
            mean_object_bytes: About what one object costs.
            keeps: Some plan keeps what it reads.
            streams: Some plan reads once, and keeps nothing: something is lent in any case.
        """
        least = max(int(self.budget_bytes * LENT_SHARE), MIN_LENT_OBJECTS * mean_object_bytes)
        least = min(least, self.budget_bytes // 2)
        if streams:
            most = self.budget_bytes // 2 if keeps else self.budget_bytes
            self.lent_bytes = max(least, min(most, self.budget_bytes - demanded_bytes))
        else:
            least = 0 if demanded_bytes <= self.budget_bytes * FITS_SHARE else least
            self.lent_bytes = least
        self.always_lent_bytes = least

    def try_reserve_resident(self, stored_bytes: int) -> bool:
        """Reserve room that is kept; False when it would eat into the lent part or into what is lent now."""
        taken = self.resident_bytes + max(self.lent_bytes, self.transient_bytes)
        if taken + stored_bytes > self.budget_bytes:
            return False
        self.resident_bytes += stored_bytes
        return True

    def try_reserve_transient(self, stored_bytes: int) -> bool:
        """Reserve room that comes back once the object is consumed; False when the lent part is full."""
        free = self.budget_bytes - self.resident_bytes - self.transient_bytes
        if self.transient_bytes + stored_bytes > self.lent_bytes or stored_bytes > free:
            return False
        self.transient_bytes += stored_bytes
        return True

    def could_lend(self, stored_bytes: int) -> bool:
        """Return True when the lent part has that room, should residents be freed for it."""
        return self.transient_bytes + stored_bytes <= self.lent_bytes

    def release_resident(self, stored_bytes: int) -> None:
        """Give back room of a resident that is no longer stored."""
        self.resident_bytes -= stored_bytes
        assert self.resident_bytes >= 0

    def release_transient(self, stored_bytes: int) -> None:
        """Give back lent room."""
        self.transient_bytes -= stored_bytes
        assert self.transient_bytes >= 0

    def validate(self) -> None:
        """Check the invariants."""
        assert self.resident_bytes >= 0 and self.transient_bytes >= 0
        assert 0 <= self.always_lent_bytes <= self.lent_bytes <= self.budget_bytes
