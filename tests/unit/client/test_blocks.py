"""When an object that was changed just now is opened: its version is to tell it from the next one."""

from __future__ import annotations

import pytest

from prefeed.client import blocks as client_blocks
from prefeed.client.blocks import Blocks
from prefeed.config import resolve
from prefeed.types import ObjectInfo


@pytest.mark.parametrize(
    ("root", "young", "num_waits", "version"),
    [
        ("http://host/root", 0, 0, "0"),
        ("https://host/root", 2, 2, "2"),
        ("http://host/root", 9, 3, "3"),  # it changes all the time
        ("s3://bucket", 9, 0, "0"),
    ],
)
def test_an_object_of_a_web_server_is_opened_once_its_version_is_settled(
    monkeypatch: pytest.MonkeyPatch, root: str, young: int, num_waits: int, version: str
) -> None:
    asked: list[str] = []
    waits: list[float] = []

    def info(self: Blocks, root: str, path: str) -> ObjectInfo:
        asked.append(path)
        return ObjectInfo(path=path, size_bytes=1, version=str(len(asked) - 1), modified_seconds=1)

    monkeypatch.setattr(Blocks, "info", info)
    monkeypatch.setattr(client_blocks, "seconds_to_settle", lambda info, now: 0.5 * (int(info.version) < young))
    monkeypatch.setattr("prefeed.client.blocks.time.sleep", waits.append)
    found = Blocks(resolve()).settled_info(root, "x")
    assert (found.version, waits) == (version, [0.5] * num_waits)
