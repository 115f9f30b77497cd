"""Which objects the samples of a dataset are made of: it says so, or it keeps a list, or it is learned.

In this order: prefeed's own datasets know their objects; ``declared_paths`` finds what a dataset lists; any other is
watched, and what its samples open below the roots is known the next time. Until then it is guessed (``guess_of``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
from torch.utils.data import Subset

from prefeed.client.access import Accessible, AccessMap
from prefeed.client.dataset import open_learned_dataset, open_listed_dataset
from prefeed.client.node import NodeClient
from prefeed.config import SAMPLE_SET, SERVER_SETTINGS, Config
from prefeed.errors import FilesUnknownError
from prefeed.places import say_once
from prefeed.sampleset.names import resolve_roots
from prefeed.sources.learned import LearnedMap
from prefeed.sources.mounts import Roots
from prefeed.torch.declared import Declared, declared_paths, is_in_memory
from prefeed.torch.fingerprint import fingerprint
from prefeed.torch.guesses import Guess
from prefeed.torch.searching import find_columns
from prefeed.torch.stages import peeled


@runtime_checkable
class _Placed(Protocol):
    """A dataset that says which node caches it: those of ``prefeed.datasets``."""

    def prefeed_settings(self) -> Config | None: ...


OpenAccess = Callable[[NodeClient], AccessMap]
"""Opens the access map on a node."""

_PROBES = 16


def node_settings(dataset: Any, config: Config) -> Config:
    """Return the settings for a loader: its own, but of the node that caches the sample set, where one was named.

    Args:
        dataset: The user's; below its stages and subsets it may name a sample set.
        config: Settings of the loader. Their roots may name one for files that are opened by path.

    Raises:
        SampleSetNotFoundError: There is no such set.
        ConfigError: The set that the roots name is in no directory, or there are two.
    """
    base = _unwrapped(peeled(dataset)[0])[0]
    named: Config | None = base.prefeed_settings() if isinstance(base, _Placed) else None
    if named is None:
        return resolve_roots(config)
    of_node = {name: getattr(named, name) for name in ("home", "idle_timeout", *SERVER_SETTINGS)}
    return replace(config, **of_node)


def access_of(dataset: Any, config: Config, *, explicit: bool) -> OpenAccess:
    """Return how to open the dataset's access map; asks the dataset, and no server.

    Args:
        dataset: The user's, map-style.
        config: Settings.
        explicit: The user asked for this dataset to be cached, also if it lies on a local disk. Not for one below the
            cache of a stage.

    Raises:
        FilesUnknownError: There is nothing to serve; the message says why, and what to change.
        DeclarationError: What the dataset says of itself is not understood.
    """
    bare, cached = peeled(dataset)
    if cached is None:
        return _bare_access_of(bare, config, explicit=explicit)
    # What is made of them is kept already: files of a local disk are read once, and as quickly without a detour.
    open_bare = _bare_access_of(bare, config, explicit=False)
    return lambda node: replace(open_bare(node), cached=cached)


def guess_of(dataset: Any, access: AccessMap, config: Config) -> Guess | None:
    """Return what is guessed of samples of which nothing is known; None where all is known, or nothing can be guessed.

    Args:
        dataset: The user's, map-style.
        access: What ``access_of`` opened.
        config: Settings.
    """
    learned = access.learned
    if learned is None or learned.num_known >= learned.num_samples:
        return None
    base = _unwrapped(peeled(dataset)[0])[0]
    columns = find_columns(base, learned.num_samples, covers=Roots.of(config).covers)
    return Guess(columns) if columns else None


def _bare_access_of(dataset: Any, config: Config, *, explicit: bool) -> OpenAccess:
    base, indices = _unwrapped(dataset)
    if isinstance(base, Accessible):
        return lambda node: _indexed(base.prefeed_access(node, config), indices)
    name, roots = type(dataset).__name__, Roots.of(config)
    absent = _roots_that_are_absent(config)
    if is_in_memory(dataset):
        raise FilesUnknownError(f"its dataset, {name}, holds the samples in memory")
    declared = declared_paths(dataset)
    if declared is not None:
        _require_slow(declared, name, config, explicit=explicit)
        return lambda node: _listed(node, declared, config)
    if absent and len(absent) == len(config.roots or ()):
        raise FilesUnknownError(_roots_absent(absent))
    if absent:
        say_once(_roots_absent(absent))
    if not roots:
        raise FilesUnknownError(
            f"nothing is known about the files of its dataset, {name}: no network file system is mounted, and PREFEED_ROOTS does "
            f"not name the directory that holds them"
        )
    if not hasattr(base, "__len__"):
        raise FilesUnknownError(f"its dataset, {name}, has no length")
    return lambda node: _learned(node, base, indices, config)


def _unwrapped(dataset: Any) -> tuple[Any, np.ndarray[Any, np.dtype[np.int64]] | None]:
    """Return what is below all ``Subset``s, and which of its samples are meant; None: all, in order."""
    if type(dataset) is not Subset or not _are_indices(dataset.indices):
        return dataset, None
    base, indices = _unwrapped(dataset.dataset)
    chosen = np.asarray(dataset.indices).astype(np.int64)
    if indices is None:
        return base, chosen
    return (base, indices[chosen]) if _are_within(chosen, len(indices)) else (dataset, None)


def _are_indices(indices: Any) -> bool:
    try:
        found = np.asarray(indices if len(indices) else np.zeros(0, dtype=np.int64))
    except (TypeError, ValueError):  # a tensor of a device, a list of lists
        return False
    return found.ndim == 1 and found.dtype.kind in "iu"


def _are_within(indices: np.ndarray[Any, np.dtype[np.int64]], length: int) -> bool:
    return not len(indices) or bool(-length <= indices.min() and indices.max() < length)


def _indexed(access: AccessMap, indices: np.ndarray[Any, np.dtype[np.int64]] | None) -> AccessMap:
    if indices is None:
        return access
    length = len(access)
    if not _are_within(indices, length):
        raise FilesUnknownError(f"a Subset names samples that its dataset of {length} does not have")
    return AccessMap(
        dataset=access.dataset,
        ids=access.ids,
        starts=access.starts,
        learned=access.learned,
        indices=np.where(indices < 0, indices + length, indices),
    )


def _roots_absent(absent: Sequence[str]) -> str:
    return (
        f"PREFEED_ROOTS names what is no directory here: {', '.join(absent)}; correct it, or mount what belongs there"
    )


def _roots_that_are_absent(config: Config) -> list[str]:
    return [root for root in config.roots or () if not root.startswith(SAMPLE_SET) and not os.path.isdir(root)]


def _require_slow(declared: Declared, name: str, config: Config, *, explicit: bool) -> None:
    """Refuse files on local disks, unless somebody asked for them."""
    roots = Roots.of(config)
    probes = declared.paths[:: max(1, len(declared.paths) // _PROBES)]
    if not explicit and not any(map(roots.covers, probes)):
        where = (
            "on a network file system" if config.roots is None else f"below PREFEED_ROOTS, {', '.join(config.roots)}"
        )
        cure = "set PREFEED_ROOTS to their directory to cache them all the same"
        if absent := _roots_that_are_absent(config):
            cure = _roots_absent(absent)
        raise FilesUnknownError(f"the files of its dataset, {name}, such as {probes[0]}, do not lie {where}; {cure}")


def _listed(node: NodeClient, declared: Declared, config: Config) -> AccessMap:
    dataset = open_listed_dataset(node, declared.paths, config)
    return AccessMap(dataset=dataset, starts=declared.starts, indices=declared.indices)


def _learned(
    node: NodeClient, base: Any, indices: np.ndarray[Any, np.dtype[np.int64]] | None, config: Config
) -> AccessMap:
    num_samples = len(base)
    dataset = open_learned_dataset(node, fingerprint(base, config.roots, below=Roots.of(config)), num_samples, config)
    learned = LearnedMap.open(dataset.manifest.directory, num_samples)
    return _indexed(AccessMap(dataset=dataset, learned=learned), indices)
