"""Carries decisions out: what should be for each document of a group is compared with what is, and the difference is asked for.

**Repeated**: every step may be done again, by this operator or another: names follow from documents, objects are applied, and a
status is written only over the one that was seen.
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
    Group,
    Key,
    Outcome,
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
"""Annotation of what is made: a hash of it as it was applied."""

OURS: Final = ",".join(f"{name}={value}" for name, value in MANAGED.items())
"""Selects what is made."""

_Secrets = dict[str, frozenset[str] | None]

_JOB_NAME: Final = "batch.kubernetes.io/job-name"
_MOST_SAID: Final = 1000


class Api(Protocol):
    """The requests that are made; ``client.Client`` makes them. Each raises ``ClusterError`` when it is refused."""

    async def list(
        self, resource: Resource, namespace: str, selector: str = "", fields: str = ""
    ) -> list[Document]: ...
    async def get(self, resource: Resource, namespace: str, name: str) -> Document: ...
    async def create(self, resource: Resource, document: Document) -> Document: ...
    async def apply(self, resource: Resource, document: Document) -> Document: ...
    async def patch(self, resource: Resource, document: Document, change: Document, part: str = "") -> Document: ...
    async def delete(self, resource: Resource, document: Document) -> None: ...


def selector_of(resource: Resource) -> str:
    """Return which objects of a kind matter."""
    if resource == PODS:
        return LABEL
    return OURS if resource.kind in MADE else ""


class Carrier:
    """Carries decisions out.

    Args:
        api: Makes requests.
        world: What was seen last; what requests answer is noted there.
        choices: Of whoever runs the operator.
        clock: Returns the time.
        reports: Returns what the servers of a set have said last.
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
        """Look at all objects that matter; return their groups.

        Args:
            namespaces: To look at; one empty text: all.
        """
        keys = set()
        places = list(namespaces)
        for resource in watched(self._choices):
            before = self._world.versions(resource.kind)
            found = [each for place in places for each in await self._api.list(resource, place, selector_of(resource))]
            keys |= self._world.replace(before, found)
        return keys

    async def carry(self, key: Key) -> bool:
        """Everything in a group is asked for that should be; return whether to look again soon."""
        waits = False
        failure: PrefeedError | None = None
        await self._see_readers(key)
        secrets = await self._secrets(self._group(key))
        for kind in KINDS.values():
            for document in self._group(key).documents[kind.resource.kind]:
                try:
                    waits |= await self._carry_one(kind, document, key, secrets)
                except PrefeedError as err:
                    if err.details.get("status") == 0:  # the server does not answer: nor would it about the others
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
        """What should be for one document is asked for: one that is refused does not keep the others of its group waiting."""
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
        """Return a group with its set as the server has it now: a pod may be made right after its set."""
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

    # ---------------------------------------------------------------- what is asked for

    async def _carry(self, resource: Resource, document: Document, outcome: Outcome) -> None:
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
                raise refusals[0][1]  # it is tried again, after longer and longer pauses
            finally:
                del refusals

    async def _write(
        self, resource: Resource, document: Document, outcome: Outcome, objects: Condition | None
    ) -> Document:
        """Write a status, if it is another one; return the document as it is then.

        Args:
            resource: Kind of the document.
            document: As it was seen.
            outcome: What should be.
            objects: What is to be said of its objects.
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

    async def _hold(self, resource: Resource, document: Document, outcome: Outcome) -> Document:
        """Return a document that has the finalizer if it should."""
        finalizers = list(document["metadata"].get("finalizers") or ())
        if outcome.is_held == (FINALIZER in finalizers):
            return document
        if outcome.is_held and document["metadata"].get("deletionTimestamp"):
            return document  # too late: none may be added
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
        """Refuse to take over an object that is not of the same document: what is applied becomes its owner's, and goes with it.

        Raises:
            ClusterError: There is one; the message says what to change.
        """
        namespace, name = wanted["metadata"]["namespace"], wanted["metadata"]["name"]
        if there is None:  # without the operator's label it is not watched
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
        """Write an event for each condition that says something new."""
        before = {each["type"]: each for each in (document.get("status") or {}).get("conditions") or ()}
        for each in status["conditions"]:
            old = before.get(each["type"], {})
            if (each["reason"], each["message"]) != (old.get("reason"), old.get("message")):
                is_problem = each["status"] == FALSE and each["reason"] in _PROBLEMS
                name = {"generateName": f"{document['metadata']['name']}-"}
                event = self._event(document, name, each["reason"], each["message"], is_problem=is_problem)
                await self._api.create(EVENTS, event)

    async def _warn(self, key: Key) -> None:
        """Write an event for each pod that reads without a cache, once: it has the pod's uid in its name."""
        found = {each.pod["metadata"]["uid"]: each for each in uncached(self._group(key))}
        told = self._warned.pop(key, set()) & found.keys()
        for uid, each in found.items():
            if uid not in told:
                event = self._event(each.pod, {"name": f"prefeed-{uid}"}, each.reason, each.message, is_problem=True)
                try:
                    await self._api.create(EVENTS, event)
                except ClusterError as err:
                    if err.details["status"] != 409:  # an operator before this one has told
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

    # ---------------------------------------------------------------- what is looked at

    async def _see_readers(self, key: Key) -> None:
        """Look at the pods that hold a deleted set: a watch that begins after one has gone does not tell."""
        document = self._world.get(SAMPLE_SET, *key)
        if document is not None and document["metadata"].get("deletionTimestamp"):
            readers = {pod["metadata"]["name"] for pod in self._group(key).pods}
            known = self._world.versions(PODS.kind).items()
            before = {name: version for name, version in known if name[1] == key.namespace and name[2] in readers}
            self._world.replace(before, await self._api.list(PODS, key.namespace, f"{LABEL}={key.name}"))

    async def _look_before(self, outcome: Outcome, document: Document, key: Key) -> bool:
        """Look at what a step that cannot be taken back rests on; return whether there was one."""
        is_released = FINALIZER in (document["metadata"].get("finalizers") or ()) and not outcome.is_held
        starts = any(each["kind"] == "Job" for each in outcome.objects)
        if starts:  # another one may have been started since
            await self._look_at(MADE["Job"], key, f"{OURS},{INSTANCE}={key.name}")
        if is_released:  # a pod may have been made since
            await self._look_at(PODS, key, f"{LABEL}={key.name}")
        return starts or is_released

    async def _look_at(self, resource: Resource, key: Key, selector: str) -> None:
        for each in await self._api.list(resource, key.namespace, selector):
            self._world.see(each)

    async def _secrets(self, group: Group) -> _Secrets:
        """Return the keys of the secrets that a set names; their values are not kept."""
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
        """Return why the cluster creates no pods for the servers of a set, in its own words; empty if it has refused none."""
        name = runtime_name(group.key.name)
        fields = f"involvedObject.kind=StatefulSet,involvedObject.name={name},reason=FailedCreate"
        uid = group.made["StatefulSet", name]["metadata"]["uid"]
        found = await self._api.list(EVENTS, group.key.namespace, fields=fields)
        events = [each for each in found if each["involvedObject"].get("uid") == uid]
        newest = max(events, key=lambda each: str(each.get("lastTimestamp") or ""), default={})
        return str(newest.get("message") or "")

    async def _ends(self, group: Group) -> dict[str, str]:
        """Return what the pods of Jobs said that have ended and whose end is not in the status of their SampleJob yet."""
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
"""Reasons of conditions after which somebody has to do something."""


def _names(data: dict[str, str]) -> frozenset[str]:
    """Return the names of a secret's keys. Of their values, only whether the storage is Redis is looked at."""
    try:
        is_redis = base64.b64decode(data.get("storage", "")).strip().lower() == b"redis"
    except ValueError:  # the API server takes no such secret
        is_redis = False
    return frozenset(data) | ({REDIS} if is_redis else set())


def _is_running(document: Document) -> bool:
    return (document.get("status") or {}).get("phase") not in ("Succeeded", "Failed")


def _last_words(pods: list[Document]) -> str:
    """Return the message with which the last container ended."""
    ended = [
        state["terminated"]
        for pod in pods
        for each in pod.get("status", {}).get("containerStatuses") or ()
        if "terminated" in (state := each.get("state") or {})
    ]
    ended.sort(key=lambda state: str(state.get("finishedAt") or ""))
    return str(ended[-1].get("message") or "")[-_MOST_SAID:] if ended else ""
