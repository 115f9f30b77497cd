"""A pod with a cache, from YAML: its containers are processes in namespaces of their own (``kubelet``)."""

from __future__ import annotations

import hashlib
import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml

import servers
from kubelet import Pod, pod_running, pods_of
from memcached import memcached
from prefeed.kubernetes.pods import SIDECAR
from prefeed.kubernetes.workloads import patched
from prefeed_bench.errors import BenchFailedError
from process.conditions import wait_for
from process.ports import free_port
from sandbox import Sandbox
from slow_files import write_files
from unit.sampleset.documents import ACCESS, SECRET, keys, sample_job, sample_set

EXAMPLES = Path(__file__).parents[2] / "examples" / "kubernetes"
FILES = {f"train/{number:02}.bin": bytes([number]) * 3000 for number in range(24)}
DIGESTS = sorted(hashlib.sha256(data).hexdigest() for data in FILES.values())
LEVELS = [{"mediumType": "MEM", "path": "/dev/shm/photos", "cacheSize": 256}]
RANK = """
import hashlib, json, sys
import prefeed, torch.distributed
from prefeed.config import settings_of
from prefeed.sampleset.records import find
from process.conditions import wait_for
from process.ports import free_port
from torch.utils.data import DistributedSampler

settings = find("photos", settings_of(None)).settings(settings_of(None))
torch.distributed.init_process_group("gloo")
dataset, rank, seen = prefeed.datasets.Objects(sys.argv[1]), torch.distributed.get_rank(), []
for part in (rank, 1 - rank):  # in the second epoch each reads what the other one has read
    sampler = DistributedSampler(dataset, num_replicas=2, rank=part, shuffle=False)
    loader = prefeed.DataLoader(dataset, batch_size=4, sampler=sampler, collate_fn=list)
    seen.append([hashlib.sha256(b"".join(batch)).hexdigest() for batch in loader])
    wait_for(lambda: prefeed.statistics(config=settings).pool.stored == 12, "the pool has them", timeout_seconds=300)
    torch.distributed.barrier()
print(json.dumps(seen))
torch.distributed.destroy_process_group()
"""
"""Of ``torchrun``, on one of two nodes."""

READER = """
import hashlib, json, prefeed
dataset = prefeed.datasets.Objects("sampleset://photos")
print(json.dumps(sorted(hashlib.sha256(dataset[index]).hexdigest() for index in range(len(dataset)))))
"""


def training(name: str = "train", **spec: Any) -> dict[str, Any]:
    container = {"name": "train", "image": "registry.example/train:1", "command": [sys.executable, "-c", READER]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"prefeed.io/sampleset": "photos"}},
        "spec": {"containers": [{**container, **spec.pop("container", {})}], **spec},
    }


def read(*pods: Pod) -> None:
    """Train once in each pod, at the same time; each object came with its own bytes."""
    for pod in pods:
        pod.begin("train")
    for pod in pods:
        status, text = pod.finish("train")
        assert status == 0, text
        assert json.loads(text.splitlines()[-1]) == DIGESTS


def store_with(bucket: str, url: str) -> None:
    """Fill a bucket; other tests fill other buckets of the same server."""
    client = boto3.client(
        "s3", endpoint_url=url, region_name="us-east-1", aws_access_key_id=ACCESS, aws_secret_access_key=SECRET
    )
    client.create_bucket(Bucket=bucket)
    for name, data in FILES.items():
        client.put_object(Bucket=bucket, Key=name, Body=data)
    client.close()


def counts(pod: Pod) -> dict[str, Any]:
    """Return what the node server of the pod has counted."""
    status, text = pod.execute(SIDECAR, "prefeed", "stats", "--home", "sampleset://photos", "--json")
    assert status == 0, text
    found = json.loads(text.splitlines()[-1])
    return {name: found[name] for name in ("hits", "origin_requests", "resident_objects")}


def test_pods_of_one_node_read_through_their_sidecars_and_a_killed_one_comes_back(sandbox: Sandbox) -> None:
    """The data is a directory that the pods have mounted, and their sidecars warm it. Only they start servers; without one it is read
    as it is. The cache of the other pod is not touched."""
    origin = write_files(sandbox.root / "origin", FILES)
    volume = {"name": "photos", "hostPath": {"path": str(origin)}}
    mount = {"name": "photos", "mountPath": str(origin), "readOnly": True}
    names = ("train-0", "train-1")
    pods = [training(name, container={"volumeMounts": [mount]}, volumes=[volume]) for name in names]
    photos = sample_set("photos", source={"uri": str(origin)}, cache={"levels": LEVELS})
    documents, notes = patched([*pods, photos, sample_job(type="warmup", sampleSetRef={"name": "photos"})])

    with ExitStack() as stack:
        one, two = (stack.enter_context(pod_running(documents, name, sandbox.root / name)) for name in names)
        for pod in (one, two):
            wait_for(lambda pod=pod: "warm: Succeeded" in pod.log(SIDECAR), "it is warm", timeout_seconds=300)
        read(one, two)
        assert [counts(pod) for pod in (one, two)] == [{"hits": 24, "origin_requests": 24, "resident_objects": 24}] * 2
        one.kill(SIDECAR)
        read(one, two)
        one.start(SIDECAR)
        read(one)
        found = counts(one)
        assert (found["origin_requests"], found["resident_objects"]) == (24, 24), "its memory was empty"
        read(one)
        assert counts(one) == {**found, "hits": found["hits"] + 24}
        assert counts(two) == {"hits": 48, "origin_requests": 24, "resident_objects": 24}
        assert "on disk, which is slower" not in one.log(SIDECAR)
        assert [pod.stop(SIDECAR) for pod in (one, two)] == [0, 0]
    assert [note.split(":")[0] for note in notes] == ["spec.cache.levels"]


