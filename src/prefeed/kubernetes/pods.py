"""Gives a pod its own cache: a sidecar with the node server of a set, and volumes shared with the training. Pure.

::

    pod: the training containers  ──home, socket, tier──  prefeed-node: a native sidecar
         emptyDir prefeed-state, emptyDir prefeed-memory (Memory), emptyDir prefeed-disk; ConfigMap and Secrets of the set

The additions need no privilege, no mount on the host and no cluster network. They satisfy the security level
"restricted" if the pod does. Start with ``with_cache``.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from prefeed.errors import SpecError
from prefeed.kubernetes.layout import (
    DISK,
    DOCUMENTS,
    ENVIRONMENT,
    MEMORY,
    PREFIX,
    READERS,
    SECRETS,
    SIDECAR,
    STATE,
)
from prefeed.kubernetes.sets import PodSet
from prefeed.sources.store_access import is_store_variable
from prefeed.system.paths import is_in

LABEL: Final = "prefeed.io/sampleset"
CONTAINERS: Final = "prefeed.io/containers"
IMAGE: Final = "prefeed.io/image"
HASH: Final = "prefeed.io/sampleset-hash"

_PROGRAM_MIB: Final = 512
"""Memory of the sidecar in addition to its tier: two interpreters, listings and pending requests."""

SHARED: Final = ("state", "memory", "disk")
"""Volumes of a cache. Reading programs mount the first two."""

_CAPPED_SHARE: Final = 0.9
"""Share of a control group that the server uses: it keeps a tenth free."""

_POOL: Final = "PREFEED_POOL"
USER_FIELDS: Final = ("runAsUser", "runAsGroup", "runAsNonRoot")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderContainers:
    """Containers of a pod that read the set.

    Attributes:
        names: Names of the containers.
        first: Container whose image, user and mounts the sidecar copies.
    """

    names: frozenset[str]
    first: dict[str, Any]


def label_of(template: object) -> str:
    """Return the name of the set in the label of a pod template, or an empty text."""
    metadata = template.get("metadata") if isinstance(template, dict) else None
    labels = metadata.get("labels") if isinstance(metadata, dict) else None
    return str(labels.get(LABEL) or "") if isinstance(labels, dict) else ""


def require_pod(template: dict[str, Any], called: str) -> None:
    """Refuse a template in which a field that ``with_cache`` reads is malformed.

    Args:
        template: Pod or template, with ``metadata`` and ``spec``.
        called: Name of its document in messages.

    Raises:
        SpecError: A field is malformed. The message names it.
    """
    spec = template.get("spec")
    wrong = [] if isinstance(spec, dict) else ["spec must be a mapping"]
    if isinstance(spec, dict):
        wrong = list(_wrong_lists(spec, "spec", ("containers", "initContainers", "volumes")))
        wrong += list(_wrong_mappings(template["metadata"], "metadata", ("annotations",)))
        wrong += list(_wrong_mappings(spec, "spec", ("securityContext",)))
        wrong += list(_wrong_affinity(spec))
        for container in spec.get("containers") or () if not wrong else ():
            path = f"spec.containers: {container['name']}"
            wrong += list(_wrong_lists(container, path, ("env", "volumeMounts")))
            wrong += list(_wrong_mappings(container, path, ("securityContext",)))
            wrong += [f"{path}.image must be a text"] if not isinstance(container.get("image", ""), str) else []
        if not spec.get("containers"):
            wrong.append("spec.containers must have a container")
    if wrong:
        raise SpecError(
            f"{called}: of its pod, {wrong[0]}; `kubectl apply --dry-run=server` reports what else does not fit"
        )


def _wrong_lists(mapping: dict[str, Any], path: str, names: tuple[str, ...]) -> Iterator[str]:
    """Yield a sentence for each field that is no list of named mappings. A mount also needs a ``mountPath``."""
    for name in names:
        entries = mapping.get(name)
        keys = ("name", "mountPath") if name == "volumeMounts" else ("name",)
        is_list = isinstance(entries, list) and all(
            isinstance(each, dict) and all(isinstance(each.get(key), str) for key in keys) for each in entries
        )
        if entries is not None and not is_list:
            yield f"{path}.{name} must be a list of mappings with {' and '.join(keys)}"


def _wrong_mappings(mapping: dict[str, Any], path: str, names: tuple[str, ...]) -> Iterator[str]:
    for name in names:
        if not isinstance(mapping.get(name) or {}, dict):
            yield f"{path}.{name} must be a mapping"


def _wrong_affinity(spec: dict[str, Any]) -> Iterator[str]:
    """Yield a sentence for each malformed field of the pod affinity."""
    path, found = "spec", spec
    for name in ("affinity", "podAffinity"):
        yield from _wrong_mappings(found, path, (name,))
        path, found = f"{path}.{name}", found.get(name) or {}
        if not isinstance(found, dict):
            return
    for name, terms in found.items():
        if not (terms is None or (isinstance(terms, list) and all(map(_is_term, terms)))):
            yield f"{path}.{name} must be a list of terms"


def _is_term(term: object) -> bool:
    return isinstance(term, dict) and isinstance(term.get("podAffinityTerm") or {}, dict)


def with_cache(template: dict[str, Any], found: PodSet) -> dict[str, Any]:
    """Return a pod or template with a cache for a set. An existing cache is replaced.

    Args:
        template: Pod or template, with ``metadata`` and ``spec``.
        found: The set.

    Raises:
        SpecError: The pod has a conflicting field, which the message names.
    """
    result = without_cache(template)
    metadata, spec = result.setdefault("metadata", {}), result["spec"]
    consumers = consumers_of(metadata.get("annotations") or {}, spec)
    for container in spec["containers"]:
        if container["name"] in consumers.names:
            let_read(container)
    metadata.setdefault("annotations", {})[HASH] = hash_of(found)
    image = metadata["annotations"].get(IMAGE, consumers.first.get("image", ""))
    sidecar = server_container(found, consumers.first, image, (spec.get("securityContext") or {}))
    spec["initContainers"] = [sidecar, *(spec.get("initContainers") or ())]
    spec["volumes"] = [*(spec.get("volumes") or ()), *volumes_of(found)]
    return result


def config_map(found: PodSet) -> dict[str, Any]:
    """Build the ConfigMap from which sidecars read a set."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": found.config_map,
            **({"namespace": found.namespace} if found.namespace else {}),
            "labels": {"app.kubernetes.io/managed-by": "prefeed", "app.kubernetes.io/instance": found.name},
        },
        "data": found.texts,
    }


