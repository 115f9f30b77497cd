"""Datasets that read any origin through the node's cache. They do not need torch and work in every loader.

With ``prefeed.DataLoader``, objects are in memory before they are requested. With other loaders, an object is fetched at the first
request and kept.

``origin``    base of all datasets: a root that is read through the cache
``objects``   ``Objects``: the bytes of every object
``images``    ``ImageFolder`` and ``ImageList``
``packed``    ``Packed``: the samples of a pack
``plans``     ``Plan``: the samples that a program will read, in order; public as ``prefeed.Plan``
``consumer_future``  the server's consumer of a plan, once the server has started
``progress``  progress of a listing on a terminal
"""

from __future__ import annotations

from prefeed.client.readers import process_readers as _readers  # noqa: F401 - tests close them
from prefeed.datasets.images import IMAGE_EXTENSIONS, ImageFolder, ImageList
from prefeed.datasets.objects import Objects
from prefeed.datasets.packed import Packed

__all__ = ["IMAGE_EXTENSIONS", "ImageFolder", "ImageList", "Objects", "Packed"]
