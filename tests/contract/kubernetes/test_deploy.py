"""What is installed in a cluster: Kustomize and Helm make the same of it, and the operator may do what it does."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from prefeed.cli.operator import run
from prefeed.kubernetes.operator.kinds import EVENTS, KINDS, MADE, PODS, SECRETS
from prefeed.kubernetes.operator.webhook import PATH
from prefeed.kubernetes.paddle_pods import JOB
from prefeed.kubernetes.paddlejob import KIND as PADDLE_JOB
from prefeed.kubernetes.pods import LABEL
from prefeed.kubernetes.sizes import PORT
from prefeed.sampleset.spec import KIND as SAMPLE_SET

pytestmark = pytest.mark.usefixtures("sandbox")

ROOT = Path(__file__).parents[3] / "deploy"
RENDER = """
import json, sys
import helm_python
chart, values = sys.argv[1:]
with helm_python.Chart.load(chart) as found:
    rendered = found.render(json.loads(values), name="prefeed", namespace="prefeed-system")
print(json.dumps([rendered, helm_python.lint(chart, json.loads(values), strict=True)["messages"]]))
"""
Key = tuple[str, str]


def by_name(text: str) -> dict[Key, dict[str, Any]]:
    documents = [each for each in yaml.safe_load_all(text) if each]
    found = {(each["kind"], each["metadata"]["name"]): each for each in documents}
    assert len(found) == len(documents)
    return found


def kustomized(folder: Path) -> dict[Key, dict[str, Any]]:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed")
    result = subprocess.run([kubectl, "kustomize", folder], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return by_name(result.stdout)


def with_component(tmp_path: Path, name: str) -> dict[Key, dict[str, Any]]:
    """Return what there is with a component: in a copy, because a kustomization lies beside what it uses."""
    shutil.copytree(ROOT / "kubernetes", tmp_path / "kubernetes")
    (tmp_path / "own").mkdir()
    kinds = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"}
    own = {**kinds, "resources": ["../kubernetes"], "components": [f"../kubernetes/{name}"]}
    (tmp_path / "own" / "kustomization.yaml").write_text(yaml.safe_dump(own))
    return kustomized(tmp_path / "own")


def rendered(**values: Any) -> dict[str, str]:
    """Render the templates of the chart by Helm's own engine, in a process of its own because it has threads."""
    command = [sys.executable, "-c", RENDER, ROOT / "helm" / "prefeed", json.dumps(values)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    templates, messages = json.loads(result.stdout.splitlines()[-1])
    assert [each["error"] for each in messages] == ["icon is recommended"]
    return dict(templates)


def helm(**values: Any) -> dict[Key, dict[str, Any]]:
    """Return the objects of the chart."""
    return by_name("\n---\n".join(text for name, text in rendered(**values).items() if not name.endswith("NOTES.txt")))


def definitions(found: dict[Key, dict[str, Any]]) -> set[str]:
    return {name for kind, name in found if kind == "CustomResourceDefinition"}


@pytest.mark.parametrize("webhook", [False, True])
def test_the_notes_name_the_image_and_the_first_set(webhook: bool) -> None:
    (notes,) = [text for name, text in rendered(webhook=webhook).items() if name.endswith("NOTES.txt")]

    assert "registry.example/prefeed:" in notes
    assert "kubectl apply -f examples/kubernetes/imagenet.yaml" in notes
    assert ("patch job.yaml" in notes) is not webhook


def test_kustomize_and_helm_make_the_same() -> None:
    """Helm has its definitions in a folder of their own, and leaves the namespace to its user."""
    of_kustomize = kustomized(ROOT / "kubernetes")
    of_helm = helm()
    crds = by_name((ROOT / "helm" / "prefeed" / "crds" / "crds.yaml").read_text())
    there = {key: each for key, each in of_kustomize.items() if key[0] not in ("Namespace", "CustomResourceDefinition")}

    assert of_helm == there
    assert (
        definitions(crds)
        == definitions(of_kustomize)
        == {f"{KINDS[kind].resource.plural}.batch.paddlepaddle.org" for kind in KINDS if kind != PADDLE_JOB}
    )


def test_paddlejob_is_added_where_it_is_asked_for(tmp_path: Path) -> None:
    of_kustomize, of_helm = with_component(tmp_path, "paddlejob"), helm(paddleJob=True)
    added = definitions(of_kustomize) - definitions(kustomized(ROOT / "kubernetes"))

    assert added == definitions(of_helm) == {"paddlejobs.batch.paddlepaddle.org"}
    role = ("ClusterRole", "prefeed-operator-paddlejobs")
    assert of_kustomize[role]["rules"] == of_helm[role]["rules"]
    for found in (of_kustomize, of_helm):
        assert "--paddlejob" in arguments(found)
    crd = of_helm["CustomResourceDefinition", "paddlejobs.batch.paddlepaddle.org"]
    assert crd["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert crd["spec"] == of_kustomize["CustomResourceDefinition", "paddlejobs.batch.paddlepaddle.org"]["spec"]


def test_the_webhook_asks_about_pods_with_the_label_and_no_others(tmp_path: Path) -> None:
    of_kustomize, of_helm = with_component(tmp_path, "webhook"), helm(webhook=True)

    for found in (of_kustomize, of_helm):
        deployment, service = found["Deployment", "prefeed-operator"], found["Service", "prefeed-webhook"]
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        (hook,) = found["MutatingWebhookConfiguration", "prefeed"]["webhooks"]
        parsed = run.make_context("run", container["args"][2:], resilient_parsing=True).params

        assert parsed["webhook_port"] == 9443
        assert {"name": "webhook", "containerPort": 9443} in container["ports"]
        (mount,) = [each for each in container["volumeMounts"] if each["name"] == "certificate"]
        assert parsed["certificate"].parent == parsed["key"].parent == Path(mount["mountPath"])
        assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"]
        assert service["metadata"]["namespace"] == "prefeed-system"
        assert service["spec"]["ports"] == [{"name": "webhook", "port": 443, "targetPort": "webhook"}]
        asked = hook["clientConfig"]["service"]
        assert (asked["name"], asked["namespace"], asked["path"]) == ("prefeed-webhook", "prefeed-system", PATH)
        assert [each["resources"] for each in hook["rules"]] == [["pods"]]
        assert hook["objectSelector"]["matchExpressions"] == [
            {"key": LABEL, "operator": "Exists"},
            {"key": JOB, "operator": "DoesNotExist"},
        ]
        open_ports = [
            port["port"]
            for each in found["NetworkPolicy", "prefeed-operator"]["spec"]["ingress"]
            for port in each["ports"]
        ]
        assert open_ports == [9464, 9443]


def test_the_operator_reaches_the_servers_of_sets_at_their_port_only() -> None:
    rules = kustomized(ROOT / "kubernetes")["NetworkPolicy", "prefeed-operator"]["spec"]["egress"]

    assert [[port["port"] for port in each["ports"]] for each in rules] == [[53, 53], [443, 6443], [PORT]]


def test_values_of_the_chart() -> None:
    found = helm(
        image={"repository": "mine/prefeed", "tag": "2", "pullPolicy": "Always"},
        namespaces=["a", "b"],
        tolerations=[{"key": "gpu", "operator": "Exists"}],
    )
    spec = found["Deployment", "prefeed-operator"]["spec"]["template"]["spec"]
    (container,) = spec["containers"]

    assert (container["image"], container["imagePullPolicy"]) == ("mine/prefeed:2", "Always")
    assert container["env"] == [{"name": "RUNTIME_IMAGE", "value": "mine/prefeed:2"}]
    assert container["args"][-2:] == ["--namespace=a", "--namespace=b"]
    assert spec["tolerations"] == [{"key": "gpu", "operator": "Exists"}]


def arguments(found: dict[Key, dict[str, Any]]) -> list[str]:
    (container,) = found["Deployment", "prefeed-operator"]["spec"]["template"]["spec"]["containers"]
    return list(container["args"])


def test_there_is_one_operator_at_a_time() -> None:
    spec = kustomized(ROOT / "kubernetes")["Deployment", "prefeed-operator"]["spec"]

    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})


