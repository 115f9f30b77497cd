"""Where a dataset that declares nothing probably keeps the paths of its samples: found in its attributes, by their shape.

What is as long as the dataset and holds paths below a root is a column of files:

    dataset ── attributes ──→ lists, arrays, tables, dicts of columns ──→ entries ──→ texts ──→ paths
       │                         as long as the dataset, or reached by    of tuples,
       │                         indices that are as long                 dicts, objects
       └─ datasets and objects that it holds: the same again

Few entries are looked at, so ten million cost what ten do; an entry is made a path when its sample is planned. **Nothing of
the user's is run** but ``len`` of torch's datasets that are held: no property, no ``__getattr__``, no ``__getitem__``.
What is found is a guess, which ``guesses`` tries.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from types import BuiltinFunctionType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any, Final

import numpy as np

from prefeed.loaders.declared import declared_paths
from prefeed.loaders.guesses import Column
from prefeed.loaders.kinds import is_a, is_just_a, length_of
from prefeed.loaders.path_forms import PathForms, directories_of, text_of
from prefeed.system.clock import Clock

Entries = Callable[[int], Any]
"""Entry of a row, by its index."""

Table = tuple[int, list[Entries]]

_MOST_OF_TABLE: Final = 16


def columns_of_table(value: Any) -> Table | None:
    """Return how many rows a table has, and its columns that may hold texts; None when it is no table, or an unknown one.

    No library is imported: a program that has one of its tables has imported it, and the names of the classes that a table
    descends from are enough. Columns of numbers are left out; nothing is decoded, and no entry is read.
    """
    for cls in type(value).__mro__:
        read = _TABLES.get((cls.__module__.partition(".")[0], cls.__name__))
        if read is not None:
            try:
                return read(value)
            except Exception:  # noqa: BLE001 - another version of the library keeps it otherwise
                return None
    return None


# ---------------------------------------------------------------- pandas, polars


def _frame(frame: Any) -> Table:
    columns = [frame.iloc[:, place] for place in range(min(_MOST_OF_TABLE, frame.shape[1]))]
    return len(frame), [column.array.__getitem__ for column in columns if column.dtype.kind in "OU"]


def _series(series: Any) -> Table:
    return len(series), [series.array.__getitem__] if series.dtype.kind in "OU" else []


def _polars_frame(frame: Any) -> Table:
    columns = frame.get_columns()[:_MOST_OF_TABLE]
    return frame.height, [entries for column in columns for entries in _polars_series(column)[1]]


def _polars_series(series: Any) -> Table:
    return len(series), [] if series.dtype.is_numeric() else [series.__getitem__]


# ---------------------------------------------------------------- Arrow, and Hugging Face's datasets


def _arrow_table(table: Any) -> Table:
    columns = [table.column(place) for place in range(min(_MOST_OF_TABLE, table.num_columns))]
    return table.num_rows, [entries for column in columns for entries in _texts_of_column(column)]


def _texts_of_column(column: Any) -> Iterator[Entries]:
    """Yield a column of texts; of one of files, as features keep them, the paths of those that hold no bytes."""
    kind = str(column.type)
    if kind in ("string", "large_string", "string_view") or kind.startswith("dictionary<values=string"):
        yield partial(_python_value, column)
    elif kind.startswith("struct<"):
        fields = {column.type.field(place).name: field for place, field in enumerate(column.flatten())}
        held = fields.get("bytes")
        if "path" in fields and (held is None or held.null_count == len(held)):
            yield partial(_python_value, fields["path"])


def _python_value(column: Any, index: int) -> Any:
    return column[index].as_py()


def _hugging_face(dataset: Any) -> Table:
    """Return the columns of the table below, through the indices of what was selected or shuffled."""
    num_rows, columns = _arrow_table(dataset._data.table)
    if dataset._indices is None:
        return num_rows, columns
    indices = dataset._indices.table.column(0)
    return len(indices), [partial(_selected, entries, indices) for entries in columns]


def _selected(entries: Entries, indices: Any, index: int) -> Any:
    return entries(indices[index].as_py())


_TABLES: Final[dict[tuple[str, str], Callable[[Any], Table]]] = {
    ("pandas", "DataFrame"): _frame,
    ("pandas", "Series"): _series,
    ("pandas", "Index"): _series,
    ("polars", "DataFrame"): _polars_frame,
    ("polars", "Series"): _polars_series,
    ("pyarrow", "Table"): _arrow_table,
    ("datasets", "Dataset"): _hugging_face,
}
"""By the name of the library and that of the class."""


_log = logging.getLogger("prefeed")

Files = Callable[[int], Sequence[str]]

SECONDS: Final = 1.0
"""The search is given up after that long: an origin may take its time to answer."""

_MOST_COLUMNS: Final = 8
"""Columns of one dataset; one that is made of many has as many for each."""

_MOST_VISITED: Final = 2000
_MOST_ATTRIBUTES: Final = 256
_MOST_FIELDS: Final = 16
"""Fields of an entry that are looked at; a list that is no longer holds parts of a dataset, or its columns."""

_MOST_FILES: Final = 64
"""Files in one entry."""

_MOST_DECLARED: Final = 1 << 19
"""Samples of a dataset that is asked for its list: that takes up to a microsecond a sample."""

_DEPTH: Final = 6
_FIELDS_DEPTH: Final = 3

_LEFT_ALONE: Final = (
    type, ModuleType, FunctionType, BuiltinFunctionType, MethodType, np.ndarray, np.generic, type(None),
    int, float, complex, str, bytes, bytearray, memoryview, set, frozenset,
)  # fmt: skip

_NAMES_OF_INDICES: Final = ("ind", "idx", "ids", "perm", "order", "keep", "subset", "select", "map")


def find_columns(
    dataset: Any,
    length: int,
    *,
    covers: Callable[[str], bool],
    clock: Clock = time.monotonic,
    seconds: float = SECONDS,
) -> list[Column]:
    """Return columns of files that the samples of a dataset may open; never raises.

    Args:
        dataset: The user's, map-style.
        length: Its length.
        covers: Whether a file is for the cache, by its absolute path.
        clock: Seconds.
        seconds: The search is given up after so long, with a line.
    """
    ends_at = clock() + seconds

    def check_time() -> None:
        if clock() > ends_at:
            raise _OutOfTimeError

    search = _Search(PathForms(covers, check_time), check_time)
    found: list[Column] = []
    try:
        for column in search.columns(dataset, length):
            found.append(column)  # noqa: PERF402 - what was found before an error counts
    except _OutOfTimeError:
        _log.info(
            "prefeed: the search for paths in the attributes of %s stopped after %g s: other files are learned as samples open them",
            type(dataset).__name__, seconds,
        )  # fmt: skip
    except Exception:  # noqa: BLE001 - whatever the dataset is made of, it must not be noticed
        _log.debug("prefeed: a dataset could not be searched for paths", exc_info=True)
    return found


class _OutOfTimeError(Exception):
    """The search takes too long."""


@dataclass(frozen=True, slots=True)
class _Mapping:
    """Indices that a dataset passes on: of sample i, entry ``at(i)`` of something longer or shorter."""

    at: Callable[[int], int]
    some: tuple[int, ...]
    is_named: bool

    def is_below(self, length: int) -> bool:
        return all(-length <= index < length for index in self.some)


class _Search:
    """One search.

    Args:
        forms: Knows how texts become paths.
        check_time: Raises when the search takes too long.
    """

    def __init__(self, forms: PathForms, check_time: Callable[[], None]) -> None:
        self._forms = forms
        self._check_time = check_time
        self._num_visited = 0
        self._visiting: set[int] = set()

    # ------------------------------------------------------------ datasets, and what they hold

    def columns(self, dataset: Any, length: int, *, start: int = 0, depth: int = _DEPTH) -> Iterator[Column]:
        """Yield columns of a dataset, each once; its first sample has the number ``start``."""
        parts = _parts_in_a_row(dataset, length)
        for part, of_part in parts:
            if depth > 1:
                yield from self.columns(part, of_part, start=start, depth=depth - 1)
            start += of_part
        if parts:
            return
        seen: set[tuple[tuple[str, ...], ...]] = set()
        for files in self._of(dataset, length, (), (), depth):
            some = tuple(_files_at(files, index) for index in _probes(length))
            if any(some) and some not in seen:
                seen.add(some)
                yield Column(start, start + length, files)
            if len(seen) == _MOST_COLUMNS:
                return

    def _of(
        self, holder: Any, length: int, mappings: tuple[_Mapping, ...], directories: tuple[str, ...], depth: int
    ) -> Iterator[Files]:
        """Yield the lists of an object, the dataset or one that it holds, that may be the files of this number of samples."""
        if depth <= 0 or length <= 0 or id(holder) in self._visiting or self._num_visited >= _MOST_VISITED:
            return
        self._check_time()
        self._num_visited += 1
        self._visiting.add(id(holder))  # for the whole way down: a cycle ends here
        try:
            yield from _declared(holder, length)
            attributes = attributes_of(holder, most=_MOST_ATTRIBUTES)
            directories = tuple(dict.fromkeys((*directories_of(attributes), *directories)))
            mappings = (*_mappings(attributes, length), *mappings)
            is_table = columns_of_table(holder) is not None  # its attributes would tell the same again, or less
            for value in (holder,) if is_table else (holder, *attributes.values()):
                yield from self._of_value(value, length, mappings, directories, depth, is_holder=value is holder)
        finally:
            self._visiting.discard(id(holder))

    def _of_value(
        self,
        value: Any,
        length: int,
        mappings: tuple[_Mapping, ...],
        directories: tuple[str, ...],
        depth: int,
        *,
        is_holder: bool = False,
    ) -> Iterator[Files]:
        """Yield what one attribute has."""
        columns = _columns_of(value)
        if columns is not None:
            num_entries, found = columns
            for entries in found:
                for mapped in _through(entries, num_entries, length, mappings):
                    yield from self._texts_of(mapped, length, directories, _FIELDS_DEPTH)
            parts = _few(value)
        elif _is(value, dict):
            parts = _few(value)
        elif is_holder or _is_left_alone(value):
            return
        else:
            if is_a(value, "Dataset"):
                yield from self._of_inner(value, length, mappings, depth)
            yield from self._of(value, length, mappings, directories, depth - 1)
            return
        if depth > 1:
            for part in parts:
                if not _is_left_alone(part) or type(part) is np.ndarray:
                    yield from self._of_value(part, length, mappings, directories, depth - 1)

    def _of_inner(self, dataset: Any, length: int, mappings: tuple[_Mapping, ...], depth: int) -> Iterator[Files]:
        """Yield what a held dataset has, for the samples that are passed on to it."""
        inner = length_of(dataset) or 0
        passed_on = _passed_on(inner, length, mappings)
        if not passed_on:
            return
        for column in self.columns(dataset, inner, depth=depth - 1):
            for at in passed_on:
                yield partial(_files_through, column, at, inner)

    # ------------------------------------------------------------ entries

    def _texts_of(self, entries: Entries, length: int, directories: Sequence[str], depth: int) -> Iterator[Files]:
        """Yield the files that entries name: as they are, or in a field of theirs."""
        self._check_time()
        some = []
        with contextlib.suppress(Exception):  # of another library, or an index of the user's is too large
            some = [entry for index in _probes(length) if not _is_absent(entry := entries(index))]
        if not some or depth == 0:
            return
        texts = [text_of(entry) for entry in some]
        if not any(text is None for text in texts):
            for form in self._forms.of([text for text in texts if text is not None], directories):
                yield partial(_one_file, entries, form)
            return
        for get, name in _fields_of(some):
            yield from self._texts_of(partial(_field, entries, get, name), length, directories, depth - 1)
        if all(_is(entry, (list, tuple)) and len(entry) <= _MOST_FILES for entry in some):
            sizes = {len(entry) for entry in some}
            texts = [text_of(part) for entry in some for part in entry]
            if len(sizes) > 1 and not any(text is None for text in texts):  # as many files as each has
                for form in self._forms.of([text for text in texts if text is not None], directories):
                    yield partial(_all_files, entries, form)


# ---------------------------------------------------------------- what a dataset holds


def _is(value: Any, kinds: type | tuple[type, ...]) -> bool:
    """Return whether it is an instance, by its type alone: ``isinstance`` also asks ``__class__``, which may be a property."""
    return issubclass(type(value), kinds)


def _is_left_alone(value: Any) -> bool:
    return _is(value, _LEFT_ALONE) or is_a(value, "Tensor")


def attributes_of(holder: Any, *, most: int | None = None) -> dict[str, Any]:
    """Return the attributes that an object has, in a dict or in slots; nothing of its class is run.

    Args:
        holder: Any object.
        most: Of its dict, no more than this; None: all.
    """
    found: dict[str, Any] = {}
    with contextlib.suppress(Exception):
        values = object.__getattribute__(holder, "__dict__")
        if type(values) is dict:
            found.update(islice(values.items(), most))
    for cls in type(holder).__mro__:
        for name, member in vars(cls).items():
            if type(member) is MemberDescriptorType and name != "__dict__":  # which some built-in types list as one
                with contextlib.suppress(AttributeError):
                    found[name] = member.__get__(holder)
    return found


def _attribute(holder: Any, name: str) -> Any:
    with contextlib.suppress(AttributeError):  # no dict
        values: Any = object.__getattribute__(holder, "__dict__")
        if name in values:
            return values[name]
    return attributes_of(holder)[name]


def _parts_in_a_row(dataset: Any, length: int) -> list[tuple[Any, int]]:
    """Return the datasets that this one is a concatenation of, with their lengths; none where it is none."""
    datasets = attributes_of(dataset).get("datasets") if is_a(dataset, "ConcatDataset") else None
    if type(datasets) is not list:
        return []
    parts = [(part, length_of(part) or 0) for part in datasets]
    return parts if sum(count for _, count in parts) == length else []


def _declared(holder: Any, length: int) -> Iterator[Files]:
    """Yield what a held dataset declares, or torchvision's list of it."""
    if is_a(holder, "Dataset") and length <= _MOST_DECLARED:
        with contextlib.suppress(Exception):  # it is the user's, and was not asked for
            declared = declared_paths(holder)
            if declared is not None and declared.num_samples == length:
                yield declared.paths_of


