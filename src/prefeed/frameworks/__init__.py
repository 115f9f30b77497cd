"""Serve unchanged loaders of other frameworks than PyTorch, under ``prefeed run`` or after ``import prefeed.auto``.

``paddle``      ``paddle.io.DataLoader``: reads the batch sampler
``grain``       Grain's ``DataLoader``: reads the index sampler
``mindspore``   ``GeneratorDataset``: reads the sampler's indices
``tensorflow``  tf.data's ``from_generator`` and Python functions; counts readers in C++
``hooks``       patches a framework when it is imported
"""
