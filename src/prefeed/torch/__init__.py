"""PyTorch: with ``vision`` and ``diagnose``, the only package that imports torch.

``loader``      ``DataLoader``, torch's own with a plan: start reading here
``attachment``  the tie between one loader and the node server
``patch``       torch's classes, changed in place: every loader is served
``items``       loaders that make items themselves, as fastai's do
``order``       samplers, and their order, read ahead a window at a time
``planning``    batches on their way to torch, told to the server
``resuming``    a loader that resumes in the middle of an epoch, and the generators that its order is drawn from
``access``      which objects the samples of a dataset are made of, and which dataset this is
``declared``    the same, as the dataset itself or torchvision says
``searching``   where a dataset that declares nothing keeps its paths
``path_forms``  how such texts become paths of files
``guesses``     how far that proves right
``serving``     reads of samples, answered from the cache
``stages``      cached stages between a loader and its files
``tensors``     tensors in entries of stage caches
``collating``   batches as torch makes them, in recycled memory
``ring``        that memory, and who may still read it: devices, forked children
``slots``       one piece of it, as a worker has it
``device``      batches on the device before the loop asks
``nesting``     tensors inside a batch of any nesting
``report``      the lines that a run writes about itself
``naming``      the name of a loader
"""

from prefeed.torch.loader import DataLoader

__all__ = ["DataLoader"]
