"""Whose code it is."""

from __future__ import annotations

import importlib.metadata
import sys
import types
from pathlib import Path

import numpy as np
import PIL
import pytest
import torch
import torchvision

import prefeed
from prefeed.stage_cache.identity.installed import is_installed, is_installed_module, is_installed_name, version_of


@pytest.mark.parametrize(
    "name", ["numpy", "torch.nn", "json", "builtins", "importlib._bootstrap", "prefeed.stage_cache", "sys"]
)
def test_packages_and_the_standard_library_are_installed(name: str) -> None:
    assert is_installed_name(name)


@pytest.mark.parametrize("name", ["__main__", "__mp_main__", "nowhere_at_all", __name__])
def test_other_code_is_the_users_own(name: str) -> None:
    assert not is_installed_name(name)


def test_a_package_never_imported_is_told_by_where_it_lies() -> None:
    assert not {"turtledemo", "importlinter"} & sys.modules.keys()
    assert is_installed_name("turtledemo")
    assert is_installed_name("importlinter.cli")


def test_a_file_of_the_users_is_not_installed_though_its_name_is_that_of_a_library(tmp_path: Path) -> None:
    assert not is_installed("json", str(tmp_path / "json.py"))
    assert is_installed("json", "<frozen json>")


def test_prefeed_is_installed_wherever_it_lies() -> None:
    assert is_installed_module(prefeed)


def test_versions_are_those_of_distributions() -> None:
    assert version_of("numpy.linalg") == np.__version__
    assert version_of("torch") == torch.__version__
    assert version_of("torchvision") == f"{torchvision.__version__} {PIL.__version__} {np.__version__}"
    assert version_of("json") == f"{sys.version_info.major}.{sys.version_info.minor}"
    assert version_of("nowhere_at_all") == ""


def test_a_package_that_does_not_say_its_version_has_that_of_its_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    version_of.cache_clear()
    monkeypatch.setitem(sys.modules, "pluggy", types.ModuleType("pluggy"))

    assert version_of("pluggy.manager") == f"pluggy {importlib.metadata.version('pluggy')}"
