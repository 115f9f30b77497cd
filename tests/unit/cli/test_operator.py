"""``prefeed operator run``: what it asks for before it begins."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from click.testing import CliRunner

import prefeed.kubernetes.operator as room
from prefeed.cli.main import cli


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
