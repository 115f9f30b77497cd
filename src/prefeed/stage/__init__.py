"""Cached stages: what a deterministic step of a pipeline returns, made once for every process and every epoch.

Start reading in ``dataset.py``; ``finding`` and ``making`` are its two halves, ``auditing`` compares one with the other.
``looking`` says when all of it is looked at anew, ``changes`` tells of attributes that were set anew, ``slots`` of what makings
fill. ``lineage`` says which entry belongs to a sample, ``fingerprint`` and ``randomness``
what a step is and whether it draws, ``files_seen``, ``standing`` and ``notes`` which files an entry was made of, ``codec`` how a
sample becomes bytes, ``cache_store`` where they lie, ``claims`` that no two processes make the same one. ``cache`` is
``DatasetCache``, with the arguments of MindSpore's. Needs no torch.
"""

from prefeed.stage.cache import CacheStatistics as CacheStatistics
from prefeed.stage.cache import DatasetCache as DatasetCache
from prefeed.stage.dataset import CachedDataset as CachedDataset
from prefeed.stage.mapping import MappedDataset as MappedDataset
from prefeed.stage.mapping import map as map
from prefeed.stage.randomness import not_random as not_random
