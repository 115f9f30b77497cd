"""What FUSE lacks is a sentence that says what to do, before anything is listed or mounted."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from prefeed.config import resolve
from prefeed.errors import MountError
from prefeed.fuse import device
from prefeed.mount.starting import start_mount


@pytest.mark.parametrize(
    ("user", "has_device", "may_open", "has_program", "words"),
    [
        (0, False, False, True, "there is no DEVICE: load the kernel's fuse module, or give the container --device"),
        (1000, True, False, True, "this user may not open DEVICE: chmod 666"),
        (1000, True, True, False, "fusermount3 is not installed, and only root mounts without it: apt-get install fuse3"),
        (1000, True, True, True, None),
        (0, True, True, False, None),
    ],
)  # fmt: skip
def test_what_is_missing_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: int, has_device: bool, may_open: bool, has_program: bool,
    words: str | None,
) -> None:  # fmt: skip
    place = tmp_path / "fuse"
    if has_device:
        place.touch()
    monkeypatch.setattr(device, "DEVICE", str(place))
    monkeypatch.setattr(os, "access", lambda path, mode: may_open)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(shutil, "which", lambda name: "/bin/fusermount3" if has_program else None)
    found = device.missing()
    if words is None:
        assert found is None
    else:
        assert found is not None
        assert found.startswith(words.replace("DEVICE", str(place)))
        with pytest.raises(MountError, match="nothing can be mounted: "):
            start_mount("s3://bucket/x", tmp_path, resolve())
