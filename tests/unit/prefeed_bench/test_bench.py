"""``prefeed bench``: what a machine lacks ends what was named, and is said of what was not."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from prefeed.cli.main import cli
from prefeed_bench import bench
from prefeed_bench.errors import MissingRequirementError
from prefeed_bench.harness import BenchResult, Options


@pytest.fixture
def _no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_case(name: str, options: Options) -> BenchResult:
        if name == "device":
            raise MissingRequirementError("no CUDA device")
        return BenchResult(name=name, fields={"figure": 1.0}, spread={}, runs={})

    monkeypatch.setattr(bench, "run_case", run_case)


@pytest.mark.usefixtures("_no_cuda")
def test_what_cannot_be_run_is_said() -> None:
    done = CliRunner().invoke(cli, ["bench"])
    assert done.exit_code == 0
    assert "prefeed: device was not run: no CUDA device" in done.stderr
    assert "scale" in done.stdout


@pytest.mark.usefixtures("_no_cuda")
def test_what_was_named_has_to_be_run() -> None:
    done = CliRunner().invoke(cli, ["bench", "hit", "device"])
    assert done.exit_code == 1
    assert "prefeed: no CUDA device" in done.stderr
