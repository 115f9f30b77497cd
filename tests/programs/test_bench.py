"""The scripts that ``prefeed bench programs`` runs see every picture of their data."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from prefeed_bench.processes import run_program
from programs.data import NUM_PICTURES, write_data

if importlib.util.find_spec("timm") is None:
    pytest.skip("the libraries are not installed: make test-programs", allow_module_level=True)


NUM_SEEN = {"timm": NUM_PICTURES, "huggingface": NUM_PICTURES, "monai": NUM_PICTURES, "fastai": 32}
"""fastai keeps some for validation, and gives whole batches only."""


@pytest.mark.parametrize("library", NUM_SEEN)
def test_a_script_sees_every_picture_in_an_order_of_its_seed(library: str, tmp_path: Path) -> None:
    arguments = [str(write_data(tmp_path) / "classes"), "--library", library, "--batch-size", "8"]
    one, other = (run_program("library.py", arguments)[0] for _ in range(2))
    assert one["images"] == NUM_SEEN[library]
    assert one["checksums"] == other["checksums"]
