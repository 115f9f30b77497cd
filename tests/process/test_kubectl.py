"""kubectl against the API server of the tests, with what the operator makes of documents."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from cluster import Cluster
from cluster_http import served
from unit.kubernetes.test_operator import Operator, node_mode, serve

pytestmark = pytest.mark.usefixtures("sandbox")


def test_columns_and_what_is_awaited_are_shown(tmp_path: Path) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    (tmp_path / "set.yaml").write_text(yaml.safe_dump(node_mode(partitions=2)))
    with served(Cluster()) as server:
        config = server.kubeconfig(tmp_path / "kubeconfig")

        def kubectl(*words: str) -> str:
            command = ["kubectl", f"--cache-dir={tmp_path / 'cache'}", *words]
            environment = {**os.environ, "KUBECONFIG": str(config)}
            result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            assert result.returncode == 0, result.stderr
            return result.stdout

        kubectl("apply", "-f", str(tmp_path / "set.yaml"), "--validate=false")  # the server has no OpenAPI
        operator = Operator(server.cluster)
        with server.lock:
            operator.settle()
            serve(server.cluster, 1)
            operator.settle()
        kubectl("wait", "sset/imagenet", "--for=jsonpath={.status.phase}=PartialReady", "--timeout=60s")
        head, row = kubectl("get", "sset").splitlines()
        assert head.split("  ")[0] == "NAME"
        assert [
            name for name in ("TOTAL SIZE", "CACHED SIZE", "AVAIL SPACE", "RUNTIME", "PHASE", "AGE") if name not in head
        ] == []
        assert row.split()[:3] == ["imagenet", "1/2", "PartialReady"]
        told = kubectl("describe", "sset", "imagenet")
        assert "1 of 2 servers are ready" in told.split("Events:")[1]
        kubectl("delete", "sset", "imagenet", "--wait=false")
        with server.lock:
            operator.settle()
        assert kubectl("get", "paddle") == ""
