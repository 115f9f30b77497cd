"""Lists the options of a SampleSet that have no effect in a cluster, and their replacements. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Final

from prefeed.sampleset.documents import Document
from prefeed.sampleset.spec import MAPPED, SampleSetSpec, mount_options
from prefeed.sampleset.status import METAURL, STORAGE

REDIS: Final = "storage=redis"
"""Marker among the key names of a secret: its storage is Redis."""

_OF_LEVELS: Final = ("cache-dir", "cache-size")
_OF_SECRETS: Final = {"metaurl": METAURL, REDIS: STORAGE}


def options_without_effect(document: Document, spec: SampleSetSpec, *, is_shared: bool) -> Iterator[str]:
    """Yield a sentence for each given option that has no effect.

    Args:
        document: The SampleSet.
        spec: Its decoded ``spec``.
        is_shared: Whether the pods of a node share one cache. Otherwise each pod has its own.
    """
    if spec.partitions > 1 and not is_shared:
        yield "spec.partitions has no effect: each pod has its own cache"
    for name in spec.options.given():
        option = mount_options()[name]
        if option.effect != MAPPED:
            yield f"{name}: {option.meaning}"
        elif name in _OF_LEVELS and spec.levels:
            yield f"{name}: spec.cache.levels sets it"
    if "driver" in (document["spec"].get("csi") or {}):
        yield "spec.csi.driver: nothing is mounted by a CSI driver; pods read the cache itself"
    if any(level.path for level in spec.levels):
        where = "directories of prefeed's own on the nodes" if is_shared else "volumes of the pods"
        yield f"spec.cache.levels: their paths; they become {where}, those of one medium one with the sum of their sizes"
    for name in () if is_shared else spec.for_kubernetes:
        yield f"spec.{name}: it places the pods of jobs only; a pod that reads the set has its own in its template"


def keys_without_effect(name: str, keys: Set[str]) -> Iterator[str]:
    """Yield a sentence for each key of a secret that has no effect.

    Args:
        name: Name of the secret.
        keys: Names of its keys, and ``REDIS``.
    """
    for key, meaning in _OF_SECRETS.items():
        if key in keys:
            yield f"{key} of the Secret {name}: {meaning}"