# ---------------------------------------------------------------- rights

Rights = dict[tuple[str, str], set[str]]
"""Verbs, by group and resource."""

_OF_KIND, _OF_MADE = {"list", "watch", "patch"}, {"get", "list", "watch", "create", "patch", "delete"}


def needed(*, with_paddle: bool) -> Rights:
    """Return what the operator needs, from the kinds that it knows."""
    found: Rights = defaultdict(set)
    for name, kind in KINDS.items():
        if name != PADDLE_JOB or with_paddle:
            found[kind.resource.group, kind.resource.plural] |= _OF_KIND
            found[kind.resource.group, f"{kind.resource.plural}/status"] |= {"patch"}
    found[KINDS[SAMPLE_SET].resource.group, KINDS[SAMPLE_SET].resource.plural] |= {"get"}
    for each in MADE.values():
        if each != PODS or with_paddle:
            found[each.group, each.plural] |= _OF_MADE
    found[PODS.group, PODS.plural] |= {"list", "watch"}
    found[SECRETS.group, SECRETS.plural] |= {"get"}
    found[EVENTS.group, EVENTS.plural] |= {"list", "create"}
    if with_paddle:
        found["apiextensions.k8s.io", "customresourcedefinitions"] |= {"get"}
    return dict(found)


def granted(found: dict[Key, dict[str, Any]]) -> Rights:
    """Return what its service account may do."""
    roles = {
        (each["roleRef"]["kind"], each["roleRef"]["name"])
        for (kind, _), each in found.items()
        if kind in ("ClusterRoleBinding", "RoleBinding")
        and each["subjects"] == [{"kind": "ServiceAccount", "name": "prefeed-operator", "namespace": "prefeed-system"}]
    }
    rights: Rights = defaultdict(set)
    for rule in (rule for role in roles for rule in found[role]["rules"]):
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                rights[group, resource] |= set(rule["verbs"])
    return dict(rights)


def test_pods_of_other_namespaces_are_not_asked_about() -> None:
    (hook,) = helm(webhook=True, namespaces=["team"])["MutatingWebhookConfiguration", "prefeed"]["webhooks"]

    assert hook["namespaceSelector"] == {
        "matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["team"]}]
    }


def test_the_operator_may_do_what_it_does_and_nothing_more(tmp_path: Path) -> None:
    assert granted(kustomized(ROOT / "kubernetes")) == needed(with_paddle=False)
    assert granted(with_component(tmp_path, "paddlejob")) == needed(with_paddle=True)


def test_of_other_definitions_it_may_read_none() -> None:
    rules = helm(paddleJob=True)["ClusterRole", "prefeed-operator-paddlejobs"]["rules"]

    (rule,) = [each for each in rules if "customresourcedefinitions" in each["resources"]]
    assert rule["resourceNames"] == ["paddlejobs.batch.paddlepaddle.org"]
