"""The document of the original from `kubectl apply` to its end, by the operator, against an API server of the tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from prefeed.errors import ClusterError
from prefeed.kubernetes.nodes import MODE, NODE
from prefeed.kubernetes.operator.carrying import Carrier
from prefeed.kubernetes.operator.groups import Choices
from prefeed.kubernetes.operator.kinds import watched
from prefeed_bench.cluster import Cluster
from unit.kubernetes.test_operator import Operator
from unit.sampleset.documents import sample_set

RESNET = Path(__file__).parents[2] / "contract" / "kubernetes" / "resnet.yaml"
WHERE = "paddle-system"
POD = "resnet50-worker-0"


class PaddleOperator(Operator):
    def __init__(self, cluster: Cluster, choices: Choices | None = None) -> None:
        super().__init__(cluster)
        choices = choices or Choices(image="prefeed:1", paddle_jobs=True)
        self.carrier = Carrier(cluster, self.world, choices, self._now)


@pytest.fixture
def cluster() -> Cluster:
    found = Cluster()
    found.add(yaml.safe_load(RESNET.read_text()))
    return found


def add_set(cluster: Cluster) -> None:
    document = sample_set(
        source={"uri": "s3://photos/imagenet"}, cache={"levels": [{"mediumType": "MEM", "cacheSize": 512}]}
    )
    document["metadata"] |= {"namespace": WHERE, "annotations": {MODE: NODE}}
    cluster.add(document)


def is_ready(cluster: Cluster, name: str) -> None:
    cluster.change("StatefulSet", name, {"status": {"replicas": 1, "readyReplicas": 1}}, namespace=WHERE)


def job(cluster: Cluster) -> dict[str, Any]:
    return cluster.of("PaddleJob", WHERE)["resnet50"]


def awaits(cluster: Cluster) -> str:
    (found,) = job(cluster)["status"]["conditions"]
    return str(found["reason"])


def start(cluster: Cluster) -> None:
    """Bring the job to its pods, with a new operator at each step."""
    add_set(cluster)
    for name in ("imagenet-runtime", "imagenet-mount"):
        PaddleOperator(cluster).settle()
        is_ready(cluster, name)
    PaddleOperator(cluster).settle()


def phase(cluster: Cluster, name: str) -> None:
    cluster.change("Pod", POD, {"status": {"phase": name}}, namespace=WHERE)


def test_the_document_of_the_original_runs_to_its_end(cluster: Cluster) -> None:
    operator = PaddleOperator(cluster)
    operator.settle()
    assert (awaits(cluster), job(cluster)["status"]["mode"]) == ("NoSampleSet", "Single")
    add_set(cluster)
    operator.settle()
    assert awaits(cluster) == "SampleSetNotReady"
    is_ready(cluster, "imagenet-runtime")
    operator.settle()
    assert awaits(cluster) == "MountNotReady"
    assert not cluster.of("Pod", WHERE)
    is_ready(cluster, "imagenet-mount")
    operator.settle()
    assert list(cluster.of("Pod", WHERE)) == [POD]
    assert awaits(cluster) == "Found"

    phase(cluster, "Running")
    operator.settle()
    assert job(cluster)["status"]["phase"] == "Running"
    cluster.remove("SampleSet", "imagenet", WHERE)
    operator.settle()
    assert "imagenet" in cluster.of("SampleSet", WHERE), "a pod reads it"

    phase(cluster, "Succeeded")
    operator.settle()
    status = job(cluster)["status"]
    assert (status["phase"], status["worker"]["succeeded"]) == ("Completed", 1)
    assert list(cluster.of("Pod", WHERE)) == [POD], "cleanPodPolicy: Never"
    assert not cluster.of("SampleSet", WHERE)
    assert not cluster.of("StatefulSet", WHERE)
    events = [each["reason"] for each in cluster.of("Event", WHERE).values()]
    assert {"NoSampleSet", "SampleSetNotReady", "MountNotReady", "Completed"} <= set(events)
    cluster.remove("PaddleJob", "resnet50", WHERE)
    assert not cluster.of("Pod", WHERE)


def test_a_pod_is_made_once_and_again_only_when_it_is_lost(cluster: Cluster) -> None:
    start(cluster)
    phase(cluster, "Running")
    PaddleOperator(cluster).settle()
    assert cluster.asked.count(("apply", "pods", POD)) == 1

    cluster.remove("Pod", POD, WHERE)
    PaddleOperator(cluster).settle()
    assert cluster.asked.count(("apply", "pods", POD)) == 2
    assert job(cluster)["status"]["phase"] == "Pending"


def test_a_request_that_fails_at_any_step_is_made_up_for(cluster: Cluster) -> None:
    """The operator dies at each request in turn; the next one brings the job to the same end."""
    failed = set()

    def fail(verb: str, plural: str) -> None:
        if verb in ("apply", "patch", "create") and (verb, plural) not in failed:
            failed.add((verb, plural))
            raise ClusterError(f"{verb} {plural}: the server is away", status=0)

    cluster.before = fail
    add_set(cluster)
    for name in ("imagenet-runtime", "imagenet-mount", ""):
        for _ in range(20):
            try:
                PaddleOperator(cluster).settle()
                break
            except ClusterError:
                continue
        if name:
            is_ready(cluster, name)

    assert {("apply", "pods"), ("apply", "services"), ("apply", "statefulsets")} <= failed
    assert list(cluster.of("Pod", WHERE)) == [POD]
    assert awaits(cluster) == "Found"


def test_jobs_of_paddles_own_operator_are_left_alone(cluster: Cluster) -> None:
    choices = Choices(image="prefeed:1")
    PaddleOperator(cluster, choices).settle()

    assert "status" not in job(cluster)
    assert "paddlejobs" not in {each.plural for each in watched(choices)}
    assert "paddlejobs" in {each.plural for each in watched(Choices(paddle_jobs=True))}
