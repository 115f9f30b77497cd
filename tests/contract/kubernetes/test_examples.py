"""The documents in ``examples/kubernetes`` get a cache."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from prefeed.kubernetes.pods import SIDECAR
from prefeed.kubernetes.workloads import patched, templates_of

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "examples" / "kubernetes"
SET = FOLDER / "imagenet.yaml"
EXAMPLES = sorted(path for path in FOLDER.glob("*.yaml") if path != SET and "quickstart" not in path.name)


def documents_of(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def with_sidecar(documents: list[dict[str, Any]]) -> Iterator[str]:
    for document in documents:
        for path, template in templates_of(document):
            if any(each["name"] == SIDECAR for each in template["spec"].get("initContainers", ())):
                yield f"{document['kind']}.{path}"


def test_each_pod_that_asks_has_a_sidecar_and_no_other() -> None:
    found = [each for path in EXAMPLES for each in with_sidecar(patched([*documents_of(path), *documents_of(SET)])[0])]

    assert found == [
        "Job.spec.template",
        "Job.spec.template",
        "JobSet.spec.replicatedJobs[0].template.spec.template",
        "PyTorchJob.spec.pytorchReplicaSpecs.Master.template",
        "PyTorchJob.spec.pytorchReplicaSpecs.Worker.template",
        "TrainingRuntime.spec.template.spec.replicatedJobs[0].template.spec.template",
    ]
