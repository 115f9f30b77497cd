"""Mounts a set as a directory on its nodes, for pods that read plain files. Pure. Start with ``stateful_set``.

::

    node: NAME-mount-i: prefeed mount ─FUSE→ DIRECTORIES/NAMESPACE/NAME/files  ──hostPath→  the pods' mountPath
                                             DIRECTORIES/NAMESPACE/NAME/output ←─ files the pods write: mountPath/log

Used in mode ``node``, for jobs with a ``mountPath``. Other pods see the mount because its container is privileged.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from prefeed.errors import SpecError
from prefeed.kubernetes.layout import PREFIX, ROOT
from prefeed.kubernetes.nodes import (
    COMPONENT,
    DIRECTORIES,
    INSTANCE,
    MANAGED,
    USER,
    NodeSet,
    apart,
    near,
    placed,
    server_of,
)
from prefeed.sampleset.documents import Document

WRITABLE: Final = "log"
"""Directory of a mount that pods may write to."""

WAITER: Final = f"{PREFIX}files"
"""Name of the init container that waits for the mount."""

FILES: Final = ROOT / "files"
OUTPUT: Final = ROOT / "output"
"""Paths of the files and of their writable part in all containers. The mount links to the writable part."""

_FOR_READERS: Final = 0o1777
_IS_MOUNTED: Final = '[ "$(stat -f -c %t {place} 2>&1)" = 65735546 ] && stat {place}/{link} >/dev/null'
"""Shell command that succeeds if a FUSE file system answers at a path and has the link that only a set's mount has."""

_MOUNT_SECONDS: Final = 600
"""Time that a pod waits for the files of its set. A new node may have to pull an image first."""


def mount_name(name: str) -> str:
    """Return the name of the StatefulSet that mounts a set."""
    return f"{name}-mount"


def stateful_set(given: NodeSet) -> Document:
    """Return the StatefulSet that mounts a set on each node with one of its servers.

    Raises:
        SpecError: The servers run as a user that may not mount.
    """
    require_user(given)
    labels = {**MANAGED, INSTANCE: given.found.name, COMPONENT: "mount"}
    base = placed(given)
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": mount_name(given.found.name), "namespace": given.namespace, "labels": labels},
        "spec": {
            "replicas": given.partitions,
            "serviceName": given.name,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    **base,
                    "automountServiceAccountToken": False,
                    "affinity": {
                        "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [near(given)]},
                        "podAntiAffinity": apart(labels),
                    },
                    "containers": [_mounter(given)],
                    "volumes": [*base["volumes"], *_volumes(given)],
                },
            },
        },
    }


def require_user(given: NodeSet) -> None:
    """Refuse a set whose servers run as a user that may not mount.

    Raises:
        SpecError: The annotation names a user other than root.
    """
    if given.user:
        raise SpecError(
            f"the servers of {given.found.name} run as user {given.user}, who may not mount for other pods: remove the "
            f"annotation {USER} of the set, or read sampleset://{given.found.name} without a mountPath"
        )


def with_files(template: Document, given: NodeSet, mount_path: str) -> Document:
    """Mount the files of a set into all containers of a pod that read it.

    Args:
        template: Pod or template that ``with_node_cache`` returned. Changed in place.
        given: The set.
        mount_path: Path of the files in the containers. ``log`` below it is writable.
    """
    spec = template["spec"]
    for container in spec["containers"]:
        if any(mount["name"] == f"{PREFIX}state" for mount in container.get("volumeMounts") or ()):
            container["volumeMounts"] += [
                {"name": f"{PREFIX}files", "mountPath": mount_path, "mountPropagation": "HostToContainer"},
                {"name": f"{PREFIX}output", "mountPath": str(OUTPUT)},
            ]
    spec["initContainers"] = [_waiter(given), *(spec.get("initContainers") or ())]
    spec["volumes"] += _volumes(given)
    return template


def is_mounted(place: Path) -> str:
    """Return a shell command that succeeds if the files of a set are mounted at a path and readable."""
    return _IS_MOUNTED.format(place=place, link=WRITABLE)


def _waiter(given: NodeSet) -> dict[str, Any]:
    """Return the init container that waits for the mount, so that no program starts on an empty directory."""
    name = given.found.name
    failure = (
        f"the files of the SampleSet {name} are not mounted on this node after {_MOUNT_SECONDS} s; "
        f"see: kubectl --namespace {given.namespace} describe statefulset {mount_name(name)}"
    )
    script = (
        f"for i in $(seq {_MOUNT_SECONDS}); do {is_mounted(FILES)} && exit 0; sleep 1; done; "
        f"echo '{failure}' | tee /dev/termination-log; exit 1"
    )
    return {
        "name": WAITER,
        "image": server_of(given)["image"],
        "command": ["sh", "-c", script],
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "64Mi"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [
            {"name": f"{PREFIX}files", "mountPath": str(FILES), "mountPropagation": "HostToContainer"},
            {"name": f"{PREFIX}output", "mountPath": str(OUTPUT)},
        ],
    }


def _volumes(given: NodeSet) -> list[dict[str, Any]]:
    own = f"{DIRECTORIES}/{given.namespace}/{given.found.name}"
    return [
        {"name": f"{PREFIX}{name}", "hostPath": {"path": f"{own}/{name}", "type": "DirectoryOrCreate"}}
        for name in ("files", "output")
    ]


def _mounter(given: NodeSet) -> dict[str, Any]:
    server = server_of(given)
    url, place = f"sampleset://{given.found.name}", str(FILES)
    script = (
        f"install -d -m {_FOR_READERS:o} {OUTPUT / WRITABLE} && exec prefeed mount {url} {place} --foreground "
        f"--allow-other --writable-below {WRITABLE}={OUTPUT / WRITABLE}"
    )
    return {
        "name": "mount",
        "image": server["image"],
        "command": ["sh", "-c", script],
        "env": [*server["env"], {"name": "PREFEED_AUTOSTART", "value": "0"}],
        "readinessProbe": {
            "exec": {"command": ["sh", "-c", is_mounted(FILES)]},
            "periodSeconds": 2,
            "timeoutSeconds": 10,
            "failureThreshold": 1,
        },
        "lifecycle": {"preStop": {"exec": {"command": ["prefeed", "umount", "--lazy", place]}}},
        "resources": {"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": {"memory": "2Gi"}},
        "securityContext": {"privileged": True, "runAsUser": 0},
        "volumeMounts": [
            *server["volumeMounts"],
            {"name": f"{PREFIX}files", "mountPath": place, "mountPropagation": "Bidirectional"},
            {"name": f"{PREFIX}output", "mountPath": str(OUTPUT)},
        ],
    }
