"""What holds while a trial runs: intra-op threads, whose cache serves it, what is not said."""

from __future__ import annotations

import copy
import dataclasses
import gc
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Subset

from prefeed.client.node import NodeClient
from prefeed.config import Config, current
from prefeed.datasets.origin import Origin
from prefeed.diagnose.tune.search import Settings
from prefeed.errors import PrefeedError
from prefeed.torch.loader import DataLoader
from prefeed.wire.endpoint import remove_runtime_dirs


class LoaderFailed(Exception):
    """The loader, and not the training step, raised; the text says what."""


_LONGEST_REASON: Final = 200


def reason_of(err: Exception) -> str:
    """Return an error in one line: of one that crossed from a worker, the last of its traceback."""
    lines = [line.strip() for line in str(err).splitlines() if line.strip()]
    text = lines[-1] if lines and "Traceback" in str(err) else f"{type(err).__name__}: {' '.join(lines)}"
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}..."


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
def served_by(loader: TorchDataLoader[Any], settings: Settings) -> Iterator[Config | None]:
    """Give the settings by which prefeed serves a loader of its own; None: the loader is torch's.

    Args:
        loader: The user's.
        settings: With a lookahead, which a server keeps from its start, one is started with an empty cache, and stopped
            at the end; without, it is the user's own.

    Raises:
        LoaderFailed: prefeed had no plan for it, so that the lookahead was of no use.
    """
    if not issubclass(type(loader), DataLoader):  # not isinstance: under prefeed.auto every loader is one
        yield None
        return
    config = vars(loader).get("_prefeed_config") or current()
    if settings.lookahead is None:
        yield config
        gc.collect()  # a plan ends with its loader
        return
    with private_home(config, lookahead=settings.lookahead, memory=settings.cache_bytes) as private:
        with suppress(OSError):  # listings are the user's: a large origin takes minutes to list
            (private.home / "manifests").symlink_to(config.home / "manifests")
        yield private
        _must_have_read(private)


@contextmanager
def private_home(config: Config, *, directory: Path | None = None, **changes: Any) -> Iterator[Config]:
    """Give the settings of an empty node cache, which is gone at the end of the block with its server.

    Args:
        config: The user's.
        directory: Where its home is made; None: where temporary directories are.
        **changes: Settings that are to be others.
    """
    with tempfile.TemporaryDirectory(prefix="prefeed-trial-", dir=directory) as parent:
        home = Path(parent) / "home"
        home.mkdir()
        private = dataclasses.replace(config, home=home, disk=0, disk_dir=None, port=0, progress=False, **changes)
        try:
            yield private
        finally:
            gc.collect()  # a plan ends with its loader
            with suppress(PrefeedError, OSError), NodeClient.connect(private, autostart=False) as node:
                node.stop()
            remove_runtime_dirs(private)


def read_through(dataset: Any, config: Config | None) -> Any:
    """Return the dataset as one that reads through the cache of these settings; itself where that is no matter.

    prefeed's own datasets read through the node on which they were made; all others, through their loader's.
    """
    if type(dataset) is Subset:
        inner = read_through(dataset.dataset, config)
        return dataset if inner is dataset.dataset else Subset(inner, dataset.indices)
    origin = getattr(dataset, "_origin", None)
    if config is None or not isinstance(origin, Origin) or origin.config.home == config.home:
        return dataset
    moved = copy.copy(dataset)
    moved._origin = Origin(origin._given, config)
    return moved


def _must_have_read(config: Config) -> None:
    try:
        with NodeClient.connect(config, autostart=False) as node:
            if node.statistics().reads:
                return
    except PrefeedError:
        pass
    raise LoaderFailed("prefeed has no plan for this loader, so nothing is fetched ahead")
