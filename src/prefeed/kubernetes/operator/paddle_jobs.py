"""Decides the outcome for a PaddleJob: its Service and pods once its set is readable, and its status. Pure.

::

    Pending ─→ Running ─→ Completed      Both ends are final. `cleanPodPolicy` selects those at which pods are removed.
       └──────────┴─────→ Failed
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from prefeed.errors import SpecError
from prefeed.kubernetes.mounts import mount_name, require_user
from prefeed.kubernetes.nodes import NODE, NodeSet, mode_of, node_set
from prefeed.kubernetes.operator.groups import (
    FALSE,
    TRUE,
    Condition,
    DocumentDecision,
    Group,
    conditions,
    is_owned,
    owned,
    without_effect,
)
from prefeed.kubernetes.operator.sample_sets import is_usable
from prefeed.kubernetes.paddle_pods import ROLE, WORKER, pod, pod_names, require_files, service
from prefeed.kubernetes.paddlejob import (
    COMPLETED,
    FAILED,
    OVER,
    PENDING,
    RUNNING,
    PaddleJob,
    PaddleJobSpec,
    parse_paddle_job,
)
from prefeed.kubernetes.sets import PodSet, pod_set
from prefeed.sampleset.documents import Document
from prefeed.sampleset.spec import KIND as SAMPLE_SET

RUNNABLE: Final = "Runnable"
"""Type of the condition that is true unless the job waits for its set or is refused."""

_CLEANED: Final = {COMPLETED: (None, "Always", "OnCompletion"), FAILED: ("Always", "OnFailure")}
"""Values of ``cleanPodPolicy``, or None if it is missing, that remove the pods of a job with this end."""

_PHASES: Final = ("pending", "running", "succeeded", "failed")
"""Phases of pods. A status counts each, even if 0, because the API server merges it with the previous status."""

_Counts = Mapping[str, Mapping[str, int]]
"""Number of pods in each phase, by role."""


class _Waiting(Exception):
    """Raised while a job waits. ``args`` are the reason and the message of its condition."""


def decide_paddle_job(document: Document, group: Group) -> DocumentDecision:
    """Decide the outcome for a PaddleJob.

    Args:
        document: The PaddleJob, as in the API server.
        group: Its group.
    """
    own = [each for each in group.pods if is_owned(each, document)]
    there = frozenset(("Pod", each["metadata"]["name"]) for each in own)
    untouched = there | {("Service", document["metadata"]["name"])}
    if document["metadata"].get("deletionTimestamp"):
        return DocumentDecision(kept=untouched)
    try:
        job = parse_paddle_job(document)
    except SpecError as err:
        refused = Condition(RUNNABLE, FALSE, "Refused", str(err))
        phase = (document.get("status") or {}).get("phase") or PENDING  # a final phase is kept
        return DocumentDecision(kept=untouched, status={"phase": phase, **_common(document, [refused], group)})
    counts = {role: _counted(own, role) for role in job.spec.pods}
    before = document.get("status") or {}
    phase = _phase(job.spec, counts, str(before.get("phase") or ""))
    if phase in OVER:
        return _ended(document, group, job, phase, _kept(before, counts) if before.get("phase") in OVER else counts)
    names = pod_names(job)
    said = Condition(RUNNABLE, TRUE, "Found", "its pods are made")
    objects: tuple[Document, ...] = ()
    try:
        found = _set_of(job, group)
        made = (service(job), *(pod(job, *at, found) for name, at in names.items() if ("Pod", name) not in there))
        objects = tuple(owned(document, each) for each in made)
    except _Waiting as err:
        said = Condition(RUNNABLE, FALSE, *err.args)
    except SpecError as err:
        said = Condition(RUNNABLE, FALSE, "Refused", str(err))
    kept = frozenset(("Pod", name) for name in names) & there
    if not objects:
        kept |= {("Service", job.metadata.name)}
    return DocumentDecision(objects=objects, kept=kept, status=_status(document, group, job, phase, counts, said))


# ---------------------------------------------------------------- the set


def _set_of(job: PaddleJob, group: Group) -> PodSet | NodeSet | None:
    """Return the set of a job in the form for its pods, or None if it names none.

    Raises:
        _Waiting: The set is not readable yet.
        SpecError: The job cannot read the set. The message names the change to make.
    """
    ref = job.spec.sample_set_ref
    if ref is None:
        return None
    if ref.namespace not in ("", group.key.namespace):
        raise SpecError(
            f"the SampleSet {ref.name} is in the namespace {ref.namespace}, and the job in {group.key.namespace}: pods read "
            "sets of their own namespace only"
        )
    document = group.document(SAMPLE_SET)
    if document is None:
        raise _Waiting(
            "NoSampleSet", f"waits for the SampleSet {ref.name} in the namespace {group.key.namespace}: apply it"
        )
    if mode_of(document) != NODE:
        require_files(ref, pod_set(document))
    if not is_usable(document):
        phase = (document.get("status") or {}).get("phase") or "new"
        raise _Waiting(
            "SampleSetNotReady",
            f"waits for the SampleSet {ref.name}, which is {phase}: `kubectl describe sampleset {ref.name}` says why",
        )
    if mode_of(document) != NODE:
        return pod_set(document)
    found = node_set(document, image=group.choices.image, pool_image=group.choices.pool_image)
    if ref.mount_path:
        _require_mounts(found, group)
    return found


def _require_mounts(found: NodeSet, group: Group) -> None:
    require_user(found)
    made = group.made.get(("StatefulSet", mount_name(found.found.name)), {})
    is_terminating = "deletionTimestamp" in (made.get("metadata") or {})
    ready = 0 if is_terminating else int((made.get("status") or {}).get("readyReplicas") or 0)
    if ready < found.partitions:
        raise _Waiting(
            "MountNotReady",
            f"waits for the mounts of the SampleSet {found.found.name}: {ready} of {found.partitions} nodes have one; `kubectl "
            f"describe statefulset {mount_name(found.found.name)}` says why",
        )


# ---------------------------------------------------------------- status


def _counted(pods: Sequence[Document], role: str) -> Counter[str]:
    return Counter(
        str((each.get("status") or {}).get("phase") or PENDING).lower()
        for each in pods
        if (each["metadata"].get("labels") or {}).get(ROLE) == role
    )


def _phase(spec: PaddleJobSpec, counts: Mapping[str, Counter[str]], before: str) -> str:
    if before in OVER:
        return before
    if any(count["failed"] for count in counts.values()):
        return FAILED
    wanted = {role: given.replicas for role, given in spec.pods.items()}
    if all(counts[role]["succeeded"] >= number for role, number in wanted.items()):
        return COMPLETED
    runs = all(counts[role]["running"] + counts[role]["succeeded"] >= number for role, number in wanted.items())
    return RUNNING if runs else PENDING


def _kept(before: Mapping[str, Any], counts: _Counts) -> _Counts:
    """Return the counts at the end of a job, because its pods may have been removed since."""
    return {role: before.get(role) or {} for role in counts}


def _ended(document: Document, group: Group, job: PaddleJob, phase: str, counts: _Counts) -> DocumentDecision:
    is_cleaned = job.spec.clean_pod_policy in _CLEANED[phase]
    own = {("Pod", each["metadata"]["name"]) for each in group.pods if is_owned(each, document)}
    kept = frozenset() if is_cleaned else frozenset({*own, ("Service", job.metadata.name)})
    said = Condition(RUNNABLE, TRUE, phase, f"it has ended: {phase}")
    return DocumentDecision(kept=kept, status=_status(document, group, job, phase, counts, said))


def _status(
    document: Document, group: Group, job: PaddleJob, phase: str, counts: _Counts, said: Condition
) -> dict[str, Any]:
    before = document.get("status") or {}
    now = group.now.strftime("%Y-%m-%dT%H:%M:%SZ")
    start = before.get("startTime") or (now if phase != PENDING else None)
    end = before.get("completionTime") or (now if phase in OVER else None)
    return {
        "phase": phase,
        "mode": "PS" if job.spec.ps else "Collective" if job.spec.pods[WORKER].replicas > 1 else "Single",
        **{role: {name: count.get(name, 0) for name in _PHASES} for role, count in counts.items()},
        **({"startTime": start} if start else {}),
        **({"completionTime": end} if end else {}),
        **_common(document, [said, *_without_effect(job)], group),
    }


def _common(document: Document, said: list[Condition], group: Group) -> dict[str, Any]:
    return {
        "observedGeneration": document["metadata"].get("generation", 1),
        "conditions": conditions(document, said, group.now),
    }


def _without_effect(job: PaddleJob) -> Iterator[Condition]:
    given: dict[str, object] = {"intranet": job.spec.intranet, "schedulingPolicy": job.spec.scheduling_policy}
    for role, replicas in job.spec.pods.items():
        given |= {f"{role}.requests": replicas.requests, f"{role}.limits": replicas.limits}
    names = [f"spec.{name}" for name, value in given.items() if value is not None]
    return without_effect([f"{', '.join(names)}: all pods are made, and find each other by name"] if names else [])
