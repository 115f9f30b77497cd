"""What ``prefeed kubernetes patch`` prints fits the published schemas, and the rules of the pod security level "restricted"."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from prefeed.errors import SpecError
from prefeed.kubernetes.checking import problems_of
from prefeed.kubernetes.pods import LABEL
from prefeed.kubernetes.workloads import patched
from profiles import examples
from unit.sampleset.documents import sample_set

GOLDEN = Path(__file__).parents[2] / "unit" / "kubernetes" / "golden" / "deployment.yaml"
LEVEL = st.fixed_dictionaries(
    {"mediumType": st.sampled_from(["MEM", "SSD", "HDD"]), "cacheSize": st.integers(256, 5000)}
)
SPEC = st.fixed_dictionaries(
    {"source": st.fixed_dictionaries({"uri": st.sampled_from(["s3://bucket/a", "/mnt/photos"])})},
    optional={
        "secretRef": st.just({"name": "keys"}),
        "cache": st.fixed_dictionaries({"levels": st.lists(LEVEL, max_size=4)}),
    },
)


@pytest.mark.parametrize("version", ["1.29", "1.33", "1.37"])
def test_the_golden_files_fit_three_releases(version: str) -> None:
    documents, _ = patched(list(yaml.safe_load_all(GOLDEN.read_text())))

    assert [problem for document in documents for problem in problems_of(document, version)] == []


@settings(max_examples=examples(60))
@given(spec=SPEC)
def test_any_set_gives_a_pod_that_is_restricted_if_it_was(spec: dict[str, Any]) -> None:
    container = {
        "name": "train",
        "image": "train:1",
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": "photos", "mountPath": "/mnt/photos"}],
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "train", "labels": {LABEL: "imagenet"}},
        "spec": {
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
            "volumes": [{"name": "photos", "persistentVolumeClaim": {"claimName": "photos"}}],
        },
    }

    documents, _ = patched([pod, sample_set(**spec)])
    again, _ = patched([documents[1], sample_set(**spec)])

    assert [problem for document in documents for problem in problems_of(document, "1.37")] == []
    assert breaches(pod) == breaches(documents[1]) == []
    assert again == documents


@settings(max_examples=examples(400))
@given(data=st.data())
def test_documents_of_another_form_are_refused_or_left_alone(data: st.DataObject) -> None:
    documents = list(yaml.safe_load_all(GOLDEN.read_text()))
    holder: Any = data.draw(st.sampled_from(documents))
    for _ in range(data.draw(st.integers(1, 7))):
        key = data.draw(st.sampled_from(sorted(holder) if isinstance(holder, dict) else range(len(holder))))
        if not isinstance(holder[key], dict | list) or not holder[key]:
            break
        holder, above = holder[key], (holder, key)
    else:
        holder, key = above
    holder[key] = data.draw(st.sampled_from([None, 0, 1.5, "a", True, [], {}, [None], ["a"], [{}], {"a": None}]))

    with contextlib.suppress(SpecError):
        patched(documents)


def breaches(pod: dict[str, Any]) -> list[str]:
    """Return which rules of the level "restricted" a pod does not keep."""
    spec = pod["spec"]
    of_pod = spec.get("securityContext", {})
    allowed = {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
    found = [f"volume {each['name']}" for each in spec.get("volumes", ()) if not each.keys() <= allowed | {"name"}]
    found += [name for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name)]
    for container in [*spec["containers"], *spec.get("initContainers", ())]:
        own = {**of_pod, **container.get("securityContext", {})}
        rules = {
            "privileged": not own.get("privileged"),
            "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation") is False,
            "capabilities": own.get("capabilities") == {"drop": ["ALL"]},
            "runAsNonRoot": own.get("runAsNonRoot") is True and own.get("runAsUser") != 0,
            "seccompProfile": own.get("seccompProfile", {}).get("type") in ("RuntimeDefault", "Localhost"),
            "hostPort": not any("hostPort" in port for port in container.get("ports", ())),
        }
        found += [f"{container['name']}: {name}" for name, is_kept in rules.items() if not is_kept]
    return found


def test_a_breach_is_found() -> None:
    pod = {"spec": {"containers": [{"name": "a"}], "volumes": [{"name": "b", "hostPath": {"path": "/"}}]}}

    assert breaches(pod) == [
        "volume b", "a: allowPrivilegeEscalation", "a: capabilities", "a: runAsNonRoot", "a: seccompProfile",
    ]  # fmt: skip
