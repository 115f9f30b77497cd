"""Where datasets keep the paths of their samples: what is found, what is left alone, and what is never run."""

from __future__ import annotations

import logging
import os
from collections import UserList
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, StackDataset, Subset

from prefeed.loaders.guesses import Column
from prefeed.loaders.searching import columns_of_table, find_columns

LENGTH = 30


class Holder(Dataset[Any]):
    """Has what it is given, and lets nobody run anything."""

    def __init__(self, length: int = LENGTH, **attributes: Any) -> None:
        self.__dict__.update(attributes, length=length)

    def __len__(self) -> int:
        return self.__dict__["length"]  # type: ignore[no-any-return]

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("a sample was made")

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was asked for")

    @property
    def files(self) -> list[str]:
        raise AssertionError("a property was run")


class Lazy:
    """Whatever is done with it is too much."""

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(f"{name} was touched")

    __len__ = __iter__ = __getitem__ = __eq__ = __bool__ = __hash__ = None  # type: ignore[assignment]


class Wrapper(Dataset[Any]):
    def __init__(self, inner: Any, **attributes: Any) -> None:
        self.inner = inner
        self.__dict__.update(attributes)

    def __len__(self) -> int:
        return len(self.__dict__.get("index_list", self.inner))


class Pair(NamedTuple):
    image: str
    label: int


@dataclass(slots=True)
class Slots:
    image: str
    label: int


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder, suffix in (("images", ".jpg"), ("masks", "_mask.png")):
        (tmp_path / folder).mkdir()
        for i in range(LENGTH):
            (tmp_path / folder / f"{i:03d}{suffix}").touch()
    return tmp_path


@pytest.fixture
def paths(root: Path) -> list[str]:
    return [f"{root}/images/{i:03d}.jpg" for i in range(LENGTH)]


@pytest.fixture
def search(root: Path) -> Callable[..., list[list[list[str]]]]:
    """Return what each column has for each sample."""

    def found(dataset: Any, length: int | None = None, **kwargs: Any) -> list[list[list[str]]]:
        length = len(dataset) if length is None else length
        columns = find_columns(dataset, length, covers=lambda path: path.startswith(f"{root}/"), **kwargs)
        return [[files_of(column, sample) for sample in range(length)] for column in columns]

    return found


def files_of(column: Column, sample: int) -> list[str]:
    return list(column.files(sample - column.start)) if column.start <= sample < column.stop else []


def one_each(paths: list[str]) -> list[list[str]]:
    return [[path] for path in paths]


# ---------------------------------------------------------------- what holds the paths


HOLDERS: dict[str, Callable[[list[str]], dict[str, Any]]] = {
    "list": lambda p: {"anything": p},
    "tuple": lambda p: {"anything": tuple(p)},
    "array": lambda p: {"anything": np.array(p)},
    "array of objects": lambda p: {"anything": np.array(p, dtype=object)},
    "array of bytes": lambda p: {"anything": np.array([x.encode() for x in p])},
    "columns of an array": lambda p: {"anything": np.array([[x, "cat"] for x in p])},
    "paths": lambda p: {"anything": list(map(Path, p))},
    "bytes": lambda p: {"anything": [x.encode() for x in p]},
    "tuples": lambda p: {"samples": [(x, i) for i, x in enumerate(p)]},
    "named tuples": lambda p: {"samples": [Pair(x, i) for i, x in enumerate(p)]},
    "slots": lambda p: {"samples": [Slots(x, i) for i, x in enumerate(p)]},
    "objects": lambda p: {"samples": [SimpleNamespace(image=x, meta={"a": 1}) for x in p]},
    "dicts": lambda p: {"data": [{"image": x, "label": "cat"} for x in p]},
    "dicts in dicts": lambda p: {"data": [{"image": {"path": x}} for x in p]},
    "dict of columns": lambda p: {"table": {"image": p, "label": list(range(LENGTH))}},
    "dict by number": lambda p: {"by_number": dict(enumerate(p))},
    "list of columns": lambda p: {"columns": [p, list(range(LENGTH))]},
    "of a held object": lambda p: {"reader": SimpleNamespace(samples=[(x, 0) for x in p], root="/nowhere")},
    "names": lambda p: {"img_dir": str(Path(p[0]).parent), "names": [Path(x).name for x in p]},
    "names below": lambda p: {"root": Path(p[0]).parents[1], "names": [Path(x).name for x in p]},
    "names beside a list": lambda p: {"list_file": f"{Path(p[0]).parent}/train.txt", "names": [Path(x).name for x in p]},
    "names and settings": lambda p: {
        "args": {"data": str(Path(p[0]).parents[1])}, "names": [f"images/{Path(x).name}" for x in p],
    },
    "names and parsed arguments": lambda p: {
        "args": SimpleNamespace(data=str(Path(p[0]).parents[1])), "names": [f"images/{Path(x).name}" for x in p],
    },
    "lines": lambda p: {"root": Path(p[0]).parents[1], "lines": [f"images/{Path(x).name} {i}\n" for i, x in enumerate(p)]},
    "whole lines": lambda p: {"lines": [f"{x} {i}" for i, x in enumerate(p)]},
}  # fmt: skip


