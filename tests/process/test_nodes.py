"""A node with a cache, from what the operator makes: a server, a job and two trainings are pods in namespaces of their own."""

from __future__ import annotations

import urllib.request
from contextlib import ExitStack
from typing import Any

from kubelet import pod_running
from prefeed.kubernetes.nodes import DIRECTORIES, IN_MEMORY, MODE, NODE, node_set, with_node_cache
from prefeed.kubernetes.pods import SIDECAR
from prefeed.kubernetes.sizes import PATH, parse_report
from prefeed_bench.cluster import Cluster
from process.ports import free_port
from process.test_pods import FILES, LEVELS, counts, read, training
from sandbox import Sandbox
from slow_files import write_files
from unit.kubernetes.test_operator import Operator, serve, status_of
from unit.sampleset.documents import sample_job, sample_set


def test_a_node_serves_a_job_and_two_trainings_and_leaves_nothing(sandbox: Sandbox) -> None:
    """Both trainings read at the same time: before and while there is no server, and once the next one has begun with an empty tier."""
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
    names = ("train-0", "train-1")
    pods = [with_node_cache(training(name), node_set(photos, image="prefeed:1")) for name in names]
    port = free_port()
    pods += [_pod("server", *cluster.of("StatefulSet").values()), _pod("job", *cluster.of("Job").values())]
    for each in pods[2]["spec"]["containers"]:
        each["command"] += ["--sizes-port", str(port)]
    documents = [*cluster.of("ConfigMap").values(), *pods]
    on_node = {DIRECTORIES: sandbox.root / "node", IN_MEMORY: sandbox.memory_dir / "node"}

    with ExitStack() as stack:
        server, job, *trainings = (
            stack.enter_context(pod_running(documents, name, sandbox.root / f"pod-{name}", on_node))
            for name in ("server", "job", *names)
        )
        status, text = job.run("job")
        assert status == 0, text + server.log(SIDECAR)
        read(*trainings)
        assert counts(server) == {"hits": 48, "origin_requests": 24, "resident_objects": 24}
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{PATH}", timeout=300) as answer:
            report = parse_report("photos", answer.read())
        assert report is not None, server.log(SIDECAR)
        server.kill(SIDECAR)
        read(*trainings)
        server.start(SIDECAR)
        read(*trainings)
        found = counts(server)
        assert (found["origin_requests"], found["resident_objects"]) == (24, 24), "its memory was empty"
        read(*trainings)
        assert counts(server) == {**found, "hits": found["hits"] + 48}
        assert server.stop(SIDECAR) == 0
    operator.carrier._reports = lambda _: {"photos-runtime-0": report}
    operator.settle()
    sizes = status_of(cluster, name="photos")["cacheStatus"]
    assert (report.cached_size, report.total_size, report.total_files) == (72000, 72000, 24)
    assert [sizes[name] for name in ("totalSize", "cachedSize", "totalFiles")] == ["70 KiB", "70 KiB", "24"]
    state = sandbox.root / "node" / "default" / "photos" / "state"
    assert sorted(path.name for path in state.iterdir()) == ["home", "run"]
    assert [path for path in state.rglob("*") if path.parent != state] == []
    assert [path for path in (sandbox.memory_dir / "node").rglob("*") if not path.is_dir()] == []


def _pod(name: str, controller: dict[str, Any]) -> dict[str, Any]:
    """Return the pod that a controller makes."""
    template = controller["spec"]["template"]
    return {"apiVersion": "v1", "kind": "Pod", **template, "metadata": {**template["metadata"], "name": name}}
