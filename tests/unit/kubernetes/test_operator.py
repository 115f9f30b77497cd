"""The operator against an API server of the tests: what becomes of documents, step by step. No socket, no clock, no thread."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from prefeed.errors import ClusterError
from prefeed.kubernetes.nodes import MODE, NODE, USER
from prefeed.kubernetes.operator.admission import answer, key_of, with_cache_of
from prefeed.kubernetes.operator.carrying import Carrier
from prefeed.kubernetes.operator.groups import FINALIZER, Choices, Key
from prefeed.kubernetes.operator.sample_jobs import CONSENT
from prefeed.kubernetes.operator.world import World
from prefeed.kubernetes.pods import LABEL
from prefeed_bench.cluster import Cluster
from unit.sampleset.documents import sample_job, sample_set

SOURCE = {"uri": "s3://photos/imagenet"}
KEY = Key("default", "imagenet")
REF = {"sampleSetRef": {"name": "imagenet"}}


def now(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run what never waits."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits")


class Operator:
    """An operator that has just been started: it knows nothing but what the server tells it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.time = datetime(2026, 11, 27, tzinfo=UTC)
        self.world = World()
        self.carrier = Carrier(cluster, self.world, Choices(image="prefeed:1"), self._now)

    def _now(self) -> datetime:
        self.time += timedelta(seconds=1)
        return self.time

    def settle(self, most: int = 20) -> int:
        """Look at everything until nothing changes; return how many rounds it took."""
        for number in range(most):
            before = len(self.cluster.log)
            for key in sorted(now(self.carrier.see_all([""]))):
                now(self.carrier.carry(key))
            if len(self.cluster.log) == before:
                return number
        raise AssertionError("it never ends")


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def operator(cluster: Cluster) -> Operator:
    return Operator(cluster)


def node_mode(partitions: int = 1, annotations: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    document = sample_set(**{"source": SOURCE, **spec, "partitions": partitions})
    document["metadata"]["annotations"] = {MODE: NODE, **(annotations or {})}
    return document


def pod(name: str = "train-0", **status: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {LABEL: "imagenet"}},
        "spec": {"containers": [{"name": "train", "image": "train:1"}]},
        "status": {"phase": "Running", **status},
    }


def serve(cluster: Cluster, ready: int = 1, name: str = "imagenet") -> None:
    cluster.change("StatefulSet", f"{name}-runtime", {"status": {"replicas": ready, "readyReplicas": ready}})


def end(cluster: Cluster, name: str, kind: str = "Complete", message: str = "") -> None:
    """End a Job as its controller does."""
    made = cluster.of("Job")[name]
    state = {"terminated": {"exitCode": 0, "message": message, "finishedAt": "2026-11-27T00:00:00Z"}}
    cluster.add(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{name}-x",
                "labels": {"batch.kubernetes.io/job-name": name},
                "ownerReferences": [
                    {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": made["metadata"]["uid"]}
                ],
            },
            "spec": {"containers": [{"name": "job", "image": "prefeed:1"}]},
            "status": {"containerStatuses": [{"name": "job", "state": state}]},
        }
    )
    cluster.change("Job", name, {"status": {"conditions": [{"type": kind, "status": "True"}]}})


def status_of(cluster: Cluster, kind: str = "SampleSet", name: str = "imagenet") -> dict[str, Any]:
    return dict(cluster.of(kind)[name].get("status", {}))


def said(cluster: Cluster, kind: str = "SampleSet", name: str = "imagenet") -> dict[str, tuple[str, str]]:
    conditions = status_of(cluster, kind, name).get("conditions", ())
    return {each["type"]: (each["reason"], each["message"]) for each in conditions}


def active(cluster: Cluster) -> list[str]:
    return [name for name, each in cluster.of("Job").items() if not each.get("status", {}).get("conditions")]


def phases(cluster: Cluster) -> dict[str, str]:
    return {name: each.get("status", {}).get("phase", "") for name, each in cluster.of("SampleJob").items()}


# ---------------------------------------------------------------- sets


def test_a_set_of_mode_pod_becomes_a_config_map(cluster: Cluster, operator: Operator) -> None:
    cluster.add(sample_set(source=SOURCE))

    operator.settle()

    assert list(cluster.of("ConfigMap")) == ["prefeed-imagenet"]
    assert not cluster.of("StatefulSet")
    assert (status_of(cluster)["phase"], said(cluster)["Ready"][0]) == ("Bound", "NoPods")


