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
_MAX_NAMES: Final = 1 << 16

_feeds = Feeds("tf.data.Dataset.from_generator")
_replaced: list[Replaced] = []


class _FunctionReads:
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


_functions = _FunctionReads()


def _reads_beside() -> ReadsBeside | None:
    config = resolve_roots(current())
    roots = Roots.of(config)
    return ReadsBeside(config, roots) if roots else None


class _PassReads:
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


_passes = _PassReads()


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
    for module, names in _OPS.items():
        for name, call in names.items():
            _call_before(module, name, partial(_count_reads, call))
    for module, name in _LISTS.items():
        _call_before(module, name, _count_lists)
    files: Any = sys.modules.get(_FILES)
    if files is not None:
        _replaced.append(Replaced(files.FileIO, "__init__", _open))


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


def _open(own: Method, file: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    made = own(file, *args, **kwargs)
    if "r" in file.mode:
        native.reads("tf.io.gfile.GFile", [file.name])
    return made


def _call_before(module: str, name: str, count: Callable[[Any], None]) -> None:
    """Call ``count`` with the first argument before each call of a function."""

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
    """Yield texts of a text, or of a tensor whose value is known; never raises."""
    try:
        if isinstance(value, str | bytes):
            yield value
        elif getattr(value, "dtype", None) == "string" and hasattr(value, "numpy"):
            found = value.numpy()
            yield from [found] if isinstance(found, bytes) else found.ravel()[:most].tolist()
    except Exception:  # noqa: BLE001 - it is no reason for the program to fail
        return
