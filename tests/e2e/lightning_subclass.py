"""Trains with Lightning and a subclass of torch's loader that takes one more argument; each rank writes what it saw."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import lightning
import torch
from torch.utils.data import DataLoader, Dataset


class Files(Dataset[Any]):
    """Sample i is the number in the i-th file."""

    def __init__(self, root: str) -> None:
        self.paths = sorted(map(str, Path(root).iterdir()))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        with open(self.paths[index]) as file:
            return torch.tensor([float(file.read())])


class Loader(DataLoader[Any]):
    """Lightning makes such a loader again, with another sampler."""

    def __init__(self, dataset: Any, extra: str, *args: Any, **kwargs: Any) -> None:
        self.extra = extra
        super().__init__(dataset, *args, **kwargs)


class Module(lightning.LightningModule):
    """Notes the batches."""

    def __init__(self, out: Path) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.out, self.seen = out, list[Any]()

    def training_step(self, batch: Any, _: int) -> Any:
        self.seen.append(batch.flatten().tolist())
        return self.layer(batch).mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.0)

    def on_train_end(self) -> None:
        loader: Any = self.trainer.train_dataloader
        said = [type(loader).__name__, loader.extra, self.seen]
        self.out.with_suffix(f".{self.global_rank}").write_text(json.dumps(said))


if __name__ == "__main__":
    root, out, options = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    lightning.seed_everything(1)
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", **quiet, **options)
    trainer.fit(Module(out), Loader(Files(root), "mine", batch_size=2, shuffle=True, num_workers=2))
