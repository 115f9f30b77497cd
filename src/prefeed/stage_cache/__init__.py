"""Cached stages: what a deterministic step of a pipeline returns, made once for every process and every epoch. Needs no torch.

``dataset``        ``CachedDataset`` and ``map``: start reading here
``cache``          ``DatasetCache``, with the arguments of MindSpore's
``finding``        samples that are in a cache and still true
``making``         samples made, compared, and put into a cache
``auditing``       when found samples are made again and compared
``changes``        whether a dataset is still what it was when its fingerprint was taken
``slots``          what a stage is made of, each with a digest
``lineage``        which entry belongs to a sample
``fingerprint``    what a step is, as one number
``identity``       what functions and objects are made of, for the fingerprint
``library_state``  settings of libraries that change samples
``randomness``     which steps draw random numbers, and the global generators
``files_seen``     which files a sample opens, what its entry's note says of them, and which serve later samples
``codec``          samples to bytes and back, without pickle
``encoding``       samples taken apart
``decoding``       samples put together
``layout``         what an entry looks like in bytes
``named_types``    classes and numpy's dtypes by name, as plain data
``plug_ins``       packages whose values have a module of their own
``images``         Pillow's
``cache_store``    one cache as one process sees it
``cache_link``     what that process says to the server
``claims``         who is making which entry
"""

from prefeed.stage_cache.cache import CacheStatistics as CacheStatistics
from prefeed.stage_cache.cache import DatasetCache as DatasetCache
from prefeed.stage_cache.dataset import CachedDataset as CachedDataset
from prefeed.stage_cache.dataset import MappedDataset as MappedDataset
from prefeed.stage_cache.dataset import map as map
from prefeed.stage_cache.randomness import not_random as not_random
