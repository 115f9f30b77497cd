"""Epochs of tf.data over Python code that opens files: python tensorflow_epochs.py DIRECTORY KIND."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf


def of_generator(root: str) -> Any:
    """Elements of a generator over a list of files."""
    paths = [os.path.join(root, name) for name in sorted(os.listdir(root))]

    def elements() -> Iterator[bytes]:
        for path in paths:
            with open(path, "rb") as file:
                yield file.read()

    return tf.data.Dataset.from_generator(elements, output_signature=tf.TensorSpec((), tf.string)).batch(4).prefetch(2)


def of_function(root: str) -> Any:
    """Elements of a Python function, in threads of TensorFlow, in an order that TensorFlow draws."""
    paths = [os.path.join(root, name) for name in sorted(os.listdir(root))]
    names = tf.data.Dataset.from_tensor_slices(paths).shuffle(len(paths), seed=3)

    def load(path: Any) -> Any:
        return tf.numpy_function(lambda name: Path(name.decode()).read_bytes(), [path], tf.string)

    return names.map(load, num_parallel_calls=2).batch(4)


def of_cpp(root: str) -> Any:
    """Files that TensorFlow opens itself."""
    names = tf.data.Dataset.list_files(f"{root}/*.bin", shuffle=False)
    return names.map(tf.io.read_file).batch(4)


KINDS = {"generator": of_generator, "function": of_function, "cpp": of_cpp}

if __name__ == "__main__":
    dataset = KINDS[sys.argv[2]](sys.argv[1])
    digest = hashlib.sha256()
    for _ in range(3):
        for batch in dataset:
            for data in batch.numpy().tolist():
                digest.update(data)
    print(digest.hexdigest())
