"""PaddleJobs become pods."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from prefeed.kubernetes.crds import definition, is_ours
from prefeed.kubernetes.mounts import mount_name
from prefeed.kubernetes.nodes import MODE, NODE, POD, USER
from prefeed.kubernetes.operator.groups import Choices, DocumentDecision, Group, Key
from prefeed.kubernetes.operator.paddle_jobs import RUNNABLE, decide_paddle_job
from prefeed.kubernetes.operator.sample_sets import decide_set
from prefeed.kubernetes.paddlejob import COMPLETED, FAILED, PENDING, RUNNING
from unit.sampleset.documents import sample_set

HERE = Path(__file__).parent
RESNET = HERE.parents[1] / "contract" / "kubernetes" / "resnet.yaml"
NOW, LATER = datetime(2026, 11, 27, 8, tzinfo=UTC), datetime(2026, 11, 27, 9, tzinfo=UTC)
IMAGE = "registry.example/prefeed:1"
MOUNTED = {
    "kind": "StatefulSet",
    "metadata": {"name": mount_name("imagenet"), "namespace": "paddle-system"},
    "status": {"readyReplicas": 2},
}
ACCEPTED = [
    {
        "type": "Accepted",
        "status": "True",
        "reason": "Accepted",
        "message": "",
        "lastTransitionTime": "2026-11-27T08:00:00Z",
    }
]


def a_set(mode: str = NODE, phase: str = "Ready", **spec: Any) -> dict[str, Any]:
    levels = {"levels": [{"mediumType": "MEM", "cacheSize": 512}]}
    found = sample_set(**{"source": {"uri": "s3://bucket/imagenet"}, "cache": levels, "partitions": 2, **spec})
    found["metadata"] |= {"namespace": "paddle-system", "uid": "of-the-set", "annotations": {MODE: mode}}
    return {**found, "status": {"phase": phase, "conditions": ACCEPTED}}


def a_job(**spec: Any) -> dict[str, Any]:
    template = {"spec": {"containers": [{"name": "train", "image": "train:1", "command": ["python", "train.py"]}]}}
    replicas = spec.pop("pods", {"worker": 2})
    given = {name: {"replicas": number, "template": copy.deepcopy(template)} for name, number in replicas.items()}
    return {
        "apiVersion": "batch.paddlepaddle.org/v1",
        "kind": "PaddleJob",
        "metadata": {"name": "job", "namespace": "paddle-system", "generation": 3, "uid": "of-the-job"},
        "spec": {**given, **spec},
    }


def group(
    job: dict[str, Any],
    *,
    sample_set: dict[str, Any] | None = None,
    mount: dict[str, Any] | None = None,
    pods: Sequence[dict[str, Any]] = (),
    now: datetime = NOW,
) -> Group:
    return Group(
        key=Key("paddle-system", "imagenet"),
        documents={"SampleSet": [sample_set] if sample_set else [], "PaddleJob": [job]},
        made={} if mount is None else {("StatefulSet", mount["metadata"]["name"]): mount},
        pods=pods,
        now=now,
        choices=Choices(image=IMAGE),
    )


def decided(job: dict[str, Any], **observed: Any) -> DocumentDecision:
    return decide_paddle_job(job, group(job, **observed))


def condition(decision: DocumentDecision, kind: str = RUNNABLE) -> dict[str, Any]:
    (found,) = [each for each in decision.status["conditions"] if each["type"] == kind]
    return found


def pods_of(decision: DocumentDecision) -> list[dict[str, Any]]:
    return [each for each in decision.objects if each["kind"] == "Pod"]


def variables(pod: dict[str, Any]) -> dict[str, str]:
    found = {each["name"]: each["value"] for each in pod["spec"]["containers"][0]["env"]}
    assert len(found) == len(pod["spec"]["containers"][0]["env"])
    return found


def in_phase(decision: DocumentDecision, *phases: str) -> tuple[dict[str, Any], ...]:
    return tuple({**pod, "status": {"phase": phase}} for pod, phase in zip(pods_of(decision), phases, strict=True))


def test_workers_find_each_other_and_prefer_the_node_of_their_server() -> None:
    first, second = pods_of(decided(a_job(sampleSetRef={"name": "imagenet"}), sample_set=a_set()))

    assert variables(second).items() >= {
        ("POD_IP", "job-worker-1.job"),
        ("PADDLE_TRAINER_ID", "1"),
        ("PADDLE_RANK", "1"),
        ("TRAINING_ROLE", "TRAINER"),
        ("PADDLE_TRAINERS_NUM", "2"),
        ("PADDLE_TRAINER_ENDPOINTS", "job-worker-0.job:36000,job-worker-1.job:36000"),
    }
    assert (second["spec"]["hostname"], second["spec"]["subdomain"]) == ("job-worker-1", "job")
    preferred = "preferredDuringSchedulingIgnoredDuringExecution"
    for index, pod in enumerate((first, second)):
        (term,) = pod["spec"]["affinity"]["podAffinity"][preferred]
        labels = term["podAffinityTerm"]["labelSelector"]["matchLabels"]
        assert labels["statefulset.kubernetes.io/pod-name"] == f"imagenet-runtime-{index}"


def test_parameter_servers_have_their_own_role_and_no_cache() -> None:
    decision = decided(
        a_job(pods={"ps": 1, "worker": 1}, withGloo=1, sampleSetRef={"name": "imagenet"}), sample_set=a_set()
    )
    by_name = {pod["metadata"]["name"]: pod for pod in pods_of(decision)}

    ps, worker = by_name["job-ps-0"], by_name["job-worker-0"]
    assert variables(ps).items() >= {
        ("TRAINING_ROLE", "PSERVER"),
        ("PADDLE_PSERVERS_IP_PORT_LIST", "job-ps-0.job:36000"),
        ("PADDLE_GLOO_HTTP_ENDPOINT", "job-ps-0.job:36018"),
    }
    assert "PREFEED_HOME" not in variables(ps)
    assert "PREFEED_HOME" in variables(worker)
    assert decision.status["mode"] == "PS"


def test_a_variable_of_the_document_stays() -> None:
    job = a_job()
    job["spec"]["worker"]["template"]["spec"]["containers"][0]["env"] = [{"name": "PADDLE_PORT", "value": "1"}]

    assert variables(pods_of(decided(job))[0])["PADDLE_PORT"] == "1"


def test_a_directory_is_served_at_its_path_in_mode_pod() -> None:
    job = a_job(sampleSetRef={"name": "imagenet", "mountPath": "/mnt/photos/train"})
    spec = job["spec"]["worker"]["template"]["spec"]
    spec["volumes"] = [{"name": "nfs", "persistentVolumeClaim": {"claimName": "photos"}}]
    spec["containers"][0]["volumeMounts"] = [{"name": "nfs", "mountPath": "/mnt/photos"}]
    found = a_set(POD, phase="", source={"uri": "/mnt/photos"})

    first, _ = pods_of(decided(job, sample_set=found))
    assert first["spec"]["containers"][0]["command"] == ["prefeed", "run", "python", "train.py"]
    assert variables(first)["PREFEED_ROOTS"] == "sampleset://imagenet"

    del spec["containers"][0]["command"]
    assert "has no command" in condition(decided(job, sample_set=found))["message"]


WAITING = [
    ({}, "NoSampleSet", "waits for the SampleSet imagenet in the namespace paddle-system: apply it"),
    ({"sample_set": a_set(phase="Syncing")}, "SampleSetNotReady", "which is Syncing"),
    ({"sample_set": a_set(phase="")}, "SampleSetNotReady", "which is new"),
    ({"sample_set": a_set()}, "MountNotReady", "0 of 2 nodes have one"),
    ({"sample_set": a_set(), "mount": {**MOUNTED, "status": {"readyReplicas": 1}}}, "MountNotReady", "1 of 2 nodes"),
    ({"sample_set": a_set(POD)}, "Refused", "give the set the annotation prefeed.io/mode: node, or remove mountPath"),
    ({"sample_set": a_set("both")}, "Refused", "must be pod or node, not 'both'"),
]


@pytest.mark.parametrize(
    ("observed", "reason", "said"), WAITING, ids=[f"{reason}-{at}" for at, (_, reason, _) in enumerate(WAITING)]
)
def test_a_job_that_waits_says_for_what(observed: dict[str, Any], reason: str, said: str) -> None:
    decision = decided(a_job(sampleSetRef={"name": "imagenet", "mountPath": "/data"}), **observed)

    found = condition(decision)
    assert (decision.objects, decision.status["phase"]) == ((), PENDING)
    assert (found["status"], found["reason"], found["observedGeneration"]) == ("False", reason, 3)
    assert said in found["message"]


def test_what_a_mount_cannot_be_made_for_is_said() -> None:
    found = a_set()
    found["metadata"]["annotations"][USER] = "1000"
    job = a_job(sampleSetRef={"name": "imagenet", "mountPath": "/data"})

    assert "who may not mount for other pods" in condition(decided(job, sample_set=found))["message"]
    other = a_job(sampleSetRef={"name": "imagenet", "namespace": "team"})
    assert "pods read sets of their own namespace only" in condition(decided(other, sample_set=found))["message"]


def test_names_that_are_too_long_and_empty_pods_are_said() -> None:
    long = a_job()
    long["metadata"]["name"] = "a" * 60
    empty = a_job()
    empty["spec"]["worker"]["template"] = {}

    for job, said in ((long, "is longer than 63 letters"), (empty, "must have a container")):
        job["spec"]["sampleSetRef"] = {"name": "imagenet"}
        assert said in condition(decided(job, sample_set=a_set()))["message"]


def test_options_without_an_effect_are_said() -> None:
    job = a_job(intranet="PodIP", schedulingPolicy={"queue": "a"})
    job["spec"]["worker"]["limits"] = 4

    message = condition(decided(job), "OptionsWithoutEffect")["message"]
    assert message.startswith("spec.intranet, spec.schedulingPolicy, spec.worker.limits: ")


@pytest.mark.parametrize(
    ("policy", "end", "is_cleaned"),
    [
        (None, COMPLETED, True), (None, FAILED, False), ("Never", COMPLETED, False), ("Never", FAILED, False),
        ("Always", COMPLETED, True), ("Always", FAILED, True), ("OnFailure", COMPLETED, False), ("OnFailure", FAILED, True),
        ("OnCompletion", COMPLETED, True), ("OnCompletion", FAILED, False),
    ],
)  # fmt: skip
def test_pods_of_ended_jobs(policy: str | None, end: str, is_cleaned: bool) -> None:
    job = a_job(**({"cleanPodPolicy": policy} if policy else {}))
    pods = in_phase(decided(job), "Succeeded", "Succeeded" if end == COMPLETED else "Failed")

    decision = decided(job, pods=pods)
    assert (decision.status["phase"], decision.objects) == (end, ())
    kept = {("Service", "job"), ("Pod", "job-worker-0"), ("Pod", "job-worker-1")}
    assert decision.kept == (set() if is_cleaned else kept)
    after = decided({**job, "status": decision.status}, now=LATER)
    assert after.status == decision.status  # the counts stay when the pods are gone
    assert after.objects == ()


def test_times_are_those_of_the_first_change() -> None:
    job = a_job(sampleSetRef={"name": "imagenet"})
    pods = in_phase(decided(a_job()), "Running", "Running")
    waiting = decided(job)
    running = decided({**job, "status": waiting.status}, sample_set=a_set(), pods=pods, now=LATER)
    again = decided(
        {**job, "status": running.status}, sample_set=a_set(), pods=pods, now=datetime(2030, 1, 1, tzinfo=UTC)
    )

    assert "startTime" not in waiting.status
    assert (running.status["phase"], running.status["startTime"]) == (RUNNING, "2026-11-27T09:00:00Z")
    assert condition(running)["lastTransitionTime"] == "2026-11-27T09:00:00Z"
    assert again.status == running.status


def test_a_set_is_mounted_only_while_a_job_needs_its_files() -> None:
    def is_mounted(found: dict[str, Any], job: dict[str, Any]) -> bool:
        objects = decide_set(found, group(job, sample_set=found)).objects
        return mount_name("imagenet") in [each["metadata"]["name"] for each in objects]

    wants, reads = (
        a_job(sampleSetRef={"name": "imagenet", "mountPath": "/data"}),
        a_job(sampleSetRef={"name": "imagenet"}),
    )
    assert is_mounted(a_set(), wants)
    assert not is_mounted(a_set(), reads)
    assert not is_mounted(a_set(POD), wants)
    assert not is_mounted(a_set(), {**wants, "status": {"phase": COMPLETED}})
    other = a_set()
    other["metadata"]["annotations"][USER] = "1000"
    assert not is_mounted(other, wants)


def test_a_document_that_is_not_understood_waits_and_says_why() -> None:
    decision = decided(a_job(workers=1))

    assert decision.status["phase"] == PENDING
    assert "spec.workers is not known. Did you mean worker?" in condition(decision)["message"]


def test_a_definition_of_paddles_own_operator_is_not_ours() -> None:
    ours = definition("PaddleJob")
    theirs = {**ours, "metadata": {"name": ours["metadata"]["name"]}}

    assert is_ours(ours)
    assert not is_ours(theirs)
    assert not is_ours({"metadata": {"labels": {"app.kubernetes.io/part-of": "training-operator"}}})