def test_a_set_of_mode_node_becomes_a_stateful_set_with_a_pool(cluster: Cluster, operator: Operator) -> None:
    cluster.add(node_mode(partitions=2))

    operator.settle()

    made = cluster.of("StatefulSet")["imagenet-runtime"]["spec"]
    assert made["replicas"] == 2
    assert [each["name"] for each in made["template"]["spec"]["containers"]] == ["prefeed-node", "memcached"]
    assert list(cluster.of("Service")) == ["imagenet-runtime"]
    assert status_of(cluster)["runtimeStatus"]["runtimeReady"] == "0/2"


@pytest.mark.parametrize(("ready", "phase"), [(0, "Bound"), (1, "PartialReady"), (2, "Ready")])
def test_the_phase_follows_the_servers(cluster: Cluster, operator: Operator, ready: int, phase: str) -> None:
    cluster.add(node_mode(partitions=2))
    operator.settle()

    serve(cluster, ready)
    operator.settle()

    assert status_of(cluster)["phase"] == phase


def test_another_mode_removes_what_the_first_one_made(cluster: Cluster, operator: Operator) -> None:
    cluster.add(node_mode())
    operator.settle()

    cluster.change("SampleSet", "imagenet", {"metadata": {"annotations": {MODE: "pod"}}})
    operator.settle()

    assert (list(cluster.of("StatefulSet")), list(cluster.of("Service"))) == ([], [])


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (node_mode(annotations={MODE: "both"}), "must be pod or node"),
        (node_mode(annotations={USER: "root"}), "must be UID or UID:GID"),
        (node_mode(partitions=20_000), "the number of nodes, at most 10000"),
        (node_mode(partitions=4000), "no room in a variable"),
        (sample_set(source=SOURCE, cache={"levels": [{"mediumType": "MEM", "cacheSize": 1}]}), "at least 256"),
    ],
)
def test_a_refused_set_says_what_to_change(
    cluster: Cluster, operator: Operator, document: dict[str, Any], words: str
) -> None:
    cluster.add(document)

    operator.settle()

    assert words in said(cluster)["Accepted"][1]
    assert words in status_of(cluster)["cacheStatus"]["errorMassage"]
    assert [(each["type"], each["reason"]) for each in cluster.of("Event").values()] == [("Warning", "Refused")]


def test_a_secret_may_appear_later(cluster: Cluster, operator: Operator) -> None:
    cluster.add(node_mode(source={**SOURCE, "secretRef": {"name": "keys"}}))
    operator.settle()
    assert said(cluster)["Accepted"][0] == "SecretIncomplete"
    assert "create it" in said(cluster)["Accepted"][1]
    assert now(operator.carrier.carry(KEY))  # it asks to be looked at again

    cluster.add({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "data": {"access-key": "YQ=="}})
    operator.settle()
    assert said(cluster)["Accepted"][1] == "the Secret keys has no secret-key: add it"

    cluster.change("Secret", "keys", {"data": {"secret-key": "Yg=="}})
    operator.settle()
    assert said(cluster)["Accepted"][0] == "Accepted"
    serve(cluster)
    operator.settle()
    assert not now(operator.carrier.carry(KEY))


def test_a_deleted_set_stays_while_pods_read_it(cluster: Cluster, operator: Operator) -> None:
    cluster.add(node_mode())
    cluster.add(pod())
    operator.settle()
    cluster.remove("SampleSet", "imagenet")
    operator.settle()

    assert "train-0" in said(cluster)["Deleted"][1]
    assert list(cluster.of("StatefulSet")) == ["imagenet-runtime"]

    cluster.change("Pod", "train-0", {"status": {"phase": "Succeeded"}})
    operator.settle()

    assert not cluster.of("SampleSet")
    assert not cluster.of("StatefulSet")
    assert not cluster.of("ConfigMap")


