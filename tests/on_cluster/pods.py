"""Pods in a cluster of the user's: ``make test-cluster`` with KUBECONFIG and PREFEED_TEST_IMAGE. No part of ``make test``.

PREFEED_TEST_IMAGE is an image of ``deploy/image/Containerfile`` that the nodes have or can pull. PREFEED_TEST_LIBRARIES is a path on the nodes
with torch, or an image with torch and prefeed. PREFEED_TEST_NEXT_IMAGE is the image with another tag. The operator is installed from
``deploy/kubernetes``, and removed: it must not be there.
Every object that is read is compared with its bytes, and the object store counts its requests. Nothing waits for a time to pass.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from on_cluster.kubectl import ROOT, Document, documents_of, kubectl, new_namespace, succeed
from on_cluster.store import NUMBER
from on_cluster.workloads import (
    FILES,
    IMAGE,
    LIBRARIES,
    NEXT_IMAGE,
    PLAIN,
    RESTRICTED,
    TORCHRUN,
    apply,
    ask_store,
    conditions,
    epoch_line,
    finish,
    found,
    go_on_without_control_plane,
    job_of,
    keys,
    kill,
    let_go_on,
    libraries,
    log_of,
    phase_of,
    photos,
    pod_of,
    restarts,
    store,
    succeeds,
    training,
    until,
)
from prefeed.kubernetes.crds import KINDS, definition
from prefeed.kubernetes.nodes import node_set, with_node_cache
from prefeed.kubernetes.paddlejob import KIND as PADDLE_JOB
from prefeed.kubernetes.workloads import patched

pytestmark = pytest.mark.timeout(600)  # of one test; each waits for conditions
needs_torch = pytest.mark.skipif(not LIBRARIES, reason="set PREFEED_TEST_LIBRARIES to a path on the nodes with torch")
ONCE = {f"train/{number:05}.bin": 1 for number in range(NUMBER)}


@pytest.fixture(scope="module", autouse=True)
def operator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Install the operator, with PaddleJobs; return the folder of its kustomization."""
    if not IMAGE:
        pytest.skip("set PREFEED_TEST_IMAGE to an image of deploy/image/Containerfile that the nodes have")
    if kubectl("get", "namespace", "prefeed-system").returncode == 0:
        pytest.skip("prefeed is installed in this cluster (the namespace prefeed-system): uninstall it")
    folder = tmp_path_factory.mktemp("install")
    shutil.copytree(ROOT / "deploy" / "kubernetes", folder / "kubernetes")
    name, _, tag = IMAGE.rpartition(":")
    own = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": ["../kubernetes"],
        "components": ["../kubernetes/paddlejob"],
        "images": [{"name": "registry.example/prefeed", "newName": name, "newTag": tag}],
    }  # fmt: skip
    (folder / "own").mkdir()
    (folder / "own" / "kustomization.yaml").write_text(yaml.safe_dump(own))
    install(folder)
    yield folder
    uninstall(folder)


def install(folder: Path, name: str = "own") -> None:
    kubectl("apply", "-k", str(folder / name))  # resources may be refused until their definitions are established
    names = [f"crd/{definition(kind)['metadata']['name']}" for kind in (*KINDS, PADDLE_JOB)]
    succeed("wait", "--for=condition=Established", *names, "--timeout=120s")
    succeed("apply", "-k", str(folder / name))
    succeed("rollout", "status", "-n", "prefeed-system", "deployment/prefeed-operator", "--timeout=180s")


def uninstall(folder: Path) -> None:
    succeed("delete", "-k", str(folder / "own"), "--ignore-not-found", "--timeout=180s")


@pytest.fixture(scope="module")
def shared() -> Iterator[str]:
    """Return a namespace with a store, whose pods may use the node."""
    yield from _filled("")


@pytest.fixture(scope="module")
def restricted() -> Iterator[str]:
    yield from _filled("restricted")


def _filled(level: str) -> Iterator[str]:
    with new_namespace(level) as name:
        store(name)
        apply(name, *libraries(name))
        yield name
    kubectl("delete", "persistentvolume", f"libraries-{name}", "--ignore-not-found", "--wait=false")


