"""Variants in turn, medians and spreads, facts of the machine."""

from __future__ import annotations

import json
import os
from functools import partial

import pytest

from prefeed_bench.harness import BenchResult, Samples, alternate, cpu_seconds, host_facts, memory_mib


def test_variants_run_in_turn() -> None:
    order: list[str] = []
    said: list[str] = []

    def variant(name: str) -> int:
        order.append(name)
        return len(order)

    results = alternate({"a": partial(variant, "a"), "b": partial(variant, "b")}, runs=3, say=said.append)

    assert order == ["a", "b", "a", "b", "a", "b"]
    assert results == {"a": [1, 3, 5], "b": [2, 4, 6]}
    assert said[0] == "run 1 of 3: a"


def test_no_runs_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1: 0"):
        alternate({}, runs=0)


def test_medians_and_spreads_by_field() -> None:
    samples = Samples()
    for value in (5.0, 1.0, 3.0):
        samples.add(time=value, twice=2 * value)

    assert samples.medians() == {"time": 3.0, "twice": 6.0}
    assert samples.median("time") == 3.0
    assert samples.spread() == {"time": (1.0, 5.0), "twice": (2.0, 10.0)}


def test_result_is_one_json_object_with_host() -> None:
    result = BenchResult(
        name="hit",
        fields={"us_per_sample": 1.23456789, "n": 3},
        spread={"n": (1.0, 5.0)},
        runs={"a": [1]},
        notes=("x",),
    )

    found = json.loads(json.dumps(result.to_json()))

    assert found["bench"] == "hit"
    assert (found["us_per_sample"], found["n"], found["spread"]) == (1.235, 3, {"n": [1.0, 5.0]})
    assert found["host"]["cores"] >= 1
    assert set(found["host"]) == {"cpu", "cores", "ram_gib", "kernel", "python", "versions", "date"}


def test_host_knows_the_versions_that_matter() -> None:
    versions = host_facts()["versions"]

    assert {"prefeed", "torch", "obstore"} <= set(versions)
    assert versions["prefeed"]


def test_a_process_is_measured() -> None:
    assert cpu_seconds(os.getpid()) > 0
    memory = memory_mib(os.getpid())
    assert memory["VmHWM"] >= memory["VmRSS"] >= memory["RssAnon"] > 1