def test_a_set_has_a_finalizer_only_while_pods_read_it(cluster: Cluster, operator: Operator) -> None:
    """Otherwise it could not be deleted once the operator has been uninstalled."""

    def finalizers() -> list[str]:
        return list(cluster.of("SampleSet")["imagenet"]["metadata"].get("finalizers") or ())

    cluster.add(node_mode())
    operator.settle()
    assert finalizers() == []

    cluster.add(pod())
    operator.settle()
    assert finalizers() == [FINALIZER]

    cluster.change("Pod", "train-0", {"status": {"phase": "Succeeded"}})
    operator.settle()
    assert finalizers() == []


def test_sets_of_one_name_in_two_namespaces_are_two(cluster: Cluster, operator: Operator) -> None:
    for namespace in ("one", "two"):
        document = node_mode()
        document["metadata"]["namespace"] = namespace
        cluster.add(document)

    operator.settle()

    paths = [
        each["hostPath"]["path"]
        for namespace in ("one", "two")
        for each in cluster.of("StatefulSet", namespace)["imagenet-runtime"]["spec"]["template"]["spec"]["volumes"]
        if "hostPath" in each
    ]
    assert len(paths) == len(set(paths)) == 4


def test_what_has_no_effect_is_said(cluster: Cluster, operator: Operator) -> None:
    options = {"writeback": False, "prefetch": 3, "cache-dir": "/dev/shm/a"}
    cache = {"levels": [{"mediumType": "SSD", "path": "/a:/b"}, {"mediumType": "MEM", "cacheSize": 512}]}
    csi = {"driver": "juicefs", "juiceFSMountOptions": options}
    cluster.add(node_mode(csi=csi, cache=cache, secretRef={"name": "keys"}))
    data = {"metaurl": "YQ==", "storage": "cmVkaXM=", "access-key": "YQ==", "secret-key": "YQ=="}
    cluster.add({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "data": data})
    operator.settle()

    assert said(cluster)["Accepted"][0] == "Accepted"
    told = said(cluster)["OptionsWithoutEffect"][1]
    for words in (
        "prefetch: the sampler determines the order",
        "cache-dir: spec.cache.levels sets it",
        "spec.csi.driver: nothing is mounted",
        "spec.cache.levels: their paths",
        "metaurl of the Secret keys: no effect: it is JuiceFS's metadata server",
        "storage=redis of the Secret keys: no effect: nothing is copied into Redis",
    ):
        assert words in told
    assert "Notes" not in said(cluster)


def test_where_a_set_wants_its_pods_its_jobs_run(cluster: Cluster, operator: Operator) -> None:
    term = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "disk", "operator": "Exists"}]}]}
    affinity = {"requiredDuringSchedulingIgnoredDuringExecution": term}
    tolerations = [{"key": "gpu", "operator": "Exists"}]
    for name, mode in (("imagenet", "node"), ("other", "pod")):
        document = node_mode(annotations={MODE: mode}, nodeAffinity=affinity, tolerations=tolerations)
        document["metadata"]["name"] = name
        cluster.add(document)
        options = {"destination": "s3://b/c", "threads": 2, "http-port": 1}
        cluster.add(sample_job(name, type="sync", syncOptions=options, sampleSetRef={"name": name}))
    operator.settle()
    serve(cluster)
    operator.settle()

    placed = [
        each["spec"]["template"]["spec"] for each in (*cluster.of("StatefulSet").values(), *cluster.of("Job").values())
    ]
    assert len(placed) == 3
    assert all(each["tolerations"] == tolerations for each in placed)
    by_node = [each["affinity"].get("nodeAffinity") for each in placed]
    assert sorted(each is None for each in by_node) == [False, False, True]  # a job of mode node is where a server is
    assert said(cluster, "SampleJob")["OptionsWithoutEffect"][1].startswith("spec.syncOptions.http-port has no effect")


# ---------------------------------------------------------------- jobs


@pytest.fixture
def served(cluster: Cluster, operator: Operator) -> Cluster:
    cluster.add(node_mode(partitions=2))
    operator.settle()
    serve(cluster, 2)
    return cluster


def test_jobs_of_a_set_run_one_at_a_time_in_their_order(served: Cluster, operator: Operator) -> None:
    for name in ("c", "a", "b"):
        served.add(sample_job(name, type="warmup", **REF))
    order = []
    for _ in range(3):
        operator.settle()
        (name,) = active(served)
        order.append(name[0])
        end(served, name, message="objects: 24")
    operator.settle()

    assert order == ["c", "a", "b"]
    assert phases(served) == dict.fromkeys("abc", "Succeeded")
    assert said(served, "SampleJob", "a")["Complete"] == ("Succeeded", "objects: 24")


