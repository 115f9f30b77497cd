"""The directory of the socket is private, and the peer is known."""

from __future__ import annotations

import os
import pickle
import socket
from pathlib import Path

import pytest

from prefeed.errors import ServerError, UnsafeDirectoryError
from prefeed.system.trust import require_protected
from prefeed.wire.endpoint import ensure_private_dir, peer_process
from sandbox import Sandbox

pytestmark = pytest.mark.usefixtures("sandbox")


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_the_directory_and_its_parent_are_made_private(sandbox: Sandbox) -> None:
    directory = sandbox.root / "b" / "c"
    previous = os.umask(0)
    try:
        ensure_private_dir(directory)
    finally:
        os.umask(previous)
    assert (mode_of(directory), mode_of(directory.parent)) == (0o700, 0o700)
    ensure_private_dir(directory)


@pytest.mark.parametrize("mode", [0o750, 0o701, 0o777])
@pytest.mark.parametrize("which", ["directory", "parent"])
def test_a_directory_that_others_may_enter_is_refused(sandbox: Sandbox, mode: int, which: str) -> None:
    directory = sandbox.root / "parent" / "directory"
    ensure_private_dir(directory)
    (directory if which == "directory" else directory.parent).chmod(mode)
    with pytest.raises(UnsafeDirectoryError, match=f"{mode:04o}") as caught:
        ensure_private_dir(directory)
    assert isinstance(pickle.loads(pickle.dumps(caught.value)), PermissionError)


def test_a_link_is_not_followed(sandbox: Sandbox) -> None:
    target = sandbox.root / "elsewhere"
    target.mkdir(mode=0o700)
    parent = sandbox.root / "parent"
    parent.mkdir(mode=0o700)
    (parent / "directory").symlink_to(target)
    with pytest.raises(UnsafeDirectoryError):
        ensure_private_dir(parent / "directory")


@pytest.mark.parametrize("by", ["a link", "its own name"])
def test_a_directory_that_others_may_write_to_is_kept_below_a_private_one_only(sandbox: Sandbox, by: str) -> None:
    """Not behind a link in one: others come to it by another way, as to a ~/.cache that leads to a scratch disk."""
    home, scratch = sandbox.root / "home", sandbox.memory_dir
    home.mkdir(mode=0o700, exist_ok=True)
    scratch.chmod(0o755)
    above = scratch if by == "a link" else home
    (above / "manifests").mkdir()
    (above / "manifests").chmod(0o775)
    (home / "cache").symlink_to(above)
    if by == "a link":
        with pytest.raises(UnsafeDirectoryError, match="0775"):
            require_protected(home / "cache" / "manifests")
    else:
        require_protected(home / "manifests")
        require_protected(home / "cache" / "manifests")


def test_a_file_in_its_place_is_refused(sandbox: Sandbox) -> None:
    (sandbox.root / "parent").write_text("")
    with pytest.raises(ServerError, match="Remove it"):
        ensure_private_dir(sandbox.root / "parent" / "directory")


def test_the_kernel_says_who_is_at_the_other_end() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert peer_process(ours) == (os.getpid(), os.getuid())
