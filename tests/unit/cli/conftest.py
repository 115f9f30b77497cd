from __future__ import annotations

from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result

from prefeed.cli.main import cli


@pytest.fixture
def run() -> Callable[..., Result]:
    """Run the command line in this process: ``run(backend, "server", "status")``."""

    def run(backend: object, *arguments: str) -> Result:
        return CliRunner().invoke(cli, list(arguments), obj=backend, catch_exceptions=False)

    return run
