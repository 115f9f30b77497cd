"""How far a listing has come is shown on a terminal, and nowhere else."""

from __future__ import annotations

import io
import sys

import pytest

from prefeed.datasets.origin import _show_listing


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(monkeypatch: pytest.MonkeyPatch, stderr: io.StringIO | None) -> str:
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setenv("TERM", "xterm")
    with _show_listing("http://host/data/") as listing:
        listing(1234, 5)
    return "" if stderr is None else stderr.getvalue()


@pytest.mark.usefixtures("sandbox")  # rich draws in a thread
def test_a_terminal_shows_url_and_number(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "listing http://host/data/: 1,234 objects" in shown(monkeypatch, Terminal())


def test_nothing_is_shown_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, io.StringIO()) == ""
    assert shown(monkeypatch, None) == ""
