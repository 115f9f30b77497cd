"""The benchmark of trainings in pods."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from prefeed_bench.cases import run_case
from prefeed_bench.cases.pod import PodEpoch, Run, Trained, figures
from prefeed_bench.errors import BenchFailedError
from prefeed_bench.harness import Options


def of(*trainings: tuple[float, ...], requests: float = 1.0) -> Run:
    """Return a run whose epochs took these seconds, and half of them of a processor."""
    trained = [
        Trained(epochs=[PodEpoch(seconds=each, cpu_seconds=each / 2, checksum=at) for at, each in enumerate(epochs)])
        for epochs in trainings
    ]
    return Run(trained=trained, requests_per_object=requests)


RUNS = {
    "plain": of((10.0, 4.0, 4.0)),
    "pod": of((10.0, 5.0, 5.0)),
    "plain_two": of((8.0, 4.0, 4.0), (10.0, 2.0, 2.0), requests=1.02),
    "node": of((11.0, 2.0, 4.0), (4.0, 3.0, 1.0)),
}


def test_the_worse_of_first_and_later_epochs_counts_and_the_slower_training() -> None:
    found = figures(RUNS)

    assert {name: found[name] for name in ("pod_first_over_plain", "pod_later_over_plain", "pod_over_plain")} == {
        "pod_first_over_plain": 1.0,
        "pod_later_over_plain": 1.25,
        "pod_over_plain": 1.25,
    }
    assert found["node_first_over_plain"] == pytest.approx(1.1)
    assert found["node_later_over_plain"] == pytest.approx(7 / 8)
    assert found["node_over_plain"] == pytest.approx(1.1)
    assert found["node_first_cpu_over_plain"] == pytest.approx(15 / 18)
    assert (found["node_requests_per_object"], found["plain_two_requests_per_object"]) == (1.0, 1.02)


def test_other_batches_are_no_figure() -> None:
    runs = copy.deepcopy(RUNS)
    runs["node"].trained.reverse()
    figures(runs)  # the same batches of each epoch
    epochs = runs["pod"].trained[0].epochs
    epochs[0], epochs[1] = epochs[1], epochs[0]

    with pytest.raises(BenchFailedError, match="pod: the variants saw different batches"):
        figures(runs)


@pytest.mark.usefixtures("sandbox")
def test_two_pods_of_a_node_ask_for_each_object_once(tmp_path: Path) -> None:
    found = run_case("pod", Options(runs=1, num_photos=60, quick=True, data_dir=tmp_path)).to_json()

    assert found["objects"] == 60
    assert {name: found[name] for name in found if name.endswith("_per_object")} == dict.fromkeys(
        (f"{name}_requests_per_object" for name in ("pod", "plain", "node", "plain_two")), 1.0
    )
    assert min(found[f"{name}_over_plain"] for name in ("pod", "node")) > 0
