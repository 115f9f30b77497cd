"""Fields of ``status`` of SampleSet and SampleJob, with the names and one misspelling of the Paddle operator."""

from __future__ import annotations

from typing import Annotated, Any, Final

from msgspec import Meta

from prefeed.sampleset.documents import Fields, Unused, Whole, schema

CONDITIONS: Final = schema(
    type="array",
    description="Conditions of the object, in the form that Kubernetes prescribes.",
    maxItems=16,
    items={
        "type": "object",
        "required": ["lastTransitionTime", "message", "reason", "status", "type"],
        "properties": {
            "type": {"type": "string", "maxLength": 316},
            "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
            "reason": {"type": "string", "maxLength": 1024, "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"},
            "message": {"type": "string", "maxLength": 32768},
            "lastTransitionTime": {"type": "string", "format": "date-time"},
            "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0},
        },
    },
    **{"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
)
_Conditions = Annotated[Unused, CONDITIONS]


class CacheStatus(Fields, frozen=True, kw_only=True):
    """Sizes of the data and of the cache, as texts such as 4.2 GiB."""

    total_size: str = ""
    total_files: str = ""
    cached_size: str = ""
    disk_size: str = ""
    disk_used: str = ""
    disk_avail: str = ""
    disk_usage_rate: str = ""
    error_massage: Annotated[
        str, Meta(description="reason why the set is not ready; spelled as in the Paddle operator")
    ] = ""


class RuntimeStatus(Fields, frozen=True, kw_only=True):
    """Number of node servers, requested and ready."""

    runtime_ready: str = ""
    spec_replicas: Whole = 0
    ready_replicas: Whole = 0


class JobsName(Fields, frozen=True, kw_only=True):
    """Names of the last jobs that filled the cache."""

    sync_job_name: str = ""
    warmup_job_name: str = ""


class SampleSetStatus(Fields, frozen=True, kw_only=True):
    """Observed state of a sample set."""

    phase: str = ""
    cache_status: CacheStatus | None = None
    runtime_status: RuntimeStatus | None = None
    jobs_name: JobsName | None = None
    observed_generation: Whole = 0
    conditions: _Conditions | None = None


class SampleJobStatus(Fields, frozen=True, kw_only=True):
    """Observed state of a job."""

    phase: str = ""
    job_name: str = ""
    observed_generation: Whole = 0
    conditions: _Conditions | None = None


Status = dict[str, Any]
"""Document of a ``status``."""
