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


def examined(page: Path, verdict: Verdict, home: Path, monkeypatch: pytest.MonkeyPatch) -> Result:
    monkeypatch.setattr(doctor, "_examine", lambda *_, **__: verdict)
    return CliRunner().invoke(doctor.command, ["--home", str(home), "--html", str(page), "train.py"])


def test_a_page_that_cannot_be_written_costs_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = examined(tmp_path / "nowhere" / "page.html", VERDICTS["origin"], tmp_path, monkeypatch)

    assert result.exit_code == 1
    assert next(iter(verdict_lines(VERDICTS["origin"]))) in result.stdout
    assert f"{tmp_path}/nowhere/page.html cannot be written: No such file or directory" in result.stderr
