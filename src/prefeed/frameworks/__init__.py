"""Loaders of other frameworks than PyTorch, unchanged: under ``prefeed run``, or after ``import prefeed.auto``.

``paddle``      ``paddle.io.DataLoader``: the batch sampler is seen
``grain``       Grain's ``DataLoader``: the index sampler is seen
``mindspore``   ``GeneratorDataset``: the sampler's indices are seen
``tensorflow``  tf.data's ``from_generator`` and Python functions; readers in C++ are counted
``generators``  a generator as a dataset: passes over a list, learned
``hooks``       which module of a framework is waited for, and what is done then
"""
