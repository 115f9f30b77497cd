"""``prefeed sampleset``: output, exit codes, JSON, and what it leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from prefeed.cli.sampleset import format_age
from prefeed.client.node import NodeClient
from prefeed.config import resolve
from prefeed.sampleset.names import resolve as resolve_name
from prefeed.sampleset.records import find, is_being_set_up, lock_set, lock_sets, read_progress, record_progress
from prefeed.sampleset.status import observe
from process.conditions import wait_for
from sandbox import Sandbox
from servers import http_server, write_index
from slow_files import write_files
from unit.sampleset.documents import SECRET, keys, sample_set, secret

pytestmark = pytest.mark.usefixtures("sandbox")

FILES = {"train/a/1": b"x" * 5000, "train/b/2": b"y" * 7000, "train_list.txt": b"train/a/1 0\n"}


@pytest.fixture
def origin(sandbox: Sandbox) -> Path:
    return write_files(sandbox.root / "origin", FILES)


@pytest.fixture
def document(origin: Path, sandbox: Sandbox) -> dict[str, Any]:
    levels = [
        {"mediumType": "MEM", "path": str(sandbox.memory_dir), "cacheSize": 16},
        {"mediumType": "SSD", "path": str(sandbox.root / "disk"), "cacheSize": 32},
    ]
    return sample_set(source={"uri": origin.as_uri()}, cache={"levels": levels}, tolerations=[])


@pytest.fixture
def write(sandbox: Sandbox) -> Any:
    def write(*documents: dict[str, Any]) -> str:
        file = sandbox.root / "sets.yaml"
        file.write_text(yaml.safe_dump_all(documents))
        return str(file)

    return write


def status(run: Any, name: str = "imagenet") -> Any:
    return json.loads(run(None, "sampleset", "list", name, "--json").stdout)["samplesets"][0]["status"]


def test_a_set_from_its_document_to_its_end(
    run: Any, write: Any, document: dict[str, Any], sandbox: Sandbox, origin: Path
) -> None:
    result = run(None, "sampleset", "apply", "-f", write(document), "--wait")
    assert result.exit_code == 0
    assert result.stdout.startswith("sampleset imagenet created\nNAME ")
    assert "spec.tolerations: no effect: it tells Kubernetes" in result.stderr

    found = status(run)
    assert found["phase"] == "Ready"
    assert found["runtimeStatus"] == {"runtimeReady": "1/1", "specReplicas": 1, "readyReplicas": 1}
    cache = found["cacheStatus"]
    assert (cache["totalSize"], cache["totalFiles"], cache["cachedSize"]) == (12_012, 3, 0)
    assert (cache["errorMessage"], cache["diskUsed"]) == ("", 0)

    url, config = resolve_name("sampleset://imagenet/train/a", resolve())
    with NodeClient.connect(config) as node:
        node.warm(url)
        wait_for(
            lambda: node.statistics().disk.objects == 1, "the object to be on disk"
        )  # some time after it is in memory
    cache = status(run)["cacheStatus"]
    assert (cache["cachedSize"], cache["cachedFiles"]) == (5000, 1)  # in memory and on disk, and counted once
    assert cache["diskUsed"] >= 5000

    described = run(None, "sampleset", "describe", "imagenet").stdout
    assert "the memory tier, below" in described
    assert "16 MiB at most" in described
    assert "1 file, 4.9 KiB (33.3 % of the files)" in described
    assert run(None, "clear", "sampleset://imagenet/train").stdout.startswith("2 entries freed")  # one in each tier

    result = run(None, "sampleset", "delete", "imagenet")
    assert result.stdout == "sampleset imagenet deleted\n"
    assert not config.socket_path.exists()
    assert list((sandbox.root / "disk").iterdir()) == []
    assert list((sandbox.home / "samplesets").iterdir()) == [sandbox.home / "samplesets" / ".lock"]
    assert (origin / "train/a/1").read_bytes() == FILES["train/a/1"]
    assert "no sample sets" in run(None, "sampleset", "list").stdout


def test_a_variable_that_was_missing_is_set_and_the_set_applied_again(
    run: Any, write: Any, origin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server that could not read it was started without the variable, and keeps its environment."""
    write_index(origin)
    with http_server(origin) as server:
        who = secret(**{"access-key": {"env": "SET_USER"}, "secret-key": {"env": "SET_PASSWORD"}})
        file = write(who, sample_set(source={"uri": server.url, "secretRef": {"name": "keys"}}))
        failed = run(None, "sampleset", "apply", "-f", file, "--wait")
        monkeypatch.setenv("SET_USER", "me")
        monkeypatch.setenv("SET_PASSWORD", "hush")
        done = run(None, "sampleset", "apply", "-f", file, "--wait")
    assert (failed.exit_code, done.exit_code) == (1, 0)
    assert "SET_USER is not set: set it, and apply again" in failed.stderr
    assert status(run)["phase"] == "Ready"


