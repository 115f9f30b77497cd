"""Pods that get a cache."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from prefeed.cli.main import cli
from prefeed.errors import SpecError
from prefeed.kubernetes.layout import MEMORY_TIER
from prefeed.kubernetes.pods import CONTAINERS, IMAGE, LABEL, SIDECAR, config_map, with_cache
from prefeed.kubernetes.sets import pod_set
from prefeed.kubernetes.workloads import patched
from prefeed.sampleset.documents import decode
from prefeed.sampleset.spec import SampleSetDocument
from prefeed.sampleset.tiers import plan_tiers
from profiles import examples
from unit.sampleset.documents import sample_job, sample_set

DEPLOYMENT = Path(__file__).with_name("deployment.yaml")
SOURCE = {"uri": "s3://bucket/a"}
OF_PATHS = "spec.cache.levels: their paths; they become volumes of the pods, those of one medium one with the sum of their sizes"


def pod(*containers: dict[str, Any], annotations: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    given = containers or ({"name": "train", "image": "train:1"},)
    metadata = {"name": "train", "labels": {LABEL: "imagenet"}, "annotations": annotations or {}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": list(given), **spec}}


def levels(*sizes: tuple[str, int | None]) -> dict[str, Any]:
    return {"levels": [{"mediumType": medium, **({"cacheSize": size} if size else {})} for medium, size in sizes]}


def cached(template: dict[str, Any], **spec: Any) -> dict[str, Any]:
    found = pod_set(sample_set(**{"source": SOURCE, **spec}))
    return with_cache(template, dataclasses.replace(found, is_patched=True))


def sidecar_of(template: dict[str, Any]) -> dict[str, Any]:
    (found,) = [each for each in template["spec"]["initContainers"] if each["name"] == SIDECAR]
    return found


def run(*arguments: str | Path, text: str | None = None) -> Result:
    return CliRunner().invoke(cli, ["kubernetes", "patch", *map(str, arguments)], input=text, catch_exceptions=False)


def test_what_is_patched_may_be_patched_again() -> None:
    documents = list(yaml.safe_load_all(DEPLOYMENT.read_text()))
    sets = [each for each in documents if each["kind"] == "SampleSet"]
    before = copy.deepcopy(documents)
    once, _ = patched(documents)
    workloads = [each for each in once if each["kind"] not in ("ConfigMap", "Secret")]

    assert patched([*workloads, *sets]) == (once, [OF_PATHS])
    assert documents == before

    sets[0]["spec"]["cache"]["levels"] = []
    changed, _ = patched([*workloads, *sets])
    assert changed == patched([*[each for each in before if each["kind"] != "SampleSet"], *sets])[0]
    assert changed != once


def test_nothing_in_a_sidecar_needs_a_privilege() -> None:
    """It keeps all rules of the pod security level "restricted", whatever the pod does."""
    sidecar = sidecar_of(cached(pod(), cache=levels(("MEM", 512), ("SSD", None))))
    volumes = cached(pod(), cache=levels(("MEM", 512), ("SSD", None)))["spec"]["volumes"]

    assert sidecar["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert {key for each in volumes for key in each} == {"name", "emptyDir", "configMap"}
    assert not {"ports", "volumeDevices", "lifecycle"} & sidecar.keys()


def test_the_budget_stays_below_the_volume_and_the_volume_below_the_container() -> None:
    for mib in (256, 1000, 8192, 1 << 20):
        result = cached(pod(), cache=levels(("MEM", mib)))
        (memory,) = [each["emptyDir"] for each in result["spec"]["volumes"] if each["name"] == "prefeed-memory"]
        limit = int(memory["sizeLimit"].removesuffix("Mi"))
        container = int(sidecar_of(result)["resources"]["limits"]["memory"].removesuffix("Mi"))

        assert memory["medium"] == "Memory"
        assert mib + 16 <= limit <= mib * 1.07
        assert 0.9 * container >= limit + 512


@pytest.mark.parametrize(
    ("given", "memory", "disk"),
    [
        ([("MEM", 512)], 512, None),
        ([("MEM", 512), ("MEM", 256)], 768, None),
        ([("SSD", 100)], 1024, "116Mi"),
        ([("MEM", 512), ("SSD", 64), ("HDD", 64)], 512, "144Mi"),
        ([("MEM", 512), ("SSD", None)], 512, ""),
    ],
)
def test_levels_become_volumes(given: list[tuple[str, int | None]], memory: int, disk: str | None) -> None:
    found = pod_set(sample_set(source=SOURCE, cache=levels(*given)))
    volumes = {each["name"]: each for each in with_cache(pod(), found)["spec"]["volumes"]}
    tiers = plan_tiers(
        decode({**found.document, "spec": _without_paths(found.document["spec"])}, SampleSetDocument).spec
    )

    assert tiers.memory is not None
    assert (tiers.memory.cache_mib, found.document["spec"]["cache"]["levels"][0]["path"]) == (memory, str(MEMORY_TIER))
    assert (tiers.disk is not None) == (disk is not None)
    assert volumes.get("prefeed-disk", {}).get("emptyDir") == (
        None if disk is None else {"sizeLimit": disk} if disk else {}
    )


def _without_paths(spec: dict[str, Any]) -> dict[str, Any]:
    """Return a spec whose level in memory may be planned on a machine without that directory."""
    result = copy.deepcopy(spec)
    for level in result["cache"]["levels"]:
        del level["path"]
    return result


def test_juicefs_options_give_the_size_where_there_are_no_levels() -> None:
    options = {"cache-dir": "/dev/shm/imagenet", "cache-size": 2048, "buffer-size": 300}
    found = pod_set(sample_set(source=SOURCE, csi={"juiceFSMountOptions": options}))

    assert (found.memory_mib, found.notes) == (2048, ())
    assert found.document["spec"]["csi"] == {"juiceFSMountOptions": {"buffer-size": 300}}


def test_a_size_that_was_not_given_is_said() -> None:
    text = yaml.safe_dump_all([pod(), sample_set(source=SOURCE, partitions=4)])

    result = run("-", text=text)

    assert result.exit_code == 0
    assert "the memory tier has 1024 MiB: set cacheSize of the level MEM to change it" in result.stderr
    assert "spec.partitions has no effect" in result.stderr


def test_only_containers_that_read_it_see_it() -> None:
    other = {"name": "logs", "image": "logs:1"}

    result = cached(pod({"name": "train", "image": "train:1"}, other, annotations={CONTAINERS: "train"}))

    assert result["spec"]["containers"][1] == other
    assert [each["name"] for each in result["spec"]["containers"][0]["volumeMounts"]] == [
        "prefeed-state",
        "prefeed-memory",
    ]


def test_the_sidecar_runs_as_the_reader_does_in_its_image_with_its_access() -> None:
    variables = [
        {"name": "AWS_PROFILE", "value": "a"},
        {"name": "https_proxy", "value": "b"},
        {"name": "EPOCHS", "value": "1"},
        {"name": "PREFEED_POOL", "value": "pool-0.pool:11211"},
    ]
    train = {
        "name": "train",
        "image": "train:1",
        "env": variables,
        "securityContext": {"runAsUser": 7, "privileged": True},
    }

    sidecar = sidecar_of(cached(pod(train)))
    named = sidecar_of(cached(pod(train, annotations={IMAGE: "prefeed:1"})))

    assert (sidecar["image"], named["image"]) == ("train:1", "prefeed:1")
    assert sidecar["securityContext"]["runAsUser"] == 7
    assert "privileged" not in sidecar["securityContext"]
    assert [each["name"] for each in sidecar["env"]] == [
        "AWS_PROFILE",
        "https_proxy",
        "PREFEED_POOL",
        "PREFEED_HOME",
        "XDG_RUNTIME_DIR",
    ]


def test_a_directory_is_mounted_read_only() -> None:
    mount = {"name": "nfs", "mountPath": "/mnt/photos", "subPath": "a"}
    train = {"name": "train", "image": "train:1", "volumeMounts": [mount, {"name": "b", "mountPath": "/mnt/b"}]}

    result = cached(pod(train), source={"uri": "/mnt/photos/train"})

    mounts = sidecar_of(result)["volumeMounts"]
    assert [each for each in mounts if not each["name"].startswith("prefeed-")] == [{**mount, "readOnly": True}]


def test_secrets_are_mounted_in_the_sidecar_alone() -> None:
    secrets = {"source": {**SOURCE, "secretRef": {"name": "keys"}}, "secretRef": {"name": "a" * 60}}
    result = cached(pod(), **secrets)

    of_secrets = [each for each in result["spec"]["volumes"] if "secret" in each]
    assert [each["secret"]["secretName"] for each in of_secrets] == ["a" * 60, "keys"]
    assert all(len(each["name"]) <= 63 for each in of_secrets)
    names = {each["name"] for each in of_secrets}
    assert names <= {each["name"] for each in sidecar_of(result)["volumeMounts"]}
    assert not names & {each["name"] for each in result["spec"]["containers"][0]["volumeMounts"]}


WORKLOADS = [
    ("Deployment", ["spec", "template"]),
    ("Job", ["spec", "template"]),
    ("CronJob", ["spec", "jobTemplate", "spec", "template"]),
    ("JobSet", ["spec", "replicatedJobs", 0, "template", "spec", "template"]),
    ("PyTorchJob", ["spec", "pytorchReplicaSpecs", "Worker", "template"]),
]


@pytest.mark.parametrize(("kind", "path"), WORKLOADS, ids=[kind for kind, _ in WORKLOADS])
def test_templates_are_found_in_documents_of_many_kinds(kind: str, path: list[Any]) -> None:
    template: Any = {key: value for key, value in pod().items() if key in ("metadata", "spec")}
    document: Any = template
    for name in reversed(path):
        document = [document] if name == 0 else {name: document}

    result, _ = patched(
        [{"apiVersion": "v1", "kind": kind, "metadata": {"name": "a"}, **document}, sample_set(source=SOURCE)]
    )

    found: Any = result[1]
    for name in path:
        found = found[name]
    assert found == cached(template)


def test_warm_ups_are_run_by_the_sidecars_of_their_set() -> None:
    warm = sample_job("warm", type="warmup", sampleSetRef={"name": "imagenet"}, warmupOptions={"paths": ["train"]})
    other = sample_job("other", type="warmup", sampleSetRef={"name": "other"})
    bare = patched([pod(), sample_set(source=SOURCE)])[0]

    documents, _ = patched([pod(), warm, sample_set(source=SOURCE), other, sample_set("other", source=SOURCE)])

    config, changed = documents
    assert list(yaml.safe_load_all(config["data"]["samplejobs.yaml"])) == [warm]
    assert "samplejobs.yaml" not in bare[0]["data"]
    assert changed["metadata"]["annotations"] != bare[1]["metadata"]["annotations"]


TRAIN = {"name": "train", "image": "train:1"}
REFUSED: list[tuple[list[dict[str, Any]], str]] = [
    ([{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}}], "no pod asks for a sample set"),
    ([pod()], "Pod train has the label prefeed.io/sampleset: imagenet, and no SampleSet imagenet is in the files"),
    ([pod(), sample_set("other", source=SOURCE)], r"there: other"),
    (
        [{**pod(), "metadata": {**pod()["metadata"], "namespace": "a"}}, sample_set(source=SOURCE)],
        r"in the namespace a, and the SampleSet imagenet in \(none\)",
    ),
    (
        [pod(annotations={CONTAINERS: "trian"}), sample_set(source=SOURCE)],
        "names trian; the pod has the containers train",
    ),
    (
        [pod(TRAIN, {**TRAIN, "name": "b", "securityContext": {"runAsUser": 7}}), sample_set(source=SOURCE)],
        "train, b run as different users",
    ),
    (
        [pod({**TRAIN, "env": [{"name": "PREFEED_HOME", "value": "/a"}]}), sample_set(source=SOURCE)],
        "the container train sets PREFEED_HOME",
    ),
    ([pod({"name": "train"}), sample_set(source=SOURCE)], "has no image: name one with prefeed"),
    ([pod(volumes=[{"name": "prefeed-memory"}]), sample_set(source=SOURCE)], "the pod has prefeed-memory already"),
    ([pod(), sample_set(source={"uri": "/mnt/photos"})], "has no volume mounted there"),
    ([pod(), sample_set(source=SOURCE, cache=levels(("MEM", 64)))], "64 MiB in memory are too few for a pod"),
    (
        [pod(), sample_set(source=SOURCE), sample_job(type="clear", sampleSetRef={"name": "imagenet"})],
        "nothing to clear",
    ),
    ([pod(), sample_set(source=SOURCE), sample_job(type="sync", sampleSetRef={"name": "a"})], "run `prefeed sync`"),
    (
        [pod(), sample_job(type="rmr", sampleSetRef={"name": "a"}, rmrOptions={"paths": ["a"]})],
        "the job warm has the type rmr: an rmr removes data at its origin",
    ),
    (
        [pod(), sample_job(type="warmup", warmupOptions={"url": "s3://a"})],
        "the job warm has no sampleSetRef",
    ),
    (
        [pod(), sample_job(type="warmup", sampleSetRef={"name": "a"})],
        "the job warm warms the SampleSet a: name its file",
    ),
    ([pod(), sample_set()], r"spec\.source\.uri is missing"),
    ([pod(), sample_set(sorce=SOURCE)], r"spec\.sorce is not known\. Did you mean source\?"),
]


@pytest.mark.parametrize(("documents", "said"), REFUSED, ids=[said[:40] for _, said in REFUSED])
def test_what_cannot_be_is_refused_with_what_to_change(documents: list[dict[str, Any]], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        patched(documents)


def test_the_config_map_of_a_patch_is_its_own_and_follows_the_namespace() -> None:
    """The operator has a ConfigMap of its own for the same set: `kubectl apply` warns about what two programs write."""
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "training"}}
    documents = list(yaml.safe_load_all(DEPLOYMENT.read_text()))

    found, _ = patched([namespace, *documents])

    kinds = [each["kind"] for each in found]
    assert kinds[:2] == ["Namespace", "ConfigMap"]
    of_set = next(each for each in documents if each["kind"] == "SampleSet")
    assert found[1]["metadata"]["name"] != config_map(pod_set(of_set))["metadata"]["name"]


@settings(max_examples=examples(400))
@given(data=st.data())
def test_documents_of_another_form_are_refused_or_left_alone(data: st.DataObject) -> None:
    documents = list(yaml.safe_load_all(DEPLOYMENT.read_text()))
    holder: Any = data.draw(st.sampled_from(documents))
    for _ in range(data.draw(st.integers(1, 7))):
        key = data.draw(st.sampled_from(sorted(holder) if isinstance(holder, dict) else range(len(holder))))
        if not isinstance(holder[key], dict | list) or not holder[key]:
            break
        holder, above = holder[key], (holder, key)
    else:
        holder, key = above
    holder[key] = data.draw(st.sampled_from([None, 0, 1.5, "a", True, [], {}, [None], ["a"], [{}], {"a": None}]))

    with contextlib.suppress(SpecError):
        patched(documents)
