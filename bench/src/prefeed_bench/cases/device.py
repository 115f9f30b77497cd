"""Batches to a CUDA device while it computes: copied when asked for, by apex's prefetcher, and by ours."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from prefeed_bench.errors import MissingRequirementError
from prefeed_bench.harness import BenchResult, Options, Samples, alternate

if TYPE_CHECKING:
    import torch

_SHAPE: Final = (64, 3, 224, 224)
_BATCHES: Final = 200
_QUICK_BATCHES: Final = 20
_LOADER_SECONDS: Final = {"ready": 0.0, "slow": 0.01}
"""What the loader takes for a batch: nothing, and as long as a step."""

_STEP_SECONDS: Final = 0.01


Wrap = Callable[[Iterable[Any]], Iterable[Any]]


def run(options: Options) -> BenchResult:
    """Measure batches per second of a loop whose step takes 10 ms on the device, with three ways to get batches there.

    Raises:
        MissingRequirementError: There is no CUDA device.
    """
    import torch  # bench modules are imported by the command line, which must start without torch

    if not torch.cuda.is_available():
        raise MissingRequirementError("not run: torch sees no CUDA device; `make gpu` on a machine with one runs this")
    num_batches = _QUICK_BATCHES if options.quick else _BATCHES
    bench = _Bench(num_batches)
    wraps: dict[str, Wrap] = {"to": _To, "apex": _Apex, "prefeed": _prefeeds}
    variants: dict[str, Callable[[], float]] = {
        f"{name}_{speed}": partial(bench.batches_s, wrap, seconds)
        for speed, seconds in _LOADER_SECONDS.items()
        for name, wrap in wraps.items()
    }
    bench.batches_s(_prefeeds, 0)  # what is done once: contexts, pinned memory, kernels
    runs = alternate(variants, runs=options.runs, say=options.say)
    samples = Samples()
    for number in range(options.runs):
        samples.add(**_figures({name: done[number] for name, done in runs.items()}, bench))
    megabytes = bench.batch.nbytes / 1e6
    return BenchResult(
        name="device",
        fields={"device": torch.cuda.get_device_name(), **samples.medians()},
        spread=samples.spread(),
        runs=runs,
        notes=(
            f"{num_batches} batches of 64 x 3 x 224 x 224 float32, {megabytes:.0f} MB, pinned; a step of 10 ms on the device",
            "ready: the loader has each batch at once; slow: it takes 10 ms for each, waiting",
            "to: batch.to(device) in the loop; apex: its data_prefetcher; both as their users write them",
            "overlap: share of the time of a copy that is hidden behind steps, with the loader that is ready",
        ),
    )


class _Bench:
    """What all variants have in common: a batch in pinned memory, and a step of known length."""

    def __init__(self, num_batches: int) -> None:
        import torch

        self.num_batches = num_batches
        self.batch = torch.rand(_SHAPE).pin_memory()
        self.cycles = _cycles(_STEP_SECONDS)
        self.copy_seconds = _seconds_of(lambda: self.batch.to("cuda", non_blocking=True))
        self.step_seconds = _seconds_of(self.step)

    def step(self) -> None:
        import torch

        torch.cuda._sleep(self.cycles)

    def batches_s(self, wrap: Wrap, loader_seconds: float) -> float:
        """Return batches per second of one epoch."""
        import torch

        torch.cuda.synchronize()
        started = time.perf_counter()
        for batch in wrap(self._loader(loader_seconds)):
            batch.add_(1)
            self.step()
        torch.cuda.synchronize()
        return self.num_batches / (time.perf_counter() - started)

    def _loader(self, seconds: float) -> Iterator[torch.Tensor]:
        for _ in range(self.num_batches):
            if seconds:
                threading.Event().wait(seconds)
            yield self.batch


class _To:
    """The plain way: the copy stands between two steps."""

    def __init__(self, loader: Iterable[torch.Tensor]) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[torch.Tensor]:
        for batch in self._loader:
            yield batch.to("cuda", non_blocking=True)


class _Apex:
    """As in NVIDIA's apex, examples/imagenet: a stream aside; the next batch is waited for before one is handed over."""

    def __init__(self, loader: Iterable[torch.Tensor]) -> None:
        import torch

        self._loader = iter(loader)
        self._stream: Any = torch.cuda.Stream()
        self._next: torch.Tensor | None = None
        self._preload()

    def __iter__(self) -> Iterator[torch.Tensor]:
        import torch

        while self._next is not None:
            torch.cuda.current_stream().wait_stream(self._stream)
            batch = self._next
            batch.record_stream(torch.cuda.current_stream())
            self._preload()
            yield batch

    def _preload(self) -> None:
        import torch

        self._next = next(self._loader, None)
        if self._next is not None:
            with torch.cuda.stream(self._stream):
                self._next = self._next.to("cuda", non_blocking=True)


def _prefeeds(loader: Iterable[torch.Tensor]) -> Iterable[torch.Tensor]:
    from prefeed import DevicePrefetcher

    return DevicePrefetcher(loader, "cuda")


def _cycles(seconds: float) -> int:
    """Return for how many cycles the device has to sleep for so long."""
    import torch

    many = 100_000_000
    return int(many * seconds / _seconds_of(lambda: torch.cuda._sleep(many)))


def _seconds_of(work: Callable[[], Any], times: int = 10) -> float:
    """Return how long the device takes for something."""
    import torch

    work()
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(times):
        work()
    torch.cuda.synchronize()
    return (time.perf_counter() - started) / times


def _figures(batches_s: dict[str, float], bench: _Bench) -> dict[str, float]:
    """Return the figures of one round: rates by variant, and what they say."""
    exposed = 1 / batches_s["prefeed_ready"] - bench.step_seconds
    return {
        **{f"{name}_batches_s": rate for name, rate in batches_s.items()},
        "ratio_ready": batches_s["prefeed_ready"] / batches_s["to_ready"],
        "ratio_slow": batches_s["prefeed_slow"] / batches_s["apex_slow"],
        "overlap": 1 - min(1.0, max(0.0, exposed / bench.copy_seconds)),
        "copy_ms": bench.copy_seconds * 1e3,
        "step_ms": bench.step_seconds * 1e3,
    }
