"""Which module of a framework is waited for, and what is done once it was imported; no framework is imported for it.

Everything that a framework keeps to itself may be named otherwise in its next version. What is missing means that its
loaders are left alone, with one line in the log.
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
"""By the module that has what is replaced: the module of this package that replaces it, in ``enable`` and ``disable``."""


def serve(name: str) -> None:
    """Serve the loaders of a framework, one of whose modules is there now. Idempotent.

    Args:
        name: Of the module, one of ``MODULES``.

    Raises:
        Exception: The framework keeps its loaders otherwise than is known here.
    """
    importlib.import_module(f"{__package__}.{MODULES[name]}").enable()


def undo() -> None:
    """Leave every framework as it was. Idempotent."""
    for own in MODULES.values():
        module = sys.modules.get(f"{__package__}.{own}")
        if module is not None:
            module.disable()