def test_a_pod_reads_a_store_with_the_keys_of_a_secret(sandbox: Sandbox) -> None:
    """The sidecar warms the cache before it is read. No document but the Secret, and no log, shows the keys."""
    with servers.moto_server() as url:
        store_with("of-a-pod", url)
        warmup = sample_job(type="warmup", sampleSetRef={"name": "photos"})
        levels = [*LEVELS, {"mediumType": "SSD", "path": "/mnt/nvme", "cacheSize": 512}]
        source = {"uri": "s3://of-a-pod", "secretRef": {"name": "keys"}}
        found = sample_set("photos", source=source, cache={"levels": levels})
        documents, _ = patched([training(), found, keys(endpoint=url), warmup])
        others = json.dumps([each for each in documents if each["kind"] != "Secret"])

        with pod_running(documents, "train", sandbox.root / "pod") as running:
            wait_for(lambda: "warm: Succeeded" in running.log(SIDECAR), "the warm-up has ended", timeout_seconds=300)
            read(running)
            assert counts(running) == {"hits": 24, "origin_requests": 24, "resident_objects": 24}
            assert running.execute(SIDECAR, "test", "-d", "/run/prefeed/disk/tier") == (0, "")
            texts = [others, running.log(SIDECAR), running.log("train")]
            assert running.stop(SIDECAR) == 0
    assert [key for key in (ACCESS, SECRET) for text in texts if key in text] == []


def test_torchrun_on_two_nodes_reads_each_object_once_from_the_store(sandbox: Sandbox) -> None:
    """The pods are those of ``examples/kubernetes/indexed-job.yaml``, each on a node of its own; the pool lies between them."""
    example = list(yaml.safe_load_all((EXAMPLES / "indexed-job.yaml").read_text()))
    (job,) = [each for each in example if each["kind"] == "Job"]
    job["spec"]["template"]["metadata"]["labels"] = {"prefeed.io/sampleset": "photos"}
    (container,) = job["spec"]["template"]["spec"]["containers"]
    (sandbox.root / "train.py").write_text(RANK)
    for theirs, ours in (
        ("--nproc-per-node=8", "--nproc-per-node=1"),
        ("--master-addr=train-0.train --master-port=29400", f"--master-addr=127.0.0.1 --master-port={free_port()}"),
        ("resnet50.py sampleset://imagenet", f"{sandbox.root}/train.py sampleset://photos"),
    ):
        assert theirs in container["args"][0]
        container["args"][0] = container["args"][0].replace(theirs, ours)
    with servers.moto_server() as url, memcached() as pool, ExitStack() as stack:
        store_with("of-two-pods", url)
        (variable,) = [each for each in container["env"] if each["name"] == "PREFEED_POOL"]
        variable["value"] = pool.address
        source = {"uri": "s3://of-two-pods", "secretRef": {"name": "keys"}}
        photos = sample_set("photos", source=source, cache={"levels": LEVELS})
        documents, _ = patched([*example, photos, keys(endpoint=url)])
        pods = [pod for each in documents if each["kind"] == "Job" for pod in pods_of(each)]
        nodes = [
            stack.enter_context(pod_running([*documents, pod], pod["metadata"]["name"], sandbox.root / f"node-{index}"))
            for index, pod in enumerate(pods)
        ]
        for node in nodes:
            node.begin("train")
        found = [node.finish("train") for node in nodes]
        assert [status for status, _ in found] == [0, 0], [text for _, text in found]
        seen = [json.loads(text.splitlines()[-1]) for _, text in found]
        requests = [counts(node)["origin_requests"] for node in nodes]
        assert [node.stop(SIDECAR) for node in nodes] == [0, 0]
    data = [FILES[name] for name in sorted(FILES)]
    parts = [[digest(data[start::2][at : at + 4]) for at in range(0, 12, 4)] for start in range(2)]
    assert seen == [[parts[0], parts[1]], [parts[1], parts[0]]]
    assert requests == [12, 12]


def digest(batch: list[bytes]) -> str:
    return hashlib.sha256(b"".join(batch)).hexdigest()


def test_a_sidecar_says_why_it_cannot_serve(sandbox: Sandbox) -> None:
    documents, _ = patched([training(), sample_set("photos", source={"uri": "s3://photos"}, cache={"levels": LEVELS})])
    documents[0]["data"]["sampleset.yaml"] += "  sorce: s3://photos\n"

    with pytest.raises(BenchFailedError, match=r"spec\.sorce is not known\. Did you mean source\?"):  # noqa: SIM117
        with pod_running(documents, "train", sandbox.root / "pod"):
            pass