@pytest.mark.parametrize("holder", HOLDERS)
def test_found(search: Any, paths: list[str], holder: str) -> None:
    assert search(Holder(lazy=Lazy(), **HOLDERS[holder](paths))) == [one_each(paths)]


def test_a_subclass_of_list_is_read_as_the_list_that_it_is(search: Any, paths: list[str]) -> None:
    class Loud(list):  # type: ignore[type-arg]
        def __getitem__(self, index: Any) -> Any:
            raise AssertionError("run")

        __len__ = __iter__ = __getitem__  # type: ignore[assignment]

    assert search(Holder(files_=Loud(paths))) == [one_each(paths)]


def test_nested_lists_are_files_of_one_sample(search: Any, paths: list[str]) -> None:
    data = [{"image": [path] * (1 + i % 2)} for i, path in enumerate(paths)]
    assert search(Holder(data=data)) == [[entry["image"] for entry in data]]


def test_names_are_joined_with_relative_directories(
    search: Any, root: Path, paths: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The working directory; and one of a word alone, where the attribute is called after what it is."""
    monkeypatch.chdir(root)
    names = [Path(path).name for path in paths]
    assert search(Holder(names=[f"images/{name}" for name in names])) == [one_each(paths)]

    def of(dataset: Any) -> list[Column]:
        return find_columns(dataset, LENGTH, covers=lambda path: path.startswith(f"{root}/images/"))

    (column,) = of(Holder(img_dir="images", names=names))
    assert [files_of(column, sample) for sample in range(LENGTH)] == one_each(paths)
    assert of(Holder(title="images", names=names)) == []


def test_stems_are_completed_in_each_directory(search: Any, root: Path, paths: list[str]) -> None:
    dataset = Holder(images_dir=root / "images", mask_dir=root / "masks", ids=[f"{i:03d}" for i in range(LENGTH)])
    masks = [f"{root}/masks/{i:03d}_mask.png" for i in range(LENGTH)]
    assert search(dataset) == [one_each(paths), one_each(masks)]


def test_the_same_names_in_two_directories(search: Any, root: Path, paths: list[str]) -> None:
    (root / "labels").mkdir()
    for path in paths:
        (root / "labels" / Path(path).name).touch()
    dataset = Holder(a_dir=root / "images", b_dir=root / "labels", names=[Path(path).name for path in paths])
    labels = [path.replace("images", "labels") for path in paths]
    assert search(dataset) == [one_each(paths), one_each(labels)]


def test_entries_without_a_file(search: Any, paths: list[str]) -> None:
    with_none: list[Any] = [*paths[:-1], None]
    with_none[5] = float("nan")
    assert search(Holder(files_=with_none)) == [[[path] if type(path) is str else [] for path in with_none]]


def test_no_path_is_found_where_there_is_none(search: Any, root: Path) -> None:
    elsewhere = [f"/nowhere/{i}.jpg" for i in range(LENGTH)]
    classes = ["cat", "dog"] * (LENGTH // 2)
    assert search(Holder(root=root, elsewhere=elsewhere, classes=classes, numbers=list(range(LENGTH)))) == []
    assert search(Holder(length=0, files_=[])) == []


# ---------------------------------------------------------------- datasets of datasets


def test_wrappers(search: Any, paths: list[str]) -> None:
    inner = Holder(files_=paths)
    chosen = list(range(LENGTH - 1, 3, -2))
    expected = [one_each([paths[i] for i in chosen])]
    assert search(Wrapper(Wrapper(inner))) == [one_each(paths)]
    assert search(Wrapper(Wrapper(inner), index_list=chosen)) == expected
    assert search(Wrapper(inner, index_list=np.array(chosen), targets=[1] * len(chosen))) == expected
    assert search(Wrapper(inner, index_list=torch.tensor(chosen))) == expected
    assert search(Subset(inner, chosen)) == expected
    assert search(Holder(length=len(chosen), files_=paths, index_list=chosen)) == expected
    assert search(Holder(length=3 * LENGTH, inner=inner, times=3)) == [one_each(paths * 3)]
    assert search(Holder(length=3 * LENGTH, files_=paths, times=3)) == [one_each(paths * 3)]


def test_concatenated(search: Any, root: Path, paths: list[str]) -> None:
    parts = ConcatDataset(
        [Holder(files_=paths), Holder(root=root, names=[f"images/{i:03d}.jpg" for i in range(LENGTH)])]
    )
    first, second = search(parts)
    assert first == one_each(paths) + [[]] * LENGTH
    assert second == [[]] * LENGTH + one_each(paths)
    found = search(Wrapper(parts, index_list=list(range(2 * LENGTH - 1, -1, -1))))
    passed_on = found[0], found[2]  # the others are of the same indices, not passed on
    assert [a + b for a, b in zip(*passed_on, strict=True)] == one_each((paths * 2)[::-1])


def test_stacked(search: Any, paths: list[str]) -> None:
    assert search(StackDataset(Holder(files_=paths), Holder(files_=paths[::-1]))) == [
        one_each(paths),
        one_each(paths[::-1]),
    ]


def test_cycles_end(search: Any, paths: list[str]) -> None:
    one, other = Wrapper(Holder(files_=paths)), Wrapper(None)
    other.inner, one.other = one, other  # type: ignore[attr-defined]
    one.itself = [one, {"again": one}]  # type: ignore[attr-defined]
    rows: list[Any] = []
    rows += [rows, *paths[1:]]
    assert search(Wrapper(one, rows=rows)) == [one_each(paths)]


# ---------------------------------------------------------------- bad input


def test_ten_million_paths_cost_what_ten_do(search: Any, root: Path, paths: list[str]) -> None:
    """Few entries are looked at; time is an argument, and no look costs any."""
    many = paths * 400_000
    reads: list[int] = []

    class Counted(np.ndarray):  # type: ignore[type-arg]
        pass

    def clock() -> float:
        reads.append(0)
        return 0.0

    columns = find_columns(Holder(length=len(many), files_=many), len(many), covers=lambda _: True, clock=clock)
    assert [list(column.files(len(many) - 1)) for column in columns] == [[paths[-1]]]
    assert len(reads) < 100


def test_few_objects_are_looked_into() -> None:
    """Of 40,000 that a dataset holds: with each one the time is looked at."""
    looks: list[int] = []

    def clock() -> float:
        looks.append(0)
        return 0.0

    wide = {str(i): SimpleNamespace(**{f"a{j}": SimpleNamespace() for j in range(200)}) for i in range(200)}
    assert find_columns(Holder(wide=wide), LENGTH, covers=lambda _: True, clock=clock) == []
    assert 1000 < len(looks) < 3000


def test_a_search_that_takes_too_long_is_given_up_with_a_line(
    search: Any, paths: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    times: Iterator[float] = iter([0.0, 0.1, 0.1, 0.1, *[5.0] * 1000])
    with caplog.at_level(logging.INFO, "prefeed"):
        found = search(Wrapper(Wrapper(Holder(files_=paths))), clock=lambda: next(times))
    assert found == []
    assert "Wrapper" in caplog.text
    assert "1 s" in caplog.text


def test_attributes_that_raise_or_have_no_end(search: Any, paths: list[str]) -> None:
    class Broken(Dataset[Any]):
        def __len__(self) -> int:
            raise RuntimeError("not yet")

    endless: Any = SimpleNamespace()
    last = endless
    for _ in range(3000):
        last.next = last = SimpleNamespace()
    wide = {str(i): SimpleNamespace(a=[SimpleNamespace()] * 3) for i in range(200)}
    dataset = Holder(
        broken=Broken(), endless=endless, wide=wide, users=UserList(paths), lazy=[Lazy()] * LENGTH, files_=paths
    )
    assert one_each(paths) in search(dataset)


def test_few_files_are_asked_for_and_few_directories_listed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each costs a round trip on the storage that this is for."""
    for number in range(40):
        (root / f"folder{number}").mkdir()
    asked: list[str] = []
    listed: list[str] = []
    stat, scandir = os.stat, os.scandir
    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", lambda path, **kwargs: asked.append(str(path)) or stat(path, **kwargs))
        patched.setattr(os, "scandir", lambda path: listed.append(str(path)) or scandir(path))
        names = {f"names{number}": [f"{number}_{i}.gone" for i in range(LENGTH)] for number in range(20)}
        directories = {f"dir{number}": str(root / f"folder{number}") for number in range(40)}
        find_columns(Holder(**names, **directories), LENGTH, covers=lambda path: path.startswith(f"{root}/"))
    assert 0 < len(asked) <= 64
    assert len(set(listed)) == len(listed) <= 40


# ---------------------------------------------------------------- tables


def table_class(library: str, name: str) -> type:
    return type(name, (SimpleNamespace,), {"__module__": f"{library}.core", "__len__": lambda self: self.rows})


def test_a_frame_is_read_by_its_columns_of_texts(search: Any, root: Path, paths: list[str]) -> None:
    def column(values: list[Any], kind: str) -> Any:
        return SimpleNamespace(array=values, dtype=SimpleNamespace(kind=kind))

    columns = [column([Path(path).name for path in paths], "O"), column(list(range(LENGTH)), "i")]

    class Places:
        def __getitem__(self, key: Any) -> Any:
            return columns[key[1]]

    frame = table_class("pandas", "DataFrame")(rows=LENGTH, shape=(LENGTH, 2), iloc=Places())
    assert search(Holder(frame=frame, img_dir=root / "images")) == [one_each(paths)]


class Cells(list[Any]):
    """A column of Arrow's, of a type that is told by its name."""

    def __init__(self, values: list[Any], kind: Any = "string") -> None:
        super().__init__(SimpleNamespace(as_py=partial(_itself, value)) for value in values)
        self.type, self.null_count = kind, values.count(None)


def _itself(value: Any) -> Any:
    return value


class Files(Cells):
    """A column of what ``Image`` and ``Audio`` features keep: bytes and a path, either of which may be missing."""

    def __init__(self, paths: list[Any], data: list[Any]) -> None:
        names = [SimpleNamespace(name=name) for name in ("bytes", "path")]
        kind = type(
            "Struct", (), {"field": lambda _, place: names[place], "__str__": lambda _: "struct<bytes: binary>"}
        )
        super().__init__(paths, kind())
        self.fields = [Cells(data, "binary"), Cells(paths)]

    def flatten(self) -> list[Cells]:
        return self.fields


def arrow_table(*columns: Cells) -> Any:
    return table_class("pyarrow", "Table")(
        num_rows=len(columns[0]), num_columns=len(columns), column=columns.__getitem__, rows=len(columns[0])
    )


@pytest.mark.parametrize("chosen", [None, list(range(LENGTH))[::-1], [7, 3, 3, 29]])
def test_a_dataset_of_hugging_face_is_read_through_its_indices(
    search: Any, paths: list[str], chosen: list[int] | None
) -> None:
    """Shuffled or selected, it has rows of its own, and the table below keeps its order."""
    table = arrow_table(Cells(list(range(LENGTH)), "int64"), Files(paths, [None] * LENGTH), Cells(["cat"] * LENGTH))
    indices = None if chosen is None else SimpleNamespace(table=arrow_table(Cells(chosen, "uint64")))
    rows = range(LENGTH) if chosen is None else chosen
    dataset = table_class("datasets", "Dataset")(_data=SimpleNamespace(table=table), _indices=indices, rows=len(rows))
    expected = [one_each([paths[row] for row in rows])]
    assert search(dataset) == expected
    assert search(Wrapper(dataset)) == expected


def test_files_whose_bytes_are_in_the_table_are_not_opened(search: Any, paths: list[str]) -> None:
    with_bytes = arrow_table(Files(paths, [b"data", *[None] * (LENGTH - 1)]))
    dataset = table_class("datasets", "Dataset")(_data=SimpleNamespace(table=with_bytes), _indices=None, rows=LENGTH)
    assert search(dataset) == []
    assert search(arrow_table(Files(paths, [None] * LENGTH))) == [one_each(paths)]


def test_a_table_of_another_version_is_none() -> None:
    assert columns_of_table(table_class("pandas", "DataFrame")()) is None
    assert columns_of_table(table_class("datasets", "Dataset")()) is None
    assert columns_of_table([]) is None