def hash_of(found: PodSet) -> str:
    """Return a hash of the set. Its change makes controllers replace their pods."""
    return hashlib.sha256(json.dumps(found.texts, sort_keys=True).encode()).hexdigest()[:16]


# ---------------------------------------------------------------- containers that read


def consumers_of(annotations: dict[str, Any], spec: dict[str, Any]) -> ReaderContainers:
    """Return the containers of a pod that read its set.

    Raises:
        SpecError: The annotation names an unknown container, or the containers run as different users.
    """
    there = {container["name"]: container for container in spec["containers"]}
    names = [name.strip() for name in str(annotations.get(CONTAINERS, "")).split(",") if name.strip()] or list(there)
    for name in names:
        if name not in there:
            raise SpecError(f"annotation {CONTAINERS} names {name}; the pod has the containers {', '.join(there)}")
    users = {json.dumps([user_of(there[name], spec).get(field) for field in USER_FIELDS[:2]]) for name in names}
    if len(users) > 1:
        raise SpecError(
            f"the containers {', '.join(names)} run as different users, and a cache belongs to one: give them one "
            f"securityContext.runAsUser, or name those that read the set in the annotation {CONTAINERS}"
        )
    return ReaderContainers(names=frozenset(names), first=there[names[0]])


def user_of(container: dict[str, Any], spec: dict[str, Any]) -> dict[str, Any]:
    """Return the security context of a container, including the fields of its pod."""
    return {**(spec.get("securityContext") or {}), **(container.get("securityContext") or {})}


