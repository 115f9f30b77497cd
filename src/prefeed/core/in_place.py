"""Whether a loader's samples are read in place, or through the node's cache: how long storage lets a read wait decides.

An epoch begins in place. Reads are measured; when most of the last ones waited, the loader joins the server, also in the
middle of the epoch.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

QUICK_NS: Final = 250_000
"""A read that waits no longer is quick, in nanoseconds: a question to the server costs 0.2 to 1 ms."""

MOST_MEASURED: Final = 16
"""Reads that are measured before storage counts as quick; each process keeps that number of outcomes."""

SHORT_SECONDS: Final = 10.0
"""An epoch that is over sooner gains nothing from a server that has to start, and then to ask for each file what it is."""

START_SECONDS: Final = 0.5
"""About what the start of a server takes."""

_MOST_TIMES: Final = 2
LEAST_MEASURED: Final = 4
"""Reads that say something of storage, if most of them were slow."""

_LONGEST_PAUSE: Final = 32


class Storage(Enum):
    """What the measured reads show."""

    UNKNOWN = auto()
    QUICK = auto()
    SLOW = auto()


def judge(*, num_reads: int, num_slow: int) -> Storage:
    """Return what reads show: slow if more than half of at least four waited, quick if half of sixteen did not.

    Args:
        num_reads: Measured, the last ones of each process.
        num_slow: Of these, reads that waited longer than ``QUICK_NS``.
    """
    if num_reads >= LEAST_MEASURED and 2 * num_slow > num_reads:
        return Storage.SLOW
    return Storage.QUICK if num_reads >= MOST_MEASURED else Storage.UNKNOWN


def is_short(
    *, waited_seconds: float, num_reads: int, num_samples: int, num_workers: int, has_been: bool = False
) -> bool:
    """Return whether an epoch over slow storage is over before a server could pay: ``SHORT_SECONDS``, by what reads waited.

    Args:
        waited_seconds: Of the reads that were measured, together.
        num_reads: That were measured.
        num_samples: Of the epoch, each taken to be one read.
        num_workers: That read side by side; 0: the loop itself.
        has_been: Another loader has read such a dataset before, and more will, or it was learned in an earlier run:
            ``START_SECONDS``.
    """
    most_seconds = min(START_SECONDS, SHORT_SECONDS) if has_been else SHORT_SECONDS
    return num_reads > 0 and waited_seconds / num_reads * num_samples / max(1, num_workers) < most_seconds


def was_short(*, waited_seconds: float) -> bool:
    """Return False of an epoch that was taken for a short one, once its loop has waited for so long: its files are large, say, or many."""
    return waited_seconds <= _MOST_TIMES * SHORT_SECONDS


class Course(Enum):
    """How an epoch went."""

    IN_PLACE = auto()  # to its end
    SLOW = auto()  # its first reads were slow
    SLOWED_DOWN = auto()  # its first reads were quick
    JOINED = auto()  # the loader had joined the server before


class PlacePolicy:
    """Decides whether the next epoch begins in place.

    After an epoch whose first reads were slow, the loader stays with the server for 1, 2, 4 … 32 epochs before it measures
    again. After one that slowed down it measures in the next.

    Pure: an epoch is told of once, when it has ended.
    """

    def __init__(self) -> None:
        self._pause = 0
        self._left = 0

    @property
    def begins_in_place(self) -> bool:
        """True when the next epoch begins in place."""
        return not self._left

    def ended(self, course: Course) -> None:
        """An epoch has ended."""
        if course is Course.JOINED:
            self._left = max(0, self._left - 1)
        elif course is Course.SLOW:
            self._pause = self._left = min(_LONGEST_PAUSE, max(1, 2 * self._pause))
        else:
            self._pause = self._left = 0
