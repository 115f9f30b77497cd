"""A node gets a cache that all its pods share: one server per node in a StatefulSet, and what pods need to reach it. Pure.

::

    node: the containers of trainings  ──hostPath: home, socket, tier──  NAME-runtime-i: the node server [and memcached]

Nothing in it is privileged. If there are several nodes, memcached servers among them are the pool.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from prefeed.errors import SpecError
from prefeed.kubernetes.layout import DISK_TIER, HOME, MEMORY_TIER, PREFIX, RUNTIME
from prefeed.kubernetes.pods import (
    HASH,
    IMAGE,
    SHARED,
    consumers_of,
    hash_of,
    let_read,
    server_container,
    user_of,
    volume,
    volumes_of,
    without_cache,
)
from prefeed.kubernetes.sets import PodSet, pod_set
from prefeed.sampleset.documents import Document, decode
from prefeed.sampleset.spec import SampleSetDocument, SampleSetSpec

MODE: Final = "prefeed.io/mode"
"""Annotation of a set: ``pod``, which is the default, or ``node``."""

POD, NODE = "pod", "node"
USER: Final = "prefeed.io/user"
"""Annotation of a set in mode node: ``UID`` or ``UID:GID`` of its servers and of all containers that read it."""

POOL: Final = "prefeed.io/pool-memory"
"""Annotation of a set in mode node: MiB that each node gives to the pool."""

MANAGED: Final = {"app.kubernetes.io/managed-by": "prefeed"}
COMPONENT: Final = "app.kubernetes.io/component"
INSTANCE: Final = "app.kubernetes.io/instance"
HOSTNAME: Final = "kubernetes.io/hostname"
POD_NAME: Final = "statefulset.kubernetes.io/pod-name"

DIRECTORIES: Final = "/var/lib/prefeed"
"""On a node, with a directory per namespace and set."""

IN_MEMORY: Final = "/dev/shm/prefeed"
POOL_MIB: Final = 1024
POOL_PORT: Final = 11211
POOL_IMAGE: Final = "docker.io/library/memcached:1.6"
_POOL_MARGIN_MIB: Final = 256
"""Memory of memcached beside its values: connections and the table of keys."""

_MAX_STATEFUL_SET: Final = 52
"""Letters of a StatefulSet's name: its controller adds a hash to it, and makes a label of both."""

MOST_NODES: Final = 10_000
"""That a set may have: more than a cluster has. Each is a name in the operator's memory."""

_MOST_OF_VARIABLE: Final = 128 * 1024 - 64
"""Bytes of a value: with a longer one, Linux starts no process."""

