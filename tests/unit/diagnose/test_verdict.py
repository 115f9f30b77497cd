"""What is concluded from numbers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from prefeed.diagnose.doctor.verdict import Verdict, beside_the_prediction, judge, sentences
from prefeed.diagnose.measurement import Timing
from unit.diagnose.measured import costs, loader, measurement, timing


def test_long_lists_are_copied_by_each_worker() -> None:
    of_lists = loader(num_workers=8, list_bytes=2 * 10**8)
    said = [line for line in sentences(judge(measurement(loader=of_lists))) if "long lists" in line]
    assert len(said) == 1
    assert "0.2 GB" in said[0]
    assert "up to 1.6 GB for 8" in said[0]
    assert "numpy.array(paths)" in said[0]
    for none in (loader(num_workers=0, list_bytes=2 * 10**8), loader(list_bytes=10**6)):
        assert not any("long lists" in line for line in sentences(judge(measurement(loader=none))))


def test_shares_sum_up_to_the_wait() -> None:
    verdict = judge(measurement())
    assert verdict.waiting == pytest.approx(0.9)
    assert verdict.origin + verdict.decode + verdict.collate + verdict.transfer == pytest.approx(0.9)
    # one worker's thread needs 0.7 s for files, 0.2 to decode, 0.05 to collate, and all batches 0.05 to be sent
    shares = [verdict.origin, verdict.decode, verdict.collate, verdict.transfer]
    assert shares == pytest.approx([0.63, 0.18, 0.045, 0.045])


def test_files_that_cannot_be_timed_are_told_by_what_went_away() -> None:
    unseen = costs(opening=None, reading=None)
    verdict = judge(measurement(costs=unseen, cached=timing(0.4)))
    assert verdict.origin == pytest.approx(0.6)
    assert verdict.decode + verdict.collate + verdict.transfer == pytest.approx(0.3)
    assert judge(measurement(costs=unseen)).origin == 0.0


def test_of_a_stream_the_wait_for_its_shards_is_told_and_what_would_help() -> None:
    of_stream = costs(opening=None, reading=0.6)
    verdict = judge(measurement(costs=of_stream, loader=loader(samples=None), cached=None))
    assert verdict.origin > verdict.decode > 0
    cure = verdict.cure
    assert cure is not None
    assert (cure.name, cure.is_measured) == ("cache", False)
    assert "prefeed.shards(urls)" in str(verdict)
    assert "decoding" not in str(verdict)


def test_of_a_stream_whose_parts_could_not_be_tried_nothing_but_the_wait_is_known() -> None:
    verdict = judge(measurement(costs=None))
    assert (verdict.waiting, verdict.decode, verdict.cures) == (pytest.approx(0.9), 0.0, [])
    assert sentences(verdict)[0] == "This job waits for data 90 % of its time."


def test_perfect_loading_takes_no_time() -> None:
    assert judge(measurement()).perfect_speedup == pytest.approx(10)
    assert judge(measurement(compute=timing(1.2))).perfect_speedup == 1.0  # noise


def test_nothing_helps_a_job_that_computes() -> None:
    verdict = judge(measurement(as_is=timing(1.0, waited=0.02), compute=timing(0.97), cached=timing(0.9)))
    assert verdict.best is None
    assert verdict.cure is None
    assert sentences(verdict) == [
        "This job waits for data 2 % of its time: 1 % for the origin's latency.",
        "With perfect data loading it would be 3 % faster: no cache can help; computing takes the time.",
    ]


def test_the_cheapest_of_the_good_ones_is_taken() -> None:
    best = judge(measurement(cached=timing(0.25), staged=timing(0.24), workers={8: timing(0.5)}))
    assert best.best == "cache"
    assert judge(measurement(cached=timing(0.5), staged=timing(0.11))).best == "stage cache"
    assert judge(measurement(cached=timing(0.5), workers={4: timing(0.3), 8: timing(0.2)})).best == "workers"


def test_small_gains_are_left_alone() -> None:
    cheap = costs(opening=0.02)
    verdict = judge(measurement(costs=cheap, cached=timing(0.97), workers={8: timing(1.1)}))
    assert verdict.best is None
    assert "leave it" in str(verdict)


def test_in_words() -> None:
    verdict = judge(measurement(first=timing(0.3), cached=timing(0.25)))
    waits, perfect, cure = str(verdict).splitlines()
    assert waits == (
        "This job waits for data 90 % of its time: 63 % for the origin's latency, 18 % for decoding, "
        "5 % for collating, 5 % for transfer."
    )
    assert perfect == "With perfect data loading it would be 10.0 times as fast."
    assert cure == (
        "Cheapest cure: files read ahead and kept in memory (0.1 GB). Predicted: 4.0 times as fast "
        "(measured on a few batches). Start it with `prefeed run`, or write `import prefeed.auto`."
    )


def test_as_json_and_back() -> None:
    verdict = judge(measurement(cached=timing(0.25)))
    assert msgspec.json.decode(verdict.to_json(), type=Verdict) == verdict


def test_the_prediction_beside_what_came() -> None:
    before = judge(measurement(cached=timing(0.25)))
    now = judge(measurement(as_is=timing(0.26, waited=0.1)))
    assert beside_the_prediction(before, now) == (
        "Since the last examination: 3.85 times as fast (10 to 38 samples/s); predicted for cache: 4.00."
    )
    assert beside_the_prediction(judge(measurement(compute=timing(1.0))), now) is None


def test_noise_is_of_bursts() -> None:
    assert judge(measurement(loader=loader(num_workers=0))).noise == 0.0


def test_a_device_that_computes_meanwhile_loses_nothing() -> None:
    """The loop waits for a batch, and the device has work for as long."""
    verdict = judge(measurement(as_is=timing(1.0, waited=0.9), compute=timing(0.99)))
    assert verdict.waiting == pytest.approx(0.01)
    assert sentences(verdict)[0].startswith("This job waits for data 1 % of its time")


def test_more_gained_than_waited_is_explained() -> None:
    verdict = judge(measurement(as_is=timing(1.0, waited=0.1), compute=timing(0.5)))
    assert "2.0 times as fast. That is more than its waiting time: making batches takes processors" in str(verdict)
    assert "more than it waits" not in str(judge(measurement()))


def test_what_was_not_told_apart_is_not_named() -> None:
    unseen = str(judge(measurement(costs=costs(opening=None, reading=None))))
    assert "for making samples" in unseen
    assert "decoding" not in unseen


def test_of_a_stream_no_cure_was_tried() -> None:
    assert "No cure could be tried" in str(judge(measurement(costs=None)))


def test_a_loop_that_does_nothing() -> None:
    assert "more than 100 times as fast" in str(judge(measurement(compute=timing(0.0001))))


def test_figures_that_fit_are_not_doubted() -> None:
    assert judge(measurement()).doubts == []
    assert judge(measurement(cached=timing(0.4), staged=timing(0.12), workers={8: timing(0.5)})).doubts == []
    # what is not named as the cause may be without effect, and so may what cannot be: a device that computes meanwhile
    assert judge(measurement(costs=costs(opening=0.01, reading=0.0), cached=timing(1.0))).doubts == []
    assert judge(measurement(as_is=timing(1.0, waited=0.9), compute=timing(0.99), cached=timing(1.0))).doubts == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"cached": timing(0.99)}, "it waits 63 % of its time for files, and with its files in memory it was 1.01 times as fast"),
        ({"staged": timing(1.3)}, "waits 81 % of its time for files and samples, and with its samples in memory it was 0.77 times"),
        ({"compute": timing(0.7), "cached": timing(0.4)}, "cache made it 2.5 times as fast, and the job without data loading is 1.4 times as fast"),
        ({"compute": timing(0.99), "workers": {8: timing(0.5)}}, "workers made it 2.0 times as fast, and the job without data loading is 1.0"),
    ],
    ids=["files", "samples", "cache", "workers"],
)  # fmt: skip
def test_contradictions_are_flagged(changes: dict[str, Any], said: str) -> None:
    verdict = judge(measurement(**changes))
    contradiction, how_little = sentences(verdict)[-2:]
    assert contradiction.startswith("These figures contradict each other: ")
    assert said in contradiction
    assert how_little.startswith(
        "10 steps in 10.00 s were measured, give or take 0 %: that may be too little for a verdict."
    )
    assert "leave it" not in str(verdict)


def test_a_measurement_that_is_too_short_says_so() -> None:
    tiny = measurement(loader=loader(samples=40), as_is=timing(0.002, waited=0.0018), compute=timing(0.0002))
    assert sentences(judge(tiny))[-1] == (
        "10 steps in 0.02 s were measured, give or take 0 %, always the same 4 batches: that is too short for a verdict. "
        "Examine more steps (--steps 100), and more data if this is a part of it."
    )
    wild = Timing(steps=10, seconds=10.0, waited_seconds=9.0, each=[0.01] * 8 + [0.02, 9.9])
    doubts = judge(measurement(loader=loader(num_workers=0), as_is=wild)).doubts
    assert [doubt.split(",")[1] for doubt in doubts] == [
        " give or take 99 %: that is too short for a verdict. Examine more steps (--steps 100)"
    ]
    of_stream = measurement(loader=loader(samples=None), as_is=timing(0.001), costs=None)
    assert "too short for a verdict" in str(judge(of_stream))
