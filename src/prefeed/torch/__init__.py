"""PyTorch: loaders with a plan. Besides ``vision`` and ``diagnose`` the only package that imports torch.

``loader``       ``DataLoader``, torch's own with a plan: start reading here
``attachment``   connects one loader to the node server
``attachments``  the attachment of each loader
``in_place``     samples of epochs that begin without the server, until the loader joins
``place``        the loader's side of these epochs
``patch``        changes torch's classes in place: every loader is served
``items``        loaders that make items themselves, such as fastai's
``order``        samplers, and their order, read ahead in windows
``forecasts``    the order of samplers of a program's own classes, forecast by copies
``reach``        what the code of such a sampler uses outside of a copy
``permutation``  the order of torch's random sampler as an array
``planning``     batches on their way to torch, and the plan of each epoch
``pass_plan``    plan of the present pass, and how far the loop is
``windows``      the order of a pass, read in windows; the consumer that plans are sent to
``next_epochs``  announces the orders of later epochs
``resuming``     resumes a loader in the middle of an epoch, with its generators
``serving``      answers reads of samples from the cache
``samples``      samples of a batch, in the process that makes them
``tensors``      encodes tensors for stage caches
``collating``    batches as torch makes them, in recycled memory
``sending``      bytes, text and arrays of a batch, in recycled memory
``ring``         the recycled memory, and who may still read it: devices, forked children
``slots``        one piece of it, in a worker
``device``       copies batches to the device before the loop needs them
``nesting``      tensors inside a nested batch
``naming``       the name of a loader
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prefeed.torch.loader import DataLoader

__all__ = ["DataLoader"]


def __getattr__(name: str) -> Any:  # a worker that is spawned imports modules of this package, and makes no loader
    if name == "DataLoader":
        return importlib.import_module("prefeed.torch.loader").DataLoader
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
