"""What is known of a sample set in a cluster, and what a decision comes to: values. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple

from prefeed.kubernetes.nodes import POOL_IMAGE
from prefeed.kubernetes.sizes import Report
from prefeed.sampleset.documents import Document

FINALIZER: Final = "prefeed.io/readers"
"""Holds a set while pods read it."""

TRUE, FALSE = "True", "False"

MOST_SAID: Final = 4096
"""Letters of a text in a status: as many as the API server takes."""


class Resource(NamedTuple):
    """A kind of objects, as the paths of an API server name it."""

    api_version: str
    plural: str
    kind: str

    @property
    def group(self) -> str:
        """Without the version; empty: Kubernetes' first."""
        return self.api_version.rpartition("/")[0]


class Key(NamedTuple):
    """Names a group: a namespace and a sample set."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What whoever runs the operator has chosen.

    Attributes:
        image: Of servers and jobs, with prefeed; empty: each set names its own.
        pool_image: With memcached.
        paddle_jobs: PaddleJobs are this operator's, and not those of Paddle's own.
    """

    image: str = ""
    pool_image: str = POOL_IMAGE
    paddle_jobs: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A sample set, and all that belongs to it, as it was seen last.

    Attributes:
        key: Its namespace and name.
        documents: Those that users wrote, by kind; oldest first.
        made: Those that the operator made, by kind and name.
        pods: Those that ask for the set by its label.
        secrets: Names of the keys of the secrets that the set names, and ``without_effect.REDIS``; None: there is no such secret.
        ends: What the last pod of a batch Job said, by the name of the Job.
        refusal: Why the cluster creates no pods for the servers of the set, in its own words; empty if it does.
        reports: What the servers of the set hold, by the names of their pods; none: they were not asked yet.
        now: The time.
        choices: Of whoever runs the operator.
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
        """Return the one of a kind that has the name of the group."""
        found = (each for each in self.documents.get(kind, ()) if each["metadata"]["name"] == self.key.name)
        return next(found, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What should be, for one document.

    Attributes:
        objects: That should exist; those that the document owns and are neither here nor kept are removed.
        kept: Kinds and names of objects that stay as they are.
        status: Of the document; None: as it is.
        is_held: The document has the finalizer.
        waits: Something is awaited that nothing will report: look again soon.
    """

    objects: tuple[Document, ...] = ()
    kept: frozenset[tuple[str, str]] = frozenset()
    status: dict[str, Any] | None = None
    is_held: bool = False
    waits: bool = False


# ---------------------------------------------------------------- status


class Condition(NamedTuple):
    """What is true of a document: ``status`` is ``True``, ``False`` or ``Unknown``; ``message`` says what to change."""

    type: str
    status: str
    reason: str
    message: str


OPTIONS: Final = "OptionsWithoutEffect"
"""Type of the condition that names what was given and changes nothing."""


def without_effect(said: Sequence[str]) -> Iterator[Condition]:
    """Yield the condition for options that change nothing, if there are any."""
    if said:
        yield Condition(OPTIONS, TRUE, "WithoutEffect", "; ".join(said))


def conditions(document: Document, found: Sequence[Condition], now: datetime) -> list[dict[str, Any]]:
    """Return conditions as they are written; the time of one that has not changed stays."""
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
    """Return the ``ownerReferences`` of what is made for a document."""
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
    """Return an object that a document owns."""
    metadata = {**made["metadata"], "namespace": document["metadata"]["namespace"], "ownerReferences": owner(document)}
    return {**made, "metadata": metadata}


def controller_of(made: Document) -> tuple[str, str] | None:
    """Return kind and name of the document that an object was made for; None: of none."""
    found = (each for each in made["metadata"].get("ownerReferences") or () if each.get("controller"))
    return next(((str(each["kind"]), str(each["name"])) for each in found), None)


def is_owned(made: Document, document: Document) -> bool:
    """Return whether a document owns an object."""
    uid = document["metadata"]["uid"]
    return any(each["uid"] == uid for each in made["metadata"].get("ownerReferences") or ())
