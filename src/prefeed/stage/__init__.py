"""Cached stages: what a deterministic step of a pipeline returns, made once for every process and every epoch. Needs no torch.

``dataset``        ``CachedDataset``: start reading here
``mapping``        ``map``
``cache``          ``DatasetCache``, with the arguments of MindSpore's
``finding``        samples that are in a cache and still true
``making``         samples made and put into a cache
``auditing``       when found samples are made again and compared
``comparing``      whether two makings are the same, bit for bit
``looking``        when a dataset is looked at again
``changes``        whether attributes were set since the fingerprint was taken
``slots``          what a stage is made of, each with a digest
``lineage``        which entry belongs to a sample
``fingerprint``    what a step is, as one number
``identity``       what functions and objects are made of, for the fingerprint
``outside``        globals and variables that functions name
``library_state``  settings of libraries that change samples
``randomness``     which steps draw random numbers
``generators``     the global generators, and whether one was drawn from
``files_seen``     which files a sample opens
``standing``       files that stay open, for later samples
``notes``          what an entry says of itself
``codec``          samples to bytes and back, without pickle
``encoding``       samples taken apart
``decoding``       samples put together
``layout``         what an entry looks like in bytes
``dtypes``         numpy's dtypes as plain data
``classes``        classes by import path
``plug_ins``       packages whose values have a module of their own
``images``         Pillow's
``cache_store``    one cache as one process sees it
``cache_link``     what that process says to the server
``claims``         who is making which entry
"""

from prefeed.stage.cache import CacheStatistics as CacheStatistics
from prefeed.stage.cache import DatasetCache as DatasetCache
from prefeed.stage.dataset import CachedDataset as CachedDataset
from prefeed.stage.mapping import MappedDataset as MappedDataset
from prefeed.stage.mapping import map as map
from prefeed.stage.randomness import not_random as not_random