def let_read(container: dict[str, Any]) -> None:
    """Add the variables and volumes of the cache to a container.

    Raises:
        SpecError: The container sets one of the variables itself.
    """
    for variable in container.get("env") or ():
        if variable["name"] in READERS:
            raise SpecError(
                f"the container {container['name']} sets {variable['name']}, by which it finds the cache: remove it"
            )
    container["env"] = [*(container.get("env") or ()), *_variables(READERS)]
    container["volumeMounts"] = [*(container.get("volumeMounts") or ()), *_shared_mounts()]


def _variables(environment: dict[str, str]) -> list[dict[str, Any]]:
    return [{"name": name, "value": value} for name, value in environment.items()]


def _shared_mounts() -> list[dict[str, Any]]:
    return [
        {"name": f"{PREFIX}state", "mountPath": str(STATE)},
        {"name": f"{PREFIX}memory", "mountPath": str(MEMORY)},
    ]


# ---------------------------------------------------------------- sidecar and volumes


def server_container(found: PodSet, consumer: dict[str, Any], image: str, of_pod: dict[str, Any]) -> dict[str, Any]:
    """Build the native sidecar that runs the node server of a set.

    Args:
        found: The set.
        consumer: Container whose user, variables and mounts are copied.
        image: Image with prefeed.
        of_pod: ``securityContext`` of the pod.

    Raises:
        SpecError: The image is missing, or no volume contains the set's directory.
    """
    if not image:
        raise SpecError(
            f"the container {consumer['name']} has no image: name one with prefeed in the annotation {IMAGE}"
        )
    own = consumer.get("securityContext") or {}
    memory = f"{math.ceil((found.volume_mib + _PROGRAM_MIB) / _CAPPED_SHARE)}Mi"
    pull = {"imagePullPolicy": consumer["imagePullPolicy"]} if "imagePullPolicy" in consumer else {}
    store = [variable for variable in consumer.get("env") or () if _is_of_server(variable["name"])]
    return {
        "name": SIDECAR,
        "image": image,
        **pull,
        "restartPolicy": "Always",
        "command": ["prefeed", "kubernetes", "sidecar", found.name],
        "env": [*store, *_variables(ENVIRONMENT)],
        "startupProbe": {
            "exec": {"command": ["prefeed", "server", "status", "--home", f"sampleset://{found.name}"]},
            "periodSeconds": 2,
            "timeoutSeconds": 30,
            "failureThreshold": 150,
        },
        "resources": {"requests": {"cpu": "100m", "memory": memory}, "limits": {"memory": memory}},
        "securityContext": {
            **{field: own[field] for field in USER_FIELDS if field in own},
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            **({} if "seccompProfile" in of_pod else {"seccompProfile": {"type": "RuntimeDefault"}}),
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            *_shared_mounts(),
            *([{"name": f"{PREFIX}disk", "mountPath": str(DISK)}] if found.has_disk else []),
            {"name": f"{PREFIX}set", "mountPath": str(DOCUMENTS), "readOnly": True},
            *({"name": _of_secret(name), "mountPath": str(SECRETS / name), "readOnly": True} for name in found.secrets),
            *_mounts_of_source(found, consumer),
        ],
    }


def _is_of_server(name: str) -> bool:
    """Return whether a variable configures the server's access to stores or to the pool."""
    return is_store_variable(name) or name == _POOL


def _of_secret(name: str) -> str:
    return (
        f"{PREFIX}secret-{name}"
        if len(name) <= 48
        else f"{PREFIX}secret-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
    )


