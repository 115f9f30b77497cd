"""Documents against the API server of a cluster of the user's: ``make test-cluster``, with KUBECONFIG. No part of ``make test``.

It needs no image. A namespace is made and removed. Definitions of prefeed's kinds are made if there are none, and then removed; those that
are there are left as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from on_cluster.kubectl import ROOT, documents_of, kubectl, moved, new_namespace, succeed
from prefeed.cli.kubernetes import yaml_of
from prefeed.errors import SpecError
from prefeed.jobs.spec import KIND as SAMPLE_JOB
from prefeed.jobs.spec import JobFields, parse_job
from prefeed.kubernetes.crds import FINAL, KINDS, definition
from prefeed.kubernetes.paddlejob import KIND as PADDLE_JOB
from prefeed.kubernetes.paddlejob import PADDLE_JOB_VERSION, parse_paddle_job
from prefeed.kubernetes.workloads import OF_OTHERS, patched, templates_of
from prefeed.sampleset.documents import FieldRule, Fields, decode
from prefeed.sampleset.spec import API_VERSION, MountOptions, SampleSetDocument, SampleSetSpec
from prefeed.sampleset.spec import KIND as SAMPLE_SET

RESNET = ROOT / "tests" / "contract" / "kubernetes" / "resnet.yaml"
SAMPLES = sorted(path for path in (ROOT / "examples" / "sampleset").glob("*.yaml") if path.name != "secret.yaml")
IMAGENET = ROOT / "examples" / "kubernetes" / "imagenet.yaml"
JOBS = sorted(path for path in IMAGENET.parent.glob("*.yaml") if path != IMAGENET and "quickstart" not in path.name)
DRY = ("apply", "--dry-run=server", "-f", "-")
CLEAR: dict[str, Any] = {"type": "clear", "sampleSetRef": {"name": "a"}}
SET: dict[str, Any] = {"partitions": 1, "source": {"uri": "s3://photos/imagenet"}}


def document(kind: str, spec: dict[str, Any], name: str = "imagenet") -> dict[str, Any]:
    version = PADDLE_JOB_VERSION if kind == PADDLE_JOB else API_VERSION
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}


def options(**given: Any) -> dict[str, Any]:
    return {**SET, "csi": {"juiceFSMountOptions": {name.replace("_", "-"): value for name, value in given.items()}}}


def warmup(**given: Any) -> dict[str, Any]:
    return {"type": "warmup", "sampleSetRef": {"name": "a"}, "warmupOptions": given}


REFUSED: list[tuple[str, dict[str, Any]]] = [
    (SAMPLE_SET, {"partitions": 1}),
    (SAMPLE_SET, options(writeback=True)),
    (SAMPLE_SET, options(free_space_ratio="1.0")),
    (SAMPLE_SET, options(sub_dir="a/../b")),
    (SAMPLE_JOB, warmup(partition=2, partitions=2)),
    (SAMPLE_JOB, warmup(partition=1)),
    (SAMPLE_JOB, warmup(file="order.txt")),
    (SAMPLE_JOB, {"type": "warmup", "warmupOptions": {"url": "data"}}),
    (SAMPLE_JOB, {"type": "clear", "clearOptions": {"url": "data"}}),
    (SAMPLE_JOB, {"type": "rmr", "rmrOptions": {"url": "data", "paths": ["a"]}}),
    *((SAMPLE_JOB, {**CLEAR, f"{kind}Options": {"paths": ["a"]}}) for kind in ("warmup", "rmr")),
    (SAMPLE_JOB, {**CLEAR, "syncOptions": {}}),
    (SAMPLE_JOB, {"type": "sync", "syncOptions": {"source": "/a"}}),
    (SAMPLE_JOB, {**warmup(), "clearOptions": {}}),
    (SAMPLE_JOB, {"type": "rmr", "sampleSetRef": {"name": "a"}}),
    (SAMPLE_JOB, {**CLEAR, "clearOptions": {"url": "/data"}}),
    (SAMPLE_JOB, {"type": "clear"}),
    (PADDLE_JOB, {"cleanPodPolicy": "Never"}),
]
CHANGED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (SET, {**SET, "source": {"uri": "s3://bucket/b"}}, "source"),
    (SET, {**SET, "secretRef": {"name": "keys"}}, "secretRef"),
    (SET, {**SET, "noSync": True}, "noSync"),
    (SET, options(sub_dir="train"), "csi.juiceFSMountOptions.sub-dir"),
    (SET, {**SET, "cache": {"levels": [{"mediumType": "MEM"}]}}, "cache.levels: mediumType and path"),
]


@pytest.fixture(scope="module", autouse=True)
def definitions() -> Iterator[None]:
    made = []
    for kind in (*KINDS, PADDLE_JOB):
        found = definition(kind)
        name = found["metadata"]["name"]
        if kubectl("get", "crd", name).returncode != 0:
            succeed("apply", "-f", "-", text=yaml_of([found]))
            made.append(name)
        succeed("wait", "--for=condition=Established", f"crd/{name}", "--timeout=120s")
    yield
    for name in made:
        succeed("delete", "crd", name)


@pytest.fixture(scope="module")
def namespace(definitions: None) -> Iterator[str]:
    with new_namespace() as name:
        yield name


def refusal_of(text: str) -> str:
    """Return why the server refuses documents; empty if it takes them."""
    result = kubectl(*DRY, text=text)
    return "" if result.returncode == 0 else result.stderr


def read(kind: str, given: dict[str, Any]) -> None:
    """Hold a document against the strict reader.

    Raises:
        SpecError: It is refused.
    """
    if kind == SAMPLE_SET:
        spec = decode(given, SampleSetDocument).spec
        if not spec.uri and not spec.secret:
            raise SpecError("spec.source.uri is missing")
    elif kind == SAMPLE_JOB:
        parse_job(given)
    else:
        parse_paddle_job(given)


@pytest.mark.parametrize(("kind", "spec"), REFUSED)
def test_the_server_refuses_what_the_reader_refuses(namespace: str, kind: str, spec: dict[str, Any]) -> None:
    with pytest.raises(SpecError):
        read(kind, document(kind, spec))
    assert refusal_of(moved([document(kind, spec)], namespace))


def conditions_of(*structures: type[Fields]) -> set[FieldRule]:
    """Return the conditions of structures and of those in them, except those of changes."""
    found = set()
    for kind in structures:
        found |= {each for each in kind.requires if "oldSelf" not in each.cel}
        for field in msgspec.structs.fields(kind):
            inner = [field.type, *getattr(field.type, "__args__", ())]
            found |= conditions_of(*(one for one in inner if isinstance(one, type) and issubclass(one, Fields)))
    return found


def test_the_server_has_each_condition_of_the_reader_and_its_words(namespace: str) -> None:
    """Each condition between fields refuses a document of the list, with the reader's own message."""
    said = " ".join(refusal_of(moved([document(kind, spec)], namespace)) for kind, spec in REFUSED)
    conditions = conditions_of(SampleSetSpec, MountOptions, JobFields)

    assert len(conditions) >= 14
    assert [each for each in conditions if f"{each.path}{each.said}".lstrip(".: ") not in said] == []


