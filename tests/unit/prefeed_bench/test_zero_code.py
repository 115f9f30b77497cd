"""The benchmark of unmodified scripts: the scripts do what they say, and what would spoil its figures is found."""

from __future__ import annotations

import ast
import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prefeed_bench.cases.zero_code import Run, _check_intercepted, _result, check_same_batches
from prefeed_bench.errors import BenchFailedError
from prefeed_bench.photos import PhotoFolder, PhotoRecipe, make_photos
from prefeed_bench.processes import SCRIPTS, run_program

pytestmark = pytest.mark.usefixtures("sandbox")

NUM_PHOTOS = 20
Printed = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> PhotoFolder:
    return make_photos(PhotoRecipe(num_photos=NUM_PHOTOS), cache_dir=tmp_path_factory.mktemp("photos"), num_processes=1)


def epoch(*checksums: int, images: int = 100, seconds: float = 1.0) -> dict[str, object]:
    return {"images": images, "seconds": seconds, "checksums": list(checksums)}


@pytest.mark.parametrize("script", [path.name for path in SCRIPTS.glob("*.py")])
def test_the_scripts_know_nothing_of_prefeed(script: str) -> None:
    """But for what ``job.py`` and ``peers.py`` import inside a function, where an option asks for it."""
    tree = ast.parse((SCRIPTS / script).read_text())
    nodes = tree.body if script in ("job.py", "peers.py") else list(ast.walk(tree))
    imported = {
        name
        for node in nodes
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert not [name for name in imported if name.startswith("prefeed")]


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Printed:
    """Return what runs a script in this process, as the program that it is, and returns what it printed."""

    def run(script: str, *arguments: str) -> list[dict[str, Any]]:
        monkeypatch.setattr(sys, "argv", [script, *arguments])
        runpy.run_path(str(SCRIPTS / script), run_name="__main__")
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return run


def test_the_script_sees_every_picture_each_epoch(photos: PhotoFolder) -> None:
    first, second = run_program("train.py", [str(photos.root), "--epochs", "2", "--batch-size", "4"])
    assert (first["images"], second["images"]) == (NUM_PHOTOS, NUM_PHOTOS)
    assert len(first["checksums"]) == 5
    assert first["checksums"] != second["checksums"]
    assert first["seconds"] > 0


def test_an_epoch_ends_after_the_wanted_batches(photos: PhotoFolder, printed: Printed) -> None:
    (whole,) = printed("train.py", str(photos.root), "--batch-size", "4", "--workers", "1")
    (part,) = printed("train.py", str(photos.root), "--batch-size", "4", "--batches", "2")
    assert part["images"] == 8
    assert part["checksums"] == whole["checksums"][:2]


def test_computed_paths_are_those_of_the_pictures(photos: PhotoFolder, printed: Printed) -> None:
    (found,) = printed("train.py", str(photos.root), "--numbered", str(NUM_PHOTOS), "--batch-size", "4")
    assert found["images"] == NUM_PHOTOS


def test_opening_is_timed(photos: PhotoFolder, tmp_path: Path, printed: Printed) -> None:
    (tmp_path / "local").write_bytes(b"")
    found = printed("open_cost.py", str(photos.root), str(tmp_path / "local"), "2")
    assert len(found) == 3
    assert all(epoch["open_us"] > 0 for epoch in found)


def test_a_script_that_fails_says_what_it_said(tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text("import sys\nopen(sys.argv[1])\n")
    with pytest.raises(
        BenchFailedError, match=r"^python \S+fails.py \S+ ended with status 1:\n(.|\n)*FileNotFoundError"
    ):
        run_program(str(script), [str(tmp_path / "nothing")])


def test_different_batches_are_an_error() -> None:
    check_same_batches(
        [Run(epochs=[epoch(1, 2, 3)]), Run(epochs=[epoch(1, 2)]), Run(epochs=[epoch(1, 2, 3), epoch(9)])]
    )
    with pytest.raises(BenchFailedError, match="different batches in epoch 2"):
        check_same_batches([Run(epochs=[epoch(1), epoch(2)]), Run(epochs=[epoch(1), epoch(3)])])


def test_files_opened_in_spite_of_prefeed_are_an_error() -> None:
    _check_intercepted([Run(epochs=[], opens=10)])
    with pytest.raises(BenchFailedError, match="10 files were opened 30 times"):
        _check_intercepted([Run(epochs=[], opens=30)])


def test_figures_are_medians_of_ratios_within_a_round() -> None:
    photos = PhotoFolder(root=Path("/nowhere"), num_photos=100, total_bytes=1)
    opened = Run(epochs=[{"open_us": 9.0}, {"open_us": 5.0}, {"open_us": 4.0}])
    replaced = Run(epochs=[{"open_us": 4.0}, {"open_us": 6.5}, {"open_us": 7.0}])

    def of(prefeed: float, local: float) -> dict[str, Run]:
        return {
            "local": Run(epochs=[epoch(seconds=local)]),
            "plain": Run(epochs=[epoch(images=10)]),
            "prefeed": Run(epochs=[epoch(seconds=prefeed), epoch(seconds=1.0)], opens=150, start_seconds=1.0),
            "numbered_local": Run(epochs=[epoch()]),
            "numbered_prefeed": Run(epochs=[epoch(seconds=4.0), epoch(seconds=2.0)]),
            "open_plain": opened,
            "open_prefeed": replaced,
        }

    rounds = [of(1.25, 1.0), of(4.0, 2.0), of(1.0, 0.9)]
    found = _result(photos, {name: [done[name] for done in rounds] for name in rounds[0]}).to_json()

    assert found["of_local"] == 0.8
    assert found["spread"]["of_local"] == [0.5, 0.9]
    assert found["plain_img_s"] == 10
    assert found["prefeed_img_s"] == 80
    assert found["prefeed_with_start_img_s"] == pytest.approx(100 / 2.25, rel=1e-3)
    assert found["opens_per_file"] == 1.5
    assert found["numbered_second_of_local"] == 0.5
    assert found["interception_overhead_us"] == 2.25
    assert "checksums" not in str(found)
