"""Serves the Python parts of tf.data: ``from_generator``, and Python functions in a pipeline.

from_generator                       passes of a generator are served and prefetched, see ``generators``
tf.numpy_function, tf.py_function    their files are read from the cache, without prefetching, because the order is drawn in C++
tf.io.read_file, TFRecordDataset …   open files in C++, which are only counted for the run summary
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
_FILES: Final = "tensorflow.python.lib.io.file_io"
_OPS: Final = {
    "tensorflow.python.ops.gen_io_ops": {"read_file": "tf.io.read_file"},
    "tensorflow.python.ops.gen_dataset_ops": {
        "tf_record_dataset": "tf.data.TFRecordDataset",
        "tf_record_dataset_v2": "tf.data.TFRecordDataset",
        "text_line_dataset": "tf.data.TextLineDataset",
        "fixed_length_record_dataset_v2": "tf.data.FixedLengthRecordDataset",
    },
}
"""Functions that create operations that open files, with their public names, by module."""

_LISTS: Final = {
    "tensorflow.python.ops.gen_io_ops": "matching_files",
    "tensorflow.python.ops.gen_dataset_ops": "tensor_slice_dataset",
}
"""Function by module whose first argument may contain names of files that an operation opens later."""

_NAME: Final = "tf.numpy_function, tf.py_function"
_MAX_NAMES: Final = 1 << 16

_feeds = Feeds("tf.data.Dataset.from_generator")
_replaced: list[Replaced] = []


class _FunctionReads:
    """Serves the files that Python functions of a pipeline open, in any thread of TensorFlow."""

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
        """Call a function with its files served. Replaces the method of TensorFlow's registry."""
        reader = self._reader
        if reader is None or answers_everywhere():
            return own(registry, *args, **kwargs)
        try:
            with reads_from(reader):
                return own(registry, *args, **kwargs)
        finally:
            if reader.outcomes:
                counters.note(counters.SERVED, _NAME)


_functions = _FunctionReads()


def _reads_beside() -> ReadsBeside | None:
    config = resolve_roots(current())
    roots = Roots.of(config)
    return ReadsBeside(config, roots) if roots else None


class _PassReads:
    """Serves the files of generator passes without a plan.

    Attributes:
        reader: Reader of the files; None if files are not served.
    """

    reader: ReadsBeside | None = None

    def begin(self) -> None:
        """Start to serve files."""
        self.reader = _reads_beside()

    def end(self) -> None:
        """Stop serving files. Idempotent."""
        reader, self.reader = self.reader, None
        if reader is not None:
            reader.end()


_passes = _PassReads()


def enable() -> None:
    """Serve Python functions, and generators that are passed to tf.data after this call. Idempotent.

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
    for module, names in _OPS.items():
        for name, call in names.items():
            _call_before(module, name, partial(_count_reads, call))
    for module, name in _LISTS.items():
        _call_before(module, name, _count_lists)
    files: Any = sys.modules.get(_FILES)
    if files is not None:
        _replaced.append(Replaced(files.FileIO, "__init__", _open))


def disable() -> None:
    """Restore TensorFlow. Idempotent."""
    while _replaced:
        _replaced.pop().undo()
    _functions.end()
    _passes.end()
    _feeds.clear()


def _keep(own: Method, state: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    (generator,) = (*args, *kwargs.values())
    return own(state, ServedGenerator(generator, _feeds, beside=lambda: _passes.reader))


def _open(own: Method, file: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    made = own(file, *args, **kwargs)
    if "r" in file.mode:
        native.reads("tf.io.gfile.GFile", [file.name])
    return made


def _call_before(module: str, name: str, count: Callable[[Any], None]) -> None:
    """Patch a function so that ``count`` is called with its first argument before each call."""

    def instead(own: Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        count(args[0] if args else next(iter(kwargs.values()), None))
        return own(*args, **kwargs)

    owner = sys.modules.get(module)
    if hasattr(owner, name):
        _replaced.append(ReplacedFunction(owner, name, instead))


def _count_reads(call: str, names: Any) -> None:
    native.reads(call, _names_in(names))


def _count_lists(value: Any) -> None:
    for part in value if isinstance(value, list | tuple) else (value,):
        native.lists(_names_in(part, most=1))


def _names_in(value: Any, *, most: int = _MAX_NAMES) -> Iterator[str | bytes]:
    """Yield a text, or the texts of a tensor with a known value. Raises no errors."""
    try:
        if isinstance(value, str | bytes):
            yield value
        elif getattr(value, "dtype", None) == "string" and hasattr(value, "numpy"):
            found = value.numpy()
            yield from [found] if isinstance(found, bytes) else found.ravel()[:most].tolist()
    except Exception:  # noqa: BLE001 - counting must not make the program fail
        return
