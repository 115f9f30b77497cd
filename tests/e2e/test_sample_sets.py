"""Training from a sample set by its name: one node serves every process, with credentials that nobody sees."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml
from click.testing import CliRunner
from torch.utils.data import Subset

import prefeed
import servers
from prefeed.cli.main import cli
from prefeed.client.node import NodeClient
from prefeed.config import resolve
from prefeed.errors import ConfigError, SampleSetNotFoundError, ServerUnavailableError
from prefeed.sampleset.names import resolve as resolve_name
from prefeed.sampleset.records import find
from sandbox import Sandbox
from slow_files import write_files
from unit.sampleset.documents import ACCESS, SECRET, apply, files_below, keys, sample_set

FILES = {f"train/{number % 2}/{number:02}.bin": bytes([number]) * 3000 for number in range(12)}
FIRST_BYTES = sorted(range(12))


@pytest.fixture(autouse=True)
def _close_readers() -> Iterator[None]:
    yield
    prefeed.datasets._readers.close()


@pytest.fixture
def directory(sandbox: Sandbox) -> Path:
    return write_files(sandbox.root / "origin", FILES)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with servers.moto_server() as url:
        client = boto3.client(
            "s3", endpoint_url=url, region_name="us-east-1", aws_access_key_id=ACCESS, aws_secret_access_key=SECRET
        )
        for bucket in ("public", "copies"):
            client.create_bucket(Bucket=bucket)
        for name, data in FILES.items():
            client.put_object(Bucket="public", Key=f"imagenet/{name}", Body=data)
        yield url
        client.close()


def prefeed_command(*words: str) -> str:
    result = CliRunner().invoke(cli, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@contextlib.contextmanager
def set_of(*documents: dict[str, Any], name: str = "imagenet") -> Iterator[None]:
    apply(*documents)
    try:
        yield
    finally:
        prefeed.datasets._readers.close()
        prefeed_command("sampleset", "delete", name, "--force")


def first_byte(data: bytes) -> int:
    return data[0]


def statistics() -> Any:
    return prefeed.statistics(config=find("imagenet", resolve()).settings(resolve()))


def seen(loader: Any) -> list[int]:
    return sorted(int(value) for batch in loader for value in batch)


@pytest.mark.parametrize(("context", "num_workers"), [(None, 0), ("fork", 2), ("spawn", 1)])
def test_a_loader_finds_the_node_of_its_set(directory: Path, context: str | None, num_workers: int) -> None:
    with set_of(sample_set(source={"uri": str(directory)})):
        dataset = prefeed.datasets.Objects("sampleset://imagenet/train", first_byte)
        workers: Any = {"num_workers": num_workers, "multiprocessing_context": context}
        loader = prefeed.DataLoader(dataset, batch_size=4, shuffle=True, **workers)
        assert [seen(loader), seen(loader)] == [FIRST_BYTES] * 2
        counts = statistics()
        assert counts.reads == 24
        assert (counts.direct_reads, counts.origin_requests) == (0, 12)
        with pytest.raises(ServerUnavailableError):  # and nobody started the server of the home itself
            NodeClient.connect(resolve(), autostart=False)
        del loader


def test_below_subsets_and_with_a_loaders_own_settings(directory: Path) -> None:
    with set_of(sample_set(source={"uri": str(directory)})):
        dataset = Subset(prefeed.datasets.Objects("sampleset://imagenet", first_byte), range(6))
        loader = prefeed.DataLoader(
            dataset, batch_size=3, config=resolve({"read_once": True}, limits={"lookahead_bytes": 1 << 20})
        )
        assert len(seen(loader)) == 6
        assert statistics().reads == 6
        del loader


def test_one_object(directory: Path) -> None:
    with set_of(sample_set(source={"uri": str(directory)})):
        prefeed_command("sampleset", "apply", "-f", _document(directory), "--wait")
        with NodeClient.connect(find("imagenet", resolve()).settings(resolve())) as node:
            node.warm(str(directory))
        assert prefeed.statistics().reads == 0
        assert prefeed.read("sampleset://imagenet/train/1/03.bin") == FILES["train/1/03.bin"]
        assert statistics().hits == 1
        assert prefeed.statistics().hits == 1


def test_statistics_speak_of_the_sets_and_nodes_that_this_process_uses(directory: Path) -> None:
    one, other = (sample_set(name, source={"uri": str(directory)}) for name in ("one", "other"))
    with set_of(one, name="one"), set_of(other, name="other"):
        NodeClient.connect(resolve()).close()  # nothing is read through the home's own server
        assert len(seen(prefeed.DataLoader(prefeed.datasets.Objects("sampleset://one/train", first_byte)))) == 12
        assert prefeed.statistics().reads == 12
        data = prefeed.datasets.Objects("sampleset://other/train/0")
        assert len([data[index] for index in range(len(data))]) == 6
        found = prefeed.statistics()
        assert (found.reads, found.resident_objects, len(found.epochs)) == (18, 18, 1)
        assert prefeed.statistics(config=find("one", resolve()).settings(resolve())).reads == 12
        assert len(seen(prefeed.DataLoader(prefeed.datasets.Objects(directory, first_byte)))) == 12
        assert prefeed.statistics().reads == 30


def test_statistics_of_files_below_a_set_that_the_roots_name(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with set_of(sample_set(source={"uri": str(directory)})):
        monkeypatch.setenv("PREFEED_ROOTS", "sampleset://imagenet")
        with NodeClient.connect(find("imagenet", resolve()).settings(resolve())) as node:
            node.warm(str(directory))
            requests = node.statistics().origin_requests
        assert prefeed.statistics().origin_requests == requests == 12


def _document(directory: Path) -> str:
    file = directory.parent / "set.yaml"
    file.write_text(
        "apiVersion: batch.paddlepaddle.org/v1alpha1\nkind: SampleSet\nmetadata: {name: imagenet}\n"
        f"spec: {{partitions: 1, source: {{uri: {directory}}}}}\n"
    )
    return str(file)


def _read_in_a_process(_rank: int) -> tuple[int, str]:
    dataset = prefeed.datasets.Objects("sampleset://imagenet/train")
    with NodeClient.connect(resolve_name("sampleset://imagenet", resolve())[1]) as node:
        return node.status().pid, dataset[0][:1].hex()


def test_processes_that_know_nothing_of_each_other_use_one_node(directory: Path) -> None:
    with set_of(sample_set(source={"uri": str(directory)})):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            found = pool.map(_read_in_a_process, range(1))
            found.append(_read_in_a_process(1))
            pool.close()
            pool.join()
        assert len(set(found)) == 1


# ---------------------------------------------------------------- files opened by path


class Opening:
    """A dataset that opens files, and knows nothing of prefeed."""

    def __init__(self, root: str) -> None:
        self.paths = sorted(str(path) for path in Path(root).rglob("*.bin"))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> int:
        with open(self.paths[index], "rb") as file:
            return file.read()[0]


def test_files_opened_by_path_go_through_the_node_of_the_set(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFEED_ROOTS", "sampleset://imagenet/train")
    with set_of(sample_set(source={"uri": str(directory)})):
        loader = prefeed.DataLoader(Opening(str(directory)), batch_size=4, shuffle=True, num_workers=2)
        assert [seen(loader), seen(loader)] == [FIRST_BYTES] * 2
        assert statistics().reads == 24
        del loader


def test_roots_that_name_a_store_say_what_to_use(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFEED_ROOTS", "sampleset://imagenet")
    apply(sample_set(source={"uri": "s3://public/imagenet"}))
    with pytest.raises(ConfigError, match="its objects cannot be opened by path"):
        next(iter(prefeed.DataLoader(Opening(str(directory)))))
    result = CliRunner().invoke(cli, ["run", "--root", "sampleset://imagenet", "train.py"])
    assert result.exit_code == 1
    assert "its objects cannot be opened by path" in result.stderr


def test_a_program_that_is_run_is_told_and_continues(directory: Path) -> None:
    script = directory.parent / "train.py"
    script.write_text(
        "import torch\nfrom torch.utils.data import DataLoader\n"
        f"class D:\n    def __len__(self): return 2\n    def __getitem__(self, i): return len(open({_document(directory)!r}).read())\n"
        "print(sum(len(batch) for batch in DataLoader(D())))\n"
    )
    environment = {**os.environ, "PREFEED_ROOTS": "sampleset://missing"}
    words = [sys.executable, "-c", f"import prefeed.auto, runpy; runpy.run_path({str(script)!r})"]
    result = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    assert result.stdout == "2\n"
    assert "there is no sample set 'missing'" in result.stderr


def test_a_loader_of_a_set_that_is_not_there() -> None:
    with pytest.raises(SampleSetNotFoundError, match="there is no sample set 'imagenet'"):
        prefeed.datasets.ImageFolder("sampleset://imagenet/train")


def test_a_set_that_is_deleted_does_not_end_training(directory: Path) -> None:
    apply(sample_set(source={"uri": str(directory)}))
    dataset = prefeed.datasets.Objects("sampleset://imagenet/train", first_byte)
    loader = prefeed.DataLoader(dataset, batch_size=4, shuffle=True)
    assert seen(loader) == FIRST_BYTES
    prefeed_command("sampleset", "delete", "imagenet", "--force")
    assert seen(loader) == FIRST_BYTES
    del loader


# ---------------------------------------------------------------- an object store


def test_from_a_store_with_keys_through_a_copy(endpoint: str, sandbox: Sandbox) -> None:
    documents = (
        keys("source", endpoint=endpoint),
        keys("copies", storage="s3", bucket=f"{endpoint}/copies"),
        sample_set(
            source={"uri": "bos://public.hkg.bcebos.com/imagenet", "secretRef": {"name": "source"}},
            secretRef={"name": "copies"},
        ),
    )
    file = sandbox.root / "set.yaml"
    file.write_text(yaml.safe_dump_all(documents))
    output = prefeed_command("sampleset", "apply", "-f", str(file), "--wait")
    found = find("imagenet", resolve())
    assert (found.source_url, found.origin_url) == ("s3://public/imagenet", "s3://copies/imagenet")
    dataset = prefeed.datasets.Objects("sampleset://imagenet/train", first_byte)
    assert dataset.url == "s3://copies/imagenet/train"
    loader = prefeed.DataLoader(dataset, batch_size=4, shuffle=True, num_workers=2)
    assert seen(loader) == FIRST_BYTES
    assert statistics().origin_requests == 12
    output += prefeed_command("sampleset", "describe", "imagenet") + prefeed_command("sampleset", "list", "--json")
    for hidden in (SECRET, ACCESS):
        assert hidden not in output
        assert hidden not in _process_lists()
        holding = {name for name, data in files_below(sandbox.root).items() if hidden.encode() in data}
        assert holding == {
            "set.yaml", "home/secrets/source.json", "home/secrets/copies.json",
            "home/samplesets/imagenet/node/credentials.json",
        }  # fmt: skip
    del loader
    prefeed.datasets._readers.close()
    prefeed_command("sampleset", "delete", "imagenet", "--force")


def _process_lists() -> str:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            found.append((process / "cmdline").read_bytes().decode(errors="replace"))
    return "\n".join(found)


def test_keys_that_are_wrong_are_an_error_without_them(endpoint: str, sandbox: Sandbox) -> None:
    apply(
        keys("source", endpoint=f"{endpoint}/nowhere"),
        sample_set(source={"uri": "s3://missing/imagenet", "secretRef": {"name": "source"}}),
    )
    with pytest.raises(prefeed.errors.SourceError) as caught:
        prefeed.datasets.Objects("sampleset://imagenet")
    assert SECRET not in str(caught.value)
    prefeed_command("sampleset", "delete", "imagenet", "--force")
