"""kubectl against the API server of the tests, with what the operator makes of documents."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from cluster_http import served
from prefeed.kubernetes.pods import SIDECAR
from prefeed_bench.cluster import Cluster
from unit.kubernetes.test_operator import Operator, node_mode, said, serve

pytestmark = pytest.mark.usefixtures("sandbox")

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guide" / "cluster.md"


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


def test_the_first_lines_of_the_guide_come_to_a_job_with_a_cache(tmp_path: Path) -> None:
    """They are taken from the page. The server knows the kinds of the operator only, and runs no containers: what is installed is
    rendered, and logs are not asked for."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    (lines,) = re.findall(r"```sh\n(kubectl apply -k .*?)```", GUIDE.read_text(), re.DOTALL)
    install, secret, apply_set, wait, patch, logs = (line.partition(" # ")[0].strip() for line in lines.splitlines())
    assert logs == "kubectl logs -f job/train"
    with served(Cluster()) as server:
        environment = {
            **os.environ,
            "KUBECONFIG": str(server.kubeconfig(tmp_path / "kubeconfig")),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }

        def run(line: str) -> str:
            line = re.sub(
                r"kubectl (apply|create) ", r"kubectl \1 --validate=false ", line
            )  # the server has no OpenAPI
            line = line.replace("kubectl", f"kubectl --cache-dir={tmp_path / 'cache'}")
            command = ["bash", "-o", "pipefail", "-c", line]
            result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
            assert result.returncode == 0, (line, result.stderr)
            return result.stdout

        operator = Operator(server.cluster)
        assert "kind: Deployment" in run(install.replace("apply -k", "kustomize"))
        assert run(apply_set) == "sampleset.batch.paddlepaddle.org/imagenet created\n"
        with server.lock:
            operator.settle()
            assert said(server.cluster)["Accepted"][0] == "SecretIncomplete"
        in_json = f"{secret} --dry-run=client -o yaml | kubectl apply -f -"  # create sends protobuf
        assert run(in_json) == "secret/keys created\n"
        with server.lock:
            operator.settle()
        run(f"{wait} --timeout=60s")
        assert "job.batch/train created" in run(patch).splitlines()
        (job,) = server.cluster.of("Job").values()
    (sidecar,) = job["spec"]["template"]["spec"]["initContainers"]
    assert sidecar["name"] == SIDECAR