def _columns_of(value: Any) -> tuple[int, list[Entries]] | None:
    """Return how many entries a list or a table has, and its columns; None when it is none of those."""
    if _is(value, list):
        return list.__len__(value), [partial(list.__getitem__, value)]
    if _is(value, tuple):
        return tuple.__len__(value), [partial(tuple.__getitem__, value)]
    if _is(value, dict):
        count = dict.__len__(value)
        is_numbered = count > _MOST_FIELDS and dict.__contains__(value, 0) and dict.__contains__(value, count - 1)
        return (count, [partial(dict.__getitem__, value)]) if is_numbered else None
    if type(value) is np.ndarray:
        return (len(value), [value.__getitem__]) if value.ndim in (1, 2) and value.dtype.kind in "OSU" else None
    return columns_of_table(value)


def _few(value: Any) -> list[Any]:
    """Return what is in a short list or a dict that is no longer than one of columns; none of anything longer."""
    if _is(value, dict):
        return list(dict.values(value)) if dict.__len__(value) <= _MOST_ATTRIBUTES else []
    if _is(value, list) and list.__len__(value) <= _MOST_FIELDS:
        return list.__getitem__(value, slice(None))
    if _is(value, tuple) and tuple.__len__(value) <= _MOST_FIELDS:
        return list(tuple.__getitem__(value, slice(None)))
    return []


