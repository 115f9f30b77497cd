"""A pod with a cache, from YAML: its containers are processes in namespaces of their own (``kubelet``)."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml

import servers
from kubelet import Pod, pod_running
from memcached import memcached
from prefeed.kubernetes.pods import SIDECAR
from prefeed.kubernetes.workloads import patched
from process.conditions import wait_for
from sandbox import Sandbox
from slow_files import write_files
from unit.sampleset.documents import ACCESS, SECRET, keys, sample_job, sample_set

EXAMPLES = Path(__file__).parents[2] / "examples" / "kubernetes"
FILES = {f"train/{number:02}.bin": bytes([number]) * 3000 for number in range(24)}
DIGESTS = sorted(hashlib.sha256(data).hexdigest() for data in FILES.values())
LEVELS = [{"mediumType": "MEM", "path": "/dev/shm/photos", "cacheSize": 256}]
READER = """
import hashlib, json, prefeed
dataset = prefeed.datasets.Objects("sampleset://photos")
print(json.dumps(sorted(hashlib.sha256(dataset[index]).hexdigest() for index in range(len(dataset)))))
"""


def training(**spec: Any) -> dict[str, Any]:
    container = {"name": "train", "image": "registry.example/train:1", "command": [sys.executable, "-c", READER]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "train", "labels": {"prefeed.io/sampleset": "photos"}},
        "spec": {"containers": [{**container, **spec.pop("container", {})}], **spec},
    }


def read(pod: Pod) -> None:
    """Train once; each object came with its own bytes."""
    status, text = pod.run("train")
    assert status == 0, text + pod.log(SIDECAR)
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


def test_a_pod_reads_through_its_sidecar_and_a_killed_one_comes_back(sandbox: Sandbox) -> None:
    """The data is a directory that the pod has mounted. Nobody but the sidecar starts a server; without one it is read as it is."""
    origin = write_files(sandbox.root / "origin", FILES)
    pod = training(
        container={"volumeMounts": [{"name": "photos", "mountPath": str(origin), "readOnly": True}]},
        volumes=[{"name": "photos", "hostPath": {"path": str(origin)}}],
    )
    documents, notes = patched([pod, sample_set("photos", source={"uri": str(origin)}, cache={"levels": LEVELS})])

    with pod_running(documents, "train", sandbox.root / "pod") as running:
        read(running)
        read(running)
        assert counts(running) == {"hits": 24, "origin_requests": 24, "resident_objects": 24}
        running.kill(SIDECAR)
        read(running)
        running.start(SIDECAR)
        read(running)
        assert counts(running) == {"hits": 24, "origin_requests": 0, "resident_objects": 24}
        assert "on disk, which is slower" not in running.log(SIDECAR)
        assert running.stop(SIDECAR) == 0
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


def test_two_nodes_of_an_indexed_job_fetch_each_object_once(sandbox: Sandbox) -> None:
    """The pods are those of ``examples/kubernetes/indexed-job.yaml``, on two nodes; the pool lies between them."""
    example = list(yaml.safe_load_all((EXAMPLES / "indexed-job.yaml").read_text()))
    (job,) = [each for each in example if each["kind"] == "Job"]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    del container["args"]
    container["command"] = [sys.executable, "-c", READER]
    with servers.moto_server() as url, memcached() as pool:
        store_with("of-two-pods", url)
        (variable,) = [each for each in container["env"] if each["name"] == "PREFEED_POOL"]
        variable["value"] = pool.address
        job["spec"]["template"]["metadata"]["labels"] = {"prefeed.io/sampleset": "photos"}
        source = {"uri": "s3://of-two-pods", "secretRef": {"name": "keys"}}
        photos = sample_set("photos", source=source, cache={"levels": LEVELS})
        documents, _ = patched([*example, photos, keys(endpoint=url)])
        (template,) = [each["spec"]["template"] for each in documents if each["kind"] == "Job"]

        found = []
        for index in range(2):
            pod = {"kind": "Pod", "metadata": {"name": f"train-{index}"}, "spec": template["spec"]}
            with pod_running([*documents, pod], f"train-{index}", sandbox.root / f"pod-{index}") as running:
                read(running)
                found.append(counts(running)["origin_requests"])
                wait_for(
                    lambda: int(pool.statistics()["curr_items"]) >= len(FILES),
                    "the pool has all objects",
                    timeout_seconds=300,
                )
                assert running.stop(SIDECAR) == 0
    assert found == [24, 0]


def test_a_sidecar_says_why_it_cannot_serve(sandbox: Sandbox) -> None:
    documents, _ = patched([training(), sample_set("photos", source={"uri": "s3://photos"}, cache={"levels": LEVELS})])
    documents[0]["data"]["sampleset.yaml"] += "  sorce: s3://photos\n"

    with pytest.raises(pytest.fail.Exception, match=r"spec\.sorce is not known\. Did you mean source\?"):  # noqa: SIM117
        with pod_running(documents, "train", sandbox.root / "pod"):
            pass
