"""One home, several nodes at once: each has a server of its own, and no sample of any of them is another's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

from e2e.hashed import Hashed, write_hashed
from nodes import kill
from sandbox import Sandbox

NUM_FILES = 300
NUM_PICTURES = 30


class HomeNode:
    """One node: a process that has a boot id and a runtime directory, and the home and the memory directory of all."""

    def __init__(self, sandbox: Sandbox, name: str, boot: str, place: str, **settings: object) -> None:
        self.name = name
        file = sandbox.root / f"boot-{name}"
        file.write_text(f"{boot}\n")
        runtime = sandbox.root / f"r{place}"
        for directory in (runtime, runtime / "common"):
            directory.mkdir(mode=0o700, exist_ok=True)
        environment = {f"PREFEED_{key.upper()}": str(value) for key, value in settings.items()}
        environment |= {"XDG_RUNTIME_DIR": str(runtime), "HOME": str(sandbox.root)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "e2e.home_node", str(file), str(runtime / "common")],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            cwd=Path(__file__).parents[1], env=os.environ | environment | {"PREFEED_MEMORY": "24MiB"},
        )  # fmt: skip

    def begin(self, *command: object) -> None:
        """Tell it to do something."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command, default=str) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        """Return what came of it."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"node {self.name} ended with {self.process.wait()}"
        return json.loads(line)

    def ask(self, *command: object) -> Any:
        """Have it do something, and return what came of it."""
        self.begin(*command)
        return self.answer()

    def end(self) -> None:
        """End it; its server goes on."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        assert self.process.wait() == 0
        self.process.stdout.close()


def at_once(nodes: list[HomeNode], *command: object) -> list[Any]:
    """Have all do the same at once, each with its own seed for ``SEED``."""
    for seed, node in enumerate(nodes):
        node.begin(*(seed if word is SEED else word for word in command))
    return [node.answer() for node in nodes]


SEED = object()


@pytest.fixture
def nodes(sandbox: Sandbox) -> Iterator[list[HomeNode]]:
    """Two kernels, whose runtime directories are one volume, and another container of the first with one of its own."""
    boots = [str(uuid.uuid4()) for _ in range(2)]
    settings = {"roots": sandbox.root / "data", "disk": "64MiB"}
    disk_dir = {"disk": f"64MiB:{sandbox.root / 'disk'}"}
    places = [("a", boots[0], "ab", {}), ("b", boots[1], "ab", disk_dir), ("c", boots[0], "c", disk_dir)]
    started = [HomeNode(sandbox, name, boot, place, **(settings | more)) for name, boot, place, more in places]
    refusals = {node.answer() for node in started}
    if refusals == {""}:
        yield started
    for node in started:
        node.end()
    if refusals != {""}:
        pytest.skip("; ".join(refusals))


@pytest.fixture
def files(sandbox: Sandbox) -> Path:
    root = sandbox.root / "data" / "files"
    return write_hashed(root, Hashed(root, NUM_FILES))


@pytest.fixture
def pictures(sandbox: Sandbox) -> Path:
    root = sandbox.root / "data" / "pictures"
    for index in range(NUM_PICTURES):
        write_picture(root / f"{index % 3}" / f"{index}.png", index)
    return root


def write_picture(path: Path, value: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), (value, value, value)).save(path)


def documents_of(sandbox: Sandbox, pictures: Path) -> tuple[Path, Path]:
    """Return a file with a sample set of the pictures, and one with a job that copies them."""
    names = ("set.yaml", "job.yaml")
    kinds = (
        {
            "kind": "SampleSet",
            "metadata": {"name": "photos"},
            "spec": {"partitions": 1, "source": {"uri": str(pictures)}},
        },
        {
            "kind": "SampleJob",
            "metadata": {"name": "copy"},
            "spec": {"type": "sync", "syncOptions": {"source": str(pictures), "destination": str(sandbox.root / "to")}},
        },
    )
    for name, document in zip(names, kinds, strict=True):
        (sandbox.root / name).write_text(yaml.safe_dump({"apiVersion": "batch.paddlepaddle.org/v1alpha1", **document}))
    return sandbox.root / names[0], sandbox.root / names[1]


def num_files_below(root: Path) -> int:
    return sum(path.is_file() for path in root.rglob("*"))


def test_a_node_gives_nothing_of_another_node(
    nodes: list[HomeNode], files: Path, pictures: Path, sandbox: Sandbox
) -> None:
    nothing_wrong = [0] * len(nodes)
    first, *others = nodes
    assert at_once(nodes, "learned", files, NUM_FILES, SEED, 2, 0) == nothing_wrong
    assert at_once(nodes, "pictures", pictures, SEED, 2, 2) == nothing_wrong
    before = at_once(nodes, "server")
    assert len(list((sandbox.home / "nodes").glob("*/catalogues"))) == len(nodes)
    assert not (sandbox.home / "catalogues").exists()
    assert len(list((sandbox.root / "disk").glob("*/objects"))) == 2
    assert len({server["pid"] for server in before}) == len({server["store"] for server in before}) == len(nodes)

    for node in nodes:
        node.begin("learned", files, NUM_FILES, 9, 2, 2)
    kill(before[0]["pid"])
    assert [node.answer() for node in nodes] == nothing_wrong

    for index in range(NUM_PICTURES, NUM_PICTURES + 6):
        write_picture(pictures / f"{index % 3}" / f"{index}.png", index)
    (pictures / "0" / "0.png").unlink()
    for node in others[1:]:
        node.begin("learned", files, NUM_FILES, 9, 2, 0)
    assert first.ask("run", "warm", str(pictures))[0] == 0
    assert others[0].ask("run", "clear", "--all")[0] == 0
    assert [node.answer() for node in others[1:]] == nothing_wrong[2:]
    assert at_once(nodes, "pictures", pictures, SEED, 2, 0) == nothing_wrong

    set_file, job_file = documents_of(sandbox, pictures)
    applied = at_once(nodes[:2], "run", "sampleset", "apply", "-f", set_file, "--wait")
    assert [code for code, _ in applied] == [0, 0], applied
    assert at_once(nodes[:2], "pictures", "sampleset://photos", SEED, 2, 0) == [0, 0]
    done = at_once(nodes, "run", "job", "apply", "-f", job_file, "--json")
    assert sum('"phase": "Succeeded"' in output for _, output in done) >= 1, done
    assert num_files_below(sandbox.root / "to") == num_files_below(pictures)
    records = list((sandbox.home / "jobs").glob("*.json"))
    assert [json.loads(record.read_text())["phase"] for record in records] == ["Succeeded"]
    code, said = others[0].ask("run", "sampleset", "delete", "photos")
    assert code != 0
    assert "run on other nodes" in said

    after = at_once(nodes, "server")
    assert [server["pid"] for server in after[1:]] == [server["pid"] for server in before[1:]]
    for node in nodes:
        node.ask("stop_all")
    assert first.ask("run", "sampleset", "delete", "photos")[0] == 0
    assert not (sandbox.home / "samplesets" / "photos").exists()
    assert not list((sandbox.root / "data").rglob("*.prefeed*"))
