"""Sets, readers and an object store for the tests with pods."""

from __future__ import annotations

import functools
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from on_cluster.kubectl import Document, kubectl, moved, succeed
from on_cluster.store import NUMBER, PORT, content
from process.conditions import wait_for

IMAGE = os.environ.get("PREFEED_TEST_IMAGE", "")
NEXT_IMAGE = os.environ.get("PREFEED_TEST_NEXT_IMAGE", "")
"""The same with another tag of its repository, for ``helm upgrade``."""

LIBRARIES = os.environ.get("PREFEED_TEST_LIBRARIES", "")
"""With torch: a path on the nodes, or an image if it does not begin with a slash."""

SECONDS = 180.0
RESTRICTED = {
    "runAsNonRoot": True, "runAsUser": 1000, "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}  # fmt: skip
READER = """
import hashlib, json, os, sys, time
sys.path.append("/libraries")
import prefeed, torch
from torch.utils.data import DataLoader
dataset, epochs, pause = prefeed.datasets.Objects("sampleset://photos"), int(sys.argv[1]), int(sys.argv[2])
for epoch in range(epochs):
    digests = []
    loader = prefeed.DataLoader(dataset, batch_size=10, num_workers=2, shuffle=True, collate_fn=list, prefetch_factor=1)
    for number, batch in enumerate(loader):
        digests += [hashlib.sha256(data).hexdigest() for data in batch]
        if epoch and number == pause:
            print("paused", flush=True)
            while not os.path.exists("/tmp/go"):
                time.sleep(0.05)
    print("epoch", len(digests), hashlib.sha256("".join(sorted(digests)).encode()).hexdigest(), flush=True)
"""
"""Reads epochs of the set ``photos``; in all but the first it waits after a batch, until there is a file."""

PLAIN = """
import hashlib, prefeed
dataset = prefeed.datasets.Objects("sampleset://photos")
digests = [hashlib.sha256(dataset[number]).hexdigest() for number in range(len(dataset))]
print("epoch", len(digests), hashlib.sha256("".join(sorted(digests)).encode()).hexdigest(), flush=True)
"""
"""Reads the set ``photos`` without torch, whose import takes longer than all of this."""

TORCHRUN = """
import hashlib, sys, time
import prefeed, torch.distributed
from prefeed.config import settings_of
from prefeed.sampleset.records import find
from torch.utils.data import DistributedSampler
settings = find("photos", settings_of(None)).settings(settings_of(None))
torch.distributed.init_process_group("gloo")
dataset, rank, digests = prefeed.datasets.Objects("sampleset://photos"), torch.distributed.get_rank(), []
for part in (rank, 1 - rank):
    sampler = DistributedSampler(dataset, num_replicas=2, rank=part, shuffle=False)
    for batch in prefeed.DataLoader(dataset, batch_size=10, sampler=sampler, collate_fn=list):
        digests += [hashlib.sha256(data).hexdigest() for data in batch]
    while prefeed.statistics(config=settings).pool.stored < len(dataset) // 2:
        time.sleep(0.05)
    torch.distributed.barrier()
print("epoch", len(digests), hashlib.sha256("".join(sorted(digests)).encode()).hexdigest(), flush=True)
torch.distributed.destroy_process_group()
"""
"""Of each rank on one of two nodes: in the second epoch it reads what the other one has read, once the pool has that."""

NEVER = 10**6
FILES = """
import hashlib, os, sys
names = sorted(os.listdir("/data/train"))
digests = [hashlib.sha256(open(f"/data/train/{name}", "rb").read()).hexdigest() for name in names]
print("epoch", len(digests), hashlib.sha256("".join(sorted(digests)).encode()).hexdigest(), flush=True)
open(f"/data/log/{os.environ['POD_NAME'] if 'POD_NAME' in os.environ else os.environ['HOSTNAME']}", "w").write("done")
sys.exit(not names)
"""
"""Lists and reads files below /data, as a program in any language does."""


@functools.cache
def epoch_line() -> str:
    """Return what a reader prints after an epoch with the right bytes."""
    digests = sorted(hashlib.sha256(content(number)).hexdigest() for number in range(NUMBER))
    return f"epoch {NUMBER} {hashlib.sha256(''.join(digests).encode()).hexdigest()}"


def apply(namespace: str, *documents: Document) -> None:
    succeed("apply", "-f", "-", text=moved(list(documents), namespace))


def store(namespace: str) -> None:
    """Start an object store with ``NUMBER`` objects, and create the Secret ``keys`` for it."""
    program = Path(__file__).with_name("store.py").read_text()
    container = {
        "name": "store", "image": IMAGE, "command": ["python", "-c", program], "securityContext": RESTRICTED,
        "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1},
    }  # fmt: skip
    apply(
        namespace,
        {
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "store", "labels": {"app": "store"}},
            "spec": {"containers": [container], "terminationGracePeriodSeconds": 0},
        },
        {
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "store"},
            "spec": {"selector": {"app": "store"}, "ports": [{"port": PORT}]},
        },
        keys(namespace, "access-1"),
    )  # fmt: skip
    succeed("wait", "-n", namespace, "pod/store", "--for=condition=Ready", "--timeout=180s")


