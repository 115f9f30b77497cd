"""PyTorch: with ``vision`` and ``diagnose``, the only package that imports torch.

``loader``         ``DataLoader``, torch's own with a plan: start reading here
``attachment``     what ties one loader to the node server
``patch``          torch's classes, changed in place: every loader is served
``items``          loaders that make items themselves, as fastai's do
``order``          what is known of samplers
``windows``        a sampler's order, read ahead a window at a time
``planning``       batches on their way to torch, told to the server
``resuming``       a loader that resumes in the middle of an epoch
``generators``     what the order of an epoch is drawn from
``access``         which objects the samples of a dataset are made of
``declared``       the same, as the dataset itself says
``vision``         the same, of torchvision's datasets
``searching``      where a dataset that declares nothing keeps its paths
``path_forms``     how such texts become paths of files
``tables``         columns of pandas, Arrow, Polars and Hugging Face
``guesses``        how far that proves right
``fingerprint``    which dataset this is, the same in every rank and run
``serving``        reads of samples, answered from the cache
``stages``         cached stages between a loader and its files
``tensors``        tensors in entries of stage caches
``idle``           moments in which a worker has nothing to do
``collating``      batches as torch makes them, in recycled memory
``ring``           that memory
``slots``          one piece of it, as a worker has it
``pinning``        pieces that a device reads by itself
``fork_tracking``  forked children that may still read it
``device``         batches on the device before the loop asks
``streams``        queues, marks, copies and memory of a device
``nesting``        tensors inside a batch of any nesting
``report``         what a run says of itself in the log
``naming``         what a loader is called
``call_sites``     the variable or line where it was made
"""

from prefeed.torch.loader import DataLoader

__all__ = ["DataLoader"]
