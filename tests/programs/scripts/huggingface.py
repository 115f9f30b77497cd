"""Hugging Face ``datasets`` before torch's loader: ``python huggingface.py DATA OUT [--folder]``."""

import argparse
import os
from pathlib import Path
from typing import Any

import datasets
import torch
from seen import Seen
from torch.utils.data import DataLoader
from torchvision import transforms

prepare = transforms.Compose(
    [transforms.RandomResizedCrop(32), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
)


def transform(examples: dict[str, Any]) -> dict[str, Any]:
    examples["pixels"] = [prepare(image.convert("RGB")) for image in examples.pop("image")]
    return examples


def collate(examples: list[dict[str, Any]]) -> tuple[torch.Tensor, torch.Tensor]:
    pixels = torch.stack([example["pixels"] for example in examples])
    return pixels, torch.tensor([example["label"] for example in examples])


def table(root: str) -> Any:
    """Paths and labels, as people make them of a list of files."""
    paths = sorted(str(path) for path in Path(root).glob("*/*.jpg"))
    classes = sorted({os.path.basename(os.path.dirname(path)) for path in paths})
    labels = [classes.index(os.path.basename(os.path.dirname(path))) for path in paths]
    made = datasets.Dataset.from_dict({"image": paths, "label": labels})
    return made.cast_column("image", datasets.Image())


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("data")
parser.add_argument("out")
parser.add_argument(
    "--folder", action="store_true", help="load_dataset('imagefolder'), which writes a table of its own"
)
options = parser.parse_args()

torch.manual_seed(0)
seen = Seen(options.out)
if options.folder:
    cache = os.path.join(options.out, "cache")
    dataset = datasets.load_dataset("imagefolder", data_dir=options.data, split="train", cache_dir=cache)
else:
    dataset = table(options.data)
dataset.set_transform(transform)
loader = DataLoader(dataset, batch_size=8, shuffle=True, num_workers=2, collate_fn=collate)
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(2):
    for pixels, labels in loader:
        seen.batch(pixels, labels)
        loss = torch.nn.functional.cross_entropy(model(pixels), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.loss(loss)
seen.save(model.state_dict())