_SOURCE: Final = f"{PREFIX}source"
_END_SECONDS: Final = 120
"""For the server to end and to free its tier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSet:
    """A set whose nodes have caches.

    Attributes:
        found: As its servers have it.
        namespace: Of the set.
        partitions: Nodes with a cache.
        user: Of its servers and readers.
        group: Of the same; None: the image's.
        image: Of its servers.
        pool_mib: Memory of each server of the pool; 0: no pool.
        pool_image: With memcached.
        node_affinity: As the set has it; None: none.
        tolerations: As the set has them.
    """

    found: PodSet
    namespace: str
    partitions: int
    user: int
    group: int | None
    image: str
    pool_mib: int
    pool_image: str
    node_affinity: dict[str, Any] | None
    tolerations: list[dict[str, Any]]

    @property
    def name(self) -> str:
        """Of its StatefulSet and its Service."""
        return runtime_name(self.found.name)

    @property
    def on_host(self) -> dict[str, str]:
        """Directories of a node, by the names of volumes."""
        own = f"{self.namespace}/{self.found.name}"
        return {
            "state": f"{DIRECTORIES}/{own}/state",
            "disk": f"{DIRECTORIES}/{own}/disk",
            "memory": f"{IN_MEMORY}/{own}",
        }

    @property
    def pool(self) -> str:
        """``PREFEED_POOL`` of its servers; empty: none."""
        hosts = (
            f"{self.name}-{index}.{self.name}.{self.namespace}.svc:{POOL_PORT}" for index in range(self.partitions)
        )
        return ",".join(hosts) if self.pool_mib else ""

    @property
    def labels(self) -> dict[str, str]:
        """Of the pods of its StatefulSet."""
        return {**MANAGED, INSTANCE: self.found.name, COMPONENT: "runtime"}


def runtime_name(name: str) -> str:
    """Return the name of the StatefulSet of a set, as in the original."""
    return f"{name}-runtime"


def mode_of(document: Document) -> str:
    """Return the mode of a set.

    Raises:
        SpecError: The annotation names no mode.
    """
    mode = _annotations(document).get(MODE, POD)
    if mode not in (POD, NODE):
        raise SpecError(f"annotation {MODE} must be {POD} or {NODE}, not {mode!r:.60}")
    return str(mode)


def node_set(document: Document, *, image: str, pool_image: str = POOL_IMAGE) -> NodeSet:
    """Return a set whose nodes have caches.

    Args:
        document: Of kind SampleSet, with its namespace.
        image: With prefeed; the annotation ``prefeed.io/image`` of the set comes first.
        pool_image: With memcached.

    Raises:
        SpecError: It is not understood, or an annotation is wrong.
    """
    found = pod_set(document, is_shared=True)
    _require_name(found.name)
    spec: SampleSetSpec = decode(document, SampleSetDocument).spec
    annotations = _annotations(document)
    image = annotations.get(IMAGE) or image
    if not image:
        raise SpecError(f"the servers of {found.name} have no image: name one with prefeed in the annotation {IMAGE}")
    user, group = _user_and_group(str(annotations.get(USER, "0")))
    pool = _whole(POOL, str(annotations.get(POOL, POOL_MIB)), "MiB of memory; 0: no pool")
    made = NodeSet(
        found=found,
        namespace=found.namespace,
        partitions=spec.partitions,
        user=user,
        group=group,
        image=image,
        pool_mib=pool if spec.partitions > 1 else 0,
        pool_image=pool_image,
        node_affinity=document["spec"].get("nodeAffinity"),
        tolerations=list(document["spec"].get("tolerations") or ()),
    )
    _require_number(made)
    return made


def _require_number(made: NodeSet) -> None:
    """Refuse more servers than there can be, or can know each other."""
    if made.partitions > MOST_NODES:
        raise SpecError(
            f"spec.partitions is {made.partitions}: in mode {NODE} it is the number of nodes, at most {MOST_NODES}"
        )
    if len(made.pool) > _MOST_OF_VARIABLE:
        raise SpecError(
            f"spec.partitions is {made.partitions}: the names of so many servers have no room in a variable, and without them there "
            f'is no pool; write fewer, or the annotation {POOL}: "0"'
        )


def _require_name(name: str) -> None:
    """Refuse the name of a set whose Service or StatefulSet an API server would refuse, or could not make pods of."""
    if name[0].isdigit():
        raise SpecError(
            f"the SampleSet {name}: in mode {NODE} its name must begin with a letter, as that of a Service does"
        )
    if len(runtime_name(name)) > _MAX_STATEFUL_SET:
        most = _MAX_STATEFUL_SET - len(runtime_name(""))
        raise SpecError(
            f"the name of the SampleSet {name} has {len(name)} letters: in mode {NODE} it has at most {most}"
        )


def _annotations(document: Document) -> dict[str, Any]:
    metadata = document.get("metadata")
    return (metadata.get("annotations") if isinstance(metadata, dict) else None) or {}


def _user_and_group(text: str) -> tuple[int, int | None]:
    user, _, group = text.partition(":")
    meaning = "UID or UID:GID, such as 1000:1000"
    return _whole(USER, user, meaning), _whole(USER, group, meaning) if group else None


def _whole(annotation: str, text: str, meaning: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise SpecError(f"annotation {annotation} must be {meaning}, not {text!r:.60}")
    return int(text)


# ---------------------------------------------------------------- the servers


def service(given: NodeSet) -> Document:
    """Return the headless Service that gives the servers of a set their names."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": given.name, "namespace": given.namespace, "labels": given.labels},
        "spec": {
            "clusterIP": "None",
            "selector": given.labels,
            "publishNotReadyAddresses": True,  # a server that starts asks the pool, of which it is a part
            "ports": [{"name": "pool", "port": POOL_PORT}],
        },
    }


