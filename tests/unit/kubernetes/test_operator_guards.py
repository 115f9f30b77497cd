"""What the operator does not do: take over what others made, stop for one document, ask for what it has no right to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from prefeed.errors import ClusterError
from prefeed.kubernetes.nodes import MODE, NODE
from prefeed.kubernetes.operator.groups import Key
from prefeed.kubernetes.operator.working import Worker
from prefeed_bench.cluster import Cluster
from unit.kubernetes.test_operator import (
    KEY,
    REF,
    Operator,
    active,
    end,
    node_mode,
    now,
    phases,
    pod,
    said,
    serve,
    status_of,
    story,
)
from unit.kubernetes.test_paddle_operator import PaddleOperator
from unit.sampleset.documents import sample_job

DEPLOY = Path(__file__).parents[3] / "deploy" / "kubernetes"


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def paddle_job(name: str, template: Any) -> dict[str, Any]:
    return {
        "apiVersion": "batch.paddlepaddle.org/v1",
        "kind": "PaddleJob",
        "metadata": {"name": name},
        "spec": {"worker": {"replicas": 1, "template": template}},
    }


def template(image: str = "train:1") -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "train", "image": image}]}}


def service(name: str, labels: dict[str, str]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": labels},
        "spec": {"selector": {"app": name}, "ports": [{"port": 80}]},
    }


# ---------------------------------------------------------------- what others made


def test_an_object_that_somebody_else_made_is_not_taken_over(cluster: Cluster) -> None:
    name = "imagenet-runtime"
    cluster.add(service(name, {}))
    before = dict(cluster.of("Service")[name])
    cluster.add(node_mode())

    with pytest.raises(ClusterError, match=f"there is a Service {name} in default that was not made for the SampleSet"):
        Operator(cluster).settle()
    cluster.remove("SampleSet", "imagenet")
    Operator(cluster).settle()

    assert cluster.of("Service") == {name: before}


# ---------------------------------------------------------------- one document does not stop the others


def test_a_job_that_the_server_refuses_does_not_keep_others_waiting(cluster: Cluster) -> None:
    cluster.add(service("a", {}))  # in the way of the first job
    for name in ("a", "b"):
        cluster.add(paddle_job(name, template()))

    with pytest.raises(ClusterError):
        PaddleOperator(cluster).settle()

    assert "b-worker-0" in cluster.of("Pod")


@pytest.mark.parametrize(
    "wrong",
    [
        {"spec": {"containers": [{"image": "train:1"}]}},
        {"spec": {"containers": ["train"]}},
        {"spec": {"containers": {"name": "train"}}},
        {"spec": {"containers": [{"name": "train", "image": "train:1", "env": [{"value": "1"}]}]}},
        {"metadata": {"labels": "a"}, **template()},
        {"metadata": "a", **template()},
        *(
            {"spec": {**template()["spec"], "affinity": affinity}}
            for affinity in (
                "a",
                {"podAffinity": "a"},
                {"podAffinity": {"required": {}}},
                {"podAffinity": {"required": ["a"]}},
            )
        ),
    ],
)
def test_a_template_that_is_no_pod_is_refused(wrong: dict[str, Any]) -> None:
    """The schema of PaddleJob does not look into templates."""
    cluster = Cluster()
    cluster.add(paddle_job("a", wrong))

    PaddleOperator(cluster).settle()

    assert said(cluster, "PaddleJob", "a")["Runnable"][0] == "Refused"


def test_a_defect_at_one_group_does_not_end_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    class Carrier:
        async def see_all(self, namespaces: Any) -> set[Key]:
            return set()

        async def carry(self, key: Key) -> bool:
            raise KeyError("name")

    waits: list[float] = []
    monkeypatch.setattr(Worker, "_later", lambda self, key, seconds: waits.append(seconds))
    ends: list[str] = []
    worker = Worker(Carrier(), [""], ends.append)
    for _ in range(9):
        now(worker._work_at(KEY))

    assert ends == ["failed"] * 9
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]


# ---------------------------------------------------------------- jobs


def test_a_terminated_job_ends_even_if_its_removal_failed_once(cluster: Cluster) -> None:
    cluster.add(node_mode())
    Operator(cluster).settle()
    serve(cluster)
    Operator(cluster).settle()
    cluster.add(sample_job("a", type="warmup", **REF))
    Operator(cluster).settle()
    cluster.add(sample_job("stop", type="clear", terminate=True, **REF))

    def refuse(verb: str, plural: str) -> None:
        if verb == "delete":
            raise ClusterError("the server is away", status=0)

    cluster.before = refuse
    with pytest.raises(ClusterError):
        Operator(cluster).settle()
    assert phases(cluster)["a"] == "Failed"
    cluster.before = lambda verb, plural: None
    Operator(cluster).settle()

    assert [name[:4] for name in active(cluster)] == ["stop"]


def test_a_job_that_runs_is_not_taken_for_one_that_waits(cluster: Cluster) -> None:
    """Its set has no ready server for a while, or somebody misspells the mode."""
    cluster.add(node_mode())
    Operator(cluster).settle()
    serve(cluster)
    cluster.add(sample_job("a", type="warmup", **REF))
    cluster.add(sample_job("b", type="warmup", **REF))
    Operator(cluster).settle()
    serve(cluster, 0)
    Operator(cluster).settle()
    assert phases(cluster) == {"a": "Running", "b": "Pending"}

    cluster.change("SampleSet", "imagenet", {"metadata": {"annotations": {MODE: "nodes"}}})
    Operator(cluster).settle()
    assert phases(cluster)["b"] == "Pending"
    cluster.change("SampleSet", "imagenet", {"metadata": {"annotations": {MODE: NODE}}})
    end(cluster, *active(cluster))
    Operator(cluster).settle()
    assert phases(cluster) == {"a": "Succeeded", "b": "Pending"}


# ---------------------------------------------------------------- names


@pytest.mark.parametrize(("name", "says"), [("a" * 45, "has 45 letters"), ("3d", "must begin with a letter")])
def test_a_name_that_a_service_cannot_have_is_said(cluster: Cluster, name: str, says: str) -> None:
    document = node_mode()
    document["metadata"]["name"] = name
    cluster.add(document)
    cluster.add(paddle_job("3d", template()))
    PaddleOperator(cluster).settle()

    assert not cluster.of("StatefulSet")
    assert says in said(cluster, name=name)["Accepted"][1]
    assert "must begin with a letter" in said(cluster, "PaddleJob", "3d")["Runnable"][1]


# ---------------------------------------------------------------- rights


def test_it_asks_for_nothing_that_it_has_no_right_to(cluster: Cluster) -> None:
    """What is asked while a set and jobs come and go, and a pod asks for its cache, is held against the role."""
    asked: set[tuple[str, str]] = set()
    cluster.before = lambda verb, plural: asked.add((verb, plural))
    operator = Operator(cluster)
    story(cluster, lambda: operator)
    now(operator.carrier.group_now(KEY))
    granted = {
        (verb, resource.split("/")[0])
        for document in yaml.safe_load_all((DEPLOY / "access.yaml").read_text())
        for rule in document.get("rules", ())
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }

    assert {("get", "samplesets"), ("list", "pods"), ("apply", "jobs")} <= asked
    for verb, plural in asked:
        for wanted in ("patch", "create") if verb == "apply" else (verb,):
            assert (wanted, plural) in granted


# ---------------------------------------------------------------- objects that the API server refuses


@pytest.mark.parametrize(
    ("status", "message", "advice"),
    [
        (403, "exceeded quota: cores", "a quota or a policy of the namespace forbids it"),
        (422, "spec.template.spec.volumes: Invalid value", "change in the document, or in its annotations"),
        (409, "the object is being deleted", ""),
    ],
)
def test_a_refused_object_is_said_once_and_tried_again(
    cluster: Cluster, status: int, message: str, advice: str
) -> None:
    """The condition stays while the server refuses, whoever asks again, and goes with the refusal."""
    cluster.add(node_mode())

    def refuse(verb: str, plural: str) -> None:
        if (verb, plural) == ("apply", "statefulsets"):
            raise ClusterError(message, status=status)

    cluster.before = refuse
    for _ in range(3):
        with pytest.raises(ClusterError, match=message):
            Operator(cluster).settle()

    reason, told = said(cluster)["ObjectsApplied"]
    assert reason == "ObjectRefused"
    assert told.startswith(f"the StatefulSet imagenet-runtime is refused: {message}")
    assert advice in told
    assert list(cluster.of("Service")) == ["imagenet-runtime"]  # the others are made
    events = [each for each in cluster.of("Event").values() if each["reason"] == "ObjectRefused"]
    assert [each["type"] for each in events] == ["Warning"]
    writes = len(cluster.log)
    with pytest.raises(ClusterError):
        Operator(cluster).settle()
    assert len(cluster.log) == writes

    cluster.before = lambda verb, plural: None
    Operator(cluster).settle()
    assert "ObjectsApplied" not in said(cluster)
    assert list(cluster.of("StatefulSet")) == ["imagenet-runtime"]


def test_a_set_that_is_deleted_while_an_object_is_refused_comes_to_rest(cluster: Cluster) -> None:
    """Its status is kept as it was: what it says of the object is neither said twice nor for ever."""
    cluster.add(service("imagenet-runtime", {}))
    cluster.add(node_mode())
    with pytest.raises(ClusterError):
        Operator(cluster).settle()
    assert "ObjectsApplied" in said(cluster)
    cluster.add(pod())
    with pytest.raises(ClusterError):
        Operator(cluster).settle()

    cluster.remove("SampleSet", "imagenet")
    Operator(cluster).settle()

    written = [
        each["status"]["conditions"] for _, kind, each in cluster.log if kind == "samplesets" and "status" in each
    ]
    for conditions in written:
        types = [each["type"] for each in conditions]
        assert len(types) == len(set(types))
    assert "Deleted" in said(cluster)
    assert "ObjectsApplied" not in said(cluster)


@pytest.mark.parametrize("status", [0, 429, 503])
def test_a_server_that_is_busy_refuses_nothing(cluster: Cluster, status: int) -> None:
    cluster.add(node_mode())

    def refuse(verb: str, plural: str) -> None:
        if verb == "apply":
            raise ClusterError("come again", status=status)

    cluster.before = refuse
    with pytest.raises(ClusterError):
        Operator(cluster).settle()

    assert "ObjectsApplied" not in said(cluster)


@pytest.mark.parametrize("role", ["worker", "ps"])
def test_more_pods_than_can_know_each_other_are_refused(role: str) -> None:
    cluster = Cluster()
    job = paddle_job("a", template())
    job["spec"] = {role: {"replicas": 1001, "template": template()}}
    cluster.add(job)

    PaddleOperator(cluster).settle()

    assert "at most 1000 is possible" in said(cluster, "PaddleJob", "a")["Runnable"][1]
    assert not cluster.of("Pod")


def test_a_set_whose_pods_the_cluster_refuses_reports_it_in_its_words(cluster: Cluster) -> None:
    """The StatefulSet is accepted, and its controller may not create pods: a quota, a policy, the pod security level."""
    cluster.add(node_mode())
    Operator(cluster).settle()
    made = cluster.of("StatefulSet")["imagenet-runtime"]
    words = 'pods "imagenet-runtime-0" is forbidden: violates PodSecurity "restricted:latest": hostPath volumes'
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "refused"},
        "involvedObject": {
            "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "imagenet-runtime", "namespace": "default",
            "uid": made["metadata"]["uid"],
        },
        "type": "Warning", "reason": "FailedCreate", "message": words, "lastTimestamp": "2026-11-27T00:00:00Z",
    }  # fmt: skip
    cluster.add(event)
    of_another = {**event["involvedObject"], "uid": "another"}
    later = {"lastTimestamp": "2026-11-28T00:00:00Z", "message": "of a StatefulSet that is gone"}
    cluster.add({**event, **later, "metadata": {"name": "old"}, "involvedObject": of_another})

    Operator(cluster).settle()
    assert said(cluster)["Ready"] == ("PodRefused", f"0 of 1 servers are ready: {words}")
    assert words in status_of(cluster)["cacheStatus"]["errorMassage"]

    serve(cluster)
    Operator(cluster).settle()
    assert said(cluster)["Ready"][0] == "Serving"
