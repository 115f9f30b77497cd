"""tf.data, as far as Python sees it: ``from_generator``, and Python functions in a pipeline.

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
    """Answers files that Python functions of a pipeline open, in whichever threads TensorFlow calls them."""

    def __init__(self) -> None:
        self._reader: ReadsBeside | None = None

    def begin(self) -> None:
        """Files below the roots are answered from now on."""
        self._reader = _reads_beside()

    def end(self) -> None:
        """Nothing is answered any more. Idempotent."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.end()

    def call(self, own: Method, registry: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function; stands for the method of TensorFlow's registry."""
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
    """Answers files of passes of generators that have no plan.

    Attributes:
        reader: None: nobody does.
    """

    reader: ReadsBeside | None = None

    def begin(self) -> None:
        """They are answered from now on."""
        self.reader = _reads_beside()

    def end(self) -> None:
        """They are not any more. Idempotent."""
        reader, self.reader = self.reader, None
        if reader is not None:
            reader.end()


_passes = _Passes()


def enable() -> None:
    """Serve generators that are given to tf.data from now on, and Python functions. Idempotent.

    Raises:
        AttributeError, KeyError: TensorFlow keeps them otherwise.
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
    """Leave TensorFlow as it was. Idempotent."""
    while _replaced:
        _replaced.pop().undo()
    _functions.end()
    _passes.end()
    _feeds.clear()


def _keep(own: Method, state: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    (generator,) = (*args, *kwargs.values())
    return own(state, ServedGenerator(generator, _feeds, beside=lambda: _passes.reader))