def stateful_set(given: NodeSet) -> Document:
    """Return the StatefulSet with a server per node."""
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": given.name, "namespace": given.namespace, "labels": given.labels},
        "spec": {
            "replicas": given.partitions,
            "serviceName": given.name,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": given.labels},
            "template": {
                "metadata": {"labels": given.labels, "annotations": {HASH: hash_of(given.found)}},
                "spec": {
                    "automountServiceAccountToken": False,
                    "terminationGracePeriodSeconds": _END_SECONDS,
                    **placed(given),
                    "affinity": {
                        **({"nodeAffinity": given.node_affinity} if given.node_affinity else {}),
                        "podAntiAffinity": apart(given.labels),
                    },
                    "containers": [_server(given), *([_memcached(given)] if given.pool_mib else [])],
                },
            },
        },
    }


def placed(given: NodeSet) -> dict[str, Any]:
    """Return the part of a pod's ``spec`` that is common to all pods that serve a set: users, volumes, first steps."""
    return {
        **({"tolerations": given.tolerations} if given.tolerations else {}),
        **({"initContainers": [_maker(given)]} if given.user else {}),
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "volumes": [*volumes_of(given.found, given.on_host), *_source_volume(given)],
    }


def apart(labels: dict[str, str]) -> dict[str, Any]:
    """Return the anti-affinity by which pods with these labels lie on different nodes."""
    return {"requiredDuringSchedulingIgnoredDuringExecution": [_term(labels)]}


def near(given: NodeSet, index: int | None = None) -> dict[str, Any]:
    """Return the term of a ``podAffinity`` to nodes with a server of the set; ``index``: to that of one server."""
    return {
        **_term(given.labels | ({} if index is None else {POD_NAME: f"{given.name}-{index}"})),
        "namespaces": [given.namespace],
    }


def _term(labels: dict[str, str]) -> dict[str, Any]:
    return {"labelSelector": {"matchLabels": labels}, "topologyKey": HOSTNAME}


def server_of(given: NodeSet) -> dict[str, Any]:
    """Return the container that runs the server, as a native sidecar has it."""
    consumer: dict[str, Any] = {"name": given.name, "securityContext": _context(given)}
    if given.found.directory:
        consumer["volumeMounts"] = [{"name": _SOURCE, "mountPath": given.found.directory}]
    return server_container(given.found, consumer, given.image, {"seccompProfile": {}})


def _context(given: NodeSet) -> dict[str, Any]:
    return {"runAsUser": given.user, **({} if given.group is None else {"runAsGroup": given.group})}


def _server(given: NodeSet) -> dict[str, Any]:
    container = server_of(given)
    del container["restartPolicy"]
    container["command"] = [*container["command"], "--clear"]
    if given.pool:
        container["env"] = [*container["env"], {"name": "PREFEED_POOL", "value": given.pool}]
    return container


def _source_volume(given: NodeSet) -> list[dict[str, Any]]:
    if not given.found.directory:
        return []
    return [{"name": _SOURCE, "hostPath": {"path": given.found.directory, "type": "Directory"}}]


