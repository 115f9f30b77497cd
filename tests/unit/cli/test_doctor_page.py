"""The page of ``prefeed doctor``: shares that sum up, a bar for each cure, nothing from elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from prefeed.cli import doctor
from prefeed.cli.doctor import verdict_lines
from prefeed.cli.doctor_page import doctor_page, shares_of
from prefeed.diagnose.doctor.verdict import Verdict, judge
from prefeed.diagnose.measurement import Counts
from unit.diagnose.measured import costs, loader, measurement, timing

VERDICTS = {
    "origin": judge(measurement(cached=timing(0.2, waited=0.1), workers={4: timing(0.6, waited=0.5)})),
    "stream": judge(measurement(costs=None)),
    "computing": judge(measurement(as_is=timing(0.1), compute=timing(0.1))),
    "names": judge(measurement(loader=loader(dataset="<Photos>"), costs=costs(opening=None))),
}


def page_of(verdict: Verdict) -> str:
    return doctor_page(verdict, list(verdict_lines(verdict)))


@pytest.mark.parametrize("name", VERDICTS)
def test_shares_are_those_of_a_whole_step(name: str) -> None:
    assert sum(share for _, _, share in shares_of(VERDICTS[name])) == pytest.approx(1)


@pytest.mark.parametrize("name", VERDICTS)
def test_the_page_loads_nothing(name: str) -> None:
    assert not re.search(r"(src|href)=|@import|url\(|<script|<Photos>", page_of(VERDICTS[name]))


def test_each_cure_has_a_bar_as_long_as_its_gain() -> None:
    verdict = VERDICTS["origin"]
    bars = re.findall(
        r"<dt>(.*?): ([\d,]+) \(([\d.]+) times\)</dt><dd><div class=\"bar\" style=\"width:([\d.]+)%", page_of(verdict)
    )

    assert [name.partition(",")[0] for name, *_ in bars] == [
        "as it is",
        *(cure.name for cure in verdict.cures),
        "perfect data loading",
    ]
    assert [float(times) for _, _, times, _ in bars] == [
        pytest.approx(speedup, abs=0.01)
        for speedup in (1, *(cure.speedup for cure in verdict.cures), verdict.perfect_speedup)
    ]  # fmt: skip
    assert [float(width) for *_, width in bars] == [pytest.approx(100 * float(t) / 10, abs=1) for _, _, t, _ in bars]
    assert sum("cheapest cure" in name for name, *_ in bars) == 1


def test_a_job_that_does_not_wait_has_no_cure_to_take() -> None:
    page = page_of(VERDICTS["computing"])

    assert "no cache can help" in page
    assert "the cheapest cure" not in page


def counts(seconds: float, reads: int, hits: int, requests: int) -> Counts:
    return Counts(seconds=seconds, reads=reads, hits=hits, origin_requests=requests)


def test_the_epochs_of_the_cache_are_drawn_over_time() -> None:
    start = counts(0.0, 0, 0, 0)
    first, later = [start, counts(1.0, 50, 25, 60), counts(2.0, 100, 75, 100)], [start, counts(0.5, 100, 100, 0)]
    page = page_of(judge(measurement(cached=timing(0.2, waited=0.1), counts={"first": first, "cached": later})))

    ratios, requests = (part.partition("</figure>")[0] for part in page.split("<figure>")[1:])
    assert re.findall(r'points="([^"]*)"', ratios) == ["300.0,80.0 600.0,40.0", "150.0,0.0"]
    assert re.findall(r'points="([^"]*)"', requests) == ["0.0,160.0 300.0,64.0 600.0,0.0", "0.0,160.0 150.0,160.0"]
    assert "first epoch: 75 % hits in 100 reads, 100 requests to the origin in 2.0 s" in page
    assert "later epoch: 100 % hits in 100 reads, 0 requests to the origin in 0.5 s" in page


def test_a_job_whose_cache_was_not_tried_says_why() -> None:
    told = measurement(reasons={"cache": "prefeed is in use already"})

    assert "Not recorded: prefeed is in use already." in page_of(judge(told))
    assert "<figure>" not in page_of(VERDICTS["computing"])


def examined(page: Path, verdict: Verdict, home: Path, monkeypatch: pytest.MonkeyPatch) -> Result:
    monkeypatch.setattr(doctor, "_examine", lambda *_, **__: verdict)
    return CliRunner().invoke(doctor.command, ["--home", str(home), "--html", str(page), "train.py"])


def test_a_page_that_cannot_be_written_costs_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = examined(tmp_path / "nowhere" / "page.html", VERDICTS["origin"], tmp_path, monkeypatch)

    assert result.exit_code == 1
    assert next(iter(verdict_lines(VERDICTS["origin"]))) in result.stdout
    assert f"{tmp_path}/nowhere/page.html cannot be written: No such file or directory" in result.stderr
