"""Decides the outcome for a SampleSet: its ConfigMap, servers, mounts and status. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from prefeed.errors import SpecError
from prefeed.jobs.spec import KIND as SAMPLE_JOB
from prefeed.jobs.spec import WARMUP
from prefeed.kubernetes.jobs import warmup_of
from prefeed.kubernetes.layout import SIDECAR
from prefeed.kubernetes.mounts import mount_name
from prefeed.kubernetes.mounts import stateful_set as mounts
from prefeed.kubernetes.nodes import NODE, mode_of, node_set, runtime_name, service, stateful_set
from prefeed.kubernetes.operator.groups import (
    FALSE,
    MOST_SAID,
    TRUE,
    Condition,
    DocumentDecision,
    Group,
    conditions,
    owned,
    without_effect,
)
from prefeed.kubernetes.operator.reports import cache_status, errors_of
from prefeed.kubernetes.paddlejob import KIND as PADDLE_JOB
from prefeed.kubernetes.paddlejob import wants_files
from prefeed.kubernetes.pods import config_map
from prefeed.kubernetes.sets import PodSet, pod_set
from prefeed.kubernetes.without_effect import keys_without_effect
from prefeed.sampleset.documents import Document
from prefeed.sampleset.status import BOUND, NONE, PARTIAL_READY, READY

ACCEPTED: Final = "Accepted"
SERVED: Final = "Ready"
LISTED: Final = "Listed"
NOTES: Final = "Notes"
DELETED: Final = "Deleted"
_FINISHED: Final = ("Succeeded", "Failed")


def decide_set(document: Document, group: Group) -> DocumentDecision:
    """Decide the outcome for a SampleSet.

    Args:
        document: The SampleSet, as in the API server.
        group: Its group.
    """
    readers = [pod["metadata"]["name"] for pod in group.pods if pod.get("status", {}).get("phase") not in _FINISHED]
    if document["metadata"].get("deletionTimestamp"):
        return _deleted(document, group, readers)
    try:
        objects, found = _objects(document, group)
    except SpecError as err:
        refused = Condition(ACCEPTED, FALSE, "Refused", str(err))
        status = _status(document, group, [refused], NONE)
        return DocumentDecision(
            kept=frozenset(group.made), status=status, is_held=bool(readers)
        )  # keep serving running pods
    missing = list(_missing(found, document, group))
    if missing:
        accepted = Condition(ACCEPTED, FALSE, "SecretIncomplete", "; ".join(missing))
    else:
        accepted = Condition(
            ACCEPTED, TRUE, "Accepted", f"pods with the label prefeed.io/sampleset: {found.name} read it"
        )
    ready, wanted = _served(document, group)
    said = [accepted, _serves(document, ready, wanted, group.refusal), *_listed(group), *_notes(found, group)]
    if missing:
        phase = NONE
    elif not ready:
        phase = BOUND
    else:
        phase = READY if ready >= wanted else PARTIAL_READY
    status = _status(document, group, said, phase, ready=ready, wanted=wanted)
    return DocumentDecision(
        objects=objects, status=status, is_held=bool(readers), waits=bool(missing) or lacks_pods(document, group)
    )


def is_usable(document: Document | None) -> bool:
    """Return whether pods can read a set. Mode node requires a ready server; in mode pod each pod has its own."""
    if document is None or document["metadata"].get("deletionTimestamp"):
        return False
    status = document.get("status") or {}
    accepted = any(each["type"] == ACCEPTED and each["status"] == TRUE for each in status.get("conditions") or ())
    return accepted and (mode_of(document) != NODE or status.get("phase") in (PARTIAL_READY, READY))


def _objects(document: Document, group: Group) -> tuple[tuple[Document, ...], PodSet]:
    """Build the objects of a set. Return them with the set.

    Raises:
        SpecError: The document is invalid.
    """
    if mode_of(document) != NODE:
        found = pod_set_of(document, group)
        made = [config_map(found)]
    else:
        given = node_set(document, image=group.choices.image, pool_image=group.choices.pool_image)
        found = given.found
        made = [config_map(found), service(given), stateful_set(given)]
        # Keep a mount until its set is deleted: the next job would race with the terminating mount pod.
        has_mounts = ("StatefulSet", mount_name(found.name)) in group.made
        if not given.user and (has_mounts or any(wants_files(job) for job in group.documents.get(PADDLE_JOB, ()))):
            made.append(mounts(given))
    return tuple(owned(document, each) for each in made), found


def pod_set_of(document: Document, group: Group) -> PodSet:
    """Convert a set for its pods, including the warm-ups that their sidecars run.

    Raises:
        SpecError: The document is invalid.
    """
    return replace(pod_set(document), warmups=tuple(_warmups(group)))


def _warmups(group: Group) -> Iterator[Document]:
    """Yield the warm-ups that the sidecars of pods run."""
    for job in group.documents.get(SAMPLE_JOB, ()):
        spec = job.get("spec") or {}
        if spec.get("type") == WARMUP and not job["metadata"].get("deletionTimestamp") and "schedule" not in spec:
            try:
                yield warmup_of({key: job[key] for key in ("apiVersion", "kind", "metadata", "spec")})[1]
            except SpecError:
                continue  # reported in the status of the job


def _missing(found: PodSet, document: Document, group: Group) -> Iterator[str]:
    """Yield a sentence for each secret that is missing or incomplete."""
    for name in found.secrets:
        keys = group.secrets.get(name)
        if keys is None:
            yield f"there is no Secret {name} in {group.key.namespace}: create it, and the set continues by itself"
        else:
            for key in ("access-key", "secret-key"):
                if key not in keys:
                    yield f"the Secret {name} has no {key}: add it"


def _served(document: Document, group: Group) -> tuple[int, int]:
    """Return the number of ready and of desired servers."""
    if mode_of(document) != NODE:
        pods = [pod for pod in group.pods if pod.get("status", {}).get("phase") not in _FINISHED]
        return sum(map(_has_server, pods)), len(pods)
    made = group.made.get(("StatefulSet", runtime_name(group.key.name)), {})
    return int(made.get("status", {}).get("readyReplicas") or 0), int(document["spec"]["partitions"])


def _has_server(pod: Document) -> bool:
    states = pod.get("status", {}).get("initContainerStatuses") or ()
    return any(each["name"] == SIDECAR and each.get("started") for each in states)


def lacks_pods(document: Document, group: Group) -> bool:
    """Return whether pods of a set's StatefulSet have not been created yet."""
    made = group.made.get(("StatefulSet", runtime_name(group.key.name)))
    return made is not None and int(made.get("status", {}).get("replicas") or 0) < int(document["spec"]["partitions"])


