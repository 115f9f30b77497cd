"""What the operator does not do: take over what others made, stop for one document, ask for what it has no right to."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest
import yaml

from prefeed.errors import ClusterError
from prefeed.kubernetes.nodes import MODE, NODE
from prefeed.kubernetes.operator import webhook
from prefeed.kubernetes.operator.groups import Key
from prefeed.kubernetes.operator.webhook import Endpoint, Webhook
from prefeed.kubernetes.operator.working import Worker
from prefeed_bench.cluster import Cluster
from unit.kubernetes.test_operator import (
    KEY,
    REF,
    SOURCE,
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
from unit.sampleset.documents import sample_job, sample_set

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


def test_a_job_whose_service_has_the_name_of_a_sets_leaves_it_alone(cluster: Cluster) -> None:
    cluster.add(node_mode())
    Operator(cluster).settle()
    (owner,) = cluster.of("Service")["imagenet-runtime"]["metadata"]["ownerReferences"]
    cluster.add(paddle_job("imagenet-runtime", template()))

    with pytest.raises(ClusterError, match="was not made for the PaddleJob imagenet-runtime"):
        PaddleOperator(cluster).settle()
    assert cluster.of("Service")["imagenet-runtime"]["metadata"]["ownerReferences"] == [owner]


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


def test_a_certificate_that_cannot_be_read_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class Context:
        reads = 0

        def load_cert_chain(self, *files: Path) -> None:
            self.reads += 1
            if self.reads == 2:
                raise ssl.SSLError("KEY_VALUES_MISMATCH")

    context = Context()
    monkeypatch.setattr(ssl, "create_default_context", lambda *_: context)
    monkeypatch.setattr(webhook, "_RELOAD_SECONDS", 0)
    found = Webhook(Endpoint(port=1, certificate=Path("a"), key=Path("b")), None)  # type: ignore[arg-type]
    reload = found._reload()
    for _ in range(4):
        reload.send(None)
    reload.close()

    assert context.reads == 4


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


def test_a_job_that_ends_after_its_set_was_deleted_says_how(cluster: Cluster) -> None:
    cluster.add(node_mode())
    operator = Operator(cluster)
    operator.settle()
    serve(cluster)
    cluster.add(sample_job(type="sync", **REF))
    operator.settle()
    (name,) = active(cluster)
    cluster.remove("SampleSet", "imagenet")
    operator.settle()
    assert said(cluster, "SampleJob", "warm")["Complete"][0] == "NoSampleSet"

    end(cluster, name, message="copied: 3")
    operator.settle()

    assert phases(cluster) == {"warm": "Succeeded"}
    assert said(cluster, "SampleJob", "warm")["Complete"] == ("Succeeded", "copied: 3")


def test_pods_of_a_job_without_a_set_miss_no_cache(cluster: Cluster) -> None:
    cluster.add(paddle_job("a", template()))

    PaddleOperator(cluster).settle()

    assert list(cluster.of("Pod")) == ["a-worker-0"]
    assert [each["reason"] for each in cluster.of("Event").values()] == ["Found"]


def test_a_deleted_set_goes_even_if_its_secrets_cannot_be_read(cluster: Cluster) -> None:
    cluster.add(sample_set(source=SOURCE, secretRef={"name": "keys"}))
    Operator(cluster).settle()

    def refuse(verb: str, plural: str) -> None:
        if plural == "secrets":
            raise ClusterError("forbidden", status=403)

    cluster.before = refuse
    cluster.remove("SampleSet", "imagenet")
    Operator(cluster).settle()

    assert not cluster.of("SampleSet")


def test_a_paddle_job_that_is_not_understood_any_more_keeps_its_service_and_its_end() -> None:
    cluster = Cluster()
    cluster.add(paddle_job("a", template()))
    PaddleOperator(cluster).settle()
    cluster.change("PaddleJob", "a", {"spec": {"unknown": 1}})
    PaddleOperator(cluster).settle()
    assert list(cluster.of("Service")) == ["a"]

    cluster.change("PaddleJob", "a", {"spec": {"unknown": None}})
    cluster.change("Pod", "a-worker-0", {"status": {"phase": "Succeeded"}})
    PaddleOperator(cluster).settle()
    cluster.change("PaddleJob", "a", {"spec": {"unknown": 1}})
    PaddleOperator(cluster).settle()
    cluster.change("PaddleJob", "a", {"spec": {"unknown": None}})
    PaddleOperator(cluster).settle()

    assert cluster.asked.count(("apply", "pods", "a-worker-0")) == 1
    assert cluster.of("PaddleJob")["a"]["status"]["phase"] == "Completed"


# ---------------------------------------------------------------- names


def test_the_name_of_a_cron_job_is_short_enough(cluster: Cluster) -> None:
    cluster.add(node_mode())
    Operator(cluster).settle()
    serve(cluster)
    cluster.add(sample_job("a" * 63, type="warmup", schedule="0 2 * * *", **REF))
    Operator(cluster).settle()

    (name,) = cluster.of("CronJob")
    assert len(name) == 52


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


def test_the_refusals_of_many_pods_have_room_in_a_status(cluster: Cluster) -> None:
    job = paddle_job("a", template())
    job["spec"]["worker"]["replicas"] = 100
    cluster.add(job)

    def refuse(verb: str, plural: str) -> None:
        if (verb, plural) == ("apply", "pods"):
            raise ClusterError(f"violates {1000 * 'x'}", status=403)

    cluster.before = refuse
    with pytest.raises(ClusterError, match="violates"):
        PaddleOperator(cluster).settle()

    assert said(cluster, "PaddleJob", "a")["ObjectsApplied"][1].startswith("the Pod a-worker-0 is refused: violates")


@pytest.mark.parametrize("role", ["worker", "ps"])
def test_more_pods_than_can_know_each_other_are_refused(role: str) -> None:
    cluster = Cluster()
    job = paddle_job("a", template())
    job["spec"] = {role: {"replicas": 1001, "template": template()}}
    cluster.add(job)

    PaddleOperator(cluster).settle()

    assert "at most 1000 is possible" in said(cluster, "PaddleJob", "a")["Runnable"][1]
    assert not cluster.of("Pod")


def test_a_refused_pod_is_said_by_its_job() -> None:
    cluster = Cluster()
    cluster.add(paddle_job("a", template()))

    def refuse(verb: str, plural: str) -> None:
        if (verb, plural) == ("apply", "pods"):
            raise ClusterError("violates PodSecurity", status=403)

    cluster.before = refuse
    with pytest.raises(ClusterError):
        PaddleOperator(cluster).settle()

    assert "violates PodSecurity" in said(cluster, "PaddleJob", "a")["ObjectsApplied"][1]


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
