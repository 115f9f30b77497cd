"""The documents in ``examples/kubernetes`` get a cache; the class by which Fluid takes prefeed has the fields that Fluid looks for."""

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
FLUID = ROOT / "deploy" / "fluid" / "cacheruntimeclass.yaml"


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


def test_fluid_takes_it_as_a_client() -> None:
    """Its fields are those of ``CacheRuntimeClass``, which no schema at hand has."""
    (found,) = documents_of(FLUID)
    client = found["topology"]["client"]

    assert (found["apiVersion"], found["kind"]) == ("data.fluid.io/v1alpha1", "CacheRuntimeClass")
    assert found.keys() == {"apiVersion", "kind", "metadata", "fileSystemType", "topology"}
    assert found["topology"].keys() == {"client"}
    assert client.keys() == {"workloadType", "template"}
    (command,) = client["template"]["spec"]["containers"][0]["args"]
    assert "FLUID_RUNTIME_CONFIG_PATH" in command
    assert command.endswith('"$MOUNT_0_MOUNTPOINT" "$FLUID_RUNTIME_MOUNT_PATH"')
    assert found["fileSystemType"] == "fuse.prefeed"
