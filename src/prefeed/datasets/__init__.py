"""Datasets that read any origin through the node's cache. They need no torch, and work in every loader.

In ``prefeed.DataLoader`` their objects are in memory before they are asked for; elsewhere each is fetched when it
is first asked for, and kept.

``origin``        a root that is read through the node's cache
``objects``       ``Objects``: bytes of every object
``images``        ``ImageFolder`` and ``ImageList``
``packed``        ``Packed``
"""

from __future__ import annotations

from prefeed.datasets.images import IMAGE_EXTENSIONS, ImageFolder, ImageList
from prefeed.datasets.objects import Objects
from prefeed.datasets.origin import readers as _readers  # noqa: F401 - tests close them
from prefeed.datasets.packed import Packed

__all__ = ["IMAGE_EXTENSIONS", "ImageFolder", "ImageList", "Objects", "Packed"]
