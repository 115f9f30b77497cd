"""What large files cost that are read in parts, and whether they are better read where they lie: added up over processes."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Final

from prefeed.system.units import format_bytes, format_seconds

LEAST_OPENS: Final = 64
LEAST_PROBES: Final = 4
_LEAST_UNREAD: Final = 8
"""Files count as read in parts when this many times as much was opened as was read."""

_MOST_OTHERS: Final = 16
"""A scope is kept where one opened file in this number is a small one that the cache has a copy of."""


@dataclass(slots=True)
class PartCosts:
    """Counts of files opened by path, and what some of them took. Added up over workers.

    Attributes:
        opens: Large files that were opened, whose bytes stay in the tier.
        others: Files that a copy was given of.
        opened_bytes: What the large ones have.
        read_bytes: What was read of them while their sample was made.
        opening_seconds: Until they were lent, and to note afterwards that they were.
        waited_seconds: Of these, for the server, which had to fetch them whole.
        probes: How often the next two were measured.
        reading_seconds: To find a file in the tier, and copy the part.
        origin_seconds: To open the file where it lies, and read the same part.
    """

    opens: float = 0
    others: float = 0
    opened_bytes: float = 0
    read_bytes: float = 0
    opening_seconds: float = 0
    waited_seconds: float = 0
    probes: float = 0
    reading_seconds: float = 0
    origin_seconds: float = 0

    @property
    def is_enough(self) -> bool:
        """Whether more was measured than chance."""
        return self.opens >= LEAST_OPENS and self.probes >= LEAST_PROBES

    @property
    def is_slower(self) -> bool:
        """Whether files took longer than they would have taken at the origin."""
        return self.is_enough and self._cache_seconds > self._origin_seconds

    @property
    def _cache_seconds(self) -> float:
        """A file, in the mean."""
        return self.opening_seconds / self.opens + self.reading_seconds / self.probes

    @property
    def _origin_seconds(self) -> float:
        return self.origin_seconds / self.probes

    def why_slower(self, *, is_lasting: bool) -> str:
        """Return why the files are better read where they lie; "" when they are not, or it is not known.

        Args:
            is_lasting: It was so in the epoch before. What was waited for in one epoch only may help in all others.
        """
        is_in_parts = self.opened_bytes >= _LEAST_UNREAD * self.read_bytes and self.opens >= _MOST_OTHERS * self.others
        if not is_in_parts or not self.is_slower:
            return ""
        cache, origin = self._cache_seconds, self._origin_seconds
        if not is_lasting and cache - self.waited_seconds / self.opens <= origin:
            return ""
        part, whole = (format_bytes(num / self.opens) for num in (self.read_bytes, self.opened_bytes))
        return (
            f"its samples read parts of large files, {part} of {whole} on average: a part took {format_seconds(cache)} through "
            f"the cache and takes {format_seconds(origin)} from the file"
        )


NUM_COSTS: Final = len(astuple(PartCosts()))