def test_a_warm_up_runs_on_every_node_and_a_sync_once(served: Cluster, operator: Operator) -> None:
    served.add(sample_job("a", type="warmup", **REF))
    operator.settle()
    (warm,) = served.of("Job").values()
    assert (warm["spec"]["completions"], warm["spec"]["completionMode"]) == (2, "Indexed")
    end(served, warm["metadata"]["name"])

    served.add(sample_job("b", type="sync", secretRef={"name": "copies"}, **REF))
    operator.settle()
    (name,) = active(served)
    spec = served.of("Job")[name]["spec"]
    assert "completions" not in spec
    pod = spec["template"]["spec"]
    assert {"name": "prefeed-secret-copies", "secret": {"secretName": "copies"}} in pod["volumes"]
    assert "/run/prefeed/secrets/copies" in {each["mountPath"] for each in pod["containers"][0]["volumeMounts"]}


def test_a_failed_job_runs_again_when_its_options_change(served: Cluster, operator: Operator) -> None:
    served.add(sample_job("a", type="warmup", **REF))
    operator.settle()
    (first,) = active(served)
    end(served, first, "Failed", "the source refuses")
    operator.settle()
    assert (phases(served), active(served)) == ({"a": "Failed"}, [])
    assert said(served, "SampleJob", "a")["Complete"] == ("Failed", "the source refuses")

    served.change("SampleJob", "a", {"spec": {"warmupOptions": {"threads": 4}}})
    operator.settle()

    (second,) = active(served)
    assert second != first
    assert phases(served) == {"a": "Running"}


def test_a_succeeded_job_is_final(served: Cluster, operator: Operator) -> None:
    served.add(sample_job("a", type="warmup", **REF))
    operator.settle()
    end(served, *active(served))
    operator.settle()
    served.remove("Job", *served.of("Job"))  # as a user may

    operator.settle()

    assert (phases(served), served.of("Job")) == ({"a": "Succeeded"}, {})


def test_terminate_ends_the_jobs_before_it(served: Cluster, operator: Operator) -> None:
    """One runs, one is queued, and one waits for consent."""
    for name in ("a", "b"):
        served.add(sample_job(name, type="warmup", **REF))
    served.add(sample_job("gone", type="rmr", rmrOptions={"paths": ["a"]}, **REF))
    operator.settle()
    served.add(sample_job("stop", type="clear", terminate=True, **REF))
    operator.settle()

    assert [name[:4] for name in active(served)] == ["stop"]
    assert phases(served) == {"a": "Failed", "b": "Failed", "gone": "Failed", "stop": "Running"}
    for name in ("a", "gone"):
        assert said(served, "SampleJob", name)["Complete"] == ("Terminated", "the SampleJob stop has terminated it")


def test_a_job_waits_for_its_set_with_a_reason(cluster: Cluster, operator: Operator) -> None:
    cluster.add(sample_job("a", type="warmup", **REF))
    operator.settle()
    assert said(cluster, "SampleJob", "a")["Complete"][0] == "NoSampleSet"

    cluster.add(node_mode())
    operator.settle()
    assert said(cluster, "SampleJob", "a")["Complete"][0] == "SampleSetNotReady"

    serve(cluster)
    operator.settle()
    assert len(active(cluster)) == 1


def test_data_is_removed_at_its_origin_only_with_consent(served: Cluster, operator: Operator) -> None:
    served.add(sample_job("gone", type="rmr", rmrOptions={"paths": ["a"]}, **REF))
    operator.settle()
    assert active(served) == []
    assert said(served, "SampleJob", "gone")["Complete"][0] == "NoConsent"

    served.add(sample_job("later", type="clear", **REF))
    operator.settle()
    assert [name[:5] for name in active(served)] == ["later"]  # it does not wait until somebody consents to the other
    end(served, *active(served))
    operator.settle()

    served.change("SampleJob", "gone", {"metadata": {"annotations": {CONSENT: "gone"}}})
    operator.settle()

    assert len(active(served)) == 1