@pytest.fixture
def there(namespace: str) -> Iterator[dict[str, Any]]:
    """Create a set that may be changed."""
    found = document(SAMPLE_SET, SET, name="kept")
    succeed("apply", "-f", "-", text=moved([found], namespace))
    yield found
    succeed("delete", "-n", namespace, "sampleset", "kept")


def test_what_a_set_keeps_for_its_life_cannot_change(namespace: str, there: dict[str, Any]) -> None:
    for _, after, path in CHANGED:
        said = refusal_of(moved([document(SAMPLE_SET, after, "kept")], namespace))
        assert f"{path} cannot change: only partitions, cacheSize and mount options can" in said
    assert (
        refusal_of(moved([document(SAMPLE_SET, {**options(buffer_size=600), "partitions": 2}, "kept")], namespace))
        == ""
    )


@pytest.mark.parametrize("kind", [SAMPLE_JOB, PADDLE_JOB])
def test_a_job_keeps_its_set(namespace: str, kind: str) -> None:
    """What was made for the first set has its label: no other group would find it."""
    of_set = {"worker": {"template": {}}} if kind == PADDLE_JOB else {"type": "warmup"}
    first, second = (document(kind, {**of_set, "sampleSetRef": {"name": name}}, "job") for name in "ab")
    succeed("apply", "-f", "-", text=moved([first], namespace))
    try:
        said = refusal_of(moved([second], namespace))
        assert "sampleSetRef cannot change" in said
        assert "another name" in said
    finally:
        succeed("delete", "-n", namespace, kind.lower(), "job")


def test_only_a_succeeded_job_is_final(namespace: str) -> None:
    succeed("apply", "-f", "-", text=moved([document(SAMPLE_JOB, CLEAR, "job")], namespace))
    after = moved([document(SAMPLE_JOB, warmup(), "job")], namespace)
    try:
        for phase, words in (("Failed", ""), ("Succeeded", FINAL)):
            change = f'{{"status": {{"phase": "{phase}"}}}}'
            succeed("patch", "-n", namespace, "samplejob", "job", "--subresource=status", "--type=merge", "-p", change)
            assert words in refusal_of(after) if words else refusal_of(after) == ""
    finally:
        succeed("delete", "-n", namespace, "samplejob", "job")


@pytest.mark.parametrize("path", [*SAMPLES, RESNET], ids=lambda path: path.stem)
def test_the_server_takes_the_documents_of_the_original(namespace: str, path: Path) -> None:
    succeed(*DRY, text=moved(documents_of(path), namespace))


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_the_server_takes_pods_with_a_cache(namespace: str, path: Path) -> None:
    """Of kinds that operators of others define, such as JobSet, the templates of pods are taken."""
    documents, _ = patched([*documents_of(path), *documents_of(IMAGENET)])
    taken = []
    for each in documents:
        if each["kind"] in OF_OTHERS or each["kind"] == "TrainJob":
            taken += [
                {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": f"pod-{number}"}, "template": template}
                for number, (_, template) in enumerate(templates_of(each))
            ]
        else:
            taken.append(each)
    succeed(*DRY, text=moved(taken, namespace))


def test_the_server_takes_the_operator(namespace: str) -> None:
    text = succeed("kustomize", str(ROOT / "deploy" / "kubernetes"))
    kinds = ("Namespace", "CustomResourceDefinition")
    documents = [each for each in yaml.safe_load_all(text) if each["kind"] not in kinds]
    succeed(*DRY, text=moved([each for each in documents if "namespace" in each["metadata"]], namespace))
    succeed(*DRY, text=yaml_of([each for each in documents if "namespace" not in each["metadata"]]))
