"""``examples/resnet50.py`` trains for real on an easy task: alone, as two processes, and on from the middle of an epoch."""

from __future__ import annotations

import importlib.util
import math
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import prefeed
import servers
from e2e.test_examples import EXAMPLES, run
from prefeed.config import resolve
from prefeed.jobs.spec import parse_job
from prefeed.sampleset.applying import apply_documents
from prefeed.sampleset.records import find
from prefeed.sampleset.yaml_files import load_documents

NUM_IMAGES = 48
SMALL = ["--arch", "resnet18", "--image-size", "32", "--class-num", "2", "--batch-size", "8", "--lr", "0.001"]
SCRIPT = str(EXAMPLES / "resnet50.py")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The document's layout, of two classes that differ in their colour."""
    train = tmp_path / "imagenet" / "train"
    train.mkdir(parents=True)
    for number in range(NUM_IMAGES):
        pixels = np.random.default_rng(number).integers(0, 100, (40, 40, 3), dtype=np.uint8)
        pixels[..., number % 2] += 150
        Image.fromarray(pixels).save(train / f"{number:04}.jpg")
    lines = [f"train/{number:04}.jpg {number % 2}\n" for number in range(NUM_IMAGES)]
    (train.parent / "train_list.txt").write_text("".join(lines))
    (train.parent / "demo").mkdir()
    (train.parent / "demo" / "0000.jpg").write_bytes(b"not read")
    servers.write_index(train.parent)
    return train.parent


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The program as a module of this process."""
    spec = importlib.util.spec_from_file_location("resnet50_example", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # its dataclasses ask for it
    spec.loader.exec_module(module)
    yield module
    prefeed.datasets._readers.close()


def losses(printed: str) -> list[float]:
    """Return the mean loss of each epoch."""
    return [float(loss) for loss in re.findall(r"^epoch \d+/\d+: loss (\S+), ", printed, re.MULTILINE)]


def check_learned(printed: str, num_epochs: int) -> None:
    found = losses(printed)
    assert len(found) == num_epochs
    assert all(map(math.isfinite, found))
    assert found[-1] < 0.7 * found[0], found


def check_each_file_fetched_once(server: servers.FileServer) -> None:
    gets = Counter(path for method, path, _ in server.requests if method == "GET")
    names = [f"/train/{number:04}.jpg" for number in range(NUM_IMAGES)]
    assert gets == Counter([*names, "/train_list.txt", "/index.txt"])


def test_one_process(root: Path, tmp_path: Path) -> None:
    with servers.http_server(root) as server:
        line = [sys.executable, SCRIPT, server.url, *SMALL, "--epochs", "3", "--num-workers", "1"]
        printed = run(*line, "--print-batch-step", "4", cwd=tmp_path)
        check_each_file_fetched_once(server)
    assert printed.startswith(f"resnet18: 48 images of {server.url}, 1 x cpu, from epoch 1, step 0\n")
    shown = re.findall(
        r"^epoch 2/3, step 4: loss \d\.\d{4}, [\d.]+ images/s, waited ([\d.]+)%$", printed, re.MULTILINE
    )  # fmt: skip
    assert len(shown) == 1
    assert 0 < float(shown[0]) < 100
    check_learned(printed, 3)


def test_two_processes(root: Path, tmp_path: Path) -> None:
    """Each trains on its half, the node asks the origin for each file once, and the networks stay the same."""
    with servers.http_server(root) as server:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", SCRIPT]
        printed = run(*torchrun, server.url, *SMALL, "--epochs", "2", "--num-workers", "1", cwd=tmp_path)
        check_each_file_fetched_once(server)
    assert printed.startswith(f"resnet18: 48 images of {server.url}, 2 x cpu, from epoch 1, step 0\n")
    check_learned(printed, 2)
    saved = torch.load(tmp_path / "output" / "checkpoint.pt", weights_only=True)
    assert (saved["epoch"], saved["step"], saved["loaders"]) == (2, 0, [None, None])


def test_it_continues_in_the_middle_of_an_epoch(
    example: ModuleType, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["resnet50.py", str(root), *SMALL, "--num-workers", "0"])
    args, place = example.parse_args(), example.Place(0, 1, torch.device("cpu"))

    def labels(batches: Any) -> list[list[int]]:
        return [found.tolist() for _, found in batches]

    batches, sampler = example.make_batches(args, place)
    sampler.set_epoch(3)
    training = example.Training(args, place)
    loop = iter(batches)
    for _ in range(2):
        training.step(*next(loop))
    example.save(tmp_path / "saved.pt", training, place, batches, epoch=3, step=2)
    rest = labels(loop)

    again, sampler = example.make_batches(args, place)
    sampler.set_epoch(3)
    other = example.Training(args, place)
    assert example.resume(tmp_path / "saved.pt", other, place, again) == (3, 2)
    assert labels(again) == rest
    assert len(rest) == 4
    weights, others = training.network.state_dict(), other.network.state_dict()
    assert all(torch.equal(weights[name], others[name]) for name in weights)
    with pytest.raises(SystemExit, match="of 1 processes in the middle of an epoch, not of 2"):
        example.resume(tmp_path / "saved.pt", other, example.Place(0, 2, torch.device("cpu")), again)


def test_a_sample_set_by_its_name(
    example: ModuleType, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The set's node serves it, and not the node of the home."""
    documents = (EXAMPLES / "sampleset" / "local.yaml").read_text()
    documents = documents.replace("/mnt/imagenet", str(root)).replace("/var/tmp/pictures", str(tmp_path / "disk"))
    documents = documents.replace("cacheSize: 4096", "cacheSize: 64").replace("cacheSize: 65536", "cacheSize: 64")
    apply_documents(load_documents(documents, "local.yaml"), resolve())
    options = [*SMALL, "--num-workers", "0", "--epochs", "1", "--steps", "2", "--output-dir", str(tmp_path / "output")]
    monkeypatch.setattr("sys.argv", ["resnet50.py", "sampleset://pictures", *options])
    example.main()
    assert "resnet18: 48 images of sampleset://pictures, 1 x cpu, from epoch 1, step 0\n" in capsys.readouterr().out
    of_set = prefeed.statistics(config=find("pictures", resolve()).settings(resolve()))
    assert of_set.hits > 0
    assert prefeed.statistics().hits == of_set.hits  # of all nodes that this process has used

    again = ["--epochs", "2", "--resume", str(tmp_path / "output" / "checkpoint.pt")]
    monkeypatch.setattr("sys.argv", ["resnet50.py", "sampleset://pictures", *options, *again])
    example.main()
    printed = capsys.readouterr().out
    assert "from epoch 2, step 0" in printed
    assert len(losses(printed)) == 1


