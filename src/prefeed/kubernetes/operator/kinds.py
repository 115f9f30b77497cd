"""Registers the kinds that the operator reconciles and those that it creates. The rights it needs follow from them.

To support another kind, add an entry to ``KINDS`` with a pure function from a document and its group to an outcome.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from prefeed.jobs.spec import KIND as SAMPLE_JOB
from prefeed.kubernetes.operator.groups import Choices, DocumentDecision, Group, Resource
from prefeed.kubernetes.operator.paddle_jobs import decide_paddle_job
from prefeed.kubernetes.operator.sample_jobs import decide_job
from prefeed.kubernetes.operator.sample_sets import decide_set
from prefeed.kubernetes.paddlejob import KIND as PADDLE_JOB
from prefeed.kubernetes.paddlejob import PADDLE_JOB_VERSION
from prefeed.sampleset.documents import Document
from prefeed.sampleset.spec import API_VERSION
from prefeed.sampleset.spec import KIND as SAMPLE_SET


class Kind(NamedTuple):
    """Kind of documents that users write.

    Attributes:
        resource: Kind in the API.
        set_of: Returns the name of the set of a document, or an empty text.
        decide: Returns the outcome for a document.
    """

    resource: Resource
    set_of: Callable[[Document], str]
    decide: Callable[[Document, Group], DocumentDecision]


def _name_of(document: Document) -> str:
    return str(document["metadata"]["name"])


def _reference_of(document: Document) -> str:
    reference = (document.get("spec") or {}).get("sampleSetRef")
    return str(reference.get("name") or "") if isinstance(reference, dict) else str(reference or "")


KINDS: Final = {
    SAMPLE_SET: Kind(Resource(API_VERSION, "samplesets", SAMPLE_SET), _name_of, decide_set),
    SAMPLE_JOB: Kind(Resource(API_VERSION, "samplejobs", SAMPLE_JOB), _reference_of, decide_job),
    PADDLE_JOB: Kind(Resource(PADDLE_JOB_VERSION, "paddlejobs", PADDLE_JOB), _reference_of, decide_paddle_job),
}
"""Kinds by name, in the order of reconciliation."""

PODS: Final = Resource("v1", "pods", "Pod")
MADE: Final = {
    each.kind: each
    for each in (
        PODS,
        Resource("v1", "configmaps", "ConfigMap"),
        Resource("v1", "services", "Service"),
        Resource("apps/v1", "statefulsets", "StatefulSet"),
        Resource("batch/v1", "jobs", "Job"),
        Resource("batch/v1", "cronjobs", "CronJob"),
    )
}
"""Kinds of objects that the operator creates, watches and deletes: pods with a set's label, others with its own."""

SECRETS: Final = Resource("v1", "secrets", "Secret")
EVENTS: Final = Resource("v1", "events", "Event")
DEFINITIONS: Final = Resource("apiextensions.k8s.io/v1", "customresourcedefinitions", "CustomResourceDefinition")
READ: Final = (SECRETS, DEFINITIONS)
"""Kinds that the operator only reads: secrets for their key names, and the definition of PaddleJob for its owner."""


def watched(choices: Choices) -> tuple[Resource, ...]:
    """Return the kinds that the operator lists and watches."""
    kinds = (kind.resource for name, kind in KINDS.items() if name != PADDLE_JOB or choices.paddle_jobs)
    return (*kinds, *MADE.values())
