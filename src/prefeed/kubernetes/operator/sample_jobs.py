"""Decides the outcome for a SampleJob: a Kubernetes Job, one per set at a time, in the order of creation. Pure.

::

    "" ─→ Pending ─→ Running ─→ Succeeded      Succeeded is final.
             └──────────┴─────→ Failed         A failed one runs again when its spec changes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from prefeed.errors import SpecError
from prefeed.jobs.records import FAILED, PENDING, RUNNING, SUCCEEDED
from prefeed.jobs.spec import CLEAR, KIND, RMR, WARMUP, parse_job
from prefeed.kubernetes.jobs import REFUSED, warmup_of
from prefeed.kubernetes.nodes import INSTANCE, MANAGED, NODE, NodeSet, apart, mode_of, near, node_set, placed, server_of
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
from prefeed.kubernetes.pods import IMAGE, server_container, volumes_of
from prefeed.kubernetes.sets import PodSet, pod_set
from prefeed.sampleset.documents import Document
from prefeed.sampleset.spec import API_VERSION
from prefeed.sampleset.spec import KIND as SAMPLE_SET

CONSENT: Final = "prefeed.io/consent"
"""Annotation of an rmr job: its own name, by which the user consents to the removal of data at its origin."""

SCHEDULED: Final = "Scheduled"
JOB: Final = "prefeed.io/samplejob"
"""Label of the objects of a job."""

_OVER: Final = (SUCCEEDED, FAILED)
_REFUSED_STATUS: Final = 2
_TRIES: Final = 3
"""Maximum restarts of a killed pod. A job that fails is not restarted."""

_MOST_OF_NAME: Final = 43
"""Maximum letters of a job's name in the name of its Job: a CronJob may have 52."""

_State = tuple[str, Condition]


def decide_job(document: Document, group: Group) -> DocumentDecision:
    """Decide the outcome for a SampleJob.

    Args:
        document: The SampleJob, as in the API server.
        group: Its group.
    """
    own = [made for (kind, _), made in group.made.items() if kind in ("Job", "CronJob") and is_owned(made, document)]
    kept = frozenset((made["kind"], made["metadata"]["name"]) for made in own)
    if document["metadata"].get("deletionTimestamp") or _is_final(document):
        return DocumentDecision(kept=frozenset() if _is_terminated(document) else kept)
    objects: tuple[Document, ...] = ()
    waits = False
    try:
        phase, said = _state(document, group, own)
        if said.reason == SCHEDULED or (phase == PENDING and said.status == TRUE):
            objects = (owned(document, _object(document, group)),)
        else:
            waits = phase == PENDING
    except SpecError as err:
        phase, said = FAILED, Condition("Complete", FALSE, "Refused", str(err))
    current = frozenset((made["kind"], made["metadata"]["name"]) for made in own if _is_current(made, document))
    name = next((made["metadata"]["name"] for made in own if _is_current(made, document)), "")
    status = {
        "phase": phase,
        "jobName": objects[0]["metadata"]["name"] if objects else name,
        "observedGeneration": document["metadata"].get("generation", 1),
        "conditions": conditions(document, [said, *_without_effect(document)], group.now),
    }
    ended = phase == FAILED and said.reason == "Terminated"
    return DocumentDecision(objects=objects, kept=frozenset() if ended else current, status=status, waits=waits)


def _without_effect(document: Document) -> Iterator[Condition]:
    try:
        return without_effect(parse_job(_asked(document)).spec.notes)
    except SpecError:
        return without_effect([])


def _asked(document: Document) -> Document:
    """Return the fields of a document that its user wrote."""
    return {key: document[key] for key in ("apiVersion", "kind", "metadata", "spec")}


def _is_final(document: Document) -> bool:
    """Return whether a job has succeeded, or has failed with its current spec."""
    status = document.get("status") or {}
    if status.get("phase") == SUCCEEDED:
        return True
    return status.get("phase") == FAILED and status.get("observedGeneration") == document["metadata"].get(
        "generation", 1
    )


