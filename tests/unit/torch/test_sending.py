"""Bytes, text, arrays and tensors that went through a slot are those that pickle would have sent."""

from __future__ import annotations

import collections
import gc
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import resource_sharer
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.utils.data._utils.worker as torch_worker
from torch.utils.data import default_collate

from prefeed.torch import sending
from prefeed.torch.collating import Collate
from prefeed.torch.ring import Ring
from prefeed.torch.sending import INLINE_BYTES, find_parts

pytestmark = pytest.mark.usefixtures("sandbox")

LARGE = INLINE_BYTES + 1000
SOME = 5000


class Point(NamedTuple):
    x: Any
    y: Any


class Text(str):
    """A class of the user's."""


class Raw(bytes):
    """A class of the user's."""


class Rows(np.ndarray[Any, Any]):
    """A class of the user's."""


class Samples(list[Any]):
    """A class of the user's."""


@dataclass
class Sample:
    data: bytes
    label: int


class Worker:
    """The worker's side and the main process's, in one process."""

    def __init__(self, max_bytes: int = 64 << 20) -> None:
        self.ring = Ring(max_bytes, slots_a_tensor=6)
        self.collate = Collate(same, names=[self.ring.name])

    def sends(self, batch: Any) -> bool:
        """Return whether something of the batch goes into a slot."""
        return self.collate(batch) is not batch

    def send(self, batch: Any) -> Any:
        """Return what the main process has of a batch."""
        return pickle.loads(ForkingPickler.dumps(self.collate(batch)))

    def num_taken(self) -> int:
        assert self.collate._writer is not None
        memory = self.collate._writer._memory
        return sum(not memory.is_free(slot) for slot in memory.slots())

    def close(self) -> None:
        resource_sharer.stop()  # of tensors that go as torch sends them
        if self.collate._writer is not None:
            self.collate._writer.close()
        self.ring.close()
        del self.ring, self.collate  # pytest keeps the fixture


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    info = torch_worker.WorkerInfo(id=0, num_workers=1, seed=0, dataset=None)
    monkeypatch.setattr(torch_worker, "_worker_info", info)
    worker = Worker()
    yield worker
    worker.close()


def same(batch: Any) -> Any:
    return batch


def noise(number: int, num_bytes: int = LARGE) -> bytes:
    return np.random.default_rng(number).bytes(num_bytes)


