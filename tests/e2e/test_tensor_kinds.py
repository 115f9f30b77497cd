"""Samples of every kind of tensor: batches, classes, flags and exceptions are torch's, however the batch is made."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import prefeed

SHAPE = (300, 100)
"""Large enough for recycled memory."""


ONCE = re.compile("Sparse invariant checks|is in beta state|is in prototype stage")
"""What torch warns of once in a process."""


class Own(torch.Tensor):
    """A subclass of the user's."""


def full(value: float, **kwargs: Any) -> torch.Tensor:
    return torch.full(SHAPE, value, **kwargs)


def named(value: int) -> torch.Tensor:
    tensor = full(float(value))
    vars(tensor)["mine"] = "name"
    return tensor


def jagged(value: int, layout: Any = torch.jagged) -> torch.Tensor:
    return torch.nested.nested_tensor([torch.full((2, 3), float(value)), torch.ones(4, 3)], layout=layout)


KINDS: dict[str, Callable[[int], torch.Tensor]] = {
    "coo": lambda i: torch.eye(4).mul(i + 1).to_sparse(),
    "csr": lambda i: torch.eye(4).mul(i + 1).to_sparse_csr(),
    "jagged": jagged,
    "nested": lambda i: jagged(i, torch.strided),
    "bfloat16": lambda i: full(float(i), dtype=torch.bfloat16),
    "float8": lambda i: full(float(i)).to(torch.float8_e4m3fn),
    "uint16": lambda i: full(i, dtype=torch.uint16),
    "complex": lambda i: full(complex(i, 1)),  # type: ignore[arg-type]
    "conjugated": lambda i: full(complex(i, 1)).conj(),  # type: ignore[arg-type]
    "negated": lambda i: full(complex(i, 1)).conj().imag,  # type: ignore[arg-type]
    "meta": lambda i: torch.empty(SHAPE, device="meta"),
    "no samples": lambda i: torch.empty(0, 5),
    "no bytes": lambda i: torch.empty(300, 0),
    "requires_grad": lambda i: full(float(i), requires_grad=True),
    "subclass": lambda i: full(float(i)).as_subclass(Own),
    "parameter": lambda i: torch.nn.Parameter(full(float(i))),
    "attribute": named,
    "transposed": lambda i: full(float(i)).t(),
    "expanded": lambda i: torch.full((1, 100), float(i)).expand(3000, 100),
    "shared": lambda i: full(float(i)).share_memory_(),
    "shapes": lambda i: torch.ones(3 + i % 2),
    "dtypes": lambda i: torch.ones(3, dtype=(torch.float32, torch.float64)[i % 2]),
    "layouts": lambda i: torch.eye(4) if i % 2 else torch.eye(4).to_sparse(),
}
RAISE = ("coo", "csr", "jagged", "nested", "conjugated", "negated", "requires_grad", "parameter", "shapes", "layouts")
"""Of these torch makes no batch in a worker, and says what to do."""


class OfKind(Dataset[torch.Tensor]):
    """Sample i is the i-th kind after the next, with the number of its batch."""

    def __init__(self, root: Path, kinds: list[str]) -> None:
        self.path, self.kinds = str(root / "file"), kinds

    def __len__(self) -> int:
        return 3 * len(self.kinds)

    def __getitem__(self, index: int) -> torch.Tensor:
        with open(self.path, "rb") as file:
            file.read()
        return KINDS[self.kinds[index // 3]](index)


def described(value: Any) -> Any:
    if isinstance(value, list):
        return [described(part) for part in value]
    facts = [type(value), value.dtype, value.layout, value.device, value.requires_grad, value.is_leaf]
    if value.layout is torch.strided and not value.is_nested:
        facts += [value.is_conj(), value.is_neg(), value.shape, value.stride()]
    plain = value.detach().as_subclass(torch.Tensor) if isinstance(value, Own) else value.detach()
    shown = repr(plain.to_dense() if plain.layout in (torch.sparse_coo, torch.sparse_csr) else plain)
    return [*facts, sorted(vars(value)), re.sub(r"j\d+", "j", shown)]


def seen_of(loader: Any) -> Any:
    """Return what a loop gets of a loader, and what it is warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            seen = [described(batch) for batch in loader]
        except RuntimeError as err:
            seen = [str(err).splitlines()[-1]]
    return seen, {str(warning.message) for warning in caught if not ONCE.search(str(warning.message))}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").write_bytes(b"some bytes")
    monkeypatch.setenv("PREFEED_ROOTS", str(tmp_path / "data"))
    jagged(0)  # imports for seconds, which each forked worker would do
    return tmp_path / "data"


def compare(root: Path, kinds: list[str], **kwargs: Any) -> Any:
    expected = seen_of(DataLoader(OfKind(root, kinds), batch_size=3, **kwargs))
    assert seen_of(prefeed.DataLoader(OfKind(root, kinds), batch_size=3, **kwargs)) == expected
    return expected[0]


@pytest.mark.parametrize(
    ("num_workers", "kwargs"),
    [
        (0, {}),
        (2, {"pin_memory": True}),
        pytest.param(2, {"multiprocessing_context": "spawn"}, marks=pytest.mark.whole),
    ],
    ids=["0", "forked, pinned", "spawned"],
)
def test_batches_are_torchs(root: Path, num_workers: int, kwargs: dict[str, Any]) -> None:
    kwargs = {"num_workers": num_workers, **kwargs}
    assert len(compare(root, [*KINDS], collate_fn=list, **kwargs)) == len(KINDS)
    stacked = [kind for kind in KINDS if kind not in RAISE]
    assert len(compare(root, stacked, **kwargs)) == len(stacked)


def test_exceptions_are_torchs(root: Path) -> None:
    for kind in RAISE:
        compare(root, [kind])
