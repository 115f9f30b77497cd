"""Builds the pods of a PaddleJob, and the Service that gives them host names. Pure.

Pods address each other by name, ``JOB-worker-0.JOB``, so the environment of each is known before it has an address and
stays the same when it is created again. ``paddle.distributed.launch`` reads these variables, as in the Paddle operator.
"""

from __future__ import annotations

import copy
from typing import Any, Final

from prefeed.errors import SpecError
from prefeed.kubernetes.mounts import with_files
from prefeed.kubernetes.nodes import INSTANCE, MANAGED, NODE, NodeSet, with_node_cache
from prefeed.kubernetes.paddlejob import PaddleJob, SampleSetRef
from prefeed.kubernetes.pods import LABEL, require_pod, with_cache
from prefeed.kubernetes.sets import PodSet
from prefeed.sampleset.documents import MAX_NAME, Document
from prefeed.system.paths import is_in

WORKER, PS = "worker", "ps"
ROLE: Final = "paddle-res-type"
JOB: Final = "prefeed.io/paddlejob"
"""Label of the pods of a job."""

PORT: Final = 36000
NUM_PORTS: Final = 20
_ROLES: Final = {WORKER: "TRAINER", PS: "PSERVER"}
_ROOTS: Final = "PREFEED_ROOTS"


def pod_names(job: PaddleJob) -> dict[str, tuple[str, int]]:
    """Return the role and the number of each pod of a job, by its name."""
    return {
        _pod_name(job, role, index): (role, index)
        for role, given in job.spec.pods.items()
        for index in range(given.replicas)
    }


def pod(job: PaddleJob, role: str, index: int, found: PodSet | NodeSet | None) -> Document:
    """Build a pod of a job.

    Args:
        job: The job.
        role: ``worker`` or ``ps``.
        index: Number of the pod in its role.
        found: The set that the job reads, or None.

    Raises:
        SpecError: The template is invalid, or cannot have the set. The message names the field to change.
    """
    template = copy.deepcopy(job.spec.pods[role].template)
    metadata, spec = template.get("metadata") or {}, template.get("spec")
    if not isinstance(spec, dict) or not spec.get("containers"):
        raise SpecError(f"spec.{role}.template.spec.containers must have a container")
    if not (isinstance(metadata, dict) and isinstance(metadata.get("labels") or {}, dict)):
        raise SpecError(f"spec.{role}.template.metadata and its labels must be mappings")
    require_pod({**template, "metadata": metadata}, f"spec.{role}.template")
    name = _pod_name(job, role, index)
    if len(name) > MAX_NAME:
        raise SpecError(f"the name of the pod {name} is longer than {MAX_NAME} letters: shorten that of the job")
    labels = {"paddle-res-name": name, ROLE: role, JOB: job.metadata.name, LABEL: of_set(job)}
    result = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **metadata,
            "name": name,
            "labels": {**(metadata.get("labels") or {}), **labels},
            "annotations": {**(metadata.get("annotations") or {}), "paddle-resource": role},
        },
        "spec": {"restartPolicy": "Never", **spec, "hostname": name, "subdomain": job.metadata.name},
    }
    first = spec["containers"][0]
    taken = {each["name"] for each in first.get("env") or ()}
    first["env"] = [
        *(first.get("env") or ()),
        *(each for each in _environment(job, role, index) if each["name"] not in taken),
    ]
    ref = job.spec.sample_set_ref
    if found is None or ref is None or role != WORKER:
        return result
    if isinstance(found, PodSet):
        if ref.mount_path:
            _intercept(first, found)
        return with_cache(result, found)
    result = with_node_cache(result, found, index=index if index < found.partitions else None)
    return with_files(result, found, ref.mount_path) if ref.mount_path else result


