"""A node with a cache, from what the operator makes: a server, a job and a training are processes in namespaces of their own."""

from __future__ import annotations

import copy
import urllib.request
from typing import Any

from cluster import Cluster
from kubelet import pod_running
from prefeed.kubernetes.nodes import DIRECTORIES, MODE, NODE, node_set, with_node_cache
from prefeed.kubernetes.pods import SIDECAR
from prefeed.kubernetes.sizes import PATH, parse_report
from process.ports import free_port
from process.test_pods import FILES, LEVELS, counts, read, training
from sandbox import Sandbox
from slow_files import write_files
from unit.kubernetes.test_operator import Operator, serve, status_of
from unit.sampleset.documents import sample_job, sample_set


def test_a_node_serves_a_job_and_a_training_and_leaves_nothing(sandbox: Sandbox) -> None:
    origin = write_files(sandbox.root / "origin", FILES)
    photos = sample_set("photos", source={"uri": str(origin)}, cache={"levels": LEVELS})
    photos["metadata"]["annotations"] = {MODE: NODE}
    cluster = Cluster()
    photos = cluster.add(photos)
    operator = Operator(cluster)
    operator.settle()
    serve(cluster, 1, "photos")
    cluster.add(sample_job("warm", type="warmup", sampleSetRef={"name": "photos"}))
    operator.settle()
    pod = with_node_cache(training(), node_set(photos, image="prefeed:1"))
    port = free_port()
    documents = [*cluster.of("ConfigMap").values(), _on_one_node(cluster, pod, str(sandbox.root / "node"), port)]

    with pod_running(documents, "train", sandbox.root / "pod") as running:
        status, text = running.run("job")
        assert status == 0, text + running.log(SIDECAR)
        read(running)
        assert counts(running) == {"hits": 24, "origin_requests": 24, "resident_objects": 24}
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{PATH}", timeout=300) as answer:
            report = parse_report("photos", answer.read())
        assert report is not None, running.log(SIDECAR)
        assert running.stop(SIDECAR) == 0
    operator.carrier._reports = lambda _: {"photos-runtime-0": report}
    operator.settle()
    sizes = status_of(cluster, name="photos")["cacheStatus"]
    assert (report.cached_size, report.total_size, report.total_files) == (72000, 72000, 24)
    assert [sizes[name] for name in ("totalSize", "cachedSize", "totalFiles")] == ["70 KiB", "70 KiB", "24"]
    state = sandbox.root / "node" / "default" / "photos" / "state"
    assert sorted(path.name for path in state.iterdir()) == ["home", "run"]
    assert [path for path in state.rglob("*") if path.parent != state] == []


def _on_one_node(cluster: Cluster, pod: dict[str, Any], directory: str, port: int) -> dict[str, Any]:
    """Return one pod with the containers of the server, of a job and of a training, as they share their node."""
    (made,) = cluster.of("StatefulSet").values()
    server = copy.deepcopy(made["spec"]["template"]["spec"])
    (job,) = cluster.of("Job").values()
    containers = [*job["spec"]["template"]["spec"]["containers"], *pod["spec"]["containers"]]
    volumes = {each["name"]: each for each in [*server["volumes"], *pod["spec"]["volumes"]]}
    for each in volumes.values():
        if "hostPath" in each:
            each["hostPath"]["path"] = each["hostPath"]["path"].replace(DIRECTORIES, directory)
    return {
        **pod,
        "spec": {
            "initContainers": [
                {**each, "restartPolicy": "Always", "command": [*each["command"], "--sizes-port", str(port)]}
                for each in server["containers"]
            ],
            "containers": containers,
            "volumes": list(volumes.values()),
        },
    }
