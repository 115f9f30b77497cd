"""Builds the CustomResourceDefinitions of SampleSet, SampleJob and PaddleJob, for ``kubectl apply``."""

from __future__ import annotations

from typing import Final

from prefeed.jobs.spec import KIND as SAMPLE_JOB
from prefeed.jobs.spec import JobFields
from prefeed.kubernetes.paddlejob import KIND as PADDLE_JOB
from prefeed.kubernetes.paddlejob import PADDLE_JOB_VERSION, PaddleJobSpec, PaddleJobStatus
from prefeed.kubernetes.schema import VALIDATIONS, Schema, structural
from prefeed.kubernetes.status import SampleJobStatus, SampleSetStatus
from prefeed.sampleset.documents import Document, Fields, Metadata
from prefeed.sampleset.spec import API_VERSION, SampleSetSpec
from prefeed.sampleset.spec import KIND as SAMPLE_SET

GROUP, VERSION = API_VERSION.split("/")
CATEGORIES: Final = ("paddle", "prefeed")
FINAL: Final = "spec of a succeeded job cannot change: give the new job another name"

_COLUMNS: Final = {
    SAMPLE_SET: (
        ("TOTAL SIZE", ".status.cacheStatus.totalSize"),
        ("CACHED SIZE", ".status.cacheStatus.cachedSize"),
        ("AVAIL SPACE", ".status.cacheStatus.diskAvail"),
        ("RUNTIME", ".status.runtimeStatus.runtimeReady"),
        ("PHASE", ".status.phase"),
    ),
    SAMPLE_JOB: (("TYPE", ".spec.type"), ("SET", ".spec.sampleSetRef.name"), ("PHASE", ".status.phase")),
    PADDLE_JOB: (("Status", ".status.phase"), ("Mode", ".status.mode")),
}
_SHORT: Final = {SAMPLE_SET: "sset", SAMPLE_JOB: "sjob", PADDLE_JOB: "pdj"}
_CONTENTS: Final[dict[str, tuple[type[Fields], type[Fields]]]] = {
    SAMPLE_SET: (SampleSetSpec, SampleSetStatus),
    SAMPLE_JOB: (JobFields, SampleJobStatus),
    PADDLE_JOB: (PaddleJobSpec, PaddleJobStatus),
}
KINDS: Final = (SAMPLE_SET, SAMPLE_JOB)
"""Kinds whose definitions every installation of prefeed applies."""

OWNER: Final = {"app.kubernetes.io/part-of": "prefeed"}
"""Labels of a definition from prefeed. A PaddleJob definition without them belongs to Paddle's operator."""

_VERSIONS: Final = {PADDLE_JOB: PADDLE_JOB_VERSION.split("/")[1]}


def schema_of(kind: str) -> Schema:
    """Return the ``openAPIV3Schema`` of ``SampleSet``, ``SampleJob`` or ``PaddleJob``."""
    spec, status = _CONTENTS[kind]
    name = structural(Metadata)["properties"]["name"]
    schema: Schema = {
        "type": "object",
        "description": f"A {kind} of the Paddle operator, reconciled by prefeed.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object", "properties": {"name": name}},
            "spec": structural(spec),
            "status": structural(status),
        },
    }
    if kind == SAMPLE_JOB:
        before = "oldSelf.status"
        was_not = f"!has({before}) || !has({before}.phase) || {before}.phase != 'Succeeded'"
        schema[VALIDATIONS] = [{"rule": f"{was_not} || self.spec == oldSelf.spec", "message": FINAL}]
    return schema


def definition(kind: str) -> Document:
    """Build the CustomResourceDefinition of a kind."""
    singular = kind.lower()
    columns = [{"name": name, "type": "string", "jsonPath": path} for name, path in _COLUMNS[kind]]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{singular}s.{GROUP}",
            **({"labels": dict(OWNER)} if kind == PADDLE_JOB else {}),
        },
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": f"{singular}s",
                "singular": singular,
                "shortNames": [_SHORT[kind]],
                "categories": list(CATEGORIES),
            },
            "versions": [
                {
                    "name": _VERSIONS.get(kind, VERSION),
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [
                        *columns,
                        {
                            "name": "Age" if kind == PADDLE_JOB else "AGE",
                            "type": "date",
                            "jsonPath": ".metadata.creationTimestamp",
                        },
                    ],
                    "schema": {"openAPIV3Schema": schema_of(kind)},
                }
            ],
        },
    }


def definitions() -> list[Document]:
    """Build the definitions of ``KINDS``."""
    return [definition(kind) for kind in KINDS]


def is_ours(found: Document) -> bool:
    """Return whether prefeed's operator runs the PaddleJobs of a cluster: the definition carries its labels."""
    return OWNER.items() <= ((found.get("metadata") or {}).get("labels") or {}).items()
