"""What a dataset of the user's declares, and what datasets made of datasets do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, StackDataset, Subset, TensorDataset, random_split
from torchvision import datasets

from prefeed.loaders.declared import Accessor, Declared, absolute, declared_paths, is_in_memory
from unit.torch import vision_files
from unit.torch.opened import Recorder, all_files
from unit.torch.tiny_files import folder
from unit.torch.vision_labels import image_folder


@pytest.mark.parametrize("dataset", [[1, 2], {}, None, torch.zeros(3), object()])
def test_nothing_is_known_of_others(dataset: Any) -> None:
    assert declared_paths(dataset) is None


# ---------------------------------------------------------------- train_data_list


class Listed(Dataset[Any]):
    def __init__(self, value: Any, length: int) -> None:
        self.value = value
        self.length = length

    def __len__(self) -> int:
        return self.length

    def train_data_list(self) -> Any:
        return self.value


IMAGES, TITLES = ["/d/0.jpg", "/d/1.jpg", "/d/2.jpg"], ["/d/0.txt", "/d/1.title", "/d/2.txt"]
PAIRS = [[image, title] for image, title in zip(IMAGES, TITLES, strict=True)]


@pytest.mark.parametrize(
    "value",
    [
        np.array(IMAGES),
        np.array(IMAGES, dtype=object),
        np.array(IMAGES).astype("S"),
        IMAGES,
        tuple(IMAGES),
        [Path(path) for path in IMAGES],
        list(np.array(IMAGES)),
        [IMAGES],
        np.array([IMAGES]),
    ],
    ids=["array", "objects", "bytes", "list", "tuple", "pathlib", "numpy strings", "one row", "2-D, one row"],
)
def test_one_list_is_one_file_a_sample(value: Any) -> None:
    declared = declared_paths(Listed(value, 3))
    assert declared is not None
    assert declared.paths == IMAGES
    assert declared.starts is None
    assert {type(path) for path in declared.paths} == {str}


@pytest.mark.parametrize(
    "value",
    [np.array([IMAGES, TITLES]), [IMAGES, TITLES], (np.array(IMAGES), np.array(TITLES)), [tuple(IMAGES), TITLES]],
    ids=["array", "lists", "arrays", "mixed"],
)
def test_parallel_lists_are_rows(value: Any) -> None:
    declared = declared_paths(Listed(value, 3))
    assert all_files(declared) == PAIRS
    assert declared is not None
    assert declared.starts is not None
    assert declared.starts.dtype == np.int64
    assert declared.starts.tolist() == [0, 2, 4, 6]


@pytest.mark.parametrize(
    "path",
    [
        "/d/a.jpg", "d/a.jpg", "./a", "/d//a", "//d/a", "/d/./a", "/d/../a", "/d/.a", "/d/a/", "/d/a/.", "/", "a\0b", "/a\0/b",
        "/d/..a", Path("/d/a"), np.str_("/d/a"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("place", [0, 1, 2])
def test_paths_that_are_looked_at_together_are_those_that_are_looked_at_alone(path: Any, place: int) -> None:
    listed: list[Any] = ["/d/x", "/d/y"]
    listed.insert(place, path)
    declared = declared_paths(Listed(listed, 3))
    assert declared is not None
    assert declared.paths == [absolute(one) for one in listed]
    assert {type(one) for one in declared.paths} == {str}


def test_an_empty_path_is_no_file() -> None:
    assert all_files(declared_paths(Listed([IMAGES, ["", "/d/1.txt", ""]], 3))) == [
        IMAGES[:1],
        ["/d/1.jpg", "/d/1.txt"],
        IMAGES[2:],
    ]
    assert all_files(declared_paths(Listed(["/a", ""], 2))) == [["/a"], []]


RIGHT = (
    "Listed.train_data_list() must return the paths of all samples as a numpy array of strings: shape (num_samples,), "
    "or (num_lists, num_samples) when a sample is made of several files; it returned {got}. "
    "For example: return np.array(self.images), or return np.array([self.images, self.titles])"
)


@pytest.mark.parametrize(
    ("value", "got"),
    [
        (None, "None of type NoneType"),
        (np.zeros(3), "an array of shape (3,) and dtype float64"),
        (np.array([[IMAGES]]), "an array of shape (1, 1, 3) and dtype <U8"),
        (np.array("/a"), "an array of shape () and dtype <U2"),
        ([1, 2, 3], "a list of length 3 that holds int"),
        ([IMAGES, TITLES[:2]], "a list of length 2 that holds list of lengths 2, 3"),
        (
            np.array(["/a", 7, "/b"], dtype=object),
            (
                "an array of shape (3,) and dtype object, with an entry that is no path "
                "(expected str, bytes or os.PathLike object, not int)"
            ),
        ),
        (np.array(IMAGES[:2]), "an array of shape (2,) and dtype <U8: 2 samples, but len(dataset) is 3"),
        (
            np.array(PAIRS),
            (
                "an array of shape (3, 2) and dtype <U10: 2 samples, but len(dataset) is 3, "
                "which is the other way round: transpose it"
            ),
        ),
    ],
)
def test_a_wrong_list_says_what_is_right(value: Any, got: str) -> None:
    with pytest.raises(ValueError, match=re.escape(RIGHT.format(got=got))):
        declared_paths(Listed(value, 3))


def test_a_list_that_is_no_method_is_not_asked() -> None:
    dataset = Listed(IMAGES, 3)
    dataset.train_data_list = IMAGES  # type: ignore[assignment, method-assign]
    assert declared_paths(dataset) is None


def test_a_wrapper_that_forwards_attributes_is_not_asked() -> None:
    class Repeat(Dataset[Any]):
        def __init__(self, dataset: Any) -> None:
            self.dataset = dataset

        def __len__(self) -> int:
            return 7

        def __getattr__(self, name: str) -> Any:
            return getattr(self.dataset, name)

    assert declared_paths(Repeat(Listed(IMAGES, 3))) is None


def test_a_stream_has_no_samples_to_declare() -> None:
    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            yield from ()

        def train_data_list(self) -> Any:
            return np.array(IMAGES)

    assert declared_paths(Stream()) is None


# ---------------------------------------------------------------- Accessor


class Pages(Dataset[Any]):
    def __init__(self, files: list[Any]) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def prefeed_paths(self, index: int) -> Any:
        answer = self.files[index]
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_an_accessor_is_asked_for_every_sample() -> None:
    dataset = Pages([["/a", Path("/b")], "/c", [], Path("/d/../e")])
    assert isinstance(dataset, Accessor)
    assert all_files(declared_paths(dataset)) == [["/a", "/b"], ["/c"], [], ["/e"]]


def test_an_accessor_of_one_file_a_sample_needs_no_starts() -> None:
    declared = declared_paths(Pages(["/a", ["/b"]]))
    assert declared == Declared(paths=["/a", "/b"], starts=None)


def test_an_error_of_a_list_names_the_method() -> None:
    class Listed(Pages):
        def train_data_list(self) -> list[str]:
            raise KeyError("lost")

    with pytest.raises(KeyError, match="lost") as caught:
        declared_paths(Listed([]))
    assert "Listed.train_data_list(), which prefeed called" in caught.value.__notes__[0]


def test_an_accessors_error_names_the_index() -> None:
    with pytest.raises(KeyError, match="lost") as caught:
        declared_paths(Pages(["/a", KeyError("lost")]))
    assert caught.value.__notes__ == ["raised by Pages.prefeed_paths(1), which prefeed called"]


@pytest.mark.parametrize("answer", [None, 3, [3], [["/a"]]])
def test_an_accessors_wrong_answer_names_the_index(answer: Any) -> None:
    expected = f"Pages.prefeed_paths(1) must return a path or a sequence of paths, not {answer!r}"
    with pytest.raises(ValueError, match=re.escape(expected)):
        declared_paths(Pages(["/a", answer]))


def test_the_users_word_comes_before_torchvisions(tmp_path: Path) -> None:
    class Own(datasets.ImageFolder):
        def prefeed_paths(self, index: int) -> str:
            return "/accessor"

    class Both(Own):
        def train_data_list(self) -> list[str]:
            return ["/list"] * len(self)

    root = folder(tmp_path)
    assert all_files(declared_paths(Own(root))) == [["/accessor"]] * 4
    assert all_files(declared_paths(Both(root))) == [["/list"]] * 4


# ---------------------------------------------------------------- datasets made of datasets


def numbered(prefix: str, count: int) -> Listed:
    return Listed([f"/{prefix}/{number}" for number in range(count)], count)


def test_both_parts_of_a_split_list_the_same_paths() -> None:
    base = numbered("a", 10)
    train, validation = random_split(base, [7, 3], generator=torch.Generator().manual_seed(1))
    declared = [declared_paths(part) for part in (train, validation)]
    for part, got in zip((train, validation), declared, strict=True):
        assert got is not None
        assert got.paths == base.value
        assert got.indices is not None
        assert got.indices.tolist() == list(part.indices)
        assert all_files(got) == [[f"/a/{index}"] for index in part.indices]


@pytest.mark.parametrize("indices", [[3, 1], (3, 1), range(3, 0, -2), np.array([3, 1]), torch.tensor([3, 1]), [-1, -3]])
def test_a_subset_names_samples(indices: Any) -> None:
    assert all_files(declared_paths(Subset(numbered("a", 4), indices))) == [["/a/3"], ["/a/1"]]


@pytest.mark.parametrize("indices", [[4], [-5], ["a"], [1.0], [[1]]])
def test_a_subset_that_cannot_be_read_is_not_known(indices: Any) -> None:
    assert declared_paths(Subset(numbered("a", 4), indices)) is None


def test_an_empty_subset_has_no_samples() -> None:
    assert all_files(declared_paths(Subset(numbered("a", 4), []))) == []


def test_subsets_of_subsets_index_twice() -> None:
    inner = Subset(numbered("a", 6), [5, 4, 3, 2])
    assert all_files(declared_paths(Subset(inner, [3, 0]))) == [["/a/2"], ["/a/5"]]


def test_parts_follow_each_other() -> None:
    whole = ConcatDataset([numbered("a", 2), Pages([["/x", "/y"], []]), numbered("b", 1)])
    assert all_files(declared_paths(whole)) == [["/a/0"], ["/a/1"], ["/x", "/y"], [], ["/b/0"]]


def test_parts_of_single_files_need_no_starts() -> None:
    declared = declared_paths(ConcatDataset([numbered("a", 2), numbered("b", 1)]))
    assert declared == Declared(paths=["/a/0", "/a/1", "/b/0"], starts=None)


def test_a_part_that_is_repeated_is_listed_once() -> None:
    a, b = numbered("a", 3), Pages([["/x", "/y"]])
    declared = declared_paths(ConcatDataset([a, Subset(a, [2]), b, a]))
    assert declared is not None
    assert declared.paths == ["/a/0", "/a/1", "/a/2", "/x", "/y"]
    assert all_files(declared) == [
        *[["/a/0"], ["/a/1"], ["/a/2"]],
        ["/a/2"],
        ["/x", "/y"],
        *[["/a/0"], ["/a/1"], ["/a/2"]],
    ]


def test_a_part_that_is_not_known_leaves_the_whole_unknown() -> None:
    assert declared_paths(ConcatDataset([numbered("a", 2), [1, 2]])) is None  # type: ignore[list-item]
    assert declared_paths(StackDataset(numbered("a", 2), [1, 2])) is None  # type: ignore[arg-type]


def test_a_part_in_memory_has_samples_without_files() -> None:
    tensors = TensorDataset(torch.zeros(2))
    assert all_files(declared_paths(ConcatDataset([tensors, numbered("a", 1)]))) == [[], [], ["/a/0"]]
    assert declared_paths(StackDataset(numbered("a", 2), tensors)) == Declared(paths=["/a/0", "/a/1"], starts=None)
    assert declared_paths(StackDataset(tensors)) is None


@pytest.mark.parametrize("keywords", [False, True])
def test_stacked_parts_are_opened_in_order(keywords: bool) -> None:
    parts = {"image": numbered("a", 2), "pages": Pages([["/x", "/y"], []]), "some": Subset(numbered("b", 5), [4, 2])}
    stack = StackDataset(**parts) if keywords else StackDataset(*parts.values())
    assert all_files(declared_paths(stack)) == [["/a/0", "/x", "/y", "/b/4"], ["/a/1", "/b/2"]]


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # VOCSegmentation leaves its mask open
def test_all_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = vision_files.voc_segmentation(tmp_path / "voc")
    images = image_folder(tmp_path)
    mixed = ConcatDataset([Subset(images, [3, 0]), images, StackDataset(Subset(images, [1, 2]), pairs)])
    dataset = Subset(mixed, [7, 6, 0, 1, 4])
    declared = declared_paths(dataset)
    recorder = Recorder(monkeypatch, tmp_path)
    assert all_files(declared) == [recorder.opened_by(dataset, index) for index in range(5)]


# ---------------------------------------------------------------- in memory


def test_compositions_of_what_is_in_memory() -> None:
    tensors, files = TensorDataset(torch.zeros(2)), numbered("a", 2)
    assert is_in_memory(ConcatDataset([tensors, Subset(tensors, [1])]))
    assert is_in_memory(StackDataset(a=tensors, b=tensors))
    assert not is_in_memory(ConcatDataset([tensors, files]))
    assert not is_in_memory(StackDataset(tensors, files))
    assert not is_in_memory(files)
    assert not is_in_memory(["/a"])


def test_a_getitem_of_ones_own_may_open_files() -> None:
    class Mine(datasets.MNIST):
        def __getitem__(self, index: int) -> Any:
            return open(str(index))

    class Tensors(TensorDataset):
        def __getitem__(self, index: int) -> Any:
            return open(str(index))

    assert not is_in_memory(Mine.__new__(Mine))
    assert not is_in_memory(Tensors(torch.zeros(1)))
