"""A LightningModule with a training and a validation loader: ``python lightning_module.py DATA OUT``."""

import sys
import warnings
from typing import Any

import lightning
import torch
from seen import Seen
from torch.utils.data import DataLoader, random_split
from torchvision import transforms
from torchvision.datasets import ImageFolder


class Classifier(lightning.LightningModule):
    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self.seen = seen
        self.model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 10))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        images, labels = batch
        loss = torch.nn.functional.cross_entropy(self.model(images), labels)
        self.seen.batch(images, labels)
        self.seen.loss(loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        images, labels = batch
        self.seen.batch(images, labels)
        self.seen.loss(torch.nn.functional.cross_entropy(self.model(images), labels))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def main(data: str, out: str) -> None:
    warnings.simplefilter("ignore")
    lightning.seed_everything(0, verbose=False)
    seen = Seen(out)
    prepare = transforms.Compose([transforms.RandomResizedCrop(32), transforms.ToTensor()])
    dataset = ImageFolder(data, prepare)
    train_set, val_set = random_split(dataset, [0.75, 0.25], generator=torch.Generator().manual_seed(0))
    train_loader: Any = DataLoader(train_set, batch_size=8, shuffle=True, num_workers=2)
    val_loader: Any = DataLoader(val_set, batch_size=8, num_workers=2)
    module = Classifier(seen)
    trainer = lightning.Trainer(
        accelerator="cpu", max_epochs=2, default_root_dir=out, enable_progress_bar=False, enable_model_summary=False,
        logger=False,
    )  # fmt: skip
    trainer.fit(module, train_loader, val_loader)
    seen.save(module.state_dict())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