def _serves(document: Document, ready: int, wanted: int, refusal: str) -> Condition:
    if mode_of(document) != NODE and not wanted:
        return Condition(SERVED, FALSE, "NoPods", "no pod reads it now; each brings its own cache")
    if ready >= wanted:
        return Condition(SERVED, TRUE, "Serving", f"{ready} of {wanted} servers are ready")
    if refusal:
        return Condition(SERVED, FALSE, "PodRefused", f"{ready} of {wanted} servers are ready: {refusal}")
    where = "pods" if mode_of(document) != NODE else f"the StatefulSet {runtime_name(document['metadata']['name'])}"
    return Condition(
        SERVED, FALSE, "Starting", f"{ready} of {wanted} servers are ready; see `kubectl describe` of {where}"
    )


def _listed(group: Group) -> Iterator[Condition]:
    if error := errors_of(group.reports):
        yield Condition(LISTED, FALSE, "SourceRefused", error)


def _notes(found: PodSet, group: Group) -> Iterator[Condition]:
    """Yield the conditions about chosen defaults and about options without effect."""
    if found.notes:
        yield Condition(NOTES, TRUE, "Notes", "; ".join(found.notes))
    of_secrets = (
        each for name in found.secrets for each in keys_without_effect(name, group.secrets.get(name) or set())
    )
    yield from without_effect([*found.without_effect, *of_secrets])


def _status(
    document: Document, group: Group, said: list[Condition], phase: str, *, ready: int = 0, wanted: int = 0
) -> dict[str, Any]:
    problems = "; ".join(
        each.message
        for each in said
        if (each.type in (ACCEPTED, LISTED) and each.status == FALSE) or each.reason == "PodRefused"
    )
    return {
        "phase": phase,
        "cacheStatus": {
            **cache_status(document, group.reports, has_servers=ready > 0),
            "errorMassage": problems[:MOST_SAID],
        },
        "runtimeStatus": {"runtimeReady": f"{ready}/{wanted}", "specReplicas": wanted, "readyReplicas": ready},
        "observedGeneration": document["metadata"].get("generation", 1),
        "conditions": conditions(document, said, group.now),
    }


def _deleted(document: Document, group: Group, readers: list[str]) -> DocumentDecision:
    """Decide about a deleted set: the finalizer keeps it and its objects while pods read it."""
    if not readers:
        return DocumentDecision(kept=frozenset(group.made))
    shown = ", ".join(sorted(readers)[:8]) + (f" and {len(readers) - 8} more" if len(readers) > 8 else "")
    waits = Condition(
        DELETED, FALSE, "PodsRun", f"{len(readers)} pods read it: {shown}; it is deleted once they have ended"
    )
    before = document.get("status") or {}
    others = [each for each in before.get("conditions") or () if each["type"] != DELETED]
    status = {**before, "conditions": [*others, *conditions(document, [waits], group.now)]}
    return DocumentDecision(kept=frozenset(group.made), status=status, is_held=True, waits=True)