def keys(namespace: str, access: str) -> Document:
    values = {"access-key": access, "secret-key": "secret", "endpoint": f"http://store.{namespace}.svc:{PORT}"}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "stringData": values}


def ask_store(namespace: str, what: str) -> Any:
    """Return what the store answers to the test."""
    return json.loads(succeed("get", "--raw", f"/api/v1/namespaces/{namespace}/pods/http:store:{PORT}/proxy/-/{what}"))


def photos(**annotations: str) -> Document:
    """Return the set of the store's objects; annotations are written with ``_``."""
    marks = {f"prefeed.io/{name.replace('_', '-')}": value for name, value in annotations.items()}
    return {
        "apiVersion": "batch.paddlepaddle.org/v1alpha1", "kind": "SampleSet",
        "metadata": {"name": "photos", "annotations": marks},
        "spec": {
            "partitions": 1, "source": {"uri": "s3://data", "secretRef": {"name": "keys"}},
            "cache": {"levels": [{"mediumType": "MEM", "cacheSize": 256}]},
        },
    }  # fmt: skip


def job_of(kind: str, name: str, **spec: Any) -> Document:
    return {
        "apiVersion": "batch.paddlepaddle.org/v1alpha1", "kind": "SampleJob", "metadata": {"name": name},
        "spec": {"type": kind, "sampleSetRef": {"name": "photos"}, **spec},
    }  # fmt: skip


def libraries(namespace: str) -> tuple[Document, ...]:
    """Return the volume of the libraries: a claim, because a restricted namespace allows no path of the node."""
    if not LIBRARIES.startswith("/"):
        return ()
    size = {"storage": "1Gi"}
    name = f"libraries-{namespace}"
    return (
        {
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
            "spec": {
                "capacity": size, "accessModes": ["ReadOnlyMany"], "hostPath": {"path": LIBRARIES}, "storageClassName": name,
                "persistentVolumeReclaimPolicy": "Retain",
            },
        },
        {
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "libraries"},
            "spec": {"accessModes": ["ReadOnlyMany"], "resources": {"requests": size}, "storageClassName": name, "volumeName": name},
        },
    )  # fmt: skip


def training(name: str, epochs: int = 2, pause: int = NEVER, context: Document | None = None, **spec: Any) -> Document:
    """Return a Job whose pod reads the set ``photos`` with a DataLoader."""
    container: Document = {
        "name": "train", "image": IMAGE if LIBRARIES.startswith("/") else LIBRARIES,
        "command": ["python", "-c", READER, str(epochs), str(pause)],
    }  # fmt: skip
    if context:
        container["securityContext"] = context
    pod: Document = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 5, "containers": [container], **spec}
    if LIBRARIES.startswith("/"):
        container["volumeMounts"] = [{"name": "libraries", "mountPath": "/libraries", "readOnly": True}]
        pod["volumes"] = [{"name": "libraries", "persistentVolumeClaim": {"claimName": "libraries", "readOnly": True}}]
    template = {"metadata": {"labels": {"prefeed.io/sampleset": "photos"}}, "spec": pod}
    return {
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name},
        "spec": {"backoffLimit": 0, "template": template},
    }  # fmt: skip


def found(namespace: str, what: str) -> Document:
    """Return an object such as ``job/train``; empty if there is none."""
    result = kubectl("get", "-n", namespace, what, "-o", "json")
    return dict(json.loads(result.stdout)) if result.returncode == 0 else {}


def conditions(namespace: str, what: str) -> dict[str, tuple[str, str, str]]:
    """Return status, reason and message of the conditions of an object, by type."""
    listed = found(namespace, what).get("status", {}).get("conditions") or ()
    return {each["type"]: (each["status"], each.get("reason", ""), each.get("message", "")) for each in listed}


def until(is_so: Any, what: str, seconds: float = SECONDS) -> None:
    wait_for(is_so, what, timeout_seconds=seconds)


def log_of(namespace: str, what: str, *words: str) -> str:
    return kubectl("logs", "-n", namespace, what, *words).stdout


def finish(namespace: str, job: str) -> list[str]:
    """Wait for the end of a Job; return the lines of its log. It must have succeeded."""

    def has_ended() -> bool:
        return bool({"Complete", "Failed"} & conditions(namespace, f"job/{job}").keys())

    until(has_ended, f"job {job} has ended")
    log = log_of(namespace, f"job/{job}")
    assert "Complete" in conditions(namespace, f"job/{job}"), log
    return log.splitlines()


