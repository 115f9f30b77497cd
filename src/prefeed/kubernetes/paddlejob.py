"""A document of kind PaddleJob: what the original's documents use of it, and the set that it names."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from prefeed.errors import SpecError
from prefeed.sampleset.documents import Document, Envelope, Fields, Name, Unused, Whole, decode, kind_of

KIND: Final = "PaddleJob"
PADDLE_JOB_VERSION: Final = "batch.paddlepaddle.org/v1"


class SampleSetRef(Fields, frozen=True, kw_only=True):
    """The set that a job trains from.

    Attributes:
        name: Of the set.
        namespace: Of the set; empty: that of the job.
        mount_path: Where the original mounts it.
    """

    name: Name
    namespace: str = ""
    mount_path: str = ""


class Replicas(Fields, frozen=True, kw_only=True):
    """Pods of one kind; ``template`` is a PodTemplateSpec, as Kubernetes has it."""

    replicas: Whole = 1
    template: dict[str, Any]
    requests: Unused | None = None
    limits: Unused | None = None


class PaddleJobSpec(Fields, frozen=True, kw_only=True):
    """The ``spec`` of a document."""

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
    with_gloo: Unused | None = None
    scheduling_policy: Unused | None = None

    def __post_init__(self) -> None:
        if self.worker is None and self.ps is None:
            raise ValueError(".worker is missing: a job has at least one kind of pods, worker or ps")

    @property
    def pods(self) -> dict[str, Replicas]:
        """The kinds of pods that were given, by the name of their field."""
        return {name: given for name in ("worker", "ps") if (given := getattr(self, name)) is not None}


class PaddleJob(Envelope, frozen=True, kw_only=True):
    """The whole document."""

    spec: PaddleJobSpec
    status: Unused | None = None


def parse_paddle_job(document: Document) -> PaddleJob:
    """Return what a document asks for.

    Raises:
        SpecError: A field is unknown, missing or of another type; the message has its path.
    """
    kind, version = kind_of(document)
    if (kind, version) != (KIND, PADDLE_JOB_VERSION):
        raise SpecError(f"a {KIND} has apiVersion {PADDLE_JOB_VERSION}, not {version!r:.60}")
    return decode(document, PaddleJob)
