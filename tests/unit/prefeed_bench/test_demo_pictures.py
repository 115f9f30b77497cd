"""The README's picture is what the demo draws of the figures beside it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prefeed_bench import demo_page

IMAGES = Path(__file__).parents[3] / "docs" / "images"


@pytest.mark.parametrize("scheme", demo_page.SCHEMES)
def test_the_picture_is_of_its_figures(scheme: str) -> None:
    facts = json.loads((IMAGES / "demo.json").read_text())

    assert (IMAGES / f"demo-{scheme}.svg").read_text() == demo_page.chart(facts, demo_page.SCHEMES[scheme])
