"""Batches that went through a ring are those of torch: values, types, memory layout, errors."""

from __future__ import annotations

import collections
import pickle
import re
import types
from collections.abc import Callable, Iterator, Mapping
from multiprocessing import resource_sharer
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.utils.data._utils.collate as torchs
import torch.utils.data._utils.worker as torch_worker
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import default_collate
from torchvision import tv_tensors

from e2e.test_tensor_kinds import KINDS, RAISE
from prefeed.torch.collating import INLINE_BYTES, Collate, collate_of, collates_as_torch, copies_samples
from prefeed.torch.ring import Ring, ring_of
from prefeed.torch.slots import RingWriter

pytestmark = pytest.mark.usefixtures("sandbox")

BATCH = 5


class Point(NamedTuple):
    x: Any
    y: Any


class ReadOnly(Mapping[str, Any]):
    """A mapping that cannot be changed; made from another one."""

    def __init__(self, inner: Mapping[str, Any]) -> None:
        self.inner = dict(inner)

    def __getitem__(self, key: str) -> Any:
        return self.inner[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.inner)

    def __len__(self) -> int:
        return len(self.inner)


class Halves(collections.UserDict[str, Any]):
    """Keeps a part of what it is given."""

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value[: len(value) // 2])


@pytest.fixture
def number(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The number of a ring; the test is worker 0."""
    rings = [Ring(64 << 20, slots_a_tensor=6)]
    info = torch_worker.WorkerInfo(id=0, num_workers=1, seed=0, dataset=None)
    monkeypatch.setattr(torch_worker, "_worker_info", info)
    yield rings[0].name.number
    resource_sharer.stop()  # of tensors that go as torch sends them
    rings.pop().close()


def collate_into(number: int, **kwargs: Any) -> Collate:
    return Collate(default_collate, names=[ring_of(number).name], **kwargs)


def sent(collate: Collate, samples: Any) -> Any:
    """Return what the main process has of a batch."""
    return pickle.loads(ForkingPickler.dumps(collate(samples)))


def slots_in_use(collate: Collate) -> int:
    assert collate._writer is not None
    memory = collate._writer._memory
    return sum(not memory.is_free(slot) for slot in memory.slots())


def assert_alike(expected: Any, actual: Any) -> None:
    assert type(expected) is type(actual)
    if isinstance(expected, torch.Tensor):
        assert expected.dtype == actual.dtype
        assert expected.stride() == actual.stride()
        assert expected.untyped_storage().nbytes() == actual.untyped_storage().nbytes()
        assert expected.storage_offset() == actual.storage_offset()
        assert not actual.requires_grad
        assert not actual._is_view()
        assert torch.equal(expected, actual)
    elif isinstance(expected, Mapping):
        assert list(expected) == list(actual)
        for key in expected:
            assert_alike(expected[key], actual[key])
    elif isinstance(expected, list | tuple):
        assert len(expected) == len(actual)
        for one, other in zip(expected, actual, strict=True):
            assert_alike(one, other)
    else:
        assert expected == actual


def numbers(i: int, *shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(i).integers(0, 255, shape))


def large(i: int) -> torch.Tensor:
    return numbers(i, 3, 64, 64)


LARGE: dict[str, Callable[[int], Any]] = {
    "tensor": large,
    "array": lambda i: large(i).numpy(),
    "float": lambda i: large(i).float() / 3,
    "bfloat16": lambda i: large(i).bfloat16(),
    "complex": lambda i: torch.complex(large(i).float(), large(i + 1).float()),
    "bool": lambda i: numbers(i, 20_000) > 100,
    "bits": lambda i: numbers(i, 20_000).to(torch.uint8),
    "channels last": lambda i: numbers(i, 1, 3, 64, 64).contiguous(memory_format=torch.channels_last)[0],
    "transposed": lambda i: large(i).permute(2, 0, 1),
    "expanded": lambda i: torch.tensor([i]).expand(40_000),
    "sliced": lambda i: large(i)[:, ::2],
    "read only": lambda i: torch.from_numpy(large(i).numpy()),
    "image": lambda i: tv_tensors.Image(large(i)),
    "list": lambda i: [large(i), i],
    "tuple": lambda i: (large(i), (f"name {i}", large(i + 1).numpy()), 3.5),
    "named tuple": lambda i: Point(large(i), {"deep": large(-i % 7)}),
    "dict": lambda i: {"image": large(i), "label": i, "weight": 0.5 * i, "name": b"x" * i},
    "ordered": lambda i: collections.OrderedDict(b=large(i), a=numbers(i, 4)),
    "default": lambda i: collections.defaultdict(int, image=large(i)),
    "read only mapping": lambda i: ReadOnly({"image": large(i), "i": i}),
    "proxy": lambda i: types.MappingProxyType({"image": large(i)})["image"],
    "many": lambda i: [large(i + k) for k in range(4)],
}

SMALL: dict[str, Callable[[int], Any]] = {
    "int": lambda i: i,
    "float": lambda i: i / 3,
    "bool": lambda i: i % 2 == 0,
    "numpy scalar": lambda i: np.float32(i),
    "numpy bool": lambda i: np.bool_(i),
    "zero dimensions": lambda i: torch.tensor(i),
    "vector": lambda i: numbers(i, 7),
    "just small": lambda i: numbers(i, INLINE_BYTES // 8 // BATCH),
    "string": lambda i: f"name {i}",
    "strings": lambda i: [f"{i}", b"1"],
    "half": lambda i: numbers(i, 7).half(),
    "box": lambda i: tv_tensors.BoundingBoxes([[i, 0, 1, 1]], format="XYXY", canvas_size=(4, 4)),
}


@pytest.mark.parametrize("name", LARGE)
def test_large_batches(number: int, name: str) -> None:
    samples = [LARGE[name](i) for i in range(BATCH)]
    collate = collate_into(number)
    for _ in range(3):
        batch = sent(collate, samples)
        assert slots_in_use(collate) > 0
        assert_alike(default_collate(samples), batch)
    del batch
    assert slots_in_use(collate) == 0


@pytest.mark.parametrize("name", SMALL)
def test_small_batches(number: int, name: str) -> None:
    samples = [SMALL[name](i) for i in range(BATCH)]
    collate = collate_into(number)
    batch = sent(collate, samples)
    assert_alike(default_collate(samples), batch)
    assert slots_in_use(collate) == 0
    if isinstance(batch, torch.Tensor):
        batch += 1 if batch.dtype is not torch.bool else True


def test_an_empty_tensor(number: int) -> None:
    samples = [torch.empty(0, 3)] * BATCH
    assert_alike(default_collate(samples), sent(collate_into(number), samples))


def test_batches_of_one_sample(number: int) -> None:
    samples = [{"image": numbers(1, 40_000), "label": 1}]
    assert_alike(default_collate(samples), sent(collate_into(number), samples))


def test_no_slot_left(number: int) -> None:
    collate = collate_into(number)
    batches = [sent(collate, [large(i + k) for k in range(BATCH)]) for i in range(10)]
    assert slots_in_use(collate) == 6
    for i, batch in enumerate(batches):
        assert_alike(default_collate([large(i + k) for k in range(BATCH)]), batch)


def test_labels_that_are_kept_keep_no_slot(number: int) -> None:
    collate = collate_into(number)
    labels = [sent(collate, [(large(i), i) for i in range(BATCH)])[1] for _ in range(20)]
    assert slots_in_use(collate) == 0
    assert all(label.tolist() == list(range(BATCH)) for label in labels)


def test_a_mapping_that_makes_something_else_of_its_tensors(number: int) -> None:
    samples = [Halves(image=large(i)) for i in range(BATCH)]
    expected = default_collate([Halves(image=large(i)) for i in range(BATCH)])
    collate = collate_into(number)
    batch = sent(collate, samples)
    assert slots_in_use(collate) == 0, "the batch refers to no whole slot"
    assert type(batch) is Halves
    assert torch.equal(batch["image"], expected["image"])


def test_the_batch_may_be_changed(number: int) -> None:
    collate = collate_into(number)
    one, other = (sent(collate, [large(i) for i in range(BATCH)]) for _ in range(2))
    one.zero_()
    assert torch.equal(other, default_collate([large(i) for i in range(BATCH)]))
    other.resize_(2, 2)
    assert other.shape == (2, 2)
    with pytest.raises(RuntimeError, match="not resizable"):
        other.resize_(10_000_000)


# ---------------------------------------------------------------- errors

WRONG: dict[str, Callable[[int], Any]] = {
    "conjugated": lambda i: torch.complex(large(i).float(), large(i + 1).float()).conj(),
    "ragged": lambda i: numbers(i, 20_000 + i),
    "shrinking": lambda i: numbers(i, 30_000 - i),
    "ragged after a good one": lambda i: (large(i), numbers(i, 20_000 + i)),
    "other dimensions": lambda i: numbers(i, 10_000, *[2] * (i % 2)),
    "of another type": lambda i: large(i) if i else 3,
    "gradient": lambda i: large(i).float().requires_grad_(),
    "objects": lambda i: np.array([object()] * 10_000),
    "strings": lambda i: np.array(["a"] * 10_000),
    "nested": lambda i: torch.nested.nested_tensor([torch.zeros(10_000), torch.zeros(3)]),
    "sparse": lambda i: large(i).to_sparse(),
    "unknown": lambda i: (large(i), object()),
    "none": lambda i: (large(i), None),
    "unequal lists": lambda i: [large(i)] * (i + 1),
    "missing key": lambda i: {"image": large(i)} if i < 3 else {},
    "set": lambda i: {i},
    "no samples": lambda i: [],
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("name", WRONG)
def test_errors(number: int, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = [WRONG[name](i) for i in range(BATCH)]
    collate = collate_into(number)
    expected = outcome(default_collate, samples)
    assert outcome(collate, samples) == expected
    assert name == "no samples" or expected is not None
    assert slots_in_use(collate) == 0
    assert torch.equal(sent(collate, [large(1)]), large(1)[None])


def outcome(collate: Callable[[Any], Any], samples: Any) -> Any:
    try:
        collate(samples)
    except Exception as err:  # noqa: BLE001 - whatever it is, torch raises the same
        return type(err), str(err)
    return None


def test_mixed_dtypes_are_torchs_affair(number: int) -> None:
    samples = [large(0).float(), large(1).double(), large(2).float()]
    assert_alike(default_collate(samples), sent(collate_into(number), samples))


def test_what_cannot_be_sent_is_an_error_and_takes_nothing(number: int) -> None:
    class Local(dict[str, Any]):
        pass

    collate = collate_into(number)
    with pytest.raises((AttributeError, pickle.PicklingError), match="Local"):
        collate([Local(image=large(i)) for i in range(BATCH)])
    assert slots_in_use(collate) == 0


# ---------------------------------------------------------------- when it is used, and what comes after


def test_functions_that_the_user_registered_are_used(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Own:
        def __init__(self, i: int) -> None:
            self.tensor = large(i)

    def collate_own(batch: Any, *, collate_fn_map: Any = None) -> Any:
        return torchs.collate([own.tensor for own in batch], collate_fn_map=collate_fn_map)

    monkeypatch.setitem(torchs.default_collate_fn_map, Own, collate_own)
    collate = collate_into(number)
    batch = sent(collate, [Own(i) for i in range(BATCH)])
    assert slots_in_use(collate) == 1
    assert_alike(default_collate([large(i) for i in range(BATCH)]), batch)


def test_a_stack_function_of_the_user_is_used(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(torchs.default_collate_fn_map, torch.Tensor, lambda batch, *, collate_fn_map: sum(batch))
    assert torch.equal(collate_into(number)([large(1), large(2)]), large(1) + large(2))


def test_a_ring_that_is_gone_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    info = torch_worker.WorkerInfo(id=0, num_workers=1, seed=0, dataset=None)
    monkeypatch.setattr(torch_worker, "_worker_info", info)
    ring = Ring(1 << 20, slots_a_tensor=6)
    collate = Collate(default_collate, names=[ring.name])
    ring.close()
    batch = collate([large(i) for i in range(2)])
    assert torch.equal(batch, torch.stack([large(0), large(1)]))


def test_samples_are_let_go_after_the_batch_was_made(number: int) -> None:
    memory = np.full(40_000, 7, dtype=np.int64)
    calls: list[int] = []

    def let_go() -> None:
        memory[:] = 0
        calls.append(1)

    collate = collate_into(number, after=let_go)
    message = collate([memory])
    assert calls == [1]
    assert pickle.loads(ForkingPickler.dumps(message)).unique().tolist() == [7]
    with pytest.raises(TypeError):
        collate([object()])
    assert calls == [1, 1]


def test_samples_are_let_go_without_a_ring() -> None:
    calls: list[int] = []
    collate = Collate(default_collate, after=lambda: calls.append(1))
    assert collate([1, 2]).tolist() == [1, 2]
    assert calls == [1]


def test_only_torchs_own_function_is_replaced() -> None:
    dataset = [torch.zeros(3)] * 4
    for loader, own in (
        (TorchDataLoader(dataset), True),
        (TorchDataLoader(dataset, collate_fn=default_collate), True),
        (TorchDataLoader(dataset, batch_size=None), False),
        (TorchDataLoader(dataset, collate_fn=list), False),
        (TorchDataLoader(dataset, batch_size=None, collate_fn=default_collate), False),
    ):
        assert collates_as_torch(loader) == copies_samples(loader) == own
        assert collate_of(loader) is loader.collate_fn
        assert isinstance(collate_of(loader, after=lambda: None), Collate) == own


def test_a_function_of_the_user_may_not_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    loader: Any = TorchDataLoader([torch.zeros(3)] * 4)
    monkeypatch.setitem(torchs.default_collate_fn_map, set, lambda batch, *, collate_fn_map: batch)
    assert collates_as_torch(loader)
    assert not copies_samples(loader)


def test_it_can_be_pickled_for_spawned_workers(number: int) -> None:
    assert pickle.loads(pickle.dumps(collate_into(number)))._names == (ring_of(number).name,)


def test_the_workers_side_is_opened_once(number: int) -> None:
    collate = collate_into(number)
    sent(collate, [large(1)])
    writer = collate._writer
    assert isinstance(writer, RingWriter)
    sent(collate, [large(1)])
    assert collate._writer is writer


def test_the_heap_keeps_what_the_samples_of_large_batches_take(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[int] = []
    monkeypatch.setattr("prefeed.torch.collating.keep_freed", kept.append)
    collate = collate_into(number)
    sent(collate, [torch.zeros(10)] * BATCH)
    assert kept == []
    sent(collate, [torch.zeros(100_000)] * BATCH)
    assert kept == [2 * BATCH * 400_000]


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")  # torch's own, once per process
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("kind", [*RAISE])
def test_a_kind_of_tensor_that_torch_does_not_stack_raises_as_torch_does(number: int, kind: str) -> None:
    samples = [KINDS[kind](index) for index in range(3)]
    with pytest.raises(RuntimeError) as expected:
        default_collate(samples)
    with pytest.raises(RuntimeError, match=re.escape(str(expected.value))):
        collate_into(number)(samples)