@pytest.fixture
def a_set(shared: str) -> Iterator[str]:
    """Return a namespace with the set ``photos`` in mode node, whose server is ready."""
    apply(shared, photos(mode="node"))
    succeed("wait", "-n", shared, "sampleset/photos", "--for=jsonpath={.status.phase}=Ready", "--timeout=180s")
    ask_store(shared, "reset")
    yield shared
    succeed("delete", "-n", shared, "job,samplejob,paddlejob,sampleset", "--all", "--timeout=180s")
    until(lambda: not found(shared, "statefulset/photos-runtime"), "the servers of the set have gone")


def epochs(count: int) -> list[str]:
    return count * [epoch_line()]


# ---------------------------------------------------------------- pods that read


@needs_torch
def test_a_pod_of_a_restricted_namespace_reads_through_its_sidecar(restricted: str) -> None:
    """Without the operator's help, by ``patch``; the sidecar is killed in the second epoch, and its tier is found again."""
    documents, _ = patched([training("train", pause=3, context=RESTRICTED), photos()])
    apply(restricted, *documents)
    until(lambda: "paused" in log_of(restricted, "job/train"), "the second epoch has begun")
    pod = pod_of(restricted, "train")
    with new_namespace() as privileged:
        kill(privileged, pod, "prefeed-node", "sidecar")
    until(lambda: restarts(restricted, pod["metadata"]["name"], "prefeed-node") == 1, "the sidecar is there again")
    let_go_on(restricted, pod["metadata"]["name"])

    assert [line for line in finish(restricted, "train") if line.startswith("epoch")] == epochs(2)
    log = log_of(restricted, pod["metadata"]["name"], "-c", "prefeed-node")
    assert "serves the sample set photos from s3://data; memory tier: 256.0 MiB, disk tier: none" in log
    counts = ask_store(restricted, "counts")
    assert {name: count for name, count in counts.items() if count > 2 or name not in ONCE} == {}
    succeed("delete", "-n", restricted, "job,sampleset", "--all")


@needs_torch
def test_pods_of_a_node_share_its_cache(a_set: str) -> None:
    """Each object is requested once, for two pods with two epochs; their image has another user than root."""
    apply(a_set, job_of("warmup", "warm"))
    succeeds(a_set, "samplejob", "warm")
    for name in ("one", "two"):
        apply(a_set, with_cache(a_set, training(name)))
    for name in ("one", "two"):
        assert finish(a_set, name) == epochs(2)
    assert ask_store(a_set, "counts") == ONCE
    assert pod_of(a_set, "one")["spec"]["containers"][0]["securityContext"] == {"runAsUser": 0}
    log = log_of(a_set, "photos-runtime-0", "-c", "prefeed-node")
    assert "serves the sample set photos from s3://data" in log


def with_cache(namespace: str, job: Document) -> Document:
    """Return a job that reads the set of its node, as the webhook would make its pods."""
    given = node_set(found(namespace, "sampleset/photos"), image=IMAGE)
    job["spec"]["template"] = with_node_cache(job["spec"]["template"], given)
    return job


@needs_torch
def test_a_server_and_the_operator_that_are_killed_come_back(a_set: str) -> None:
    """The reader is in the middle of an epoch: it reads the origin, then the tier that the next server finds."""
    apply(a_set, with_cache(a_set, training("train", epochs=3, pause=3)))
    until(lambda: "paused" in log_of(a_set, "job/train"), "the second epoch has begun")
    server = found(a_set, "pod/photos-runtime-0")
    (operator,) = json.loads(succeed("get", "pods", "-n", "prefeed-system", "-o", "json"))["items"]
    kill(a_set, server, "prefeed-node", "sidecar")
    kill(a_set, operator, "operator", "operator")
    until(lambda: restarts(a_set, "photos-runtime-0", "prefeed-node") == 1, "the server is there again")
    name = operator["metadata"]["name"]
    until(lambda: restarts("prefeed-system", name, "operator") == 1, "the operator is there again")
    let_go_on(a_set, pod_of(a_set, "train")["metadata"]["name"])

    assert [line for line in finish(a_set, "train") if line.startswith("epoch")] == epochs(3)
    apply(a_set, job_of("clear", "clear"))  # the operator works
    succeeds(a_set, "samplejob", "clear")


