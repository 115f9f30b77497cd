"""PyTorch: the only package that imports torch.

loader.py    ``DataLoader``, torch's own with a plan: start reading here
order.py     what a sampler will draw, found out without disturbing any random generator
planning.py  batches on their way to torch, told to the node server on the way
serving.py   reads of a dataset's samples, answered from the cache inside workers
access.py    which objects torchvision's datasets are made of
"""

from prefeed.torch.loader import DataLoader

__all__ = ["DataLoader"]