def _probes(length: int) -> list[int]:
    """Return which entries are looked at: the first, the last, and some between."""
    return sorted({0, min(1, length - 1), length // 3, length // 2, length - 1})


def _fields_of(some: Sequence[Any]) -> list[tuple[Callable[[Any, Any], Any], Any]]:
    """Return how to get the fields that entries have, and their names."""
    first = some[0]
    if all(_is(entry, dict) for entry in some):
        return [(dict.__getitem__, key) for key in islice(dict.keys(first), _MOST_FIELDS)]
    if all(_is(entry, (list, tuple)) for entry in some):
        sizes = {len(entry) for entry in some}
        get: Callable[[Any, Any], Any] = list.__getitem__ if _is(first, list) else tuple.__getitem__
        return [(get, place) for place in range(min(sizes))] if len(sizes) == 1 and max(sizes) <= _MOST_FIELDS else []
    if all(type(entry) is np.ndarray and entry.ndim == 1 for entry in some):
        return [(np.ndarray.__getitem__, place) for place in range(min(_MOST_FIELDS, *map(len, some)))]
    if any(_is_left_alone(entry) for entry in some):
        return []
    return [(_attribute, name) for name in islice(attributes_of(first), _MOST_FIELDS)]


def _is_absent(entry: Any) -> bool:
    return entry is None or (type(entry) is float and entry != entry)


# ---------------------------------------------------------------- indices


def _mappings(attributes: dict[str, Any], length: int) -> Iterator[_Mapping]:
    """Yield the attributes that may be indices of something else, one for each sample."""
    for name, value in attributes.items():
        at = _integers_of(value, length)
        some: tuple[int, ...] = ()
        with contextlib.suppress(Exception):  # no list of integers
            some = tuple(map(at, _probes(length))) if at is not None else ()
        if at is not None and some:
            yield _Mapping(at, some, any(word in name.lower() for word in _NAMES_OF_INDICES))


def _integers_of(value: Any, length: int) -> Callable[[int], int] | None:
    if _is(value, (list, tuple)):
        columns = _columns_of(value)
        if (
            columns is None
            or columns[0] != length
            or not all(_is(columns[1][0](i), (int, np.integer)) for i in _probes(length))
        ):
            return None
        return partial(_integer, columns[1][0])
    if (type(value) is np.ndarray or is_just_a(value, "Tensor")) and value.ndim == 1 and len(value) == length:
        is_integer = value.dtype.kind in "iu" if type(value) is np.ndarray else not value.is_floating_point()
        return partial(_integer, value.__getitem__) if is_integer and getattr(value, "is_cpu", True) else None
    return value.__getitem__ if type(value) is range and len(value) == length else None


def _integer(entries: Entries, index: int) -> int:
    return int(entries(index))


def _passed_on(inner: int, length: int, mappings: Sequence[_Mapping]) -> list[Callable[[int], int]]:
    """Return how samples probably become those of something that has another number of entries, or as many."""
    found = [mapping.at for mapping in mappings if mapping.is_named and mapping.is_below(inner)]
    if inner == length:
        found.append(_same)
    elif not found:
        found = [mapping.at for mapping in mappings if mapping.is_below(inner)]
    if not found and inner > _MOST_FIELDS and length % inner == 0:
        found.append(partial(_repeated, inner))
    return found


def _through(entries: Entries, num_entries: int, length: int, mappings: Sequence[_Mapping]) -> Iterator[Entries]:
    """Yield the entries of each sample, of a column of some length."""
    if num_entries <= 0:
        return
    for at in _passed_on(num_entries, length, mappings):
        yield entries if at is _same else partial(_entry_through, entries, at)


def _same(index: int) -> int:
    return index


def _repeated(length: int, index: int) -> int:
    return index % length


def _entry_through(entries: Entries, at: Callable[[int], int], index: int) -> Any:
    return entries(at(index))


def _files_through(column: Column, at: Callable[[int], int], length: int, index: int) -> Sequence[str]:
    inner = at(index) % length
    return column.files(inner - column.start) if column.start <= inner < column.stop else ()


# ---------------------------------------------------------------- files of a sample


def _field(entries: Entries, get: Callable[[Any, Any], Any], name: Any, index: int) -> Any:
    return get(entries(index), name)


def _one_file(entries: Entries, form: Callable[[str], str], index: int) -> Sequence[str]:
    text = text_of(entries(index))
    return (form(text),) if text else ()


def _all_files(entries: Entries, form: Callable[[str], str], index: int) -> Sequence[str]:
    return [form(text) for part in entries(index) if (text := text_of(part))]


def _files_at(files: Files, index: int) -> tuple[str, ...]:
    try:
        return tuple(files(index))
    except Exception:  # noqa: BLE001 - the list is the user's
        return ()