def test_commands_that_look_at_a_node_know_it_by_the_name_of_its_set(
    run: Any, write: Any, document: dict[str, Any]
) -> None:
    run(None, "sampleset", "apply", "-f", write(document), "--wait")
    node = str(find("imagenet", resolve()).home)
    seen = run(None, "server", "status", "--home", "sampleset://imagenet", "--json")
    counts = run(None, "stats", "--home", "sampleset://imagenet", "--json")
    assert json.loads(seen.stdout)["home"] == node
    assert json.loads(counts.stdout)["budget_bytes"] <= 16 * 1024**2
    assert "there: imagenet" in run(None, "stats", "--home", "sampleset://image").stderr
    assert (
        "each sample set has its own server; use --home sampleset://NAME (sample sets: imagenet)"
        in run(None, "stats").stderr
    )
    run(None, "server", "stop", "--home", "sampleset://imagenet")
    assert status(run)["phase"] == "Bound"


def test_without_waiting_a_process_of_its_own_does_it(run: Any, write: Any, document: dict[str, Any]) -> None:
    words = [sys.executable, "-m", "prefeed", "sampleset", "apply", "-f", write(document)]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(lambda: status(run)["phase"] == "Ready", "the set is ready")
    run(None, "sampleset", "delete", "imagenet")


def test_json_is_one_object(run: Any, write: Any, document: dict[str, Any]) -> None:
    result = run(None, "sampleset", "apply", "-f", write(keys(), document), "--wait", "--json")
    found = json.loads(result.stdout)
    assert [(a["kind"], a["name"], a["action"]) for a in found["applied"]] == [
        ("Secret", "keys", "created"),
        ("SampleSet", "imagenet", "created"),
    ]
    described = json.loads(run(None, "sampleset", "describe", "imagenet", "--json").stdout)
    assert described["spec"]["partitions"] == 1
    assert [tier["kind"] for tier in described["tiers"]] == ["memory", "disk"]
    assert SECRET not in result.output + json.dumps(described)
    assert json.loads(run(None, "sampleset", "delete", "imagenet", "--json").stdout) == {"deleted": "imagenet"}


def test_a_source_that_cannot_be_read(run: Any, write: Any, origin: Path) -> None:
    missing = sample_set(source={"uri": str(origin / "missing")})
    result = run(None, "sampleset", "apply", "-f", write(missing), "--wait")
    assert result.exit_code == 1
    assert "SyncFailed" in result.stdout
    assert "prefeed: sample set imagenet: " in result.stderr
    assert "missing" in status(run)["cacheStatus"]["errorMessage"]

    write_files(origin / "missing", {"1": b"x"})
    assert run(None, "sampleset", "apply", "-f", write(missing), "--wait").exit_code == 0
    assert status(run)["phase"] == "Ready"
    run(None, "sampleset", "delete", "imagenet")


def test_more_nodes_than_this_one(run: Any, write: Any, document: dict[str, Any]) -> None:
    document["spec"]["partitions"] = 3
    assert run(None, "sampleset", "apply", "-f", write(document), "--wait").exit_code == 0
    found = status(run)
    assert (found["phase"], found["runtimeStatus"]["runtimeReady"]) == ("PartialReady", "1/3")
    assert (
        "this node is one of 3, and each node has its own cache"
        in run(None, "sampleset", "describe", "imagenet").stdout
    )
    run(None, "sampleset", "delete", "imagenet")