def test_a_job_with_a_schedule_is_a_cron_job(served: Cluster, operator: Operator) -> None:
    served.add(sample_job("nightly", type="warmup", schedule="0 3 * * *", **REF))
    served.add(sample_job("now", type="clear", **REF))
    operator.settle()

    (made,) = served.of("CronJob").values()
    assert (made["spec"]["schedule"], made["spec"]["concurrencyPolicy"]) == ("0 3 * * *", "Forbid")
    command = made["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]["command"]
    assert command[-3:] == ["--again", "--partitions", "2"]
    assert "schedule" not in command[4]
    assert said(served, "SampleJob", "nightly")["Complete"][0] == "Scheduled"
    assert [name[:3] for name in active(served)] == ["now"]  # it does not wait for the other

    served.change("SampleJob", "nightly", {"spec": {"schedule": "0 4 * * *"}})
    operator.settle()
    assert [each["spec"]["schedule"] for each in served.of("CronJob").values()] == ["0 4 * * *"]


def test_in_mode_pod_sidecars_warm_and_nothing_is_cleared(cluster: Cluster, operator: Operator) -> None:
    cluster.add(sample_set(source=SOURCE))
    cluster.add(sample_job("warm", type="warmup", **REF))
    cluster.add(sample_job("clear", type="clear", **REF))
    cluster.add(sample_job("copy", type="sync", syncOptions={"destination": "s3://photos/copy"}, **REF))

    operator.settle()

    assert phases(cluster) == {"warm": "Running", "clear": "Failed", "copy": "Running"}
    assert "warm" in cluster.of("ConfigMap")["prefeed-imagenet"]["data"]["samplejobs.yaml"]
    assert [name[:4] for name in active(cluster)] == ["copy"]


# ---------------------------------------------------------------- pods that are made


def asked_about(operator: Operator, made: dict[str, Any], namespace: str = "default") -> dict[str, Any]:
    """Return what the API server is answered when a pod is made; the pod does not say its namespace."""
    review = {"request": {"uid": "1", "namespace": namespace, "object": made}}
    key = key_of(review)
    found = answer(review, None if key is None else now(operator.carrier.group_now(key)))["response"]
    assert isinstance(found, dict)
    return found


def patched_by(response: dict[str, Any], made: dict[str, Any]) -> dict[str, Any]:
    result = copy.deepcopy(made)
    for change in json.loads(base64.b64decode(response["patch"])):
        assert change["op"] == "add"
        _, part, name = change["path"].split("/")
        result[part][name] = change["value"]
    return result


def test_a_pod_gets_a_sidecar_in_mode_pod_and_the_nodes_cache_in_mode_node(
    cluster: Cluster, operator: Operator
) -> None:
    cluster.add(sample_set(source=SOURCE))
    mine = patched_by(asked_about(operator, pod()), pod())
    assert [each["name"] for each in mine["spec"]["initContainers"]] == ["prefeed-node"]

    cluster.change("SampleSet", "imagenet", {"metadata": {"annotations": {MODE: NODE, USER: "1000"}}})
    shared = patched_by(asked_about(operator, pod()), pod())
    assert "initContainers" not in shared["spec"]
    assert [each["hostPath"]["path"] for each in shared["spec"]["volumes"]] == [
        "/var/lib/prefeed/default/imagenet/state",
        "/dev/shm/prefeed/default/imagenet",
    ]
    assert shared["spec"]["containers"][0]["securityContext"] == {"runAsUser": 1000}
    assert "podAffinity" in shared["spec"]["affinity"]
    assert patched_by(asked_about(operator, shared), shared) == shared  # once more changes nothing

    cluster.change("SampleSet", "imagenet", {"metadata": {"annotations": {USER: None}}})
    as_root = patched_by(asked_about(operator, pod()), pod())  # the image may have another user, which nothing can see
    assert as_root["spec"]["containers"][0]["securityContext"] == {"runAsUser": 0}


@pytest.mark.parametrize("make", [partial(sample_set, source=SOURCE), node_mode])
@pytest.mark.parametrize("nothing", [None, {}, []])
def test_fields_of_a_pod_that_are_written_and_empty_are_none(
    cluster: Cluster, operator: Operator, make: Callable[..., dict[str, Any]], nothing: Any
) -> None:
    cluster.add(make())
    operator.settle()
    given = pod()
    given["metadata"]["annotations"] = nothing
    plain = with_cache_of(pod(), operator.carrier._group(KEY))

    assert with_cache_of(given, operator.carrier._group(KEY)) == plain
    for affinity in (nothing, {"podAffinity": nothing}):
        given["spec"]["affinity"] = affinity
        made = with_cache_of(given, operator.carrier._group(KEY))
        if not made["spec"].get("affinity"):
            made["spec"].pop("affinity", None)
        assert made == plain


def test_a_pod_without_the_label_stays_as_it_is(operator: Operator) -> None:
    made = pod()
    del made["metadata"]["labels"]
    assert asked_about(operator, made) == {"uid": "1", "allowed": True}


@pytest.mark.parametrize(
    ("annotations", "namespace", "change", "words"),
    [
        ({}, "other", {}, "there is none of this name in other"),
        ({MODE: NODE}, "default", {"runAsUser": 7}, "runs as user 7, and the servers of imagenet as 0"),
        ({MODE: NODE}, "default", {"runAsNonRoot": True}, "and the servers of imagenet as root"),
        ({MODE: "both"}, "default", {}, "must be pod or node"),
    ],
)
def test_a_pod_that_cannot_read_its_set_is_refused(
    cluster: Cluster,
    operator: Operator,
    annotations: dict[str, str],
    namespace: str,
    change: dict[str, int],
    words: str,
) -> None:
    document = sample_set(source=SOURCE)
    document["metadata"]["annotations"] = annotations
    cluster.add(document)
    made = pod()
    made["spec"]["securityContext"] = change

    response = asked_about(operator, made, namespace)

    assert not response["allowed"]
    assert words in response["status"]["message"]


# ---------------------------------------------------------------- what goes wrong


def story(cluster: Cluster, operator: Callable[[], Operator]) -> None:
    """A set, its jobs and its end, with an operator that is replaced by another one after each step."""
    cluster.add(node_mode(partitions=2))
    operator().settle()
    serve(cluster, 2)
    cluster.add(sample_job("a", type="warmup", **REF))
    cluster.add(sample_job("b", type="clear", **REF))
    operator().settle()
    for _ in range(2):
        end(cluster, *active(cluster))
        operator().settle()
    cluster.remove("SampleSet", "imagenet")
    operator().settle()


def changes(cluster: Cluster) -> list[str]:
    """Return what was made and removed, in order; events apart."""
    return [
        f"{kind} {plural} {each['metadata']['name']}"
        for kind, plural, each in cluster.log
        if plural != "events" and kind != "MODIFIED"
    ]


def without_uids(lines: list[str]) -> list[str]:
    return [line[:-9] if " jobs " in line else line for line in lines]


def test_a_request_that_fails_at_any_step_changes_nothing_in_the_end(cluster: Cluster) -> None:
    """Each request in turn is refused, and the operator replaced by one that knows nothing."""
    story(cluster, lambda: Operator(cluster))
    expected, count = without_uids(changes(cluster)), len(cluster.asked)
    assert count > 20
    for number in range(count):
        again = Cluster()
        left = [number]

        def before(verb: str, plural: str, left: list[int] = left) -> None:
            if verb in ("create", "apply", "patch", "delete"):
                left[0] -= 1
                if left[0] == -1:
                    raise ClusterError("not now", status=409 if verb == "patch" else 503)

        again.before = before
        story(again, partial(_Replaced, again))

        assert [line for line in without_uids(changes(again)) if " pods " not in line] == [
            line for line in expected if " pods " not in line
        ], number


class _Replaced(Operator):
    """An operator that is replaced by a new one whenever a request fails."""

    def settle(self, most: int = 20) -> int:
        for _ in range(3):
            try:
                return Operator(self.cluster).settle(most)
            except ClusterError:
                continue
        raise AssertionError("more than one request failed")


def test_nothing_is_asked_for_when_nothing_changes(served: Cluster, operator: Operator) -> None:
    served.add(sample_job("a", type="warmup", **REF))
    operator.settle()
    served.asked.clear()

    Operator(served).settle()

    assert served.asked == []
