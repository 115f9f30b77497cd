"""Packages whose values are encoded by a module of their own, imported when the first such value is met."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Final, Protocol, cast

from prefeed.stage_cache.layout import Node

PLUG_INS: Final = {
    "torch": "prefeed.torch.tensors",
    "torchvision": "prefeed.torch.tensors",
    "PIL": "prefeed.stage_cache.images",
}
"""Package of a value's class, or of one of its bases -> module that encodes it."""

Handler = Callable[[Any, Any], Node]
"""Takes a value and the ``Parts`` of its entry, adds the value's data to them and returns its node."""

Reader = Callable[[Any], Any]
"""Takes the ``Source`` of an entry and returns the value that comes next in it."""

CompileNode = Callable[[Node], Reader]
"""Compiles a node below the one at hand."""


class PlugIn(Protocol):
    """What such a module has."""

    def handler_of(self, cls: type) -> Handler | None:
        """Return what encodes exact instances of the class; None when nothing does.

        Its nodes begin ``[Op.PLUG_IN, package]``.
        """

    def reader_of(self, node: list[Any], compile_node: CompileNode) -> Reader:
        """Return what decodes a node, which begins ``[Op.PLUG_IN, package]``."""

    def content_of(self, value: Any) -> tuple[str, Callable[[], Any]] | None:
        """Return what tells a tensor from others besides its bytes, and a function for these; None when it cannot.

        Only the module for torch has this.
        """


def plug_in(package: str) -> PlugIn:
    """Return the module for values of a package.

    Raises:
        KeyError: There is none.
        ImportError: The package is not installed.
    """
    return cast("PlugIn", importlib.import_module(PLUG_INS[package]))


def plug_in_handler(cls: type) -> Handler | None:
    """Return what encodes instances of a class that comes from one of the packages, or is derived from one that does."""
    for base in cls.__mro__:
        package = base.__module__.partition(".")[0]
        if package in PLUG_INS:
            return plug_in(package).handler_of(cls)
    return None
