"""The operator as a program, and PaddleJobs: it runs those that are its own, and no others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster_http import Server
from prefeed.kubernetes.crds import definition
from prefeed_bench.cluster import Cluster
from process.test_operator import _SECONDS, operator, server, until
from unit.kubernetes.test_paddle_operator import POD, RESNET, WHERE, add_set, awaits, is_ready, job, phase

__all__ = ["server"]  # a fixture
pytestmark = pytest.mark.usefixtures("sandbox")


def define(cluster: Cluster, **metadata: Any) -> None:
    found = definition("PaddleJob")
    found["metadata"] = {**found["metadata"], "namespace": "", **metadata}
    cluster.add(found)


def test_the_document_of_the_original_from_the_command_line(server: Server, tmp_path: Path) -> None:
    cluster = server.cluster
    with server.lock:
        define(cluster)
        cluster.add(yaml.safe_load(RESNET.read_text()))
    with operator(tmp_path, "--paddlejob"):
        until(server, lambda it: "status" in job(it) and awaits(it) == "NoSampleSet", tmp_path)
        with server.lock:
            add_set(cluster)
        for name in ("imagenet-runtime", "imagenet-mount"):
            until(server, lambda it, name=name: name in it.of("StatefulSet", WHERE), tmp_path)
            with server.lock:
                is_ready(cluster, name)
        until(server, lambda it: POD in it.of("Pod", WHERE), tmp_path)
        with server.lock:
            phase(cluster, "Succeeded")
        until(server, lambda it: job(it)["status"]["phase"] == "Completed", tmp_path)


def test_it_does_not_run_beside_paddles_own_operator(server: Server, tmp_path: Path) -> None:
    with server.lock:
        define(server.cluster, labels={"app": "paddle-operator"})
        server.cluster.add(yaml.safe_load(RESNET.read_text()))
    with operator(tmp_path, "--paddlejob") as process:
        assert process.wait(_SECONDS) != 0
    log = (tmp_path / "operator.log").read_text()

    assert "another operator runs PaddleJobs here; leave out --paddlejob" in log
    assert "status" not in job(server.cluster)
