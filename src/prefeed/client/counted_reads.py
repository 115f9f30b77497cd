"""Counts reads of one reader twice: for the next report to the server, and for the run summary of this program."""

from __future__ import annotations

from prefeed.run_summary import counters


class CountedReads:
    """Counters of one reader, which inherits them so that a hit costs no call.

    **Threads and processes**: one thread at a time; a forked child resets them.
    """

    def __init__(self) -> None:
        """Start with no reads."""
        self._reset_counts()

    def _reset_counts(self) -> None:
        self._hits = self._direct_reads = self._in_own_threads = 0
        self._hit_bytes = 0  # of what is lent those that were read, once its sample is made
        self._unreported_bytes = 0
        self._unread_bytes = 0  # of these, what was lent and not read
        self._counted_hits = self._counted_direct = self._counted_own_threads = self._counted_bytes = (
            0  # of the unreported ones
        )
        self._untaken = [0, 0]  # hits and other reads, see take_counts
        self._from_origin = self._from_origin_bytes = 0  # reads that were no hits, since they were counted last

    def count_reads(self) -> None:
        """Count the reads so far for the run summary; each report does this first. Cheap, and never waits."""
        hits, self._counted_hits = self._hits - self._counted_hits, self._hits
        direct, self._counted_direct = self._direct_reads - self._counted_direct, self._direct_reads
        own_threads = self._in_own_threads - self._counted_own_threads
        self._counted_own_threads = self._in_own_threads
        self._untaken[0] += hits
        self._untaken[1] += self._from_origin + direct
        num_bytes = self._unreported_bytes - self._unread_bytes - self._counted_bytes
        self._counted_bytes, self._unread_bytes = self._unreported_bytes, 0
        late, late_bytes = self._from_origin, self._from_origin_bytes
        self._from_origin = self._from_origin_bytes = 0
        if counters.is_counting():
            counters.add(counters.HITS, hits)
            counters.add(counters.LATE, late)
            counters.add(counters.DIRECT, direct)
            counters.add(counters.OWN_THREADS, own_threads)
            counters.add(counters.CACHE_BYTES, num_bytes - late_bytes)
            counters.add(counters.ORIGIN_BYTES, late_bytes)

    def take_counts(self) -> tuple[int, int]:
        """Return the numbers of reads since the last call: hits, and all others. No server is needed for this."""
        self.count_reads()
        hits, others = self._untaken
        self._untaken = [0, 0]
        return hits, others