def test_copied_to_the_bucket_of_its_secret_and_read_there(
    run: Any, write: Any, origin: Path, sandbox: Sandbox
) -> None:
    copies = sandbox.root / "copies"
    copies.mkdir()
    documents = (
        keys(storage="file", bucket=str(copies), metaurl="redis://:hush@127.0.0.1/1"),
        sample_set(source={"uri": str(origin)}, secretRef={"name": "keys"}),
    )
    result = run(None, "sampleset", "apply", "-f", write(*documents), "--wait")
    assert result.exit_code == 0, result.output
    assert "metaurl: no effect" in result.stderr
    assert "hush" not in result.output
    assert {str(p.relative_to(copies)): p.read_bytes() for p in copies.rglob("*") if p.is_file()} == {
        f"imagenet/{name}": data for name, data in FILES.items()
    }
    assert status(run)["phase"] == "Ready"
    assert read_progress(find("imagenet", resolve())).synced > 0
    run(None, "sampleset", "delete", "imagenet")
    assert (copies / "imagenet/train/a/1").exists()  # what was copied is data


def test_sizes_are_known_after_a_job_has_changed_the_data(
    run: Any, write: Any, document: dict[str, Any], tmp_path: Path
) -> None:
    """Whether the set's server runs or not, and when nothing is left."""
    run(None, "sampleset", "apply", "-f", write(document), "--wait")

    def sizes() -> tuple[int, int]:
        cache = status(run)["cacheStatus"]
        (line,) = run(None, "sampleset", "list", "imagenet").stdout.splitlines()[1:]
        assert line.split()[1] != "-", line
        return cache["totalSize"], cache["totalFiles"]

    def remove(*paths: str) -> None:
        job = {
            "apiVersion": "batch.paddlepaddle.org/v1alpha1", "kind": "SampleJob", "metadata": {"name": f"rmr-{len(paths)}"},
            "spec": {"type": "rmr", "sampleSetRef": {"name": "imagenet"}, "rmrOptions": {"paths": list(paths)}},
        }  # fmt: skip
        (tmp_path / "job.yaml").write_text(json.dumps(job))
        done = run(None, "job", "apply", "-f", str(tmp_path / "job.yaml"), "--yes")
        assert done.exit_code == 0, done.output

    assert sizes() == (12_012, 3)
    remove("train/a")
    assert sizes() == (7_012, 2)
    more = write_files(tmp_path / "more", {"train/c/3": b"z" * 100})
    assert run(None, "sync", str(more), "sampleset://imagenet").exit_code == 0
    assert sizes() == (7_112, 3)
    os.kill(observe(find("imagenet", resolve()), resolve()).pid, signal.SIGTERM)
    wait_for(lambda: status(run)["phase"] == "Bound", "the server is gone")
    remove("train", "train_list.txt")
    assert sizes() == (0, 0)
    assert run(None, "sync", str(more), "sampleset://imagenet").exit_code == 0
    assert sizes() == (100, 1)
    run(None, "sampleset", "delete", "imagenet")


def test_what_was_brought_up_half_is_said_and_gone_on_with(run: Any, write: Any, document: dict[str, Any]) -> None:
    run(None, "sampleset", "apply", "-f", write(document), "--wait")
    found = find("imagenet", resolve())
    record_progress(found, listed=0.0)  # as if it had been killed while it listed
    cache = status(run)
    assert cache["phase"] == "SyncFailed"
    assert "apply` resumes" in cache["cacheStatus"]["errorMessage"]
    run(None, "sampleset", "apply", "-f", write(document), "--wait")
    assert status(run)["phase"] == "Ready"
    run(None, "sampleset", "delete", "imagenet")


def test_a_set_at_work_is_not_deleted(run: Any, write: Any, document: dict[str, Any]) -> None:
    run(None, "sampleset", "apply", "-f", write(document), "--wait")
    found = find("imagenet", resolve())
    with lock_set(found):
        assert is_being_set_up(found)
        result = run(None, "sampleset", "delete", "imagenet")
        assert result.exit_code == 1
        assert "or use --force" in result.stderr
    assert not is_being_set_up(found)
    with NodeClient.connect(found.settings(resolve())):  # a program that reads it
        result = run(None, "sampleset", "delete", "imagenet")
        assert "1 processes use the sample set imagenet" in result.stderr
        assert run(None, "sampleset", "delete", "imagenet", "--force").exit_code == 0
    assert run(None, "sampleset", "list", "imagenet").exit_code == 1


