"""Training with frameworks: ``frameworks OUT TRAININGS LENGTH``, one after the other.

``TRAININGS`` is JSON: a list of loader, framework, root, kind of the data, and number of workers. Loaders are ``torch``'s,
``ours``, torch's with prefeed.``auto``, or ``both``: ours with it. What auto has patched stays so.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Subset

from e2e.jobs import make_dataset, save
from e2e.steps import digest, seed_all

EPOCHS = 2
BATCH_SIZE = 4

MakeLoader = Callable[..., Any]


def accelerate(dataset: Dataset[Any], make_loader: MakeLoader, *, seedable: bool = False) -> Any:
    """Read the epochs through a loader that Accelerate has prepared."""
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    configuration = DataLoaderConfiguration(use_seedable_sampler=seedable)
    accelerator = Accelerator(cpu=True, dataloader_config=configuration)
    loader = accelerator.prepare(make_loader(dataset, batch_size=BATCH_SIZE, shuffle=True))
    seen = []
    for epoch in range(EPOCHS):
        loader.set_epoch(epoch)
        seen.append([type(loader).__name__, *map(digest, loader)])
    accelerator.end_training()
    return seen


def accelerate_seedable(dataset: Dataset[Any], make_loader: MakeLoader) -> Any:
    """Do the same with its own sampler, that is seeded by the epoch."""
    return accelerate(dataset, make_loader, seedable=True)


def lightning(dataset: Dataset[Any], make_loader: MakeLoader) -> Any:
    """Train with a ``Trainer``."""
    import lightning as framework

    class Module(framework.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.seen: list[list[str]] = [[] for _ in range(EPOCHS)]

        def train_dataloader(self) -> Any:
            return make_loader(dataset, batch_size=BATCH_SIZE, shuffle=True)

        def training_step(self, batch: Any, index: int) -> Any:
            self.seen[self.current_epoch].append(digest(batch))
            return self.layer(torch.ones(1)).sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    processes = int(os.environ.get("WORLD_SIZE", "1"))
    trainer = framework.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        devices=processes,
        strategy="ddp" if processes > 1 else "auto",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = Module()
    trainer.fit(module)
    return module.seen


def lightning_checked(dataset: Dataset[Any], make_loader: MakeLoader) -> Any:
    """Train after a sanity check, and leave epochs early: once with more batches to evaluate than it tries, once with as many."""
    import lightning as framework

    class Module(framework.LightningModule):
        def __init__(self, evaluated: Dataset[Any]) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.evaluated = evaluated

        def train_dataloader(self) -> Any:
            return make_loader(dataset, batch_size=BATCH_SIZE)

        def val_dataloader(self) -> Any:
            return make_loader(self.evaluated, batch_size=BATCH_SIZE)

        def training_step(self, batch: Any, index: int) -> Any:
            return self.layer(torch.ones(1)).sum()

        def validation_step(self, batch: Any, index: int) -> None:
            pass

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    for evaluated, limit in ((dataset, 3), (Subset(dataset, range(2 * BATCH_SIZE)), None)):
        trainer = framework.Trainer(
            max_epochs=EPOCHS,
            accelerator="cpu",
            limit_train_batches=limit,
            num_sanity_val_steps=2,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(Module(evaluated))
    return []


def torchdata(dataset: Dataset[Any], make_loader: MakeLoader) -> Any:
    """Break off, take the state, and go on with another loader."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    num_workers = make_loader(dataset).num_workers

    def make() -> Any:
        return StatefulDataLoader(dataset, batch_size=BATCH_SIZE, shuffle=True, num_workers=num_workers)

    loader, seen = make(), []
    iterator = iter(loader)
    seen.append([digest(next(iterator)) for _ in range(3)])
    state = loader.state_dict()
    seen.append([digest(state)])
    del iterator
    loader = make()
    loader.load_state_dict(state)
    seen += [[*map(digest, loader), digest(loader.state_dict())] for _ in range(EPOCHS)]
    return seen


FRAMEWORKS = {
    function.__name__: function
    for function in (accelerate, accelerate_seedable, lightning, lightning_checked, torchdata)
}


def main(out: str, trainings: str, length: str) -> None:
    """Run the frameworks and save what each gave."""
    seen = []
    for loader, framework, root, kind, num_workers in json.loads(trainings):
        loader_class: Any = DataLoader
        if loader in ("auto", "both"):
            import prefeed.auto
        if loader in ("ours", "both"):
            import prefeed

            loader_class = prefeed.DataLoader
        seed_all()
        dataset = make_dataset(root, kind, int(length))
        seen.append(FRAMEWORKS[framework](dataset, partial(loader_class, num_workers=num_workers)))
    save(out, seen)


if __name__ == "__main__":
    main(*sys.argv[1:])
