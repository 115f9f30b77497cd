"""Documents and pods that cannot be served: each has a condition or an event that says what to change."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from prefeed.kubernetes.operator.groups import Choices, Group
from prefeed.kubernetes.operator.sample_sets import ACCEPTED, decide_set
from prefeed.kubernetes.pods import CONTAINERS, HASH
from prefeed_bench.cluster import Cluster
from unit.kubernetes.test_operator import KEY, SOURCE, Operator, node_mode, pod
from unit.sampleset.documents import sample_set


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (sample_set(sorce=SOURCE), "spec.sorce is not known. Did you mean source?"),
        (sample_set(), "spec.source.uri is missing"),
        (sample_set(source={"uri": "/mnt/photos"}, cache={"levels": [{"mediumType": "MEM", "cacheSize": 9}]}), "at least 256"),
    ],
)  # fmt: skip
def test_a_set_that_an_older_definition_let_in_is_refused(document: dict[str, Any], words: str) -> None:
    """An API server with these definitions refuses the same: see ``on_cluster/documents.py``."""
    document["metadata"] |= {"namespace": "default", "uid": "1"}
    group = Group(
        key=KEY,
        documents={"SampleSet": [document]},
        made={},
        pods=[],
        now=datetime(2026, 11, 27, tzinfo=UTC),
        choices=Choices(image="prefeed:1"),
    )

    outcome = decide_set(document, group)

    assert outcome.status is not None
    (condition,) = [each for each in outcome.status["conditions"] if each["type"] == ACCEPTED]
    assert (condition["status"], condition["reason"]) == ("False", "Refused")
    assert words in condition["message"]
    assert outcome.objects == ()


def told(cluster: Cluster) -> list[tuple[str, str, str]]:
    """Return the events about pods: the pod's name, the reason and the message."""
    return [
        (each["involvedObject"]["name"], each["reason"], each["message"])
        for each in cluster.of("Event").values()
        if each["involvedObject"]["kind"] == "Pod" and each["type"] == "Warning"
    ]


def test_a_pod_with_the_label_of_no_set_is_told_once() -> None:
    """The webhook refuses such a pod. Without it the pod runs, and an event says that it has no cache."""
    cluster = Cluster()
    cluster.add(pod())
    cluster.add(pod("ended", phase="Succeeded"))

    for _ in range(2):  # the second operator finds the event of the first
        operator = Operator(cluster)
        operator.settle()
        operator.settle()

    ((name, reason, message),) = told(cluster)
    assert (name, reason) == ("train-0", "NoSampleSet")
    assert message.startswith(
        "the label prefeed.io/sampleset: imagenet names a SampleSet, and there is none of this name in default"
    )
    assert "`prefeed kubernetes patch`" in message


def test_a_pod_that_nobody_gave_its_cache_is_told() -> None:
    cluster = Cluster()
    cluster.add(node_mode())
    plain, marked = pod("plain"), pod("marked")
    marked["metadata"]["annotations"] = {HASH: "1", CONTAINERS: "train"}
    for each in (plain, marked):
        cluster.add(each)
    operator = Operator(cluster)
    operator.settle()
    asked = len(cluster.asked)

    operator.settle()

    assert [(name, reason) for name, reason, _ in told(cluster)] == [("plain", "NoCache")]
    assert len(cluster.asked) == asked
