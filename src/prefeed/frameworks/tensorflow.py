"""Serves the Python parts of tf.data: ``from_generator``, and Python functions in a pipeline. Start with ``enable``.

from_generator                       passes of a generator: served and read ahead, see ``generators``
tf.numpy_function, tf.py_function    files that they open come from the cache; TensorFlow draws their order in C++
tf.io.read_file, TFRecordDataset …   open files in C++ and bypass the cache
"""

from __future__ import annotations

import sys
from typing import Any, Final

from prefeed.client.beside import ReadsBeside
from prefeed.config import current
from prefeed.frameworks.generators import ServedGenerator
from prefeed.interception import answers_everywhere, reads_from
from prefeed.loaders.feed import Feeds
from prefeed.loaders.replacing import Method, Replaced
from prefeed.run_summary import counters
from prefeed.sampleset.names import resolve_roots
from prefeed.sources.mounts import Roots

_DATASETS: Final = "tensorflow.python.data.ops.dataset_ops"
_FUNCTIONS: Final = "tensorflow.python.ops.script_ops"
_NAME: Final = "tf.numpy_function, tf.py_function"

_feeds = Feeds("tf.data.Dataset.from_generator")
_replaced: list[Replaced] = []


class _Functions:
    """Wrapper of the Python functions of a pipeline, which read files from the cache in any thread of TensorFlow."""

    def __init__(self) -> None:
        self._reader: ReadsBeside | None = None

    def begin(self) -> None:
        """Start to serve files below the roots."""
        self._reader = _reads_beside()

    def end(self) -> None:
        """Stop serving files. Idempotent."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.end()

    def call(self, own: Method, registry: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function with files from the cache. Replaces the method of TensorFlow's registry."""
        reader = self._reader
        if reader is None or answers_everywhere():
            return own(registry, *args, **kwargs)
        try:
            with reads_from(reader):
                return own(registry, *args, **kwargs)
        finally:
            if reader.outcomes:
                counters.note(counters.SERVED, _NAME)


_functions = _Functions()


def _reads_beside() -> ReadsBeside | None:
    config = resolve_roots(current())
    roots = Roots.of(config)
    return ReadsBeside(config, roots) if roots else None


class _Passes:
    """Holder of the reader for passes of generators without a plan.

    Attributes:
        reader: Reader of files, or None if they are not served.
    """

    reader: ReadsBeside | None = None

    def begin(self) -> None:
        """Start to serve files below the roots."""
        self.reader = _reads_beside()

    def end(self) -> None:
        """Stop serving files. Idempotent."""
        reader, self.reader = self.reader, None
        if reader is not None:
            reader.end()


_passes = _Passes()


def enable() -> None:
    """Serve Python functions, and generators that tf.data receives later. Idempotent.

    Raises:
        AttributeError, KeyError: This version of TensorFlow has different internals.
    """
    if _replaced:
        return
    datasets: Any = sys.modules[_DATASETS]
    functions: Any = sys.modules[_FUNCTIONS]
    _functions.begin()
    _passes.begin()
    _replaced.append(Replaced(datasets.DatasetV2._GeneratorState, "__init__", _keep))
    _replaced.append(Replaced(functions.FuncRegistry, "__call__", _functions.call))


def disable() -> None:
    """Restore TensorFlow's classes. Idempotent."""
    while _replaced:
        _replaced.pop().undo()
    _functions.end()
    _passes.end()
    _feeds.clear()


def _keep(own: Method, state: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    (generator,) = (*args, *kwargs.values())
    return own(state, ServedGenerator(generator, _feeds, beside=lambda: _passes.reader))
