"""What holds while a trial runs: intra-op threads, whose cache serves it, what is not said."""

from __future__ import annotations

import dataclasses
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import torch
from torch.utils.data import DataLoader as TorchDataLoader

from prefeed.client.node import NodeClient
from prefeed.config import EVERYTHING, MIB, Config, current
from prefeed.errors import PrefeedError
from prefeed.torch.loader import DataLoader

_PRIVATE_CACHE_BYTES: Final = 256 * MIB


class LoaderFailed(Exception):
    """The loader, and not the training step, raised; the text says what."""


def synchronize(device: torch.device | None) -> None:
    """Wait until a device has done all that it was told to do."""
    if device is not None and device.type != "cpu":
        torch.accelerator.synchronize(device)


@contextmanager
def threads(number: int | None) -> Iterator[None]:
    """Let torch compute with so many threads."""
    before = torch.get_num_threads()
    if number is None or number == before:
        yield
        return
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def without_advice() -> Iterator[None]:
    """Silence torch's advice against many workers: they are what is being tried."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create", category=UserWarning)
        yield


@contextmanager
def served_by(loader: TorchDataLoader[Any], lookahead: int | None) -> Iterator[Config | None]:
    """Give the settings by which prefeed serves a loader of its own; None: the loader is torch's.

    Args:
        loader: The user's.
        lookahead: A server keeps it from its start: one with an empty cache is started with it, and stopped at the end.
            None: the user's own server.

    Raises:
        LoaderFailed: prefeed had no plan for it, so that the lookahead was of no use.
    """
    if not issubclass(type(loader), DataLoader):  # not isinstance: under prefeed.auto every loader is one
        yield None
        return
    config = vars(loader).get("_prefeed_config") or current()
    if lookahead is None:
        yield config
        return
    with tempfile.TemporaryDirectory(prefix="prefeed-tune-") as home:
        memory = min(config.memory or EVERYTHING, max(_PRIVATE_CACHE_BYTES, 2 * lookahead))
        private = dataclasses.replace(
            config, home=Path(home) / "home", disk=0, disk_dir=None, port=0, progress=False, lookahead=lookahead,
            memory=memory,
        )  # fmt: skip
        try:
            yield private
            _must_have_read(private)
        finally:
            with suppress(PrefeedError, OSError), NodeClient.connect(private, autostart=False) as node:
                node.stop()


def _must_have_read(config: Config) -> None:
    try:
        with NodeClient.connect(config, autostart=False) as node:
            if node.statistics().reads:
                return
    except PrefeedError:
        pass
    raise LoaderFailed("prefeed has no plan for this loader: there is nothing to fetch ahead")
