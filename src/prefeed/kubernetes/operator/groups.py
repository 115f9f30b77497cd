"""Value types of the operator: ``Group``, a set with its objects, and ``DocumentDecision``, a decision on a document. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple

from prefeed.kubernetes.nodes import POOL_IMAGE
from prefeed.kubernetes.sizes import Report
from prefeed.sampleset.documents import Document

FINALIZER: Final = "prefeed.io/readers"
"""Finalizer that delays the deletion of a set while pods read it."""

TRUE, FALSE = "True", "False"

MOST_SAID: Final = 4096
"""Maximum characters of a text in a status, set by the CustomResourceDefinition."""


class Resource(NamedTuple):
    """Kind of objects, as in the paths of the API server."""

    api_version: str
    plural: str
    kind: str

    @property
    def group(self) -> str:
        """API group without the version. Empty for the core group of Kubernetes."""
        return self.api_version.rpartition("/")[0]


class Key(NamedTuple):
    """Key of a group: a namespace and the name of a sample set."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """Options of the operator.

    Attributes:
        image: Image of servers and jobs with prefeed. If empty, each set names its own.
        pool_image: Image with memcached.
        paddle_jobs: Whether this operator runs PaddleJobs instead of Paddle's own.
    """

    image: str = ""
    pool_image: str = POOL_IMAGE
    paddle_jobs: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Sample set and all related objects, as last read.

    Attributes:
        key: Namespace and name of the set.
        documents: Documents of users by kind, oldest first.
        made: Objects that the operator created, by kind and name.
        pods: Pods with the label of the set.
        secrets: Key names of the set's secrets, and ``without_effect.REDIS``. None marks a missing secret.
        ends: Termination message of the last pod of a batch Job, by the name of the Job.
        refusal: The cluster's reason for creating no pods for the servers, or an empty text.
        reports: Cache sizes of the servers by pod. Empty before the first poll.
        now: Current time.
        choices: Options of the operator.
    """

    key: Key
    documents: Mapping[str, Sequence[Document]] = field(default_factory=dict)
    made: Mapping[tuple[str, str], Document] = field(default_factory=dict)
    pods: Sequence[Document] = ()
    secrets: Mapping[str, frozenset[str] | None] = field(default_factory=dict)
    ends: Mapping[str, str] = field(default_factory=dict)
    refusal: str = ""
    reports: Mapping[str, Report] = field(default_factory=dict)
    now: datetime
    choices: Choices = Choices()

    def document(self, kind: str) -> Document | None:
        """Return the document of a kind with the name of the set, or None."""
        found = (each for each in self.documents.get(kind, ()) if each["metadata"]["name"] == self.key.name)
        return next(found, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentDecision:
    """Decision about one document.

    Attributes:
        objects: Objects that must exist. Other objects of the document are deleted unless kept.
        kept: Kinds and names of objects to leave unchanged.
        status: New status of the document, or None to leave it unchanged.
        is_held: Whether the document has the finalizer.
        waits: Whether to reconcile again soon, without a watch event.
    """

    objects: tuple[Document, ...] = ()
    kept: frozenset[tuple[str, str]] = frozenset()
    status: dict[str, Any] | None = None
    is_held: bool = False
    waits: bool = False


# ---------------------------------------------------------------- status


class Condition(NamedTuple):
    """Condition of a document. ``status`` is ``True``, ``False`` or ``Unknown``; ``message`` is advice."""

    type: str
    status: str
    reason: str
    message: str


OPTIONS: Final = "OptionsWithoutEffect"
"""Type of the condition that lists options without effect."""


def without_effect(said: Sequence[str]) -> Iterator[Condition]:
    """Yield the condition that lists options without effect, if there are any."""
    if said:
        yield Condition(OPTIONS, TRUE, "WithoutEffect", "; ".join(said))


def conditions(document: Document, found: Sequence[Condition], now: datetime) -> list[dict[str, Any]]:
    """Convert conditions to documents. A condition with an unchanged status keeps its time."""
    before = {each["type"]: each for each in (document.get("status") or {}).get("conditions") or ()}
    result = []
    for each in found:
        old = before.get(each.type, {})
        since = old["lastTransitionTime"] if old.get("status") == each.status else now.strftime("%Y-%m-%dT%H:%M:%SZ")
        generation = document["metadata"].get("generation", 1)
        said = each._replace(message=each.message[:MOST_SAID])
        result.append({**said._asdict(), "lastTransitionTime": since, "observedGeneration": generation})
    return result


def owner(document: Document) -> list[dict[str, Any]]:
    """Build the ``ownerReferences`` of an object for a document."""
    metadata = document["metadata"]
    return [
        {
            "apiVersion": document["apiVersion"],
            "kind": document["kind"],
            "name": metadata["name"],
            "uid": metadata["uid"],
            "controller": True,
            "blockOwnerDeletion": False,
        }
    ]


def owned(document: Document, made: Document) -> Document:
    """Return an object with its namespace and owner set to those of a document."""
    metadata = {**made["metadata"], "namespace": document["metadata"]["namespace"], "ownerReferences": owner(document)}
    return {**made, "metadata": metadata}


def controller_of(made: Document) -> tuple[str, str] | None:
    """Return kind and name of the document that controls an object, or None."""
    found = (each for each in made["metadata"].get("ownerReferences") or () if each.get("controller"))
    return next(((str(each["kind"]), str(each["name"])) for each in found), None)


def is_owned(made: Document, document: Document) -> bool:
    """Return whether a document owns an object."""
    uid = document["metadata"]["uid"]
    return any(each["uid"] == uid for each in made["metadata"].get("ownerReferences") or ())