def _mounts_of_source(found: PodSet, consumer: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the mounts of a container that contain the set's directory, or nothing for an object store."""
    if not found.directory:
        return
    mounts = [each for each in consumer.get("volumeMounts") or () if is_in(found.directory, each["mountPath"])]
    if not mounts:
        raise SpecError(
            f"the sample set {found.name} is the directory {found.directory}, and the container {consumer['name']} has no "
            "volume mounted there: add it to its volumeMounts"
        )
    for mount in mounts:
        yield {**mount, "readOnly": True}


def volumes_of(found: PodSet, on_host: Mapping[str, str] | None = None) -> Iterator[dict[str, Any]]:
    """Yield the volumes of a pod that serves a set.

    Args:
        found: The set.
        on_host: Directories of the node by ``state``, ``memory`` and ``disk``, or None for volumes of the pod.
    """
    limits = {
        "state": {},
        "memory": {"medium": "Memory", "sizeLimit": f"{found.volume_mib}Mi"},
        **(
            {"disk": {} if found.disk_volume_mib is None else {"sizeLimit": f"{found.disk_volume_mib}Mi"}}
            if found.has_disk
            else {}
        ),
    }
    for name, limit in limits.items():
        yield volume(name, limit, on_host)
    yield {"name": f"{PREFIX}set", "configMap": {"name": found.config_map}}
    for name in found.secrets:
        yield {"name": _of_secret(name), "secret": {"secretName": name}}


def volume(name: str, limit: dict[str, Any], on_host: Mapping[str, str] | None) -> dict[str, Any]:
    """Build a volume that programs and server share: a directory of the node, or an ``emptyDir`` with a limit."""
    if on_host is None:
        return {"name": f"{PREFIX}{name}", "emptyDir": limit}
    return {"name": f"{PREFIX}{name}", "hostPath": {"path": on_host[name], "type": "DirectoryOrCreate"}}


# ---------------------------------------------------------------- removal


def without_cache(template: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of a pod or template without the additions of ``with_cache``.

    Raises:
        SpecError: A container or a volume uses a reserved name.
    """
    result = copy.deepcopy(template)
    _drop_empty(result, "metadata", "annotations")
    _drop_empty(result, "spec", "affinity", "podAffinity")
    spec = result["spec"]
    init = spec.get("initContainers") or []
    is_ours = any(each["name"] == SIDECAR and each.get("restartPolicy") == "Always" for each in init)
    is_ours = is_ours or HASH in ((result.get("metadata") or {}).get("annotations") or {})
    taken = [each["name"] for each in [*init, *spec["containers"]] if each["name"] == SIDECAR]
    taken += [each["name"] for each in spec.get("volumes") or () if each["name"].startswith(PREFIX)]
    if taken and not is_ours:
        raise SpecError(f"the pod has {taken[0]} already; names that begin with {PREFIX} are prefeed's: rename it")
    if not is_ours:
        return result
    _keep(spec, "initContainers", lambda each: each["name"] != SIDECAR)
    _keep(spec, "volumes", lambda each: not each["name"].startswith(PREFIX))
    for container in spec["containers"]:
        _keep(container, "env", lambda each: each not in _variables(READERS))
        _keep(container, "volumeMounts", lambda each: not each["name"].startswith(PREFIX))
    return result


def _drop_empty(mapping: dict[str, Any], *names: str) -> None:
    """Remove the outermost empty field of a path of fields, so that defaults can be set there."""
    for name in names:
        if not mapping.get(name):
            mapping.pop(name, None)
            return
        mapping = mapping[name]


def _keep(mapping: dict[str, Any], name: str, is_kept: Any) -> None:
    """Filter a list in place. Remove the field if no entry is left."""
    kept = [each for each in mapping.get(name) or () if is_kept(each)]
    mapping.pop(name, None)
    if kept:
        mapping[name] = kept