@needs_torch
def test_nothing_that_runs_notices_an_api_server_and_a_kubelet_that_are_away(a_set: str) -> None:
    """They do not answer for 30 s, in which the second epoch is read to its end."""
    apply(a_set, with_cache(a_set, training("train", pause=3)))
    until(lambda: "paused" in log_of(a_set, "job/train"), "the second epoch has begun")
    with new_namespace() as privileged:
        said = go_on_without_control_plane(privileged, pod_of(a_set, "train"))

    assert said.strip() == "['kube-apiserver', 'kubelet'] readers left: 0"
    assert [line for line in finish(a_set, "train") if line.startswith("epoch")] == epochs(2)
    apply(a_set, job_of("clear", "clear"))  # the operator works
    succeeds(a_set, "samplejob", "clear")


@needs_torch
def test_a_set_that_is_deleted_while_it_is_read_stays_until_the_end(a_set: str) -> None:
    apply(a_set, with_cache(a_set, training("train", pause=3)))
    until(lambda: "paused" in log_of(a_set, "job/train"), "the second epoch has begun")
    succeed("delete", "-n", a_set, "sampleset/photos", "--wait=false")
    until(lambda: "Deleted" in conditions(a_set, "sampleset/photos"), "the set says who reads it")
    assert "train-" in conditions(a_set, "sampleset/photos")["Deleted"][2]
    let_go_on(a_set, pod_of(a_set, "train")["metadata"]["name"])

    assert [line for line in finish(a_set, "train") if line.startswith("epoch")] == epochs(2)
    until(lambda: not found(a_set, "sampleset/photos"), "the set has gone")


def test_a_pod_of_another_user_is_told_whose_the_cache_is(a_set: str) -> None:
    """Nothing gave it the user of the servers: the error of the program names both users and the annotation."""
    job = with_cache(a_set, training("train"))
    container = job["spec"]["template"]["spec"]["containers"][0]
    container["securityContext"] = {"runAsUser": 1000}
    container["command"] = ["python", "-c", "import prefeed; prefeed.datasets.Objects('sampleset://photos')"]
    apply(a_set, job)
    until(lambda: "Failed" in conditions(a_set, "job/train"), "the job has failed")

    log = log_of(a_set, "job/train")
    assert "user 1000 cannot read the sample set photos: user 0 owns" in log
    assert "prefeed.io/user" in log


# ---------------------------------------------------------------- jobs of sets


def test_jobs_run_in_their_order_and_data_is_removed_after_consent(a_set: str) -> None:
    target = {"syncOptions": {"source": "s3://data/train", "destination": "s3://data/copy"}}
    apply(
        a_set,
        job_of("warmup", "a"),
        job_of("rmr", "remove", rmrOptions={"paths": ["train/00000.bin"]}),
        job_of("clear", "b"),
        job_of("sync", "c", **target),
    )
    for name in ("a", "b", "c"):  # what waits for consent holds up none
        succeeds(a_set, "samplejob", name)
    assert phase_of(a_set, "samplejob", "remove") == "Pending"
    assert "consent" in conditions(a_set, "samplejob/remove")["Complete"][2]
    assert "train/00000.bin" in ask_store(a_set, "keys?bucket=data")
    created = [found(a_set, f"samplejob/{name}")["status"]["jobName"] for name in ("a", "b", "c")]
    starts = [found(a_set, f"job/{name}")["metadata"]["creationTimestamp"] for name in created]
    assert starts == sorted(starts)
    assert ask_store(a_set, "keys?bucket=data") == sorted([*ONCE, *(key.replace("train", "copy") for key in ONCE)])

    succeed("annotate", "-n", a_set, "samplejob/remove", "prefeed.io/consent=remove")
    succeeds(a_set, "samplejob", "remove")
    assert "train/00000.bin" not in ask_store(a_set, "keys?bucket=data")
    ask_store(a_set, "fill")


