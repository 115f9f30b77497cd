"""What follows from trials, in words and numbers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from prefeed.diagnose.report import (
    AS_IS,
    CACHE,
    COMPUTE,
    FIRST,
    STAGE_CACHE,
    Costs,
    Finding,
    LoaderFacts,
    LoaderReport,
    doctor_report,
    table,
    tune_report,
)
from prefeed.diagnose.search import Ratio, Search, Settings, Trial

TWO = Settings(num_workers=2, prefetch_factor=2)
EIGHT = TWO.with_workers(8)


def trial(name: str, step: float, *, settings: Settings = TWO, **more: Any) -> Trial:
    return Trial(name=name, settings=settings, steps=10, step_seconds=step, samples_s=10 / step, spread=0.01, **more)


def facts(**changes: Any) -> LoaderFacts:
    found = {"dataset": "Photos", "samples": 1000, "batch_size": 10.0, "settings": TWO, "memory_bytes": 10**9}
    return LoaderFacts(**found | changes)


def costs(**changes: Any) -> Costs:
    found = {
        "opening": 1.2,
        "reading": 0.2,
        "decoding": 0.4,
        "collating": 0.1,
        "transferring": 0.05,
        "file_bytes": 10**6,
    }
    return Costs(**found | changes)


def report(*more: Trial, waited: float = 0.9, compute: float = 0.1, **changes: Any) -> LoaderReport:
    """Return the report of a job that takes a second per batch and waits mostly for files."""
    found = {"loader": facts(), "costs": costs()} | changes
    as_is = found.pop("as_is", trial(AS_IS, 1.0, waited=waited))
    return doctor_report(found.pop("loader"), [as_is, trial(COMPUTE, compute), *more], found.pop("costs"), **found)


def finding(found: LoaderReport, name: str) -> Finding:
    return next(each for each in found.findings if each.name == name)


def test_shares_sum_up_to_the_wait() -> None:
    # A worker's thread needs 0.7 s for files, 0.2 to decode, 0.05 to collate, and all batches 0.05 to be sent.
    assert report().shares == pytest.approx({"origin": 0.63, "decode": 0.18, "collate": 0.045, "transfer": 0.045})
    unseen = report(trial(FIRST, 0.5), trial(CACHE, 0.4), costs=costs(opening=None, reading=None))
    assert unseen.shares["origin"] == pytest.approx(0.6)
    assert sum(unseen.shares.values()) == pytest.approx(0.9)
    assert "for making samples" in unseen.text
    assert report(costs=None).shares == {}


def test_in_words() -> None:
    assert report(trial(FIRST, 0.3), trial(CACHE, 0.25)).text.splitlines() == [
        "This job waits for data 90 % of its time: 63 % for the origin's latency, 18 % for decoding, 5 % for collating, 5 % for transfer.",
        "With perfect data loading it would be 10.0 times as fast.",
        "Cheapest remedy: files read ahead and kept in memory (95.4 MiB). Predicted: 4.0 times as fast (measured on a few batches). Start it with `prefeed run`, or write `import prefeed.auto`.",
    ]


def test_nothing_helps_a_job_that_computes() -> None:
    found = report(trial(FIRST, 0.9), trial(CACHE, 0.9), waited=0.02, compute=0.97)
    assert found.suggestion is None
    assert found.text.splitlines()[1:] == [
        "With perfect data loading it would be 3 % faster: no cache can help; computing takes the time."
    ]


def test_a_device_that_computes_meanwhile_loses_nothing() -> None:
    assert report(compute=0.99).waiting == pytest.approx(0.01)


def test_the_cheapest_of_the_good_ones_is_suggested() -> None:
    cache, staged = (trial(FIRST, 0.3), trial(CACHE, 0.25)), trial(STAGE_CACHE, 0.24)
    workers = trial(str(EIGHT), 0.5, settings=EIGHT)
    assert report(*cache, staged, workers).best == CACHE
    assert report(trial(FIRST, 0.5), trial(CACHE, 0.5), trial(STAGE_CACHE, 0.11)).best == STAGE_CACHE
    found = report(workers, costs=None)
    assert (found.best, found.settings) == ("workers", EIGHT)
    assert "leave it" in report(trial(str(EIGHT), 1.1, settings=EIGHT), costs=costs(opening=0.02)).text


def test_a_cache_that_holds_a_part() -> None:
    """Files that do not fit are fetched ahead in every epoch, as all are in the first."""
    small = facts(memory_bytes=25_000_000)
    found = finding(report(trial(FIRST, 0.4), trial(CACHE, 0.2), loader=small), CACHE)
    assert found.speedup == pytest.approx(1 / (0.25 * 0.2 + 0.75 * 0.4))
    assert found.first_speedup == pytest.approx(2.5)
    assert "25 % of it fits" in found.what


def test_an_estimate_is_no_better_than_a_trial_that_includes_it() -> None:
    """Files in memory need no opens, and samples from a stage cache neither opens nor decoding."""
    packing = finding(report(), "packing")
    assert (packing.speedup, packing.is_measured) == (pytest.approx(1 / 0.4), False)
    cache = (trial(FIRST, 1 / 1.5), trial(CACHE, 1 / 1.6))
    assert finding(report(*cache), "packing").speedup == pytest.approx(1.6)
    assert finding(report(*cache, trial(STAGE_CACHE, 1 / 1.4)), "packing").speedup == pytest.approx(1.4)
    assert finding(report(costs=costs(opening=100.0)), "packing").speedup == pytest.approx(10.0)
    assert finding(report(waited=0.1), "packing").speedup == pytest.approx(1 / 0.9)


def test_a_stream_waits_for_its_shards() -> None:
    found = report(loader=facts(samples=None), costs=costs(opening=None, reading=0.6))
    assert found.shares["origin"] > found.shares["decode"]
    assert (found.best, finding(found, CACHE).is_measured) == (CACHE, False)
    assert "prefeed.shards(urls)" in found.text


def test_long_lists_are_copied_by_each_worker() -> None:
    lists = facts(settings=EIGHT, list_bytes=200 << 20)
    (line,) = (line for line in report(loader=lists).text.splitlines() if "long lists" in line)
    assert "200.0 MiB" in line
    assert "up to 1.6 GiB for 8" in line
    assert "numpy.array(paths)" in line
    for none in (facts(settings=TWO.with_workers(0), list_bytes=200 << 20), facts(list_bytes=10**6)):
        assert "long lists" not in report(loader=none).text


def test_jpegs_have_a_faster_decoder() -> None:
    assert "prefeed.vision" in report(costs=costs(jpeg_share=1.0)).text
    assert "prefeed.vision" not in report(costs=costs(jpeg_share=1.0, decoding=0.01)).text


def test_figures_that_may_be_wrong_are_doubted() -> None:
    assert "too little" not in report().text
    contradiction = report(trial(FIRST, 0.5), trial(CACHE, 0.4), compute=0.7).text
    assert "contradict each other: cache made it 2.5 times as fast, and perfect loading 1.4 times" in contradiction
    short = msgspec.structs.replace(trial(AS_IS, 0.002, waited=0.9), spread=0.3)
    assert report(as_is=short, compute=0.0002, loader=facts(samples=40)).text.splitlines()[-1] == (
        "10 steps in 0.02 s were measured, give or take 30 %, always the same 4 batches: that is too little for a verdict. "
        "Examine more steps (--steps 100), and more data if this is a part of it."
    )


def test_as_json_and_back() -> None:
    found = report(trial(FIRST, 0.3), trial(CACHE, 0.25), Trial(name=STAGE_CACHE, settings=TWO, reason="random"))
    assert msgspec.json.decode(found.to_json(), type=LoaderReport) == found


def test_tables_are_aligned() -> None:
    found = report(trial(FIRST, 0.3), trial(CACHE, 0.25), Trial(name=STAGE_CACHE, settings=TWO, reason="random"))
    lines = list(table(found))
    assert lines[0] == "  Photos, batches of 10, 2 workers x 2"
    assert lines[1].split() == ["trial", "samples/s", "±", "ms/batch", "times", "as", "fast", "waited", "memory"]
    assert lines[2].split() == ["as", "it", "is", "10", "1", "%", "1,000", "1.00", "90", "%", "-"]
    assert len({len(line) for line in lines[1:6]}) == 1
    assert lines[6] == "  stage cache         random"
    assert lines[-2:] == [
        "  cache                     4.00  files read ahead and kept in memory (95.4 MiB), first epoch 3.33",
        "  packing                   2.50  many small files packed into few large ones, estimated",
    ]


def tuned(*trials: Trial, compute: float | None = None, **found: Any) -> LoaderReport:
    search = Search(present=TWO, cores=2, budget=20)
    search.trials = list(trials)
    for name, value in found.items():
        setattr(search, name, value)
    return tune_report(facts(), search, compute_seconds=compute, budget=20, data="About the data.")


def ratio(gain: float, low: float, high: float) -> Ratio:
    return Ratio(gain=gain, low=low, high=high, pairs=4)


RUNS = (trial(str(TWO), 0.1), trial(str(EIGHT), 0.05, settings=EIGHT))


def test_a_gain_ends_in_the_line_to_paste() -> None:
    found = tuned(*RUNS, best=EIGHT, ratio=ratio(1.8, 1.6, 2.0))
    assert (found.settings, found.best) == (EIGHT, "settings")
    assert found.text.splitlines() == [
        "1.80 times as fast (1.60 to 2.00) with 8 workers x 2 instead of 2 workers x 2.",
        "About the data.",
        "Only the loader was timed, because no training step was given.",
        "",
        "DataLoader(..., num_workers=8, prefetch_factor=2)",
    ]
    assert any("8 workers x 2 (best)" in line for line in table(found))


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ({"best": EIGHT, "ratio": ratio(1.1, 1.04, 1.3)}, "Leave it: 8 workers x 2, the best that was tried, is 1.10 times"),
        ({}, "Leave it: no setting that was tried is faster"),
        ({"ran_out": True}, "Leave it: 8 workers x 2 was 2.00 times as fast in a short trial"),
        ({"is_bound": True, "compute": 0.097}, "Leave it: the training step takes the time, and the loader keeps up. No other setting can gain more than 3 %"),
    ],
    ids=["noise", "slower", "unproven", "bound"],
)  # fmt: skip
def test_what_is_not_proven_is_left(found: dict[str, Any], text: str) -> None:
    left = tuned(*RUNS, **found)
    assert left.text.startswith(text)
    assert (left.settings, left.suggestion) == (TWO, None)


def test_present_settings_that_fail() -> None:
    failed = Trial(name=str(TWO), settings=TWO, reason="killed")
    found = tuned(failed, RUNS[1], best=EIGHT)
    assert (found.settings, found.best) == (EIGHT, "settings")
    assert found.text.startswith("The present setting (2 workers x 2) fails; 8 workers x 2 is the fastest that works.")
    assert tuned(failed, ran_out=True).text.startswith("Nothing was measured in 20 s: killed.")


def test_lines_to_paste() -> None:
    best = Settings(num_workers=6, prefetch_factor=4, pin_memory=True, threads=1)
    assert str(best) == "6 workers x 4, pinned, 1 thread"
    assert best.code(TWO).splitlines() == [
        "DataLoader(..., num_workers=6, prefetch_factor=4, pin_memory=True)",
        "torch.set_num_threads(1)",
    ]
    assert TWO.with_workers(0).code(best) == "DataLoader(..., num_workers=0, pin_memory=False)"
