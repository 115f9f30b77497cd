"""What was measured of a training job: plain numbers, for the verdict and for JSON."""

from __future__ import annotations

import statistics

import msgspec


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Some steps of a loop, one after the other.

    Attributes:
        steps: Steps that were timed; those before, which fill the loader's queues, are not.
        seconds: All of them together.
        waited_seconds: Part of it in which the loop waited for its batches.
        each: Seconds of each step.
    """

    steps: int
    seconds: float
    waited_seconds: float
    each: list[float]

    @property
    def step_seconds(self) -> float:
        """Mean seconds of a step."""
        return self.seconds / self.steps

    @property
    def waited_share(self) -> float:
        """Share of the time in which the loop waited, 0 to 1."""
        return self.waited_seconds / self.seconds if self.seconds else 0.0

    def relative_error(self, group: int = 1) -> float:
        """Return the standard error of the mean step, as a share of it.

        Args:
            group: Steps that belong together: workers deliver in bursts.
        """
        sums = [sum(self.each[at : at + group]) for at in range(0, len(self.each) - group + 1, group)]
        if len(sums) < 2 or not self.seconds:
            return 0.0
        return float(statistics.stdev(sums) / len(sums) ** 0.5 / statistics.mean(sums))


def together(timings: list[Timing]) -> Timing:
    """Return several timings of the same as one."""
    return Timing(
        steps=sum(one.steps for one in timings),
        seconds=sum(one.seconds for one in timings),
        waited_seconds=sum(one.waited_seconds for one in timings),
        each=[seconds for one in timings for seconds in one.each],
    )


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """What a cache did since an epoch began.

    Attributes:
        seconds: Since then.
        reads: Reads of objects.
        hits: Those that found their object in a tier.
        origin_requests: Requests to the origin.
    """

    seconds: float
    reads: int
    hits: int
    origin_requests: int

    @property
    def hit_ratio(self) -> float | None:
        """Share of the reads that were hits, 0 to 1; None before the first read."""
        return self.hits / self.reads if self.reads else None


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """What one batch costs when one thread makes it, seconds; None: could not be told apart.

    Attributes:
        opening: Opening its files.
        reading: Reading them.
        decoding: All else that the dataset does for its samples.
        collating: Putting them together.
        transferring: Bringing the batch from a worker to the main process; 0 without workers.
        to_device: Copying it to the device; None without one.
        file_bytes: Bytes of the files of one batch.
        jpeg_share: Share of its files that are JPEGs.
        jpeg_saved: Seconds that ``prefeed.vision`` saves in a batch's JPEGs; None when there are none, or it is not installed.
    """

    opening: float | None = None
    reading: float | None = None
    decoding: float
    collating: float
    transferring: float = 0.0
    to_device: float | None = None
    file_bytes: int = 0
    jpeg_share: float = 0.0
    jpeg_saved: float | None = None


class LoaderFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the loader and the machine are.

    Attributes:
        dataset: Name of the dataset's class.
        samples: Samples in it; None for a stream.
        batch_size: Samples of the batches that were looked at, on average.
        num_workers: Worker processes.
        prefetch_factor: Batches that each makes ahead.
        pin_memory: As given.
        is_prefeed: ``prefeed.DataLoader``, or served by ``prefeed.auto``.
        cores: Processors that this process may use.
        memory_bytes: Memory that a cache could have.
        list_bytes: Size of the Python objects in long lists of the dataset, which workers copy as they read them.
    """

    dataset: str
    samples: int | None
    batch_size: float
    num_workers: int
    prefetch_factor: int
    pin_memory: bool
    is_prefeed: bool
    cores: int
    memory_bytes: int
    list_bytes: int = 0


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """One examination.

    Attributes:
        loader: What was examined.
        as_is: The job as it is; where prefeed is in use already, an epoch that finds what it keeps.
        compute: The same batch again and again: no data is waited for.
        data: The loader without work on the batches.
        costs: Of one batch, part by part; None for a stream.
        first: Through prefeed, samples that it has not seen before: a first epoch; the job's own where prefeed is in use.
        cached: Through prefeed, the same samples again: a later epoch.
        staged: Samples from a stage cache.
        workers: With another number of workers, by that number.
        staged_bytes: Bytes of a sample in a stage cache.
        reasons: Why a cure was not tried, by its name.
        counts: What the cache did in the epochs ``first`` and ``cached``, by their name, oldest first; empty where it was not tried.
    """

    loader: LoaderFacts
    as_is: Timing
    compute: Timing
    data: Timing
    costs: Costs | None = None
    first: Timing | None = None
    cached: Timing | None = None
    staged: Timing | None = None
    workers: dict[int, Timing] = {}
    staged_bytes: int = 0
    reasons: dict[str, str] = {}
    counts: dict[str, list[Counts]] = {}
