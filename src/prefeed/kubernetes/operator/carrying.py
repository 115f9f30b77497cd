"""Reconciles groups: computes the outcome of each document and applies the difference to the cluster.

**Repeatable**: this operator or another one may repeat every step, because names follow from documents, objects are
applied, and a status replaces only the version that was read.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Final, Protocol

from prefeed.errors import ClusterError, PrefeedError, SpecError
from prefeed.jobs.spec import KIND as SAMPLE_JOB
from prefeed.kubernetes.nodes import INSTANCE, MANAGED, runtime_name
from prefeed.kubernetes.operator.groups import (
    FALSE,
    FINALIZER,
    Choices,
    Condition,
    DocumentDecision,
    Group,
    Key,
    Resource,
    controller_of,
    is_owned,
)
from prefeed.kubernetes.operator.kinds import EVENTS, KINDS, MADE, PODS, SECRETS, Kind, watched
from prefeed.kubernetes.operator.refusals import OBJECT_REFUSED, before_objects, is_refusal, refused, with_condition
from prefeed.kubernetes.operator.sample_jobs import active_jobs
from prefeed.kubernetes.operator.sample_sets import lacks_pods
from prefeed.kubernetes.operator.uncached import uncached
from prefeed.kubernetes.operator.world import World
from prefeed.kubernetes.pods import LABEL
from prefeed.kubernetes.sets import pod_set
from prefeed.kubernetes.sizes import Report
from prefeed.kubernetes.without_effect import REDIS
from prefeed.sampleset.documents import Document
from prefeed.sampleset.spec import KIND as SAMPLE_SET

APPLIED: Final = "prefeed.io/applied"
"""Annotation of an object: hash of the object as it was applied."""

OURS: Final = ",".join(f"{name}={value}" for name, value in MANAGED.items())
"""Label selector of the objects that the operator creates."""

_Secrets = dict[str, frozenset[str] | None]

_JOB_NAME: Final = "batch.kubernetes.io/job-name"
_MOST_SAID: Final = 1000


class Api(Protocol):
    """Requests to the API server, sent by ``client.Client``. Each raises ``ClusterError`` if it fails."""

    async def list(
        self, resource: Resource, namespace: str, selector: str = "", fields: str = ""
    ) -> list[Document]: ...
    async def get(self, resource: Resource, namespace: str, name: str) -> Document: ...
    async def create(self, resource: Resource, document: Document) -> Document: ...
    async def apply(self, resource: Resource, document: Document) -> Document: ...
    async def patch(self, resource: Resource, document: Document, change: Document, part: str = "") -> Document: ...
    async def delete(self, resource: Resource, document: Document) -> None: ...


def selector_of(resource: Resource) -> str:
    """Return the label selector for the objects of a kind that the operator watches."""
    if resource == PODS:
        return LABEL
    return OURS if resource.kind in MADE else ""


class Carrier:
    """Reconciler of groups.

    Args:
        api: Sends requests.
        world: Cache of objects. Replies are recorded in it.
        choices: Options of the operator.
        clock: Returns the time.
        reports: Returns the last reports of a set's servers.
    """

    def __init__(
        self,
        api: Api,
        world: World,
        choices: Choices,
        clock: Callable[[], datetime],
        reports: Callable[[Key], Mapping[str, Report]] = lambda _: {},
    ) -> None:
        self._api = api
        self._world = world
        self._choices = choices
        self._clock = clock
        self._reports = reports
        self._warned: dict[Key, set[str]] = {}

    async def see_all(self, namespaces: Iterable[str]) -> set[Key]:
        """List all objects that the operator watches, and return their groups.

        Args:
            namespaces: Namespaces to list. A single empty text selects all.
        """
        keys = set()
        places = list(namespaces)
        for resource in watched(self._choices):
            before = self._world.versions(resource.kind)
            found = [each for place in places for each in await self._api.list(resource, place, selector_of(resource))]
            keys |= self._world.replace(before, found)
        return keys

    async def carry(self, key: Key) -> bool:
        """Reconcile all documents of a group. Return whether to reconcile it again soon."""
        waits = False
        failure: PrefeedError | None = None
        await self._see_readers(key)
        secrets = await self._secrets(self._group(key))
        for kind in KINDS.values():
            for document in self._group(key).documents[kind.resource.kind]:
                try:
                    waits |= await self._carry_one(kind, document, key, secrets)
                except PrefeedError as err:
                    if err.details.get("status") == 0:  # unreachable for the other documents, too
                        raise
                    failure = failure or err
        await self._warn(key)
        if failure is not None:
            try:
                raise failure
            finally:
                del failure
        return waits

    async def _carry_one(self, kind: Kind, document: Document, key: Key, secrets: _Secrets) -> bool:
        """Reconcile one document. ``carry`` continues with the rest of the group if it is refused."""
        group = self._group(key)
        known = {"secrets": secrets, "ends": await self._ends(group)}
        if document["kind"] == SAMPLE_SET and lacks_pods(document, group):
            known["refusal"] = await self._refusal(group)
        outcome = kind.decide(document, self._group(key, **known))
        if await self._look_before(outcome, document, key):
            outcome = kind.decide(document, self._group(key, **known))
        await self._carry(kind.resource, document, outcome)
        return outcome.waits

    async def group_now(self, key: Key) -> Group:
        """Return a group after reading its set from the API server, as a pod may be created right after it."""
        resource = KINDS[SAMPLE_SET].resource
        try:
            self._see(await self._api.get(resource, key.namespace, key.name), resource)
        except ClusterError as err:
            if err.details["status"] != 404:
                raise
            if known := self._world.get(SAMPLE_SET, key.namespace, key.name):
                self._world.forget(known)
        return self._group(key)

    def _group(self, key: Key, **known: Any) -> Group:
        reports = self._reports(key)
        return self._world.group(key, now=self._clock(), choices=self._choices, reports=reports, **known)

    # ---------------------------------------------------------------- writes

    async def _carry(self, resource: Resource, document: Document, outcome: DocumentDecision) -> None:
        document = await self._hold(resource, document, outcome)
        document = await self._write(resource, document, outcome, before_objects(document))
        wanted = {(each["kind"], each["metadata"]["name"]) for each in outcome.objects} | outcome.kept
        refusals: list[tuple[Document, ClusterError]] = []
        for each in outcome.objects:
            try:
                await self._apply(each)
            except ClusterError as err:
                if not is_refusal(err):
                    raise
                refusals.append((each, err))
        document = await self._write(resource, document, outcome, refused(refusals))
        owned = [made for made in self._group_of(document).made.values() if is_owned(made, document)]
        for made in owned:
            if (made["kind"], made["metadata"]["name"]) not in wanted:
                await self._api.delete(MADE[made["kind"]], made)
                self._world.forget(made)
        if refusals:
            try:
                raise refusals[0][1]  # the worker retries with growing delays
            finally:
                del refusals

    async def _write(
        self, resource: Resource, document: Document, outcome: DocumentDecision, objects: Condition | None
    ) -> Document:
        """Write a status if it has changed. Return the resulting document.

        Args:
            resource: Kind of the document.
            document: Document as last read.
            outcome: Decision about the document.
            objects: Condition of its refused objects, or None.
        """
        status = with_condition(document, outcome.status, objects, self._clock())
        if status is None or status == document.get("status"):
            return document
        before = document
        document = await self._api.patch(resource, document, {"status": status}, "status")
        self._see(document, resource)
        await self._tell(before, status)
        return document

    def _group_of(self, document: Document) -> Group:
        kind = KINDS[document["kind"]]
        return self._group(Key(document["metadata"]["namespace"], kind.set_of(document)))

    async def _hold(self, resource: Resource, document: Document, outcome: DocumentDecision) -> Document:
        """Add or remove the finalizer if necessary. Return the resulting document."""
        finalizers = list(document["metadata"].get("finalizers") or ())
        if outcome.is_held == (FINALIZER in finalizers):
            return document
        if outcome.is_held and document["metadata"].get("deletionTimestamp"):
            return document  # a deleted object accepts no new finalizer
        changed = [*finalizers, FINALIZER] if outcome.is_held else [each for each in finalizers if each != FINALIZER]
        document = await self._api.patch(resource, document, {"metadata": {"finalizers": changed}})
        self._see(document, resource)
        return document

    async def _apply(self, wanted: Document) -> None:
        text = json.dumps(wanted, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        metadata = wanted["metadata"]
        made = self._world.get(wanted["kind"], metadata["namespace"], metadata["name"])
        if made is not None and (made["metadata"].get("annotations") or {}).get(APPLIED) == digest:
            return
        annotations = {**(metadata.get("annotations") or {}), APPLIED: digest}
        resource = MADE[wanted["kind"]]
        await self._require_ours(resource, wanted, made)
        applied = await self._api.apply(resource, {**wanted, "metadata": {**metadata, "annotations": annotations}})
        self._see(applied, resource)

    async def _require_ours(self, resource: Resource, wanted: Document, there: Document | None) -> None:
        """Refuse to take over an object of another owner, because it would be deleted with this document.

        Raises:
            ClusterError: Another owner has an object of this name. The message names it.
        """
        namespace, name = wanted["metadata"]["namespace"], wanted["metadata"]["name"]
        if there is None:  # an object without the operator's label is not watched
            try:
                there = await self._api.get(resource, namespace, name)
            except ClusterError as err:
                if err.details["status"] != 404:
                    raise
                return
        theirs, ours = controller_of(there), controller_of(wanted)
        is_made_here = MANAGED.items() <= (there["metadata"].get("labels") or {}).items()
        if theirs != ours and not (theirs is None and is_made_here):
            called = " ".join(ours or ())
            raise ClusterError(
                f"there is a {wanted['kind']} {name} in {namespace} that was not made for the {called}: remove it, or give the "
                f"{called} another name",
                status=409,
            )

    def _see(self, document: Document, resource: Resource) -> None:
        self._world.see({**document, "apiVersion": resource.api_version, "kind": resource.kind})

    async def _tell(self, document: Document, status: dict[str, Any]) -> None:
        """Create an event for each condition with a new reason or message."""
        before = {each["type"]: each for each in (document.get("status") or {}).get("conditions") or ()}
        for each in status["conditions"]:
            old = before.get(each["type"], {})
            if (each["reason"], each["message"]) != (old.get("reason"), old.get("message")):
                is_problem = each["status"] == FALSE and each["reason"] in _PROBLEMS
                name = {"generateName": f"{document['metadata']['name']}-"}
                event = self._event(document, name, each["reason"], each["message"], is_problem=is_problem)
                await self._api.create(EVENTS, event)

    async def _warn(self, key: Key) -> None:
        """Create one event per pod without a cache. The pod's uid is part of the name, so that it is not repeated."""
        found = {each.pod["metadata"]["uid"]: each for each in uncached(self._group(key))}
        told = self._warned.pop(key, set()) & found.keys()
        for uid, each in found.items():
            if uid not in told:
                event = self._event(each.pod, {"name": f"prefeed-{uid}"}, each.reason, each.message, is_problem=True)
                try:
                    await self._api.create(EVENTS, event)
                except ClusterError as err:
                    if err.details["status"] != 409:  # a previous operator has created the event
                        raise
        if found:
            self._warned[key] = set(found)

    def _event(
        self, document: Document, name: dict[str, str], reason: str, message: str, *, is_problem: bool
    ) -> Document:
        metadata = document["metadata"]
        now = self._clock()
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {**name, "namespace": metadata["namespace"]},
            "involvedObject": {
                "apiVersion": document["apiVersion"],
                "kind": document["kind"],
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "uid": metadata["uid"],
            },
            "type": "Warning" if is_problem else "Normal",
            "reason": reason,
            "message": message[:_MOST_SAID],
            "source": {"component": "prefeed-operator"},
            "firstTimestamp": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "lastTimestamp": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "count": 1,
        }

    # ---------------------------------------------------------------- reads

    async def _see_readers(self, key: Key) -> None:
        """List the pods that hold a deleted set: a watch that starts later does not report those deleted before."""
        document = self._world.get(SAMPLE_SET, *key)
        if document is not None and document["metadata"].get("deletionTimestamp"):
            readers = {pod["metadata"]["name"] for pod in self._group(key).pods}
            known = self._world.versions(PODS.kind).items()
            before = {name: version for name, version in known if name[1] == key.namespace and name[2] in readers}
            self._world.replace(before, await self._api.list(PODS, key.namespace, f"{LABEL}={key.name}"))

    async def _look_before(self, outcome: DocumentDecision, document: Document, key: Key) -> bool:
        """Refresh the objects on which an irreversible step depends. Return whether there is such a step."""
        is_released = FINALIZER in (document["metadata"].get("finalizers") or ()) and not outcome.is_held
        starts = any(each["kind"] == "Job" for each in outcome.objects)
        if starts:  # another Job may have been started since the last list
            await self._look_at(MADE["Job"], key, f"{OURS},{INSTANCE}={key.name}")
        if is_released:  # a reader may have been created since the last list
            await self._look_at(PODS, key, f"{LABEL}={key.name}")
        return starts or is_released

    async def _look_at(self, resource: Resource, key: Key, selector: str) -> None:
        for each in await self._api.list(resource, key.namespace, selector):
            self._world.see(each)

    async def _secrets(self, group: Group) -> _Secrets:
        """Return the key names of the secrets of a set. Their values are not stored."""
        document = group.document(SAMPLE_SET)
        try:
            is_wanted = document is not None and not document["metadata"].get("deletionTimestamp")
            names = pod_set(document).secrets if document is not None and is_wanted else ()
        except SpecError:
            return {}
        found: _Secrets = {}
        for name in names:
            try:
                found[name] = _names((await self._api.get(SECRETS, group.key.namespace, name)).get("data") or {})
            except ClusterError as err:
                if err.details["status"] != 404:
                    raise
                found[name] = None
        return found

    async def _refusal(self, group: Group) -> str:
        """Return the cluster's reason for creating no pods of the set's StatefulSet, or an empty text."""
        name = runtime_name(group.key.name)
        fields = f"involvedObject.kind=StatefulSet,involvedObject.name={name},reason=FailedCreate"
        uid = group.made["StatefulSet", name]["metadata"]["uid"]
        found = await self._api.list(EVENTS, group.key.namespace, fields=fields)
        events = [each for each in found if each["involvedObject"].get("uid") == uid]
        newest = max(events, key=lambda each: str(each.get("lastTimestamp") or ""), default={})
        return str(newest.get("message") or "")

    async def _ends(self, group: Group) -> dict[str, str]:
        """Return the termination messages of Jobs that have ended and whose SampleJob does not record it yet."""
        current = {each.get("status", {}).get("jobName") for each in group.documents[SAMPLE_JOB] if _is_running(each)}
        active = {each["metadata"]["name"] for each in active_jobs(group)}
        ends = {}
        for kind, name in group.made:
            if kind == "Job" and name in current and name not in active:
                pods = await self._api.list(PODS, group.key.namespace, f"{_JOB_NAME}={name}")
                ends[name] = _last_words(pods)
        return ends


_PROBLEMS: Final = frozenset(
    {"Refused", OBJECT_REFUSED, "SourceRefused", "SecretIncomplete", "Failed", "NoSampleSet", "NoConsent", "Terminated"}
)
"""Reasons of conditions that require the user to act."""


def _names(data: dict[str, str]) -> frozenset[str]:
    """Return the key names of a secret. Only the value of ``storage`` is read, to detect Redis."""
    try:
        is_redis = base64.b64decode(data.get("storage", "")).strip().lower() == b"redis"
    except ValueError:  # not base64, which the API server accepts in no secret
        is_redis = False
    return frozenset(data) | ({REDIS} if is_redis else set())


def _is_running(document: Document) -> bool:
    return (document.get("status") or {}).get("phase") not in ("Succeeded", "Failed")


def _last_words(pods: list[Document]) -> str:
    """Return the termination message of the container that ended last."""
    ended = [
        state["terminated"]
        for pod in pods
        for each in pod.get("status", {}).get("containerStatuses") or ()
        if "terminated" in (state := each.get("state") or {})
    ]
    ended.sort(key=lambda state: str(state.get("finishedAt") or ""))
    return str(ended[-1].get("message") or "")[-_MOST_SAID:] if ended else ""
