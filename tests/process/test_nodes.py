"""A node with a cache, from what the operator makes: a server, a job and a training are processes in namespaces of their own."""

from __future__ import annotations

import copy
from typing import Any

from cluster import Cluster
from kubelet import pod_running
from prefeed.kubernetes.nodes import DIRECTORIES, MODE, NODE, node_set, with_node_cache
from prefeed.kubernetes.pods import SIDECAR
from process.test_pods import FILES, LEVELS, counts, read, training
from sandbox import Sandbox
from slow_files import write_files
from unit.kubernetes.test_operator import Operator, serve
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
    documents = [*cluster.of("ConfigMap").values(), _on_one_node(cluster, pod, str(sandbox.root / "node"))]

    with pod_running(documents, "train", sandbox.root / "pod") as running:
        status, text = running.run("job")
        assert status == 0, text + running.log(SIDECAR)
        read(running)
        assert counts(running) == {"hits": 24, "origin_requests": 24, "resident_objects": 24}
        assert running.stop(SIDECAR) == 0
    state = sandbox.root / "node" / "default" / "photos" / "state"
    assert sorted(path.name for path in state.iterdir()) == ["home", "run"]
    assert [path for path in state.rglob("*") if path.parent != state] == []


def _on_one_node(cluster: Cluster, pod: dict[str, Any], directory: str) -> dict[str, Any]:
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
            "initContainers": [{**each, "restartPolicy": "Always"} for each in server["containers"]],
            "containers": containers,
            "volumes": list(volumes.values()),
        },
    }
