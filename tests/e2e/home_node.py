"""A node of a home that several share: this process, and all that it starts, see the boot id of another kernel.

Run as ``python -m e2e.home_node FILE DIRECTORY``; FILE holds the boot id, DIRECTORY is what it has in place of the user's
directory in /tmp. It does what it is told line by line on standard input, and
answers each line by one of JSON.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import torch
import torchvision
from torch.utils.data import DataLoader

import prefeed
from e2e.hashed import Hashed, kept
from prefeed.client.node import NodeClient
from prefeed.config import resolve
from prefeed.errors import ServerUnavailableError
from prefeed.sampleset.records import find, names

BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
BATCH_SIZE: Final = 8

_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_MS_BIND, _MS_REC, _MS_PRIVATE = 4096, 16384, 1 << 18


def see(file: str, directory: str) -> None:
    """From now on this process and its children read the boot id from a file, and have a directory of their own in /tmp."""
    libc = ctypes.CDLL(None, use_errno=True)
    uid, gid = os.getuid(), os.getgid()
    _require(libc.unshare(_CLONE_NEWNS | (_CLONE_NEWUSER if uid else 0)) == 0)
    if uid:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    _require(libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None) == 0)
    _require(libc.mount(os.fsencode(file), os.fsencode(BOOT_ID), None, _MS_BIND, None) == 0)
    common = next(path.parent for path in resolve().common_runtime_dirs if path.parent.parent.is_dir())
    common.mkdir(mode=0o700, exist_ok=True)
    _require(libc.mount(os.fsencode(directory), os.fsencode(common), None, _MS_BIND, None) == 0)


def _require(done: bool) -> None:
    if not done:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def num_wrong(ours: Iterable[Any], truth: Iterable[Any]) -> int:
    """Return how many batches differ from torch's own."""
    wrong = 0
    for mine, theirs in zip(ours, truth, strict=True):
        same = mine == theirs if isinstance(mine, list) and not torch.is_tensor(mine[0]) else _equal(mine, theirs)
        wrong += not same
    return wrong


def _equal(mine: Any, theirs: Any) -> bool:
    return len(mine) == len(theirs) and all(map(torch.equal, mine, theirs))


class Commands:
    """What a node does when it is told to."""

    def __init__(self) -> None:
        self.loaders: dict[tuple[Any, ...], tuple[Any, Any]] = {}

    def learned(self, root: str, length: int, seed: int, epochs: int, workers: int) -> int:
        """Epochs of files that samples open by path, in an order that the seed makes; return how many batches differ."""
        loaders = self._kept(("learned", root, seed), lambda: Hashed(Path(root), length), seed, workers, kept)
        return sum(num_wrong(*loaders) for _ in range(epochs))

    def pictures(self, root: str, seed: int, epochs: int, workers: int) -> int:
        """The same of a folder of pictures that torch's own dataset, and prefeed's, declare."""
        transform = torchvision.transforms.PILToTensor()
        path = root if "://" not in root else urlsplit(find(urlsplit(root).netloc, resolve()).read_url).path
        folders = (
            prefeed.datasets.ImageFolder(root, transform=transform),
            torchvision.datasets.ImageFolder(path, transform=transform),
        )
        ours, truth = (
            cls(folder, BATCH_SIZE, shuffle=True, num_workers=workers, generator=torch.Generator().manual_seed(seed))
            for cls, folder in zip((prefeed.DataLoader, DataLoader), folders, strict=True)
        )
        return sum(num_wrong(ours, truth) for _ in range(epochs))

    def server(self) -> dict[str, Any]:
        """Return what the node's server says of itself; nothing when none runs."""
        with contextlib.suppress(ServerUnavailableError), NodeClient.connect(resolve(), autostart=False) as node:
            status, counts = node.status(), node.statistics()
            return {"pid": status.pid, "store": status.store, "reads": counts.reads, "disk": counts.disk.bytes}
        return {}

    def stop_all(self) -> None:
        """Stop the node's servers, those of sample sets too."""
        self.loaders.clear()
        prefeed.datasets._readers.close()
        for config in (resolve(), *(find(name, resolve()).settings(resolve()) for name in names(resolve()))):
            with contextlib.suppress(ServerUnavailableError), NodeClient.connect(config, autostart=False) as node:
                node.stop()

    def run(self, *words: str) -> tuple[int, str]:
        """Run ``prefeed WORDS`` in this process; return its exit status and what it wrote."""
        from click.testing import CliRunner

        from prefeed.cli.main import cli

        result = CliRunner().invoke(cli, list(words))
        return result.exit_code, result.output

    def _kept(self, key: tuple[Any, ...], make: Any, seed: int, workers: int, collate: Any) -> tuple[Any, Any]:
        if key not in self.loaders:
            self.loaders[key] = tuple(
                cls(
                    make(),
                    BATCH_SIZE,
                    shuffle=True,
                    num_workers=workers,
                    collate_fn=collate,
                    generator=torch.Generator().manual_seed(seed),
                )
                for cls in (prefeed.DataLoader, DataLoader)
            )  # type: ignore[assignment]
        return self.loaders[key]


def main() -> None:
    """Do what is told until there is nothing more."""
    try:
        see(*sys.argv[1:])
    except PermissionError as err:
        print(json.dumps(f"no mount namespace can be made: {err.strerror}"))
        return
    print(json.dumps(""), flush=True)
    commands = Commands()
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        print(json.dumps(getattr(commands, name)(*arguments)), flush=True)


if __name__ == "__main__":
    main()
