"""Checkpoints of frameworks, taken in the middle of an epoch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from accelerate import Accelerator, skip_first_batches
from accelerate.state import AcceleratorState, GradientState, PartialState
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms.functional import pil_to_tensor

import prefeed
from e2e.images import make_image_folder
from e2e.steps import seed_all
from prefeed.torch import patch

LENGTH = 64
BATCH_SIZE = 4
SEEN = 5


class Data(torch.utils.data.Dataset[tuple[int, int]]):
    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, index * index


def make(loader_class: Any = prefeed.DataLoader, **kwargs: Any) -> Any:
    generator = torch.Generator().manual_seed(5)
    return loader_class(Data(), batch_size=BATCH_SIZE, shuffle=True, generator=generator, **kwargs)


class Module(lightning.LightningModule):
    """Remembers the batches of each epoch; stops after so many steps."""

    def __init__(self, stop_after: int | None = None) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen: list[tuple[int, list[int]]] = []
        self.stop_after = stop_after

    def training_step(self, batch: Any, index: int) -> Any:
        self.seen.append((self.current_epoch, batch[0].tolist()))
        return self.layer(torch.ones(1)).sum()

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if len(self.seen) == self.stop_after:
            raise KeyboardInterrupt

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(module: Module, loader: Any, root: Path, checkpoint: Path | None = None) -> lightning.Trainer:
    steps = lightning.pytorch.callbacks.ModelCheckpoint(root, every_n_train_steps=1, save_top_k=-1, filename="{step}")
    trainer = lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        callbacks=[steps],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, loader, ckpt_path=checkpoint)
    return trainer


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.filterwarnings("ignore")  # Lightning's advice: workers, loggers, its own use of torch
def test_lightning(tmp_path: Path, num_workers: int) -> None:
    whole = Module()
    fit(whole, make(num_workers=num_workers), tmp_path / "whole")
    assert len(whole.seen) == 3 * LENGTH // BATCH_SIZE

    stopped = LENGTH // BATCH_SIZE + SEEN
    resumed = Module()
    checkpoint = tmp_path / "whole" / f"step={stopped}.ckpt"
    fit(resumed, make(num_workers=num_workers), tmp_path / "resumed", checkpoint)
    assert resumed.seen == whole.seen[stopped:]


@pytest.fixture
def accelerator() -> Iterator[Accelerator]:
    accelerator = Accelerator(cpu=True)
    yield accelerator
    accelerator._custom_objects.clear()
    for state in (AcceleratorState, PartialState, GradientState):
        state._reset_state()


def test_accelerate_checkpoint(tmp_path: Path, accelerator: Accelerator) -> None:
    """It saves and restores the generators, and what was registered."""
    seed_all()
    loader = make()
    accelerator.register_for_checkpointing(loader)
    iterator = iter(loader)
    for _ in range(SEEN):
        next(iterator)
    accelerator.save_state(str(tmp_path / "state"))
    expected = [batch[0].tolist() for epoch in (iterator, loader) for batch in epoch]

    seed_all(99)
    other = make()
    accelerator._custom_objects.clear()
    accelerator.register_for_checkpointing(other)
    accelerator.load_state(str(tmp_path / "state"))
    assert [batch[0].tolist() for epoch in (other, other) for batch in epoch] == expected


def to_small(image: Any) -> torch.Tensor:
    return pil_to_tensor(image.convert("RGB").resize((8, 8)))


def test_accelerate_skips_what_was_seen(tmp_path: Path, accelerator: Accelerator) -> None:
    dataset = ImageFolder(make_image_folder(tmp_path / "data"), to_small)
    patch.enable()
    try:
        seed_all()
        loader = accelerator.prepare(DataLoader(dataset, batch_size=BATCH_SIZE, shuffle=True))
        loader.set_epoch(1)
        expected = [str(batch) for batch in loader][SEEN:]
        seed_all()
        loader = accelerator.prepare(DataLoader(dataset, batch_size=BATCH_SIZE, shuffle=True))
        loader.set_epoch(1)
        assert [str(batch) for batch in skip_first_batches(loader, SEEN)] == expected
    finally:
        patch.disable()


def observe(loader: Any, other: Any) -> list[Any]:
    """Return what a training sees that stops in the middle of an epoch and goes on with another loader."""
    seen: list[Any] = []
    iterator = iter(loader)
    seen += [next(iterator)[0].tolist() for _ in range(SEEN)]
    state = loader.state_dict()
    seen.append((state["_num_yielded"], state["_iterator_finished"]))
    other.load_state_dict(state)
    for _ in range(2):
        seen.append([batch[0].tolist() for batch in other])
        state = other.state_dict()
        seen.append((state["_num_yielded"], state["_iterator_finished"]))
    return seen


@pytest.mark.filterwarnings("ignore:.set_vital. is deprecated:UserWarning")  # torchdata calls it (2026)
def test_as_torchdatas() -> None:
    """What a loop sees of ours is what it sees of torchdata's, in the same order as far as both are torch's."""
    ours = observe(make(), make())
    shuffled = [index for batch in ours[:SEEN] + ours[SEEN + 1] for index in batch]
    assert sorted(shuffled) == list(range(LENGTH))

    def in_order(loader_class: Any) -> Any:
        return loader_class(Data(), batch_size=BATCH_SIZE)

    assert observe(in_order(prefeed.DataLoader), in_order(prefeed.DataLoader)) == observe(
        in_order(StatefulDataLoader), in_order(StatefulDataLoader)
    )