def test_a_job_ends_those_before_it_and_a_sync_has_a_secret_of_its_own(a_set: str) -> None:
    """The sync runs, and its pod waits for the Secret; the rmr waits for consent."""
    target = {
        "secretRef": {"name": "copies"},
        "syncOptions": {"source": "s3://data/train", "destination": "s3://copies"},
    }
    apply(a_set, job_of("sync", "a", **target), job_of("rmr", "b", rmrOptions={"paths": ["train/00000.bin"]}))
    until(lambda: phase_of(a_set, "samplejob", "a") == "Running", "the sync runs")
    apply(a_set, job_of("clear", "c", terminate=True))
    succeeds(a_set, "samplejob", "c")
    for name in ("a", "b"):
        assert conditions(a_set, f"samplejob/{name}")["Complete"][1] == "Terminated"

    apply(a_set, {**keys(a_set, "access-1"), "metadata": {"name": "copies"}}, job_of("sync", "d", **target))
    succeeds(a_set, "samplejob", "d")
    assert ask_store(a_set, "keys?bucket=copies") == [key.removeprefix("train/") for key in ONCE]
    ask_store(a_set, "fill")


def test_a_scheduled_job_runs_until_it_is_deleted(a_set: str) -> None:
    apply(a_set, job_of("warmup", "nightly", schedule="* * * * *"))
    until(lambda: ask_store(a_set, "counts") == ONCE, "the job of this minute has warmed the cache")
    succeed("delete", "-n", a_set, "samplejob/nightly")


# ---------------------------------------------------------------- PaddleJobs


def paddle_job(name: str) -> Document:
    (given,) = documents_of(ROOT / "tests" / "contract" / "kubernetes" / "resnet.yaml")
    given["metadata"]["name"] = name
    given["spec"]["sampleSetRef"]["name"] = "photos"
    template = given["spec"]["worker"]["template"]["spec"]
    container = template["containers"][0]
    container |= {"image": IMAGE, "args": ["-c", FILES]}
    template["terminationGracePeriodSeconds"] = 0
    return dict(given)


@pytest.fixture
def gpus() -> None:
    """Pretend GPUs on nodes that have none, because the documents of Paddle demand them."""
    for each in json.loads(succeed("get", "nodes", "-o", "json"))["items"]:
        if "nvidia.com/gpu" not in each["status"]["allocatable"]:
            size = {"nvidia.com/gpu": "8"}
            change = json.dumps({"status": {"capacity": size, "allocatable": size}})
            succeed("patch", "node", each["metadata"]["name"], "--subresource=status", "--type=merge", "-p", change)


@pytest.mark.usefixtures("gpus")
def test_twenty_paddle_jobs_never_see_an_empty_directory(a_set: str) -> None:
    """One after the other, four at a time, and with deletions in between."""
    number = 0
    for size in (1, 1, 4, 4, 1, 4, 1, 4):
        names = [f"job-{number + each}" for each in range(size)]
        number += size
        apply(a_set, *(paddle_job(name) for name in names))
        for name in names:
            succeeds(a_set, "paddlejob", name, "Completed")
            assert log_of(a_set, f"{name}-worker-0").strip() == epoch_line()
        succeed("delete", "-n", a_set, *(f"paddlejob/{name}" for name in names), "--timeout=60s")
    assert number == 20
    assert "sampleset://photos is mounted at" in log_of(a_set, "photos-mount-0")


@pytest.mark.usefixtures("gpus")
def test_the_daemon_of_a_mount_that_is_killed_is_started_under_its_readers(a_set: str) -> None:
    waits = "import os, time\nopen('/data/log/begun', 'w').close()\nwhile not os.path.exists('/tmp/go'):\n    time.sleep(0.05)\n"
    given = paddle_job("reader")
    given["spec"]["worker"]["template"]["spec"]["containers"][0]["name"] = "train"
    given["spec"]["worker"]["template"]["spec"]["containers"][0]["args"] = ["-c", f"{waits}{FILES}"]
    apply(a_set, given)
    until(lambda: phase_of(a_set, "pod", "reader-worker-0") == "Running", "the reader runs")
    until(
        lambda: (
            kubectl(
                "exec", "-n", a_set, "reader-worker-0", "-c", "train", "--", "test", "-e", "/data/log/begun"
            ).returncode
            == 0
        ),
        "begun",
    )
    kill(a_set, found(a_set, "pod/photos-mount-0"), "mount", "holder")
    let_go_on(a_set, "reader-worker-0")

    succeeds(a_set, "paddlejob", "reader", "Completed")
    assert log_of(a_set, "reader-worker-0", "-c", "train").strip() == epoch_line()