@pytest.mark.parametrize("document", sorted((EXAMPLES / "sampleset").glob("*.yaml")), ids=lambda path: path.stem)
def test_documents_are_understood(document: Path) -> None:
    sections = load_documents(document.read_text(), document.name)
    assert sections
    if document.stem.endswith("-job"):
        assert [parse_job(section).spec.sample_set for section in sections] == ["imagenet"]
    else:
        assert [applied.action for applied in apply_documents(sections, resolve())] == ["created"]


WRONG = {
    "no list": (["--list", "val.txt"], "", "there is no val.txt below"),
    "a file that is missing": ([], "train/0000.jpg 0\ntrain/x.jpg 1\n", "names 1 of 2 .* 'train/x.jpg'"),
    "a label that is no number": (
        [],
        "train/0000.jpg cat\n",
        "line 1: 'train/0000.jpg cat' is not a path and an integer",
    ),
    "too few classes": ([], "train/0000.jpg 9\n", "labels up to 9: give --class-num 10 or more"),
    "a negative label": ([], "train/0000.jpg -1\n", "labels below 0"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said_in_a_line(
    example: ModuleType, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    options, text, message = WRONG[name]
    if text:
        (root / "train_list.txt").write_text(text)
    output = ["--output-dir", str(tmp_path / "output")]
    monkeypatch.setattr("sys.argv", ["resnet50.py", str(root), *SMALL, *output, "--num-workers", "0", *options])
    with pytest.raises(SystemExit, match=f"^resnet50: .*{message}"):
        example.main()


@pytest.mark.parametrize("wrong", [["--arch", "nope"], ["--resume", "/nowhere/checkpoint.pt"]])
def test_options_that_cannot_be_are_refused_at_once(
    example: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], wrong: list[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["resnet50.py", "/nowhere", *wrong])
    with pytest.raises(SystemExit):
        example.main()
    assert re.search(rf"error: {wrong[0]}: .*{wrong[1]}", capsys.readouterr().err)


def test_a_directory_that_is_missing(example: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["resnet50.py", str(tmp_path / "none"), "--output-dir", str(tmp_path)])
    with pytest.raises(SystemExit, match=f"^resnet50: .*{tmp_path}/none"):
        example.main()
