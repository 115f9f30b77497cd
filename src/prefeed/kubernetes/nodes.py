"""Gives each node one cache that its pods share: a StatefulSet with a server per node, and access for the pods. Pure.

::

    node: the training containers  ──hostPath: home, socket, tier──  NAME-runtime-i: the node server [and memcached]

No container is privileged. With several nodes, their memcached containers form the pool. Start with ``NodeSet``.
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
"""Annotation of a set: ``pod``, the default, or ``node``."""

POD, NODE = "pod", "node"
USER: Final = "prefeed.io/user"
"""Annotation of a set in mode node: ``UID`` or ``UID:GID`` of its servers and of the containers that read it."""

POOL: Final = "prefeed.io/pool-memory"
"""Annotation of a set in mode node: memory of each node for the pool, in MiB."""

MANAGED: Final = {"app.kubernetes.io/managed-by": "prefeed"}
COMPONENT: Final = "app.kubernetes.io/component"
INSTANCE: Final = "app.kubernetes.io/instance"
HOSTNAME: Final = "kubernetes.io/hostname"
POD_NAME: Final = "statefulset.kubernetes.io/pod-name"

DIRECTORIES: Final = "/var/lib/prefeed"
"""Directory on a node, with a subdirectory per namespace and set."""

IN_MEMORY: Final = "/dev/shm/prefeed"
POOL_MIB: Final = 1024
POOL_PORT: Final = 11211
POOL_IMAGE: Final = "docker.io/library/memcached:1.6"
_POOL_MARGIN_MIB: Final = 256
"""Memory of memcached for connections and the hash table, in addition to its values."""

_MAX_STATEFUL_SET: Final = 52
"""Maximum letters of a StatefulSet's name: its controller makes a label of the name and a hash."""

MOST_NODES: Final = 10_000
"""Maximum nodes of a set, above the size of any cluster. The operator keeps a name in memory for each."""

_MOST_OF_VARIABLE: Final = 128 * 1024 - 64
"""Maximum bytes of a variable: Linux starts no process with a longer one."""

_SOURCE: Final = f"{PREFIX}source"
_END_SECONDS: Final = 120
"""Time for the server to stop and to free its tier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSet:
    """Sample set in mode node.

    Attributes:
        found: The set with the volumes of its servers.
        namespace: Namespace of the set.
        partitions: Number of nodes with a cache.
        user: UID of its servers and readers.
        group: GID of its servers and readers, or None for that of the image.
        image: Image of its servers.
        pool_mib: Memory of each pool server in MiB, or 0 without a pool.
        pool_image: Image with memcached.
        node_affinity: ``nodeAffinity`` of the set, or None.
        tolerations: ``tolerations`` of the set.
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
        """Name of its StatefulSet and its Service."""
        return runtime_name(self.found.name)

    @property
    def on_host(self) -> dict[str, str]:
        """Directories on a node, by volume."""
        own = f"{self.namespace}/{self.found.name}"
        return {
            "state": f"{DIRECTORIES}/{own}/state",
            "disk": f"{DIRECTORIES}/{own}/disk",
            "memory": f"{IN_MEMORY}/{own}",
        }

    @property
    def pool(self) -> str:
        """``PREFEED_POOL`` of its servers, or an empty text without a pool."""
        hosts = (
            f"{self.name}-{index}.{self.name}.{self.namespace}.svc:{POOL_PORT}" for index in range(self.partitions)
        )
        return ",".join(hosts) if self.pool_mib else ""

    @property
    def labels(self) -> dict[str, str]:
        """Labels of the pods of its StatefulSet."""
        return {**MANAGED, INSTANCE: self.found.name, COMPONENT: "runtime"}


def runtime_name(name: str) -> str:
    """Return the name of the StatefulSet of a set, the same as in the Paddle operator."""
    return f"{name}-runtime"


def mode_of(document: Document) -> str:
    """Return the mode of a set.

    Raises:
        SpecError: The annotation is neither ``pod`` nor ``node``.
    """
    mode = _annotations(document).get(MODE, POD)
    if mode not in (POD, NODE):
        raise SpecError(f"annotation {MODE} must be {POD} or {NODE}, not {mode!r:.60}")
    return str(mode)


def node_set(document: Document, *, image: str, pool_image: str = POOL_IMAGE) -> NodeSet:
    """Convert a SampleSet in mode node.

    Args:
        document: The SampleSet, with its namespace.
        image: Image with prefeed. The annotation ``prefeed.io/image`` of the set takes precedence.
        pool_image: Image with memcached.

    Raises:
        SpecError: The document is invalid, or one of its annotations is.
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
    """Refuse more servers than the operator handles, or than fit into ``PREFEED_POOL``."""
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
    """Refuse a set name that is invalid in the name of its Service or StatefulSet."""
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


# ---------------------------------------------------------------- servers


def service(given: NodeSet) -> Document:
    """Return the headless Service that names the servers of a set."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": given.name, "namespace": given.namespace, "labels": given.labels},
        "spec": {
            "clusterIP": "None",
            "selector": given.labels,
            "publishNotReadyAddresses": True,  # a server queries the pool, and so itself, while it starts
            "ports": [{"name": "pool", "port": POOL_PORT}],
        },
    }


def stateful_set(given: NodeSet) -> Document:
    """Return the StatefulSet with one server per node."""
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
    """Return the part of ``spec`` that all pods serving a set share: tolerations, init container, volumes."""
    return {
        **({"tolerations": given.tolerations} if given.tolerations else {}),
        **({"initContainers": [_maker(given)]} if given.user else {}),
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "volumes": [*volumes_of(given.found, given.on_host), *_source_volume(given)],
    }


def apart(labels: dict[str, str]) -> dict[str, Any]:
    """Return the anti-affinity that places pods with these labels on different nodes."""
    return {"requiredDuringSchedulingIgnoredDuringExecution": [_term(labels)]}


def near(given: NodeSet, index: int | None = None) -> dict[str, Any]:
    """Return the ``podAffinity`` term for nodes with a server of the set, or with the server ``index``."""
    return {
        **_term(given.labels | ({} if index is None else {POD_NAME: f"{given.name}-{index}"})),
        "namespaces": [given.namespace],
    }


def _term(labels: dict[str, str]) -> dict[str, Any]:
    return {"labelSelector": {"matchLabels": labels}, "topologyKey": HOSTNAME}


def server_of(given: NodeSet) -> dict[str, Any]:
    """Return the container of the server, as a native sidecar."""
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
    """Return the init container that gives the directories to the user, because kubelet creates them for root."""
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


# ---------------------------------------------------------------- pods that read


def with_node_cache(template: Document, given: NodeSet, *, index: int | None = None) -> Document:
    """Return a pod or template that reads the cache of its node.

    The affinity places it on nodes with a server of the set.

    Args:
        template: Pod or template, with ``metadata`` and ``spec``.
        given: The set.
        index: Number of the server whose node is preferred, or None for no preference.

    Raises:
        SpecError: The pod has a conflicting field, which the message names.
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
    """Run a container as the servers' user if it sets none. The user of its image is unknown here.

    Raises:
        SpecError: It sets another user, or forbids root, as which the servers run.
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
    """Remove the affinity that ``with_node_cache`` added."""
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
