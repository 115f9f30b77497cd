"""Columns of the tables that datasets keep: one table of readers, class name to columns, as in ``vision``.

No library is imported: who has one of its tables has imported it, and the names of the classes that a table descends from are
enough. Columns of numbers are left out; nothing is decoded, and no entry is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

Entries = Callable[[int], Any]
"""Entry of a row, by its index."""

Table = tuple[int, list[Entries]]

_MOST_COLUMNS: Final = 16


def columns_of_table(value: Any) -> Table | None:
    """Return how many rows a table has, and its columns that may hold texts; None when it is no table, or an unknown one."""
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
    columns = [frame.iloc[:, place] for place in range(min(_MOST_COLUMNS, frame.shape[1]))]
    return len(frame), [column.array.__getitem__ for column in columns if column.dtype.kind in "OU"]


def _series(series: Any) -> Table:
    return len(series), [series.array.__getitem__] if series.dtype.kind in "OU" else []


def _polars_frame(frame: Any) -> Table:
    columns = frame.get_columns()[:_MOST_COLUMNS]
    return frame.height, [entries for column in columns for entries in _polars_series(column)[1]]


def _polars_series(series: Any) -> Table:
    return len(series), [] if series.dtype.is_numeric() else [series.__getitem__]


# ---------------------------------------------------------------- Arrow, and Hugging Face's datasets


def _arrow_table(table: Any) -> Table:
    columns = [table.column(place) for place in range(min(_MOST_COLUMNS, table.num_columns))]
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
