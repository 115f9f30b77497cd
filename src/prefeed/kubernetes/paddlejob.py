"""Types of PaddleJob documents: the fields in use with the Paddle operator, and the reference to a sample set."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, Literal

from msgspec import Meta

from prefeed.errors import SpecError
from prefeed.jobs.spec import SAME_SET
from prefeed.kubernetes.status import CONDITIONS
from prefeed.sampleset.documents import (
    Document,
    Envelope,
    FieldRule,
    Fields,
    Name,
    Unused,
    Whole,
    decode,
    kind_of,
    schema,
)

KIND: Final = "PaddleJob"
PADDLE_JOB_VERSION: Final = "batch.paddlepaddle.org/v1"

PENDING, RUNNING, COMPLETED, FAILED = "Pending", "Running", "Completed", "Failed"
OVER: Final = (COMPLETED, FAILED)
"""Final phases."""

_NO_PODS: Final = FieldRule(
    ".worker",
    " is missing: a job has at least one kind of pods, worker or ps",
    "has(self.worker) || has(self.ps)",
)
_ANYTHING: Final = schema(type="object", **{"x-kubernetes-preserve-unknown-fields": True})
_Conditions = Annotated[Unused, CONDITIONS]


MOST_PODS: Final = 1000
"""Maximum pods of one role: Linux limits the variable that lists their names."""


class SampleSetRef(Fields, frozen=True, kw_only=True):
    """Reference to the sample set that the pods of a job read.

    Attributes:
        name: Name of the set.
        namespace: Namespace of the set. If empty, that of the job.
        mount_path: Path of its files in the pods, or an empty text.
    """

    name: Name
    namespace: str = ""
    mount_path: str = ""


class Replicas(Fields, frozen=True, kw_only=True):
    """Pods of one role. ``template`` is a PodTemplateSpec of Kubernetes. ``requests`` and ``limits`` have no effect."""

    replicas: Whole = 1
    template: Annotated[dict[str, Any], _ANYTHING]
    requests: Whole | None = None
    limits: Whole | None = None


class PaddleJobSpec(Fields, frozen=True, kw_only=True):
    """Requested pods of a job, and the sample set that they read."""

    requires: ClassVar[tuple[FieldRule, ...]] = (_NO_PODS, SAME_SET)

    clean_pod_policy: (
        Annotated[
            Literal["Always", "Never", "OnFailure", "OnCompletion"],
            Meta(description="one of Always, Never, OnFailure, OnCompletion"),
        ]
        | None
    ) = None
    sample_set_ref: SampleSetRef | None = None
    worker: Replicas | None = None
    ps: Replicas | None = None
    intranet: Unused | None = None
    with_gloo: Whole = 0
    scheduling_policy: Annotated[Unused, _ANYTHING] | None = None

    def __post_init__(self) -> None:
        if self.worker is None and self.ps is None:
            raise _NO_PODS.refusal()

    @property
    def pods(self) -> dict[str, Replicas]:
        """Roles in use, by the name of their field."""
        return {name: given for name in ("worker", "ps") if (given := getattr(self, name)) is not None}


class ReplicaStatus(Fields, frozen=True, kw_only=True):
    """Number of pods of one role in each phase."""

    pending: Whole = 0
    running: Whole = 0
    succeeded: Whole = 0
    failed: Whole = 0


class PaddleJobStatus(Fields, frozen=True, kw_only=True):
    """Observed state of a job."""

    phase: str = ""
    mode: str = ""
    worker: ReplicaStatus | None = None
    ps: ReplicaStatus | None = None
    start_time: str = ""
    completion_time: str = ""
    observed_generation: Whole = 0
    conditions: _Conditions | None = None


class PaddleJob(Envelope, frozen=True, kw_only=True):
    """Document of kind PaddleJob."""

    spec: PaddleJobSpec
    status: Unused | None = None


def parse_paddle_job(document: Document) -> PaddleJob:
    """Parse and validate a PaddleJob.

    Raises:
        SpecError: A field is unknown, missing, of another type or too large. The message has its path.
    """
    kind, version = kind_of(document)
    if (kind, version) != (KIND, PADDLE_JOB_VERSION):
        raise SpecError(f"a {KIND} has apiVersion {PADDLE_JOB_VERSION}, not {version!r:.60}")
    job = decode(document, PaddleJob)
    for name, given in job.spec.pods.items():
        if given.replicas > MOST_PODS:
            raise SpecError(
                f"spec.{name}.replicas is {given.replicas}, and at most {MOST_PODS} is possible: each pod lists the names of all pods in a variable"
            )
    return job


def wants_files(document: Document) -> bool:
    """Return whether an unfinished PaddleJob mounts its set on the nodes."""
    spec = document.get("spec") or {}
    reference = spec.get("sampleSetRef") if isinstance(spec, dict) else None
    is_over = (document.get("status") or {}).get("phase") in OVER or "deletionTimestamp" in document["metadata"]
    return isinstance(reference, dict) and bool(reference.get("mountPath")) and not is_over
