"""Hooks that patch a framework once its module is imported. No framework is imported for this.

Private names of a framework can change in its next version. If one is missing, the framework's loaders are not served, and one line is
logged.
"""

from __future__ import annotations

import importlib
import sys
from typing import Final

MODULES: Final = {
    "paddle.io.dataloader.dataloader_iter": "paddle",
    "grain._src.python.data_loader": "grain",
    "mindspore.dataset.engine.datasets_user_defined": "mindspore",
    "tensorflow.python.data.ops.dataset_ops": "tensorflow",
}
"""Module of this package with ``enable`` and ``disable``, by the module of the framework that it patches."""


def serve(name: str) -> None:
    """Serve the loaders of a framework whose module was imported. Idempotent.

    Args:
        name: Name of the module, a key of ``MODULES``.

    Raises:
        Exception: The framework has unknown internals.
    """
    importlib.import_module(f"{__package__}.{MODULES[name]}").enable()


def undo() -> None:
    """Restore all frameworks. Idempotent."""
    for own in MODULES.values():
        module = sys.modules.get(f"{__package__}.{own}")
        if module is not None:
            module.disable()