def _is_terminated(document: Document) -> bool:
    """Return whether another job terminated this one. Its Job may still exist, because its status is written first."""
    said = (document.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Complete" and each["reason"] == "Terminated" for each in said)


def _queue(group: Group) -> list[Document]:
    """Return the pending and running jobs of a set in the order of creation.

    Jobs with a schedule, jobs in sidecars and jobs without consent are omitted, because they would block the others.
    """
    found = group.document(SAMPLE_SET)
    in_sidecars = found is not None and mode_of(found) != NODE
    return [
        each
        for each in group.documents.get(KIND, ())
        if not (each["metadata"].get("deletionTimestamp") or _is_final(each) or "schedule" in each["spec"])
        and not (in_sidecars and each["spec"]["type"] == WARMUP)
        and not _lacks_consent(each)
    ]


def _state(document: Document, group: Group, own: Sequence[Document]) -> _State:
    """Return the phase and the condition of a job. Pending with a true condition means: create its Job now.

    Raises:
        SpecError: The job is refused.
    """
    said = parse_job(_asked(document)).spec
    if not group.key.name:
        raise SpecError("spec.sampleSetRef is missing: in a cluster a job runs for a set; name one")
    current = next((made for made in own if made["kind"] == "Job" and _is_current(made, document)), None)
    if current is not None and (end := _end_of(current, group)) is not None:  # even if its set was deleted since
        return end
    found = group.document(SAMPLE_SET)
    if found is None or found["metadata"].get("deletionTimestamp"):
        return _waiting("NoSampleSet", f"there is no SampleSet {group.key.name} in {group.key.namespace}: create it")
    try:
        is_on_nodes = mode_of(found) == NODE
    except SpecError as err:  # an error of the set, not of the job
        return _waiting("SampleSetNotReady", f"the SampleSet {group.key.name} is refused: {err}")
    if _lacks_consent(document):
        name = document["metadata"]["name"]
        return _terminated(document, group) or _waiting(
            "NoConsent", f"it removes data at its origin: agree by `kubectl annotate samplejob {name} {CONSENT}={name}`"
        )
    if not is_on_nodes and said.type == CLEAR:
        raise SpecError(f"the job has the type {said.type}: {REFUSED[said.type]}")
    if not is_on_nodes and said.type == WARMUP:
        warmup_of(_asked(document))
        return RUNNING, Condition(
            "Complete", FALSE, "InSidecars", "the sidecar of each pod of the set runs it when the pod starts"
        )
    is_made = any(_is_current(made, document) for made in own)
    if not (is_made or is_usable(found)):  # a started job runs to its end
        return _waiting("SampleSetNotReady", f"the SampleSet {group.key.name} is not ready: see its conditions")
    if said.schedule is not None:
        return RUNNING, Condition(
            "Complete", FALSE, SCHEDULED, f"it runs at {said.schedule}; see the CronJob {name_of(document)}"
        )
    return _in_queue(document, group, current)


def _lacks_consent(document: Document) -> bool:
    is_removal = document["spec"].get("type") == RMR
    return is_removal and bool(_annotations(document).get(CONSENT) != document["metadata"]["name"])


def _in_queue(document: Document, group: Group, current: Document | None) -> _State:
    if (end := _terminated(document, group)) is not None:
        return end
    queue = _queue(group)
    place = [each["metadata"]["uid"] for each in queue].index(document["metadata"]["uid"])
    if current is not None:
        return RUNNING, Condition("Complete", FALSE, "Running", f"the Job {current['metadata']['name']} runs")
    running = [each["metadata"]["name"] for each in active_jobs(group)]
    before = [each["metadata"]["name"] for each in queue[:place]]
    if running or (before and not document["spec"].get("terminate")):
        ahead = ", ".join([*running, *before][:8])
        return _waiting(
            "Queued", f"it waits for {ahead}: jobs of a set run one at a time, in the order of their creation"
        )
    return PENDING, Condition("Complete", TRUE, "Starts", "its Job is made")


def _terminated(document: Document, group: Group) -> _State | None:
    """Return the end of a job that a later job of the queue terminates, otherwise None."""
    uids = [each["metadata"]["uid"] for each in group.documents[KIND]]
    later = uids[uids.index(document["metadata"]["uid"]) + 1 :]
    for each in _queue(group):
        if each["spec"].get("terminate") and each["metadata"]["uid"] in later:
            name = each["metadata"]["name"]
            return FAILED, Condition("Complete", FALSE, "Terminated", f"the SampleJob {name} has terminated it")
    return None


def active_jobs(group: Group) -> list[Document]:
    """Return the unfinished Jobs of a set."""
    jobs = (made for (kind, _), made in group.made.items() if kind == "Job")
    return [made for made in jobs if not _finished(made) and JOB in (made["metadata"].get("labels") or {})]


def _waiting(reason: str, message: str) -> _State:
    return PENDING, Condition("Complete", FALSE, reason, message)


def _finished(made: Document) -> str:
    """Return ``Complete`` or ``Failed`` for a finished Job, otherwise an empty text."""
    for each in made.get("status", {}).get("conditions") or ():
        if each["type"] in ("Complete", "Failed") and each["status"] == TRUE:
            return str(each["type"])
    return ""


def _end_of(made: Document, group: Group) -> _State | None:
    name = made["metadata"]["name"]
    said = group.ends.get(name, "").strip()
    match _finished(made):
        case "Complete":
            return SUCCEEDED, Condition("Complete", TRUE, "Succeeded", said or "it is done")
        case "Failed":
            return FAILED, Condition(
                "Complete", FALSE, "Failed", said or f"see `kubectl describe job {name}` and its logs"
            )
    return None


def _annotations(document: Document) -> dict[str, Any]:
    return document["metadata"].get("annotations") or {}


# ---------------------------------------------------------------- the Job


def name_of(document: Document) -> str:
    """Return the name of the Job of a SampleJob, with a hash of its uid and options."""
    what = json.dumps([document["metadata"]["uid"], document["spec"]], sort_keys=True)
    return f"{document['metadata']['name'][:_MOST_OF_NAME].rstrip('-')}-{hashlib.sha256(what.encode()).hexdigest()[:8]}"


def _is_current(made: Document, document: Document) -> bool:
    return bool(made["metadata"]["name"] == name_of(document))


def _object(document: Document, group: Group) -> Document:
    found = group.document(SAMPLE_SET)
    assert found is not None
    schedule = document["spec"].get("schedule")
    asked = {name: value for name, value in document["spec"].items() if name != "schedule"}
    work = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name_of(document)}, "spec": asked}
    command = ["prefeed", "kubernetes", "job", group.key.name, json.dumps(work), *(["--again"] if schedule else [])]
    labels = {**MANAGED, INSTANCE: group.key.name, JOB: document["metadata"]["name"]}
    if mode_of(found) == NODE:
        given = node_set(found, image=group.choices.image, pool_image=group.choices.pool_image)
        given = replace(given, found=_with_secret(given.found, document))
        spec = _on_nodes(given, labels, command, is_everywhere=document["spec"]["type"] in (WARMUP, CLEAR))
    else:
        spec = _anywhere(_with_secret(pod_set(found), document), found, group, command)
    spec["template"]["metadata"] = {"labels": labels}
    metadata = {"name": name_of(document), "labels": labels}
    spec = {"backoffLimit": _TRIES, "podFailurePolicy": _FAILURES, **spec}
    if not schedule:
        return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}
    cron = {
        "schedule": schedule,
        "concurrencyPolicy": "Forbid",
        "jobTemplate": {"metadata": {"labels": labels}, "spec": spec},
    }
    return {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": metadata, "spec": cron}


def _with_secret(found: PodSet, document: Document) -> PodSet:
    """Add the Secret of a sync to the set's, for the volumes of its pod."""
    name = parse_job(_asked(document)).spec.secret
    return found if name in ("", *found.secrets) else replace(found, secrets=(*found.secrets, name))


_FAILURES: Final = {
    "rules": [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {
            "action": "FailJob",
            "onExitCodes": {"containerName": "job", "operator": "In", "values": [1, _REFUSED_STATUS]},
        },
    ]
}
"""Job failure rules: a job that reports its failure is not retried, an evicted pod is."""


def _on_nodes(given: NodeSet, labels: dict[str, str], command: list[str], *, is_everywhere: bool) -> dict[str, Any]:
    """Build the ``spec`` of a Job on nodes with a server: one pod, or one per node."""
    affinity: dict[str, Any] = {
        "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [near(given)]},
        **({"podAntiAffinity": apart(labels)} if is_everywhere else {}),
    }
    count = {"completionMode": "Indexed", "completions": given.partitions, "parallelism": given.partitions}
    container = _container(server_of(given), command)
    if is_everywhere and given.partitions > 1:
        container["command"] = [*command, "--partitions", str(given.partitions)]
    pod = {**placed(given), **_POD, "affinity": affinity, "containers": [container]}
    return {**(count if is_everywhere else {}), "template": {"spec": pod}}


def _anywhere(said: PodSet, found: Document, group: Group, command: list[str]) -> dict[str, Any]:
    """Build the ``spec`` of a Job with volumes of its own."""
    if said.directory:
        raise SpecError(
            f"the set is the directory {said.directory}, which a Job of the operator does not have: run `prefeed job`"
        )
    image = _annotations(found).get(IMAGE) or group.choices.image
    if not image:
        raise SpecError(
            f"jobs of {said.name} have no image: name one with prefeed in the annotation {IMAGE} of the set"
        )
    container = server_container(said, {"name": "job"}, image, {"seccompProfile": {}})
    affinity, tolerations = found["spec"].get("nodeAffinity"), found["spec"].get("tolerations")
    pod = {
        **_POD,
        **({"affinity": {"nodeAffinity": affinity}} if affinity else {}),
        **({"tolerations": tolerations} if tolerations else {}),
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "volumes": list(volumes_of(said)),
        "containers": [_container(container, command)],
    }
    return {"template": {"spec": pod}}


_POD: Final = {"restartPolicy": "Never", "automountServiceAccountToken": False}


def _container(server: dict[str, Any], command: list[str]) -> dict[str, Any]:
    """Build the container of a job from a server's. It starts no server, for which it lacks the memory."""
    left = ("restartPolicy", "startupProbe")
    no_server = {"name": "PREFEED_AUTOSTART", "value": "0"}
    kept = {name: value for name, value in server.items() if name not in left}
    return {**kept, "name": "job", "command": command, "env": [*kept["env"], no_server], "resources": _RESOURCES}


_RESOURCES: Final = {"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": {"memory": "2Gi"}}