def _intercept(container: dict[str, Any], found: PodSet) -> None:
    """Start the program of a container by ``prefeed run``, so that it reads the set's directory through the cache."""
    command = container.get("command")
    if not command:
        raise SpecError(
            f"the container {container['name']} has no command, which `prefeed run` would start: name the one of its image"
        )
    container["command"] = ["prefeed", "run", *command]
    container["env"] = [*container["env"], {"name": _ROOTS, "value": f"sampleset://{found.name}"}]


def _environment(job: PaddleJob, role: str, index: int) -> list[dict[str, Any]]:
    hosts = {kind: [_host(job, kind, at) for at in range(given.replicas)] for kind, given in job.spec.pods.items()}
    variables = {
        "POD_IP": _host(job, role, index),
        "PADDLE_TRAINER_ID": str(index),
        "TRAINING_ROLE": _ROLES[role],
        "PADDLE_TRAINING_ROLE": _ROLES[role],
        "PADDLE_PORT": str(PORT),
        "TRAINER_PORTS_NUM": str(NUM_PORTS),
    }
    if WORKER in hosts:
        variables |= {
            "PADDLE_TRAINER_ENDPOINTS": _endpoints(hosts[WORKER]),
            "PADDLE_TRAINERS": ",".join(hosts[WORKER]),
            "PADDLE_TRAINERS_NUM": str(len(hosts[WORKER])),
        }
    if PS in hosts:
        variables["PADDLE_PSERVERS_IP_PORT_LIST"] = _endpoints(hosts[PS])
        if job.spec.with_gloo and hosts[PS]:
            variables |= {
                "PADDLE_WITH_GLOO": str(job.spec.with_gloo),
                "PADDLE_GLOO_RENDEZVOUS": "3",
                "PADDLE_GLOO_HTTP_ENDPOINT": f"{hosts[PS][0]}:{PORT + NUM_PORTS - 2}",
            }
    elif role == WORKER and len(hosts[WORKER]) > 1:
        variables["PADDLE_RANK"] = str(index)  # worker i reads the cache of node i
    return [{"name": name, "value": value} for name, value in variables.items()]


def _endpoints(hosts: list[str]) -> str:
    return ",".join(f"{host}:{PORT}" for host in hosts)


def service(job: PaddleJob) -> Document:
    """Build the headless Service that names the pods of a job.

    Raises:
        SpecError: The name of the job is invalid for a Service.
    """
    if job.metadata.name[0].isdigit():
        raise SpecError(
            f"the PaddleJob {job.metadata.name}: its name must begin with a letter, as that of its Service does"
        )
    selector = {JOB: job.metadata.name}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": job.metadata.name, "labels": {**MANAGED, INSTANCE: of_set(job), **selector}},
        "spec": {
            "clusterIP": "None",
            "selector": selector,
            "publishNotReadyAddresses": True,  # workers resolve each other before any of them is ready
            "ports": [{"name": "paddle", "port": PORT}],
        },
    }


def _pod_name(job: PaddleJob, role: str, index: int) -> str:
    return f"{job.metadata.name}-{role}-{index}"


def _host(job: PaddleJob, role: str, index: int) -> str:
    return f"{_pod_name(job, role, index)}.{job.metadata.name}"


def of_set(job: PaddleJob) -> str:
    """Return the name of the set of a job, or an empty text."""
    return job.spec.sample_set_ref.name if job.spec.sample_set_ref else ""


def require_files(ref: SampleSetRef, found: PodSet) -> None:
    """Refuse a ``mountPath`` at which pods with their own caches have no files.

    Raises:
        SpecError: The path is outside the set's directory.
    """
    if ref.mount_path and not (found.directory and is_in(ref.mount_path, found.directory)):
        raise SpecError(
            f"no files of the SampleSet {found.name} can be shown at mountPath {ref.mount_path}, because each pod has its own "
            f"cache and no mount: give the set the annotation prefeed.io/mode: {NODE}, or remove mountPath and read "
            f"sampleset://{found.name}"
        )
