"""The benchmark of a Paddle script: its figures, and what would spoil them."""

from __future__ import annotations

import importlib.util

import pytest

from prefeed_bench.cases import paddle
from prefeed_bench.cases.zero_code import Run
from prefeed_bench.errors import BenchFailedError, MissingRequirementError
from prefeed_bench.harness import Options


def run_of(*seconds: float, opens: int = 0, checksum: int = 1) -> Run:
    return Run(epochs=[{"images": 100, "seconds": one, "checksums": [checksum]} for one in seconds], opens=opens)


def test_its_figures() -> None:
    found = paddle.result({"local": [run_of(2.0, 1.0)], "prefeed": [run_of(4.0, 1.25, opens=100)]}).to_json()
    assert (found["local_img_s"], found["prefeed_img_s"]) == (50, 25)
    assert (found["of_local"], found["warm_of_local"], found["opens_per_file"]) == (0.5, 0.8, 1)


def test_different_batches_are_a_failure() -> None:
    with pytest.raises(BenchFailedError, match="different batches in epoch 1"):
        paddle.result({"local": [run_of(1.0)], "prefeed": [run_of(1.0, checksum=2)]})


def test_it_says_that_paddle_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MissingRequirementError, match="pip install paddlepaddle"):
        paddle.run(Options())
