"""The operator as a program, on kopf, against an API server of the tests behind HTTP."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster_http import Server, served
from leaks import wait_until
from prefeed_bench.cluster import Cluster
from process.ports import free_port
from unit.kubernetes.test_operator import REF, active, end, node_mode, phases, pod, serve, status_of
from unit.sampleset.documents import sample_job

pytestmark = pytest.mark.usefixtures("sandbox")

_SECONDS = 300.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with served(Cluster()) as server:
        server.kubeconfig(tmp_path / "kubeconfig")
        yield server


@contextlib.contextmanager
def operator(path: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the operator; it ends by SIGTERM, if it has not been killed."""
    with (path / "operator.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "prefeed", "operator", "run", "--image", "prefeed:1", *arguments],
            env={**os.environ, "KUBECONFIG": str(path / "kubeconfig")},
            stdout=log,
            stderr=log,
        )
    try:
        yield process
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            assert process.wait(_SECONDS) == 0, (path / "operator.log").read_text()
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def test_a_pod_is_answered_by_tls(server: Server, tmp_path: Path) -> None:
    names = [str(tmp_path / "tls.crt"), str(tmp_path / "tls.key")]
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    request = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", *subject]
    subprocess.run([*request, "-out", names[0], "-keyout", names[1]], check=True, capture_output=True)
    port = free_port()
    with server.lock:
        server.cluster.add(node_mode())
    review = {"request": {"uid": "1", "namespace": "default", "object": pod()}}
    with operator(tmp_path, "--webhook-port", str(port), "--certificate", names[0], "--key", names[1]):
        until(server, lambda it: it.of("StatefulSet"), tmp_path)
        context = ssl.create_default_context(cafile=names[0])
        url = f"https://localhost:{port}/pods"
        with urllib.request.urlopen(url, json.dumps(review).encode(), context=context) as found:
            response = json.load(found)["response"]

    assert response["allowed"]
    assert b"podAffinity" in base64.b64decode(response["patch"])


def until(server: Server, is_so: Callable[[Cluster], object], path: Path) -> None:
    def holds() -> bool:
        with server.lock:
            return bool(is_so(server.cluster))

    if not wait_until(holds, timeout_seconds=_SECONDS):
        pytest.fail((path / "operator.log").read_text()[-5000:])


def test_a_set_and_its_jobs_to_the_end(server: Server, tmp_path: Path) -> None:
    cluster = server.cluster
    with operator(tmp_path) as process:
        with server.lock:
            cluster.add(node_mode(partitions=2))
        until(server, lambda it: it.of("ConfigMap"), tmp_path)  # in the middle of its work
        process.kill()
        process.wait()
    with operator(tmp_path):
        until(server, lambda it: it.of("StatefulSet") and status_of(it).get("phase") == "Bound", tmp_path)
        with server.lock:
            serve(cluster, 2)
            cluster.add(sample_job("a", type="warmup", **REF))
            cluster.add(sample_job("b", type="clear", **REF))
        until(server, lambda it: phases(it) == {"a": "Running", "b": "Pending"}, tmp_path)
        server.cut()  # what happens now, no watch tells
        server.gone.update(("jobs", "samplesets"))
        with server.lock:
            end(cluster, *active(cluster), message="objects: 24")
        until(server, lambda it: phases(it) == {"a": "Succeeded", "b": "Running"}, tmp_path)
        server.is_away = True
        server.cut()
        with server.lock:
            end(cluster, *active(cluster))
        server.is_away = False
        until(server, lambda it: phases(it) == {"a": "Succeeded", "b": "Succeeded"}, tmp_path)
    watches = server.watches.count("pods")
    with operator(tmp_path):
        until(
            server, lambda _: server.watches.count("pods") > watches, tmp_path
        )  # before, what goes is seen by no watch
        with server.lock:
            cluster.add(pod())
        until(server, lambda it: it.of("SampleSet")["imagenet"]["metadata"].get("finalizers"), tmp_path)
        with server.lock:
            cluster.remove("SampleSet", "imagenet")
        until(server, lambda it: "train-0" in str(status_of(it).get("conditions")), tmp_path)
        with server.lock:
            cluster.remove("Pod", "train-0")
        until(server, lambda it: not it.of("SampleSet") and not it.of("StatefulSet"), tmp_path)


def test_of_two_operators_one_works_and_the_other_takes_over(server: Server, tmp_path: Path) -> None:
    cluster = server.cluster
    lease = ("--lease", "default/prefeed-operator", "--lease-seconds", "5")

    def holder(it: Cluster) -> str:
        return str(it.of("Lease").get("prefeed-operator", {}).get("spec", {}).get("holderIdentity", ""))

    with operator(tmp_path, *lease) as first:
        until(server, holder, tmp_path)
        with server.lock:
            before = holder(cluster)
        with operator(tmp_path, *lease):
            with server.lock:
                cluster.add(node_mode(partitions=2))
            until(server, lambda it: it.of("StatefulSet"), tmp_path)
            first.kill()
            first.wait()
            until(server, lambda it: holder(it) not in ("", before), tmp_path)
            with server.lock:
                serve(cluster, 2)
                cluster.add(sample_job("a", type="warmup", **REF))
            until(server, active, tmp_path)
    with server.lock:
        made = [(plural, each["metadata"]["name"]) for change, plural, each in cluster.log if change == "ADDED"]

    assert holder(cluster) == ""  # it is released at the end
    for kind in ("statefulsets", "services", "configmaps", "jobs"):
        assert [plural for plural, _ in made].count(kind) == 1
