"""``prefeed tune``: the function that is called, its arguments, and what is printed; e2e/test_tune.py has real tunings."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from prefeed.cli import tune
from prefeed.diagnose.report import Finding, LoaderFacts, LoaderReport, table
from prefeed.diagnose.search import Settings, Trial

NONE = Settings(num_workers=0)
FOUR = NONE.with_workers(4)
LINE = FOUR.code(NONE)
REPORT = LoaderReport(
    text=f"1.80 times as fast.\n\n{LINE}", findings=[Finding(name="settings", what="workers", how=LINE, speedup=1.8)],
    best="settings", settings=FOUR, waiting=None, perfect_speedup=None,
    loader=LoaderFacts(dataset="range", samples=8, batch_size=32, settings=NONE, memory_bytes=1 << 30),
    trials=[
        Trial(name=str(NONE), settings=NONE, steps=3, step_seconds=0.05, samples_s=680.3, spread=0.05, waited=0.9),
        Trial(name=str(FOUR), settings=FOUR, steps=4, step_seconds=0.001, samples_s=39504.0, memory_bytes=80 << 20),
        Trial(name="8 workers x 2", settings=FOUR.with_workers(8), reason="not tried: no room"),
    ],
)  # fmt: skip

MODULE = """
import sys
from torch.utils.data import DataLoader

seen = []

def make_loader(*arguments):
    seen.append((arguments, sys.argv[1:]))
    print("from the user's function")
    return DataLoader(range(8))

def both():
    seen.append(sys.argv[1:])
    return DataLoader(range(8)), print

def two(first, second="b"):
    return DataLoader(range(8))

def nothing():
    return None

number = 3
"""


@pytest.fixture
def tuned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[tuple[Any, Any, dict[str, Any]]]]:
    """Stand in the directory of ``tuned_module``; list what would be tuned."""
    calls: list[tuple[Any, Any, dict[str, Any]]] = []

    def record(loader: Any, step: Any, **arguments: Any) -> LoaderReport:
        calls.append((loader, step, arguments))
        return REPORT

    (tmp_path / "tuned_module.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", ["prefeed"])
    monkeypatch.setattr(tune, "tune", record)
    yield calls
    sys.modules.pop("tuned_module", None)


Tune = Callable[..., Result]


@pytest.fixture
def call(run: Callable[..., Result], tuned: list[Any]) -> Tune:
    return lambda *arguments: run(None, "tune", *arguments)


@pytest.mark.parametrize("place", ["tuned_module", "tuned_module.py", "./tuned_module.py"])
def test_function_of_a_module_or_a_file(call: Tune, tuned: list[Any], place: str) -> None:
    result = call("--budget", "7", "--device", "cpu", f"{place}:make_loader", "a", "--b")
    assert result.exit_code == 0, result.output
    ((loader, step, arguments),) = tuned
    assert (loader.batch_size, step) == (1, None)
    assert (arguments["budget"], arguments["device"]) == (7.0, "cpu")
    assert sys.modules["tuned_module"].seen == [(("a", "--b"), ["a", "--b"])]


def test_loader_and_step(call: Tune, tuned: list[Any]) -> None:
    assert call("tuned_module:both", "--from", "argv").exit_code == 0
    assert tuned[0][1] is print
    assert sys.modules["tuned_module"].seen == [["--from", "argv"]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tuned_module"], "is not a function"),
        (["tuned_module:"], "is not a function"),
        (["absent.py:make_loader"], "no such file: absent.py"),
        (["absent_module:make_loader"], "cannot find module 'absent_module'"),
        (["tuned_module:absent"], "has no function absent"),
        (["tuned_module:number"], "has no function number"),
        (["tuned_module:nothing"], "returned NoneType; return a DataLoader"),
        (["tuned_module:two"], "was given 0 arguments"),
        (["tuned_module:two", "1", "2", "3"], "was given 3 arguments"),
        (["--budget", "0", "tuned_module:two"], "--budget"),
    ],
)
def test_wrong_use(call: Tune, tuned: list[Any], arguments: list[str], message: str) -> None:
    result = call(*arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.split())
    assert tuned == []


def test_what_the_module_needs_and_is_not_there(call: Tune, tmp_path: Path) -> None:
    (tmp_path / "tuned_module.py").write_text("import absent_thing\n")
    result = call("tuned_module:make_loader")
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        "Traceback (most recent call last):",
        f'  File "{tmp_path / "tuned_module.py"}", line 1, in <module>',
        "    import absent_thing",
        "ModuleNotFoundError: No module named 'absent_thing'",
        "prefeed: cannot tune: tuned_module:make_loader, its loader or its step raised ModuleNotFoundError",
    ]


def test_what_the_users_function_raises(call: Tune, tmp_path: Path) -> None:
    """Its own lines of the traceback, those of what led to it, and none of ours; with ``-vv`` all of them."""
    code = """
        def make_loader():
            try:
                1 / 0
            except ZeroDivisionError as err:
                raise ValueError("no data") from err
    """
    (tmp_path / "tuned_module.py").write_text(textwrap.dedent(code))
    result = call("tuned_module:make_loader")
    assert result.exit_code == 1
    assert result.stderr.count("  File ") == 2
    assert "prefeed/cli" not in result.stderr
    assert "ZeroDivisionError: division by zero" in result.stderr
    assert result.stderr.splitlines()[-2:] == [
        "ValueError: no data",
        "prefeed: cannot tune: tuned_module:make_loader, its loader or its step raised ValueError",
    ]


def test_table_and_line_to_paste(call: Tune) -> None:
    lines = call("tuned_module:both").stdout.splitlines()
    assert lines == [*table(REPORT), "", *REPORT.text.splitlines()]
    assert lines[2].split() == ["0", "workers", "(present)", "680", "5", "%", "50", "1.00", "90", "%", "-"]
    assert lines[3].split()[:5] == ["4", "workers", "x", "2", "(best)"]
    assert lines[4] == "  8 workers x 2         not tried: no room"
    assert lines[-1] == LINE


def test_json_is_all_there_is_on_stdout(call: Tune) -> None:
    result = call("--json", "tuned_module:make_loader")
    printed = json.loads(result.stdout)
    assert "from the user's function" in result.stderr
    assert (printed["text"], printed["best"]) == (REPORT.text, "settings")
    assert printed["findings"][0]["how"] == LINE


@pytest.mark.usefixtures("sandbox")
def test_spawned_workers_find_the_file(tuned: list[Any], tmp_path: Path) -> None:
    spawning = (
        MODULE
        + """
class Numbers:
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return index

def spawning():
    return DataLoader(Numbers(), batch_size=4, num_workers=1, multiprocessing_context="spawn")
"""
    )
    (tmp_path / "tuned_module.py").write_text(spawning)
    loader, _ = tune._loader_and_step("tuned_module.py:spawning", ())
    assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]
