"""``prefeed operator run``: what it asks for before it begins."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import prefeed.cli.operator as command
import prefeed.kubernetes.operator as room
from prefeed.cli.main import cli
from prefeed.kubernetes.operator.election import Lease


@pytest.fixture
def options(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return what the program would be run with."""
    from prefeed.kubernetes.operator import service

    found: list[Any] = []
    monkeypatch.setattr(service, "run", found.append)
    return found


def run(*words: str) -> Any:
    return CliRunner().invoke(cli, ["operator", "run", *words])


@pytest.mark.parametrize("package", ["kopf", "aiohttp"])
def test_without_its_packages_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    for name in list(sys.modules):
        if name.split(".")[0] == package or name in [
            f"{room.__name__}.{each}" for each in ("service", "webhook", "client")
        ]:
            monkeypatch.delitem(sys.modules, name)
    for name in ("service", "webhook", "client"):
        monkeypatch.delattr(room, name, raising=False)
    monkeypatch.setitem(sys.modules, package, None)

    result = run()

    assert result.exit_code == 1
    assert (
        f"the operator needs the package {package}: install it with `pip install 'prefeed[kubernetes]'`"
        in result.output
    )


def test_the_lease_is_that_of_its_own_namespace(
    options: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "namespace").write_text("prefeed-system\n")
    monkeypatch.setattr(command, "OWN_NAMESPACE", tmp_path / "namespace")

    for words in ((), ("--lease", "mine"), ("--lease", "there/mine", "--lease-seconds", "5")):
        assert run(*words).exit_code == 0

    assert [each.lease for each in options] == [
        Lease(namespace="prefeed-system"),
        Lease(namespace="prefeed-system", name="mine"),
        Lease(namespace="there", name="mine", seconds=5),
    ]


def test_outside_of_pods_there_is_none_unless_it_is_named(
    options: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "OWN_NAMESPACE", tmp_path / "namespace")

    assert run().exit_code == 0
    refused = run("--lease", "mine")

    assert [each.lease for each in options] == [None]
    assert refused.exit_code == 1
    assert "write --lease NAMESPACE/mine" in refused.output
