"""Adds caches to the pods in manifests of workloads, such as Jobs and Deployments. Pure."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from prefeed.errors import SpecError
from prefeed.jobs.spec import KIND as SAMPLE_JOB
from prefeed.kubernetes.jobs import warmup_of
from prefeed.kubernetes.pods import LABEL, config_map, label_of, require_pod, with_cache
from prefeed.kubernetes.sets import PodSet, pod_set
from prefeed.sampleset.documents import Document, kind_of
from prefeed.sampleset.spec import KIND as SAMPLE_SET

_TEMPLATE: Final = ("spec", "template")
_JOBS_OF_SET: Final = ("spec", "replicatedJobs", "*", "template", *_TEMPLATE)
_PLACES: Final[Mapping[str, tuple[str, ...]]] = {
    "Pod": (),
    **dict.fromkeys(("Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job"), _TEMPLATE),
    "CronJob": ("spec", "jobTemplate", *_TEMPLATE),
    "JobSet": _JOBS_OF_SET,
    "PyTorchJob": ("spec", "pytorchReplicaSpecs", "*", "template"),
    **dict.fromkeys(("TrainingRuntime", "ClusterTrainingRuntime"), ("spec", "template", *_JOBS_OF_SET)),
}
"""Path of the pod template in each kind of document. ``*`` stands for each entry of a list or a mapping."""

OF_OTHERS: Final = frozenset({"JobSet", "PyTorchJob", "TrainingRuntime", "ClusterTrainingRuntime", "TrainJob"})
"""Kinds that other operators define. Only their pod templates have a published schema."""


def patched(documents: Sequence[Document]) -> tuple[list[Document], list[str]]:
    """Add caches to the pods in documents. Return the documents, and notes for the user.

    A SampleSet becomes the ConfigMap that its pods read. A warm-up becomes part of this ConfigMap and runs in the
    sidecars. Pods without the label are not changed.

    Args:
        documents: Documents of any kind.

    Raises:
        SpecError: A set is missing from the documents, no pod names one, or a pod cannot have it.
    """
    sets = _sets(documents)
    asked: dict[str, PodSet] = {}
    result: list[Document] = []
    for document in documents:
        if kind_of(document)[0] in (SAMPLE_SET, SAMPLE_JOB):
            continue
        whole = {"": copy.deepcopy(document)}
        for holder, key, _ in _templates(whole, str(document["kind"])):
            if name := label_of(holder[key]):
                require_pod(holder[key], _called(document))
                found = _chosen(name, document, sets)
                holder[key] = with_cache(holder[key], found)
                asked[name] = found
        result.append(whole[""])
    if not asked:
        raise SpecError(
            f"no pod asks for a sample set: give its template the label {LABEL}: NAME; pods are looked for in "
            f"{', '.join(_PLACES)}"
        )
    notes = [note for found in asked.values() for note in (*found.notes, *found.without_effect)]
    is_namespace = [each["kind"] == "Namespace" for each in result]
    first = (
        len(result) - is_namespace[::-1].index(True) if any(is_namespace) else 0
    )  # after the namespaces that the ConfigMaps may be in
    result[first:first] = [config_map(found) for found in asked.values()]
    return result, notes


def _sets(documents: Sequence[Document]) -> dict[str, PodSet]:
    """Return the sets among documents, with their warm-ups."""
    sets = {
        found.name: found
        for each in documents
        if kind_of(each)[0] == SAMPLE_SET
        for found in [replace(pod_set(each), is_patched=True)]
    }
    for document in documents:
        if kind_of(document)[0] == SAMPLE_JOB:
            name, warmup = warmup_of(document)
            if name not in sets:
                raise SpecError(f"the job {warmup['metadata']['name']} warms the SampleSet {name}: name its file, too")
            sets[name] = replace(sets[name], warmups=(*sets[name].warmups, warmup))
    return sets


def _chosen(name: str, document: Document, sets: Mapping[str, PodSet]) -> PodSet:
    called = _called(document)
    if name not in sets:
        there = ", ".join(sets) or "none"
        raise SpecError(
            f"{called} has the label {LABEL}: {name}, and no SampleSet {name} is in the files (there: {there}): name "
            "its file, too"
        )
    namespace = str(_metadata(document).get("namespace") or "")
    if namespace != sets[name].namespace:
        raise SpecError(
            f"{called} is in the namespace {namespace or '(none)'}, and the SampleSet {name} in "
            f"{sets[name].namespace or '(none)'}: a pod reads sets of its own namespace only"
        )
    return sets[name]


def _metadata(document: Document) -> Mapping[str, Any]:
    metadata = document.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def _called(document: Document) -> str:
    return f"{document['kind']} {_metadata(document).get('name', 'without a name')}"


def templates_of(document: Document) -> Iterator[tuple[str, Any]]:
    """Yield the pod templates in a document, each with the path of its field."""
    for holder, key, at in _templates({"": document}, str(document["kind"])):
        yield at.lstrip("."), holder[key]


def _templates(whole: dict[str, Document], kind: str) -> Iterator[tuple[Any, Any, str]]:
    """Yield the location of each pod template in a document: its mapping or list, its key, and its path."""
    if kind in _PLACES:
        yield from _below(whole, ("", *_PLACES[kind]), "")


def _below(holder: Any, path: tuple[str, ...], at: str) -> Iterator[tuple[Any, Any, str]]:
    name, *rest = path
    if name == "*":
        keys: Any = range(len(holder)) if isinstance(holder, list) else list(holder) if isinstance(holder, dict) else ()
    else:
        keys = [name] if isinstance(holder, dict) and name in holder else []
    for key in keys:
        here = f"{at}[{key}]" if isinstance(key, int) else f"{at}.{key}" if key else at
        if rest:
            yield from _below(holder[key], tuple(rest), here)
        else:
            yield holder, key, here
