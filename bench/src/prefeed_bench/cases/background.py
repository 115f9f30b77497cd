"""A background generator: its cost per item, beside prefetch_generator's, and how much of a producer it hides."""

from __future__ import annotations

import importlib.util
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final

from prefeed import BackgroundGenerator
from prefeed_bench.harness import BenchResult, Options, Samples, alternate

_ITEMS: Final = 10_000
_LOOPS: Final = 5
_QUICK_ITEMS: Final = 2_000
_STEPS: Final = 200
_QUICK_STEPS: Final = 20
_STEP_SECONDS: Final = 0.005

Wrap = Callable[[Iterable[Any]], Iterable[Any]]


def run(options: Options) -> BenchResult:
    """Measure microseconds an empty item, and how much sooner a loop ends whose items take as long as its steps."""
    num_items = _QUICK_ITEMS if options.quick else _ITEMS
    num_steps = _QUICK_STEPS if options.quick else _STEPS
    original = _original()
    variants: dict[str, Callable[[], dict[str, float]]] = {
        "prefeed": partial(_measure, BackgroundGenerator, num_items, num_steps)
    }
    if original is not None:
        variants["prefetch_generator"] = partial(_measure, original, num_items, num_steps)
    runs = alternate(variants, runs=options.runs, say=options.say)
    samples = Samples()
    for number, figures in enumerate(runs["prefeed"]):
        samples.add(**figures)
        if original is not None:
            theirs = runs["prefetch_generator"][number]
            samples.add(**{f"original_{name}": value for name, value in theirs.items()})
    return BenchResult(
        name="background",
        fields=dict.fromkeys(("original_us_per_item", "original_overlap")) | samples.medians(),
        spread=samples.spread(),
        runs=runs,
        notes=(
            f"us_per_item: a loop over {num_items} empty items, max_prefetch=1, with the start of the thread; median of {_LOOPS}",
            f"overlap: {num_steps} items of 5 ms and steps of 5 ms, both waiting; the time without a thread over that with one",
            *(() if original else ("original: prefetch_generator is not installed: pip install prefetch_generator",)),
        ),
    )


def _original() -> Wrap | None:
    if importlib.util.find_spec("prefetch_generator") is None:
        return None
    wrap: Wrap = importlib.import_module("prefetch_generator").BackgroundGenerator
    return wrap


def _measure(wrap: Wrap, num_items: int, num_steps: int) -> dict[str, float]:
    seconds = statistics.median(_seconds(wrap(range(num_items))) for _ in range(_LOOPS))
    return {
        "us_per_item": seconds * 1e6 / num_items,
        "overlap": _seconds(_slow(num_steps), _step) / _seconds(wrap(_slow(num_steps)), _step),
    }


def _slow(num_items: int) -> Iterator[int]:
    for number in range(num_items):
        _step()
        yield number


def _step() -> None:
    threading.Event().wait(_STEP_SECONDS)


def _seconds(items: Iterable[Any], step: Callable[[], None] | None = None) -> float:
    started = time.perf_counter()
    for _ in items:
        if step is not None:
            step()
    return time.perf_counter() - started
