"""Serves the Python functions of tf.data: ``tf.numpy_function``, ``tf.py_function`` and ``from_generator``. Start with ``enable``.

Files that the functions open come from the cache. They are not read ahead, because TensorFlow draws the order in C++. Its readers
``tf.io.read_file`` and ``TFRecordDataset`` open files in C++ and bypass the cache.
"""

from __future__ import annotations

import sys
from typing import Any, Final

from prefeed.client.beside import ReadsBeside
from prefeed.config import current
from prefeed.interception import answers_everywhere, reads_from
from prefeed.loaders.replacing import Method, Replaced
from prefeed.run_summary import counters
from prefeed.sampleset.names import resolve_roots
from prefeed.sources.mounts import Roots

_FUNCTIONS: Final = "tensorflow.python.ops.script_ops"
_NAME: Final = "tf.numpy_function, tf.py_function"

_replaced: list[Replaced] = []


class _Functions:
    """Wrapper of the Python functions of a pipeline, which read files from the cache in any thread of TensorFlow."""

    def __init__(self) -> None:
        self._reader: ReadsBeside | None = None

    def begin(self) -> None:
        """Start to serve files below the roots."""
        config = resolve_roots(current())
        roots = Roots.of(config)
        self._reader = ReadsBeside(config, roots) if roots else None

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


def enable() -> None:
    """Serve the Python functions of pipelines. Idempotent.

    Raises:
        AttributeError, KeyError: This version of TensorFlow has different internals.
    """
    if _replaced:
        return
    functions: Any = sys.modules[_FUNCTIONS]
    _functions.begin()
    _replaced.append(Replaced(functions.FuncRegistry, "__call__", _functions.call))


def disable() -> None:
    """Restore TensorFlow's classes. Idempotent."""
    while _replaced:
        _replaced.pop().undo()
    _functions.end()