# ---------------------------------------------------------------- what refuses


@needs_torch
def test_an_origin_that_refuses_is_said_and_a_new_key_is_taken(shared: str) -> None:
    """The key of the store changes: the set and the log say so; the Secret changes, and the set is served again."""
    ask_store(shared, "access?key=access-2")
    apply(shared, photos(mode="node"))
    try:
        until(lambda: "Listed" in conditions(shared, "sampleset/photos"), "the set says that its source refuses")
        assert "SourceRefused" in conditions(shared, "sampleset/photos")["Listed"]
        apply(shared, keys(shared, "access-2"))
        until(lambda: "Listed" not in conditions(shared, "sampleset/photos"), "the set is listed")
        log = log_of(shared, "photos-runtime-0", "-c", "prefeed-node")
        assert "access denied" in log
        assert "uses the changed secrets" in log
    finally:
        ask_store(shared, "access?key=access-1")
        apply(shared, keys(shared, "access-1"))
        succeed("delete", "-n", shared, "sampleset", "--all", "--timeout=180s")


def test_a_quota_and_a_policy_are_said_in_the_words_of_the_cluster(shared: str, restricted: str) -> None:
    quota = {
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "small"},
        "spec": {"hard": {"requests.memory": "64Mi", "requests.cpu": "10"}},
    }  # fmt: skip
    apply(shared, quota, photos(mode="node"))
    apply(restricted, photos(mode="node"))
    try:
        for namespace, words in ((shared, "exceeded quota"), (restricted, "violates PodSecurity")):
            until(
                lambda namespace=namespace: (
                    conditions(namespace, "sampleset/photos").get("Ready", ("", ""))[1] == "PodRefused"
                ),
                "the set says that its pod is refused",
            )
            assert words in conditions(namespace, "sampleset/photos")["Ready"][2]
        succeed("delete", "-n", shared, "resourcequota/small")
        succeed("wait", "-n", shared, "sampleset/photos", "--for=jsonpath={.status.phase}=Ready", "--timeout=180s")
    finally:
        kubectl("delete", "-n", shared, "resourcequota", "--all")
        for namespace in (shared, restricted):
            succeed("delete", "-n", namespace, "sampleset", "--all", "--timeout=180s")


# ---------------------------------------------------------------- two nodes


def num_nodes() -> int:
    return len(json.loads(succeed("get", "nodes", "-o", "json"))["items"])


@needs_torch
def test_two_nodes_with_a_pool_fetch_each_object_once(shared: str) -> None:
    if num_nodes() < 2:
        pytest.skip("the cluster has one node")
    given = photos(mode="node", pool_memory="64")
    given["spec"]["partitions"] = 2
    apply(shared, given)
    succeed("wait", "-n", shared, "sampleset/photos", "--for=jsonpath={.status.phase}=Ready", "--timeout=180s")
    ask_store(shared, "reset")
    apply(shared, job_of("warmup", "warm"))
    succeeds(shared, "samplejob", "warm")
    nodes = [found(shared, f"pod/photos-runtime-{number}")["spec"]["nodeName"] for number in range(2)]
    assert len(set(nodes)) == 2
    for name, node in zip(("one", "two"), nodes, strict=True):
        apply(shared, with_cache(shared, training(name, epochs=1, nodeSelector={"kubernetes.io/hostname": node})))
    for name in ("one", "two"):
        assert finish(shared, name) == epochs(1)
    assert ask_store(shared, "counts") == ONCE
    succeed("delete", "-n", shared, "job,samplejob,sampleset", "--all", "--timeout=180s")


