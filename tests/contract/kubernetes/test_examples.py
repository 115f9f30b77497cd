"""The documents in ``examples/kubernetes`` fit the schemas, as they are and with a cache; so does the class by which Fluid takes prefeed."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from prefeed.kubernetes.checking import problems_of
from prefeed.kubernetes.pods import SIDECAR
from prefeed.kubernetes.workloads import patched, templates_of

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "examples" / "kubernetes"
SET = FOLDER / "imagenet.yaml"
EXAMPLES = sorted(path for path in FOLDER.glob("*.yaml") if path != SET)
FLUID = ROOT / "deploy" / "fluid" / "cacheruntimeclass.yaml"
VERSIONS = ("1.29", "1.33", "1.37")


def documents_of(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def with_sidecar(documents: list[dict[str, Any]]) -> Iterator[str]:
    for document in documents:
        for path, template in templates_of(document):
            if any(each["name"] == SIDECAR for each in template["spec"].get("initContainers", ())):
                yield f"{document['kind']}.{path}"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_fits_with_and_without_a_cache(path: Path) -> None:
    documents, _ = patched([*documents_of(path), *documents_of(SET)])

    for version in VERSIONS:
        for document in [*documents_of(path), *documents_of(SET), *documents]:
            assert problems_of(document, version) == []
    assert list(with_sidecar(documents))


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


def test_a_wrong_field_in_a_pod_of_a_job_set_is_named() -> None:
    (document,) = documents_of(FOLDER / "jobset.yaml")
    wrong = copy.deepcopy(document)
    wrong["spec"]["replicatedJobs"][1]["template"]["spec"]["template"]["spec"]["container"] = []

    (problem,) = problems_of(wrong, "1.29")
    assert problem.startswith("spec.replicatedJobs[1].template.spec.template.spec: ")
    assert "container" in problem


def test_fluid_takes_it_as_a_client() -> None:
    """Its fields are those of ``CacheRuntimeClass``, which no schema at hand has; the pod fits, and mounts what Fluid looks for."""
    (found,) = documents_of(FLUID)
    client = found["topology"]["client"]

    assert (found["apiVersion"], found["kind"]) == ("data.fluid.io/v1alpha1", "CacheRuntimeClass")
    assert found.keys() == {"apiVersion", "kind", "metadata", "fileSystemType", "topology"}
    assert found["topology"].keys() == {"client"}
    assert client.keys() == {"workloadType", "template"}
    for version in VERSIONS:
        pod = {
            "apiVersion": "v1",
            "kind": "PodTemplate",
            "metadata": {"name": "client"},
            "template": client["template"],
        }
        assert problems_of(pod, version) == []
    (command,) = client["template"]["spec"]["containers"][0]["args"]
    assert "FLUID_RUNTIME_CONFIG_PATH" in command
    assert command.endswith('"$MOUNT_0_MOUNTPOINT" "$FLUID_RUNTIME_MOUNT_PATH"')
    assert found["fileSystemType"] == "fuse.prefeed"