def test_a_changed_size_starts_the_server_again_when_it_is_unused(
    run: Any, write: Any, document: dict[str, Any]
) -> None:
    run(None, "sampleset", "apply", "-f", write(document), "--wait")
    before = observe(find("imagenet", resolve()), resolve())
    document["spec"]["cache"]["levels"][0]["cacheSize"] = 24
    assert "configured" in run(None, "sampleset", "apply", "-f", write(document), "--wait").stdout
    after = observe(find("imagenet", resolve()), resolve())
    assert after.pid != before.pid
    assert after.tiers[0].budget_bytes > before.tiers[0].budget_bytes
    assert run(None, "sampleset", "apply", "-f", write(document), "--wait").stdout.startswith(
        "sampleset imagenet unchanged"
    )
    assert observe(find("imagenet", resolve()), resolve()).pid == after.pid
    run(None, "sampleset", "delete", "imagenet")


def test_a_killed_server_is_seen_and_its_tiers_go_with_the_set(
    run: Any, write: Any, document: dict[str, Any], sandbox: Sandbox
) -> None:
    run(None, "sampleset", "apply", "-f", write(document), "--wait")
    pid = observe(find("imagenet", resolve()), resolve()).pid
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: status(run)["phase"] == "Bound", "the server is gone")
    assert status(run)["runtimeStatus"]["runtimeReady"] == "0/1"
    assert run(None, "sampleset", "delete", "imagenet").exit_code == 0
    assert list(sandbox.memory_dir.iterdir()) == []


@pytest.mark.parametrize("words", [("list", "other"), ("describe", "other"), ("delete", "other")])
def test_a_set_that_is_not_there(run: Any, words: tuple[str, ...]) -> None:
    result = run(None, "sampleset", *words)
    assert result.exit_code == 1
    assert "there is no sample set 'other'" in result.stderr
    assert json.loads(run(None, "sampleset", *words, "--json").stdout)["error"]["code"] == "sample-set-not-found"


def test_a_damaged_record_does_not_hide_the_others(run: Any, write: Any, document: dict[str, Any]) -> None:
    other = {**document, "metadata": {"name": "other"}}
    run(None, "sampleset", "apply", "-f", write(document, other), "--wait")
    record = find("imagenet", resolve()).directory / "sampleset.json"
    whole = record.read_bytes()
    record.write_bytes(b"{")
    result = run(None, "sampleset", "list")
    assert "is damaged; apply the sample set imagenet again" in result.stderr
    assert "\nother " in result.stdout
    record.write_bytes(whole)
    for name in ("imagenet", "other"):
        assert run(None, "sampleset", "delete", name).exit_code == 0


@pytest.mark.parametrize("command", ["sampleset", "job"])
def test_a_document_without_version_names_its_file_and_what_to_write(
    run: Any, write: Any, document: dict[str, Any], command: str
) -> None:
    del document["apiVersion"]
    file = write(document)
    refused = run(None, command, "apply", "-f", file)
    assert refused.exit_code == 1
    assert f"{file}: apiVersion is missing; write apiVersion: batch.paddlepaddle.org/v1alpha1" in refused.stderr


def test_a_file_that_cannot_be_read(run: Any, sandbox: Sandbox) -> None:
    assert "cannot be read" in run(None, "sampleset", "apply", "-f", str(sandbox.root / "none.yaml")).stderr


def test_the_lock_of_applying_is_free_again(run: Any, write: Any) -> None:
    run(None, "sampleset", "apply", "-f", write(sample_set()))  # refused
    with lock_sets(resolve()):
        pass


@pytest.mark.parametrize(
    ("seconds", "age"),
    [(0, "0s"), (119, "119s"), (120, "2m"), (3599, "59m"), (3600, "1h"), (86400 * 8, "8d"), (-5, "0s")],
)
def test_ages_are_kubectls(seconds: float, age: str) -> None:
    assert format_age(seconds) == age
