"""Settings of a loader that are tuned, and which of them are worth a trial. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from prefeed.config import GIB, KIB, MIB

MOST_WORKERS: Final = 64
_DEFAULT_PREFETCH: Final = 2
_MOST_PREFETCH: Final = 16
_LEAST_CACHE: Final = 256 * MIB
_MOST_LOOKAHEAD: Final = 16 * GIB


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """One setting of a loader and of what is around it.

    Attributes:
        num_workers: Worker processes.
        prefetch_factor: Batches that each makes ahead; 0 without workers.
        pin_memory: Batches are copied to memory that a device reads directly.
        threads: ``torch.set_num_threads`` of the training process; None: left alone.
        lookahead: Bytes that prefeed fetches ahead; None: left alone.
    """

    num_workers: int
    prefetch_factor: int = 0
    pin_memory: bool = False
    threads: int | None = None
    lookahead: int | None = None

    @property
    def size(self) -> tuple[int, ...]:
        """What settings are ordered by: of two that are as quick as each other the smaller is taken."""
        return (self.num_workers, self.prefetch_factor, self.pin_memory, self.lookahead or 0, self.threads or 0)

    @property
    def batches_ahead(self) -> int:
        """Batches that lie in shared memory at a time, at most."""
        return self.num_workers * self.prefetch_factor

    @property
    def cache_bytes(self) -> int:
        """Memory of a cache with an epoch that was never read before: twice the lookahead, and not too little."""
        return 0 if self.lookahead is None else max(_LEAST_CACHE, 2 * self.lookahead)

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self._arguments())

    def _arguments(self) -> Iterator[tuple[str, object]]:
        yield "num_workers", self.num_workers
        if self.num_workers:
            yield "prefetch_factor", self.prefetch_factor
        if self.pin_memory:
            yield "pin_memory", True
        if self.threads is not None:
            yield "threads", self.threads
        if self.lookahead is not None:
            yield "lookahead", size_text(self.lookahead)


class Space(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to choose from.

    Attributes:
        cores: Processors of this process.
        has_device: Batches are copied to a device, which computes on its own.
        threads: Intra-op threads that the training has now; None: there is no training step, so they do not matter.
        lookahead: Bytes that prefeed fetches ahead now; None: prefeed has no plan here.
        compute_seconds: The training step alone, with a batch that is there already; None: there is no step.
    """

    cores: int
    has_device: bool = False
    threads: int | None = None
    lookahead: int | None = None
    compute_seconds: float | None = None

    @property
    def most_cpus(self) -> float:
        """Processors that workers may keep busy while nobody knows what the training needs: all but one of many."""
        return float(self.cores - 1 if self.cores > 2 else self.cores)


def with_workers(settings: Settings, number: int) -> Settings:
    """Return the same with another number of workers."""
    prefetch = (settings.prefetch_factor or _DEFAULT_PREFETCH) if number else 0
    return msgspec.structs.replace(settings, num_workers=number, prefetch_factor=prefetch)


def worker_numbers(cores: int) -> list[int]:
    """Return numbers of workers in the order in which they are tried: powers of two, and the processors themselves.

    Those beyond the processors are for samples that only wait: whoever goes through them stops when there is no gain.
    """
    powers = [1 << exponent for exponent in range(MOST_WORKERS.bit_length()) if 1 << exponent <= MOST_WORKERS]
    return sorted({0, *powers, min(cores, MOST_WORKERS)})


def numbers_between(tried: set[int], best: int) -> list[int]:
    """Return the numbers of workers half-way from the best to those beside it that were tried."""
    lower = max((number for number in tried if number < best), default=best)
    upper = min((number for number in tried if number > best), default=best)
    return [half for half in ((lower + best) // 2, (best + upper) // 2) if half not in tried and half > 0]


def thread_numbers(space: Space, num_workers: int) -> list[int]:
    """Return numbers of intra-op threads that are worth a trial: what the workers leave, half, and one."""
    if space.threads is None:
        return []
    wanted = {max(1, space.cores - num_workers), max(1, space.cores // 2), space.cores, 1}
    return sorted(wanted - {space.threads}, reverse=True)


def more_prefetch(settings: Settings) -> Settings | None:
    """Return the same with twice as many batches made ahead; None: enough is enough, or nobody makes them."""
    if not settings.num_workers or settings.prefetch_factor >= _MOST_PREFETCH:
        return None
    return msgspec.structs.replace(settings, prefetch_factor=2 * settings.prefetch_factor)


def more_lookahead(settings: Settings) -> Settings | None:
    """Return the same with four times as much fetched ahead; None: enough is enough."""
    if not settings.lookahead or settings.lookahead >= _MOST_LOOKAHEAD:
        return None
    return msgspec.structs.replace(settings, lookahead=4 * settings.lookahead)


def lines_to_paste(settings: Settings, present: Settings) -> str:
    """Return what to write in the program: the loader's arguments, and a line for each thing that is none of them."""
    arguments = [f"num_workers={settings.num_workers}"]
    if settings.num_workers:
        arguments.append(f"prefetch_factor={settings.prefetch_factor}")
    if settings.pin_memory or present.pin_memory:
        arguments.append(f"pin_memory={settings.pin_memory}")
    lines = [f"DataLoader(..., {', '.join(arguments)})"]
    if settings.threads is not None:
        lines.append(f"torch.set_num_threads({settings.threads})")
    if settings.lookahead is not None:
        lines.append(f"PREFEED_LOOKAHEAD={size_text(settings.lookahead)} in the environment, before the server starts")
    return "\n".join(lines)


def size_text(size_bytes: int) -> str:
    """Return a size as settings are written: ``512MiB``."""
    for unit, text in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size_bytes and size_bytes % unit == 0:
            return f"{size_bytes // unit}{text}"
    return str(size_bytes)
