"""Datasets that read any origin through the node's cache. They need no torch, and work in every loader.

With ``prefeed.DataLoader`` their objects are in memory before they are requested. Elsewhere an object is fetched at its first
request, and kept.

``origin``    the base of all of them: a root that is read through the cache
``objects``   ``Objects``: the bytes of every object
``images``    ``ImageFolder`` and ``ImageList``
``packed``    ``Packed``: the samples of a pack
``plans``     ``Plan``: what any program will read, in order; public as ``prefeed.Plan``
``following``  who follows a plan, known once the server has started
``progress``  how far a listing has come, on a terminal
"""

from __future__ import annotations

from prefeed.client.readers import process_readers as _readers  # noqa: F401 - tests close them
from prefeed.datasets.images import IMAGE_EXTENSIONS, ImageFolder, ImageList
from prefeed.datasets.objects import Objects
from prefeed.datasets.packed import Packed

__all__ = ["IMAGE_EXTENSIONS", "ImageFolder", "ImageList", "Objects", "Packed"]