@needs_torch
def test_torchrun_on_two_nodes_reads_the_other_half_from_the_pool(shared: str) -> None:
    """The documents are those of the example, with gloo on processors; each object is requested once for two epochs."""
    if num_nodes() < 2:
        pytest.skip("the cluster has one node")
    documents = documents_of(ROOT / "examples" / "kubernetes" / "indexed-job.yaml")
    (job,) = [each for each in documents if each["kind"] == "Job"]
    template = job["spec"]["template"]
    template["metadata"]["labels"] = {"prefeed.io/sampleset": "photos"}
    (container,) = template["spec"]["containers"]
    plain = training("train")["spec"]["template"]["spec"]
    container |= {
        "image": plain["containers"][0]["image"],
        "volumeMounts": plain["containers"][0].get("volumeMounts", []),
    }
    template["spec"]["volumes"] = plain.get("volumes", [])
    container["args"] = [
        container["args"][0]
        .replace("torchrun", "python -m torch.distributed.run --no-python")
        .replace("--nproc-per-node=8", "--nproc-per-node=1")
        .replace("resnet50.py sampleset://imagenet", 'python -c "$PROGRAM"')
    ]
    container["env"] += [{"name": "PROGRAM", "value": TORCHRUN}, {"name": "PYTHONPATH", "value": "/libraries"}]
    del container["resources"]
    made, _ = patched([*documents, photos()])
    ask_store(shared, "reset")
    apply(shared, *made)
    finish(shared, "train")
    logs = succeed("logs", "-n", shared, "-l", "job-name=train", "-c", "train", "--tail=-1")
    assert [line for line in logs.splitlines() if line.startswith("epoch")] == 2 * [epoch_line()]
    assert ask_store(shared, "counts") == ONCE
    succeed("delete", "-n", shared, "job/train", "service/train", "service/pool", "statefulset/pool", "--timeout=180s")


# ---------------------------------------------------------------- installing


def test_uninstalling_leaves_nothing_that_cannot_be_deleted(operator: Path, a_set: str) -> None:
    """The definitions go with the operator, and all sets with them; afterwards it is installed again."""
    uninstall(operator)
    assert kubectl("get", "crd", "samplesets.batch.paddlepaddle.org").returncode != 0
    until(lambda: not found(a_set, "statefulset/photos-runtime"), "the servers have gone with their set")
    until(lambda: not found(a_set, "pod/photos-runtime-0"), "the pods of the servers have gone")
    install(operator)


def test_the_path_of_the_guide_is_walked(operator: Path, tmp_path: Path) -> None:
    """The commands are those of the page; those of Docker and kind are not run."""
    uninstall(operator)
    page = (ROOT / "docs" / "guide" / "kubernetes.md").read_text()
    try_it, remove = re.findall(r"<!-- run: test-cluster -->\n```sh\n(.*?)```", page, re.DOTALL)
    for name in ("deploy/kubernetes", "examples/kubernetes"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for path in tmp_path.rglob("*.yaml"):
        path.write_text(path.read_text().replace("registry.example/prefeed:0.1.0", IMAGE))
    config = tmp_path / "kubeconfig"
    config.write_text(succeed("config", "view", "--raw", "--minify", "--flatten"))
    with new_namespace() as namespace:
        succeed("config", "set-context", "--current", "--kubeconfig", str(config), "--namespace", namespace)
        environment = {"KUBECONFIG": str(config), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

        def run(lines: str) -> str:
            command = ["bash", "-e", "-o", "pipefail", "-c", lines]
            result = subprocess.run(
                command, cwd=tmp_path, env=os.environ | environment, capture_output=True, text=True, check=False
            )
            assert result.returncode == 0, result.stdout + result.stderr
            return result.stdout + result.stderr

        output = run(try_it)
        assert re.findall(r"epoch ([01]): 2000 files, 90 MB", output) == ["0", "1"]
        assert "serves the sample set numbers from http://files:8000" in output
        run(remove)
    install(operator)


@needs_torch
def test_kustomize_adds_a_webhook_by_which_a_label_is_enough(operator: Path, restricted: str, tmp_path: Path) -> None:
    """The certificate is the test's, in place of cert-manager's."""
    host, files = "prefeed-webhook.prefeed-system.svc", (str(tmp_path / "tls.key"), str(tmp_path / "tls.crt"))
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={host}", "-addext", f"subjectAltName=DNS:{host}",
         "-keyout", files[0], "-out", files[1]], check=True, capture_output=True,
    )  # fmt: skip
    secret = ("secret", "tls", "prefeed-webhook", "-n", "prefeed-system", "--key", files[0], "--cert", files[1])
    bundle = base64.b64encode(Path(files[1]).read_bytes()).decode()
    own = yaml.safe_load((operator / "own" / "kustomization.yaml").read_text())
    own["components"].append("../kubernetes/webhook")
    own["patches"] = [
        {"target": {"group": "cert-manager.io"}, "patch": "{$patch: delete, kind: any, metadata: {name: any}}"},
        {"target": {"kind": "MutatingWebhookConfiguration"},
         "patch": json.dumps([{"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": bundle}])},
    ]  # fmt: skip
    (operator / "webhook").mkdir()
    (operator / "webhook" / "kustomization.yaml").write_text(yaml.safe_dump(own))
    succeed("create", *secret)
    try:
        install(operator, "webhook")
        reads_by_its_label(restricted)
    finally:
        succeed("delete", "-n", "prefeed-system", "mutatingwebhookconfiguration/prefeed", "service/prefeed-webhook")
        install(operator)
        succeed("delete", "-n", "prefeed-system", "secret/prefeed-webhook")