def array(*shape: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return np.random.default_rng(3).integers(0, 200, shape).astype(dtype)


def recorded(n: int) -> np.ndarray[Any, Any]:
    rows = np.zeros(n, np.dtype([("a", "i2"), ("b", "f8"), ("c", "S3")], align=True))
    rows["a"], rows["b"], rows["c"] = range(n), np.arange(n) / 3, b"xy"
    return rows


def read_only(value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    value.flags.writeable = False
    return value


def recursive() -> list[Any]:
    batch: list[Any] = [noise(1)]
    batch.append(batch)
    return batch


IN_SLOT: dict[str, Callable[[], Any]] = {
    "bytes": lambda: [noise(i, 30_000) for i in range(4)],
    "bytes alone": lambda: noise(1),
    "bytearray": lambda: [bytearray(noise(1)), b"x"],
    "text": lambda: ["abc" * LARGE, "größer" * 9000, "\ud800 not valid" * SOME, "\U0001f600" * SOME],
    "array": lambda: [array(100, 300), array(7)],
    "no dimensions": lambda: [noise(1), np.array(3.5)],
    "columns first": lambda: np.asfortranarray(array(100, 300)),
    "transposed": lambda: array(3, 100, 100).transpose(2, 0, 1),
    "reversed": lambda: array(200, 300)[::-1, ::2],
    "broadcast": lambda: np.broadcast_to(array(300), (100, 300)),
    "read only": lambda: read_only(array(100, 300)),
    "times": lambda: array(20_000, dtype="datetime64[ms]"),
    "complex": lambda: array(20_000, dtype=np.complex64),
    "bool": lambda: array(90_000) > 100,
    "texts": lambda: np.array(["abc", "größer"] * 20_000),
    "byte texts": lambda: np.array([b"abc", b"d"] * 20_000),
    "records": lambda: recorded(9000),
    "dict": lambda: {"z": noise(1), "a": [array(20_000), {"deep": "t" * SOME}], 3: None},
    "named tuple": lambda: Point(noise(1), (array(5000), Point(1, 2))),
    "ordered": lambda: collections.OrderedDict([("b", noise(1)), ("a", noise(2))]),
    "default": lambda: collections.defaultdict(list, {"b": [noise(1)]}),
    "with numbers": lambda: [(noise(i, 30_000), i, i / 3, np.int16(i), None, f"{i}") for i in range(4)],
    "list of the user's": lambda: Samples([noise(1), noise(2)]),
    "beside an object": lambda: [noise(1), Sample(b"x" * SOME, 3), {1, 2}],
    "many": lambda: [noise(i, 2000) for i in range(100)],
}


AS_PICKLED: dict[str, Callable[[], Any]] = {
    "small": lambda: [noise(i, 1000) for i in range(60)],
    "empty": lambda: [b"", "", np.zeros((0, 5)), bytearray()],
    "bytes of the user's": lambda: [Raw(noise(1))],
    "text of the user's": lambda: [Text("x" * LARGE)],
    "array of the user's": lambda: array(100, 300).view(Rows),
    "masked": lambda: np.ma.masked_greater(array(100, 300), 100),
    "objects": lambda: np.array([1, "a", None] * 9000, dtype=object),
    "records with objects": lambda: np.array([(1, "a")] * 9000, dtype=[("a", "i4"), ("b", "O")]),
    "records with gaps": lambda: recorded(9000)[::2],
    "big endian": lambda: array(100, 300, dtype=">i4"),
    "variable text": lambda: np.array(["abc"] * 20_000, dtype=np.dtypes.StringDType()),
    "numbers": lambda: list(range(20_000)),
    "in an object": lambda: Sample(noise(1), 3),
}


def assert_alike(expected: Any, actual: Any) -> None:
    assert type(expected) is type(actual)
    if isinstance(expected, np.ndarray):
        assert (expected.dtype, expected.shape, expected.strides) == (actual.dtype, actual.shape, actual.strides)
        assert expected.dtype.metadata == actual.dtype.metadata
        assert actual.flags.writeable == expected.flags.writeable
        assert actual.flags.aligned
        assert pickle.dumps(expected) == pickle.dumps(actual)
    elif isinstance(expected, torch.Tensor):
        assert (expected.dtype, expected.shape, expected.stride()) == (actual.dtype, actual.shape, actual.stride())
        assert expected.storage_offset() == actual.storage_offset()
        assert expected.requires_grad == actual.requires_grad
        assert torch.equal(expected, actual)
    elif isinstance(expected, dict):
        assert list(expected) == list(actual)
        for key in expected:
            assert_alike(expected[key], actual[key])
    elif isinstance(expected, list | tuple):
        assert len(expected) == len(actual)
        for index in range(len(expected)):
            assert_alike(expected[index], actual[index])
    else:
        assert expected == actual


@pytest.mark.parametrize("name", IN_SLOT)
def test_large_objects_go_into_a_slot(worker: Worker, name: str) -> None:
    for _ in range(2):
        batch = IN_SLOT[name]()
        expected = pickle.loads(ForkingPickler.dumps(batch))
        message = ForkingPickler.dumps(worker.collate(batch))
        assert len(message) < INLINE_BYTES // 4
        received = pickle.loads(message)
        assert_alike(expected, received)
        del received
    assert worker.num_taken() == 0


@pytest.mark.parametrize("name", AS_PICKLED)
def test_all_else_is_left_to_pickle(worker: Worker, name: str) -> None:
    assert not worker.sends(AS_PICKLED[name]())


def test_a_batch_that_refers_to_itself(worker: Worker) -> None:
    received = worker.send(recursive())
    assert received[0] == noise(1)
    assert received[1] is received


def test_one_object_stays_one(worker: Worker) -> None:
    data, rows, changing = noise(1), array(20_000), bytearray(noise(2))
    received = worker.send({"a": [data, rows, changing], "b": (data, rows, changing), "c": noise(1)})
    for one, other in zip(received["a"], received["b"], strict=True):
        assert one is other
    assert received["c"] == data
    assert received["c"] is not received["a"][0]


def test_objects_inside_of_others_are_one_with_those_in_the_slot(worker: Worker) -> None:
    data = noise(1)
    received = worker.send([Sample(data, 3), data])
    assert received[0].data is received[1]


def test_the_look_at_a_batch_ends(worker: Worker) -> None:
    numbers = list(range(100_000))
    assert not worker.sends([numbers, [noise(1)]])
    assert worker.send([{"tokens": numbers, "data": noise(1)}])[0]["data"] == noise(1), "upper levels come first"
    parts = find_parts([torch.rand(LARGE), noise(1), numbers], has_tensors=True).parts
    assert [part.num_bytes for part in parts] == [LARGE], "not the tensor: another one may have its memory"


# ---------------------------------------------------------------- slots


def test_bytes_keep_no_slot(worker: Worker) -> None:
    received = [worker.send([noise(i), "t" * LARGE, bytearray(SOME)]) for i in range(30)]
    assert worker.num_taken() == 0
    assert [data for data, _, _ in received] == [noise(i) for i in range(30)]


def test_small_arrays_keep_no_slot(worker: Worker) -> None:
    kept = [worker.send([noise(i), array(300), torch.arange(3)])[1:] for i in range(30)]
    assert worker.num_taken() == 0
    assert all(labels.flags.owndata for labels, _ in kept)
    assert all(tensor.tolist() == [0, 1, 2] for _, tensor in kept)


def test_a_slot_is_kept_while_an_array_lies_over_it(worker: Worker) -> None:
    parts = [worker.send([np.full(LARGE, number, np.uint8), noise(number)])[0][100:200] for number in range(4)]
    worker.ring.begin()
    assert worker.num_taken() == 4
    for number in range(4, 40):
        assert worker.send([np.full(LARGE, number, np.uint8)])[0][-1] == number
    assert [set(part.tolist()) for part in parts] == [{0}, {1}, {2}, {3}]
    parts.clear()
    gc.collect()
    assert worker.num_taken() == 0


def test_a_slot_is_kept_while_a_tensor_lies_over_it(worker: Worker) -> None:
    kept = worker.send([torch.full((LARGE,), 7), noise(1)])[0].view(torch.int32)[::2].numpy()
    worker.ring.begin()
    assert worker.num_taken() == 1
    for number in range(20):
        worker.send([torch.full((LARGE,), number)])
    assert set(kept.tolist()) == {7}
    del kept
    assert worker.num_taken() == 0


def test_without_a_free_slot_it_is_pickled(worker: Worker) -> None:
    held = [worker.send([array(LARGE)]) for _ in range(6)]
    assert worker.num_taken() == 6
    assert not worker.sends([noise(1)])
    del held
    assert worker.sends([noise(1)])


def test_a_batch_that_no_slot_is_large_enough_for_is_pickled(monkeypatch: pytest.MonkeyPatch) -> None:
    info = torch_worker.WorkerInfo(id=0, num_workers=1, seed=0, dataset=None)
    monkeypatch.setattr(torch_worker, "_worker_info", info)
    small = Worker(max_bytes=1 << 20)
    assert not small.sends([noise(1, 2 << 20)])
    assert small.send([noise(1, 1 << 19)]) == [noise(1, 1 << 19)]
    small.close()


def test_batches_of_about_one_size_use_the_same_slots(worker: Worker) -> None:
    sizes = np.random.default_rng(1).integers(200_000, 210_000, 50).tolist()
    for size in sizes:
        assert len(worker.send([noise(1, size)])[0]) == size
    assert worker.collate._writer is not None
    assert len(worker.collate._writer._memory.slots()) == 1


def test_what_cannot_be_pickled_is_an_error_and_takes_no_slot(worker: Worker) -> None:
    with pytest.raises((AttributeError, pickle.PicklingError, TypeError)):
        worker.collate([noise(1), lambda: 3])
    assert worker.num_taken() == 0


def test_an_object_that_cannot_be_made_again_keeps_no_slot(worker: Worker) -> None:
    message = ForkingPickler.dumps(worker.collate([noise(1), Unmade()]))
    with pytest.raises(ZeroDivisionError):
        pickle.loads(message)
    assert worker.num_taken() == 0


class Unmade:
    def __reduce__(self) -> Any:
        return divmod, (1, 0)


def test_bytes_beside_stacked_tensors(worker: Worker) -> None:
    samples = [{"image": torch.full((100, 100), float(i)), "raw": noise(i), "i": i} for i in range(4)]
    collate = worker.collate
    collate._inner = default_collate
    message = ForkingPickler.dumps(collate(samples))
    assert len(message) < INLINE_BYTES
    received, expected = pickle.loads(message), default_collate(samples)
    assert_alike(expected, received)
    assert worker.num_taken() == 1, "of the tensor"


# ---------------------------------------------------------------- tensors


TENSORS: dict[str, Callable[[], Any]] = {
    "one": lambda: torch.rand(100, 300),
    "transposed": lambda: torch.rand(100, 300).t(),
    "channels last": lambda: torch.rand(1, 3, 100, 100).contiguous(memory_format=torch.channels_last),
    "half": lambda: torch.rand(100, 900).bfloat16(),
    "beside a label": lambda: (torch.rand(100, 300), torch.tensor(3)),
}

TENSORS_AS_TORCH: dict[str, Callable[[], Any]] = {
    "a view of a larger one": lambda: torch.rand(100, 300)[1:],
    "expanded": lambda: torch.rand(300).expand(100, 300),
    "of a parameter": lambda: torch.rand(100, 300, requires_grad=True),
    "shared": lambda: torch.rand(100, 300).share_memory_(),
    "a parameter": lambda: torch.nn.Parameter(torch.rand(100, 300)),
    "in an object": lambda: [torch.rand(100, 300), Sample(b"", 3)],
    "beside a sparse one": lambda: [torch.rand(100, 300), torch.eye(3).to_sparse()],
    "conjugated": lambda: torch.rand(100, 300, dtype=torch.complex64).conj(),
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_with_memory_of_their_own_go_into_a_slot(worker: Worker, name: str) -> None:
    batch = TENSORS[name]()
    received = worker.send(batch)
    assert worker.num_taken() == 1
    assert_alike(batch, received)


@pytest.mark.parametrize("name", TENSORS_AS_TORCH)
def test_all_other_tensors_are_left_to_torch(worker: Worker, name: str) -> None:
    assert not worker.sends([TENSORS_AS_TORCH[name]()])


def test_tensors_that_share_memory_continue_sharing_it(worker: Worker) -> None:
    whole = torch.rand(100, 300)
    assert not worker.sends([whole, whole.view(-1)])
    one, other, data = worker.send([whole, whole[1:], noise(1)])
    assert worker.num_taken() == 0
    one.fill_(3)
    assert other.unique().tolist() == [3]
    assert data == noise(1)


def test_a_part_that_is_repeated_as_often_as_fits_stays_that_part(worker: Worker) -> None:
    rows = torch.arange(4.0)
    data, repeated = worker.send([noise(1), rows[2].expand(4)])
    assert data == noise(1)
    assert repeated.tolist() == [2, 2, 2, 2]


def test_one_tensor_stays_one(worker: Worker) -> None:
    tensor = torch.rand(100, 300)
    one, other = worker.send([tensor, tensor])
    assert one is other


def test_only_tensors_are_pinned(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    receive = Ring.receive

    def noted(self: Ring, number: int, num_bytes: int, *, is_for_device: bool = True) -> Any:
        asked.append(is_for_device)
        return receive(self, number, num_bytes, is_for_device=is_for_device)

    monkeypatch.setattr(Ring, "receive", noted)
    worker.send([noise(1), array(LARGE)])
    worker.send([noise(1), torch.rand(3)])
    assert asked == [False, True]


def test_sizes_of_slots_have_a_quarter_to_spare_at_most() -> None:
    for size in (1, 7, 8, 9, LARGE, 5_512_345, (1 << 20) - 1, 1 << 20):
        assert size <= sending._rounded(size) <= size * 1.25 + 1
