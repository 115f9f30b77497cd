"""The byte budget of a tier: who may stay, who is lent room, who is refused.

Never evict (design.md D2): with one job and a fresh shuffle an epoch every object is used once before and once
after the epoch boundary, so no choice of what to keep beats any other, and the cheapest is to keep what came
first. What does not fit streams through a small lent part and is freed once consumed.

    budget  |------------------ resident ------------------|-- lent --|
            grows until it meets the lent part, then stays   transients
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
        lent_bytes: Part of it that residents leave to transients; 0 while everything fits.
        resident_bytes, transient_bytes: Reserved now.

    Invariants: neither is negative; nothing is reserved beyond ``budget_bytes``, which may be lowered below what is
    reserved: then nothing more is reserved until enough was released.
    """

    budget_bytes: int
    lent_bytes: int = 0
    resident_bytes: int = 0
    transient_bytes: int = 0

    def plan_lending(self, demanded_bytes: int, mean_object_bytes: int) -> None:
        """Set the lent part for a working set of about that many bytes; nothing is lent when all of it fits."""
        if demanded_bytes <= self.budget_bytes * FITS_SHARE:
            self.lent_bytes = 0
            return
        wanted = max(int(self.budget_bytes * LENT_SHARE), MIN_LENT_OBJECTS * mean_object_bytes)
        self.lent_bytes = min(wanted, self.budget_bytes // 2)

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
        assert 0 <= self.lent_bytes <= self.budget_bytes