def _memcached(given: NodeSet) -> dict[str, Any]:
    memory = f"{given.pool_mib + _POOL_MARGIN_MIB}Mi"
    return {
        "name": "memcached",
        "image": given.pool_image,
        "args": ["-M", "-m", str(given.pool_mib), "-I", "1m", "-c", "8192", "-p", str(POOL_PORT)],
        "ports": [{"name": "pool", "containerPort": POOL_PORT}],
        "resources": {"requests": {"cpu": "100m", "memory": memory}, "limits": {"memory": memory}},
        "securityContext": {
            "runAsUser": 11211,
            "runAsNonRoot": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
    }


def _maker(given: NodeSet) -> dict[str, Any]:
    """Return the init container that gives the user its directories: kubelet makes those of the node for root."""
    server = server_of(given)
    own = [HOME, RUNTIME, MEMORY_TIER, *([DISK_TIER] if given.found.has_disk else [])]
    owner = [str(given.user), str(given.user if given.group is None else given.group)]
    return {
        "name": f"{PREFIX}directories",
        "image": given.image,
        "command": ["install", "-d", "-m", "0700", "-o", owner[0], "-g", owner[1], *map(str, own)],
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "128Mi"}},
        "securityContext": {
            "runAsUser": 0,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"], "add": ["CHOWN", "DAC_OVERRIDE", "FOWNER"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": [
            each for each in server["volumeMounts"] if each["name"] in {f"{PREFIX}{name}" for name in SHARED}
        ],
    }


# ---------------------------------------------------------------- the pods that read


def with_node_cache(template: Document, given: NodeSet, *, index: int | None = None) -> Document:
    """Return a template of pods, or a pod, that reads the caches of nodes.

    It is placed on nodes with a server of the set.

    Args:
        template: With ``metadata`` and ``spec``.
        given: The set.
        index: Number of the server whose node is preferred; None: any.

    Raises:
        SpecError: The pod has something of its own in the way; the message says what to change.
    """
    result = without_cache(template)
    metadata, spec = result.setdefault("metadata", {}), result["spec"]
    _remove_affinity(spec)
    consumers = consumers_of(metadata.get("annotations") or {}, spec)
    for container in spec["containers"]:
        if container["name"] in consumers.names:
            _let_run_as(container, spec, given)
            let_read(container)
    metadata.setdefault("annotations", {})[HASH] = hash_of(given.found)
    shared = [volume(name, {}, given.on_host) for name in ("state", "memory")]
    spec["volumes"] = [*(spec.get("volumes") or ()), *shared]
    affinity = spec.setdefault("affinity", {}).setdefault("podAffinity", {})
    affinity.setdefault(_REQUIRED, []).append(near(given))
    if index is not None:
        affinity.setdefault(_PREFERRED, []).append({"weight": 100, "podAffinityTerm": near(given, index)})
    return result


_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"


def _let_run_as(container: dict[str, Any], spec: dict[str, Any], given: NodeSet) -> None:
    """Give a container the user of the servers, unless it names a user: the image may have another one, which nothing here can see.

    Raises:
        SpecError: It names another user, or may not be root as the servers are.
    """
    user = user_of(container, spec).get("runAsUser")
    if user is not None and user != given.user:
        raise SpecError(
            f"the container {container['name']} runs as user {user}, and the servers of {given.found.name} as {given.user}: a "
            f"cache belongs to one user; give both the same, by securityContext.runAsUser or the annotation {USER} of the set"
        )
    if user is None and not given.user and user_of(container, spec).get("runAsNonRoot"):
        raise SpecError(
            f"the container {container['name']} runs as another user than root, and the servers of {given.found.name} as root: a "
            f"cache belongs to one user; give both the same, by securityContext.runAsUser and the annotation {USER} of the set"
        )
    if user is None:
        container["securityContext"] = {**(container.get("securityContext") or {}), **_context(given)}


def _remove_affinity(spec: dict[str, Any]) -> None:
    """Remove what ``with_node_cache`` adds."""
    affinity = (spec.get("affinity") or {}).get("podAffinity") or {}
    ours = MANAGED | {COMPONENT: "runtime"}

    def is_ours(term: dict[str, Any]) -> bool:
        labels = ((term.get("podAffinityTerm") or term).get("labelSelector") or {}).get("matchLabels") or {}
        return ours.items() <= labels.items()

    for name in (_REQUIRED, _PREFERRED):
        kept = [term for term in affinity.get(name) or () if not is_ours(term)]
        affinity.pop(name, None)
        if kept:
            affinity[name] = kept
    if affinity == {} and "podAffinity" in (spec.get("affinity") or {}):
        del spec["affinity"]["podAffinity"]
    if spec.get("affinity") == {}:
        del spec["affinity"]
