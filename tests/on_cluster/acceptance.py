"""Against a cluster of the user's: ``make test-cluster``, with KUBECONFIG. No part of ``make test``, and of no run without a cluster.

It makes a namespace, and removes it. Definitions of prefeed's kinds are made if there are none, and then removed; those that are there
are left as they are. The operator runs here, as a process; no image is needed.
"""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from contract.kubernetes.api_server import refusals
from contract.kubernetes.test_schemas import REFUSED, document
from prefeed.cli.kubernetes import yaml_of
from prefeed.kubernetes.crds import KINDS, definition
from prefeed.kubernetes.paddlejob import KIND as PADDLE_JOB
from prefeed.kubernetes.workloads import patched

ROOT = Path(__file__).parents[2]
RESNET = ROOT / "tests" / "contract" / "kubernetes" / "resnet.yaml"
SAMPLES = sorted(path for path in (ROOT / "examples" / "sampleset").glob("*.yaml") if path.name != "secret.yaml")
JOBS = [ROOT / "examples" / "kubernetes" / name for name in ("job.yaml", "indexed-job.yaml")]
DRY = ("apply", "--dry-run=server", "-f", "-")
SET = {"partitions": 1, "source": {"uri": "s3://photos/imagenet"}}


def kubectl(*words: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["kubectl", *words], input=text, capture_output=True, text=True, check=False)


def succeed(*words: str, text: str | None = None) -> str:
    result = kubectl(*words, text=text)
    assert result.returncode == 0, f"kubectl {' '.join(words)}: {result.stderr}"
    return result.stdout


@pytest.fixture(scope="module")
def namespace() -> Iterator[str]:
    name = f"prefeed-test-{secrets.token_hex(4)}"
    succeed("create", "namespace", name)
    yield name
    succeed("delete", "namespace", name, "--wait=false")


@pytest.fixture(scope="module", autouse=True)
def definitions() -> Iterator[None]:
    made = []
    for kind in (*KINDS, PADDLE_JOB):
        found = definition(kind)
        name = found["metadata"]["name"]
        if kubectl("get", "crd", name).returncode != 0:
            succeed("apply", "-f", "-", text=yaml_of([found]))
            made.append(name)
        succeed("wait", "--for=condition=Established", f"crd/{name}", "--timeout=120s")
    yield
    for name in made:
        succeed("delete", "crd", name)


def moved(documents: list[dict[str, Any]], namespace: str) -> str:
    for each in documents:
        each["metadata"].pop("namespace", None)
        each["metadata"]["namespace"] = namespace
    return yaml_of(documents)


@pytest.mark.parametrize(("kind", "spec"), REFUSED)
def test_the_server_refuses_in_the_words_of_the_reader(namespace: str, kind: str, spec: dict[str, Any]) -> None:
    known = {each["message"] for each in _validations(definition(kind)["spec"]["versions"][0]["schema"])}
    said = known & set(refusals(kind, document(kind, spec)))  # of types a server speaks in other words

    result = kubectl(*DRY, text=moved([document(kind, spec)], namespace))
    assert result.returncode != 0
    assert not said or any(message in result.stderr for message in said), result.stderr


def _validations(schema: Any) -> Iterator[dict[str, str]]:
    for name, value in schema.items() if isinstance(schema, dict) else ():
        if name == "x-kubernetes-validations":
            yield from value
        else:
            yield from _validations(value)


@pytest.mark.parametrize("path", [*SAMPLES, RESNET], ids=lambda path: path.stem)
def test_the_server_takes_the_documents_of_the_original(namespace: str, path: Path) -> None:
    succeed(*DRY, text=moved(list(yaml.safe_load_all(path.read_text())), namespace))


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_the_server_takes_pods_with_a_cache(namespace: str, path: Path) -> None:
    texts = [path.read_text(), (ROOT / "examples" / "kubernetes" / "imagenet.yaml").read_text()]
    documents, _ = patched([each for text in texts for each in yaml.safe_load_all(text)])
    succeed(*DRY, text=moved(documents, namespace))


def test_the_server_takes_the_operator(namespace: str, tmp_path: Path) -> None:
    text = succeed("kustomize", str(ROOT / "deploy" / "kubernetes"))
    kinds = ("Namespace", "CustomResourceDefinition")
    documents = [each for each in yaml.safe_load_all(text) if each["kind"] not in kinds]
    succeed(*DRY, text=moved([each for each in documents if "namespace" in each["metadata"]], namespace))
    succeed(*DRY, text=yaml_of([each for each in documents if "namespace" not in each["metadata"]]))


def test_the_operator_serves_a_set_until_it_is_deleted(namespace: str) -> None:
    command = [sys.executable, "-m", "prefeed", "operator", "run", "--namespace", namespace, "--image", "prefeed:1"]
    with subprocess.Popen(command) as operator:
        try:
            succeed("apply", "-f", "-", text=moved([document("SampleSet", SET)], namespace))
            succeed("wait", "-n", namespace, "sampleset/imagenet", "--for=condition=Accepted", "--timeout=300s")
            assert "PHASE" in succeed("get", "-n", namespace, "samplesets")
            succeed("get", "-n", namespace, "configmap", "prefeed-imagenet")
            assert "Accepted" in succeed("describe", "-n", namespace, "sampleset", "imagenet")
            succeed("delete", "-n", namespace, "sampleset", "imagenet", "--timeout=300s")
            succeed("wait", "-n", namespace, "configmap/prefeed-imagenet", "--for=delete", "--timeout=300s")
        finally:
            operator.terminate()