def succeeds(namespace: str, kind: str, name: str, phase: str = "Succeeded") -> None:
    """Wait for the end of a SampleJob or PaddleJob; it must have succeeded."""
    until(lambda: phase_of(namespace, kind, name) in (phase, "Failed"), f"{kind} {name} has ended")
    assert phase_of(namespace, kind, name) == phase, conditions(namespace, f"{kind}/{name}")


def phase_of(namespace: str, kind: str, name: str) -> str:
    return str(found(namespace, f"{kind}/{name}").get("status", {}).get("phase", ""))


def pod_of(namespace: str, job: str) -> Document:
    """Return the pod of a Job."""
    (pod,) = json.loads(succeed("get", "pods", "-n", namespace, "-l", f"job-name={job}", "-o", "json"))["items"]
    return dict(pod)


def let_go_on(namespace: str, pod: str) -> None:
    succeed("exec", "-n", namespace, pod, "-c", "train", "--", "touch", "/tmp/go")


AWAY = """
import os, signal, sys, time
def text_of(pid, name):
    try:
        return open(f"/proc/{pid}/{name}", "rb").read().decode()
    except OSError:
        return ""
pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
stopped = [pid for pid in pids if text_of(pid, "comm").strip() in ("kube-apiserver", "kubelet")]
readers = [pid for pid in pids if sys.argv[1] in text_of(pid, "cgroup")]
began = time.monotonic()
try:
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    open(f"/proc/{readers[0]}/root/tmp/go", "w").close()
    while (past := time.monotonic() - began) < 90 and (readers or past < 30):
        readers = [pid for pid in readers if sys.argv[1] in text_of(pid, "cgroup")]
        time.sleep(0.1)
finally:
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
print(sorted({text_of(pid, "comm").strip() for pid in stopped}), "readers left:", len(readers))
"""
"""Stops API server and kubelet for 30 s, and lets a reader go on meanwhile."""

KILL = """
import os, signal, sys
for pid in sorted((int(name) for name in os.listdir("/proc") if name.isdigit()), reverse="holder" in sys.argv[2:]):
    try:
        words = open(f"/proc/{pid}/cmdline", "rb").read().decode().split("\\0")
        if sys.argv[1] in open(f"/proc/{pid}/cgroup").read() and all(each in " ".join(words) for each in sys.argv[2:]):
            os.kill(pid, signal.SIGKILL)
            print("killed", pid)
            break
    except OSError:
        pass
"""


def kill(namespace: str, pod: Document, container: str, *words: str) -> None:
    """Send SIGKILL to the first process of a container whose command has these words: by a privileged pod of its node.

    Of the holder of a mount it is the last one: its child, the daemon.
    """
    node, killer = pod["spec"]["nodeName"], f"killer-{pod['spec']['nodeName']}"
    if not found(namespace, f"pod/{killer}"):
        apply(namespace, _privileged(killer, node, ["sleep", "infinity"]))
        succeed("wait", "-n", namespace, f"pod/{killer}", "--for=condition=Ready", "--timeout=180s")
    number = _container_of(pod, container)
    assert "killed" in succeed("exec", "-n", namespace, killer, "--", "python", "-c", KILL, number, *words)


def go_on_without_control_plane(namespace: str, pod: Document) -> str:
    """Have a paused reader go on while API server and kubelet do not answer; return what was stopped, and how many readers had not ended."""
    away = _privileged("away", pod["spec"]["nodeName"], ["python", "-c", AWAY, _container_of(pod, "train")])
    apply(namespace, away)
    until(lambda: phase_of(namespace, "pod", "away") in ("Succeeded", "Failed"), "API server and kubelet are back")
    return log_of(namespace, "away")


def _privileged(name: str, node: str, command: list[str]) -> Document:
    """Return a pod that sees all processes of its node."""
    context = {"privileged": True, "runAsUser": 0}
    inner = {"name": "main", "image": IMAGE, "command": command, "securityContext": context}
    spec = {
        "hostPID": True, "nodeName": node, "restartPolicy": "Never", "containers": [inner],
        "terminationGracePeriodSeconds": 0,
    }  # fmt: skip
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def _container_of(pod: Document, container: str) -> str:
    """Return the id of a container that runs."""
    now = found(pod["metadata"]["namespace"], f"pod/{pod['metadata']['name']}")["status"]
    states = [*now.get("containerStatuses", ()), *now.get("initContainerStatuses", ())]
    (number,) = [each["containerID"].rpartition("/")[2] for each in states if each["name"] == container]
    return str(number)


def restarts(namespace: str, pod: str, container: str) -> int:
    status = found(namespace, f"pod/{pod}").get("status", {})
    states = [*status.get("containerStatuses", ()), *status.get("initContainerStatuses", ())]
    return next((each["restartCount"] for each in states if each["name"] == container and each.get("ready")), -1)