def reads_by_its_label(namespace: str) -> None:
    """Read the set in a pod that has nothing of the cache but the label, in mode pod."""
    job = training("train", context=RESTRICTED)
    job["spec"]["template"]["spec"]["containers"][0]["command"] = ["python", "-c", PLAIN]
    apply(namespace, photos(), job)
    try:
        assert finish(namespace, "train") == epochs(1)
        assert [each["name"] for each in pod_of(namespace, "train")["spec"]["initContainers"]] == ["prefeed-node"]
    finally:
        succeed("delete", "-n", namespace, "job,sampleset", "--all", "--timeout=180s")


@needs_torch
def test_helm_installs_the_webhook_and_upgrades_to_another_image(operator: Path, restricted: str, shared: str) -> None:
    if shutil.which("helm") is None:
        pytest.skip("helm is not installed")
    uninstall(operator)
    repository, _, tag = IMAGE.rpartition(":")
    values = f"image.repository={repository},image.tag={tag},webhook=true"
    chart = str(ROOT / "deploy" / "helm" / "prefeed")
    release = ("-n", "prefeed-system", "--wait", "--timeout=180s")
    _helm("install", "prefeed", chart, *release, "--create-namespace", "--set", values)
    try:
        reads_by_its_label(restricted)
        if not NEXT_IMAGE:
            pytest.skip("set PREFEED_TEST_NEXT_IMAGE to the same image with another tag, for `helm upgrade`")
        apply(shared, photos(mode="node"))
        succeed("wait", "-n", shared, "sampleset/photos", "--for=jsonpath={.status.phase}=Ready", "--timeout=180s")
        apply(shared, training("train", pause=3))
        until(lambda: "paused" in log_of(shared, "job/train"), "the second epoch has begun")
        tag = NEXT_IMAGE.rpartition(":")[2]
        _helm("upgrade", "prefeed", chart, *release, "--reuse-values", "--set", f"image.tag={tag}")
        until(
            lambda: f"'image': '{NEXT_IMAGE}'" in str(found(shared, "pod/photos-runtime-0").get("spec")),
            "the server has the new image",
        )
        let_go_on(shared, pod_of(shared, "train")["metadata"]["name"])
        assert [line for line in finish(shared, "train") if line.startswith("epoch")] == epochs(2)
        succeed("wait", "-n", shared, "sampleset/photos", "--for=jsonpath={.status.phase}=Ready", "--timeout=180s")
    finally:
        kubectl("delete", "-n", shared, "job,sampleset", "--all", "--timeout=180s")
        _helm("uninstall", "prefeed", *release)
        succeed(
            "delete", "crd", "samplesets.batch.paddlepaddle.org", "samplejobs.batch.paddlepaddle.org", "--timeout=180s"
        )
        succeed("delete", "namespace", "prefeed-system", "--timeout=180s")
        install(operator)


def _helm(*words: str) -> str:
    result = subprocess.run(["helm", *words], capture_output=True, text=True, check=False, env=dict(os.environ))
    assert result.returncode == 0, result.stderr
    return result.stdout
