"""MONAI over dicts of paths: ``python monai_dicts.py DATA OUT [KIND]``."""

import argparse
import os
from pathlib import Path
from typing import Any

import torch
from monai.data import CacheDataset, DataLoader, Dataset, PersistentDataset, ThreadDataLoader
from monai.transforms import Compose, EnsureChannelFirstd, LoadImaged, RandFlipd, Resized, ScaleIntensityd
from monai.utils import set_determinism
from seen import Seen

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("data")
parser.add_argument("out")
parser.add_argument("kind", nargs="?", default="dataset", choices=["dataset", "threads", "cache", "persistent"])
options = parser.parse_args()

set_determinism(0)
seen = Seen(options.out)
images = sorted(Path(options.data, "imgs").iterdir())
data = [{"image": str(path), "mask": str(Path(options.data, "masks", f"{path.stem}_mask.png"))} for path in images]
keys = ["image", "mask"]
transform = Compose(
    [
        LoadImaged(keys, reader="PILReader"),
        EnsureChannelFirstd(keys),
        ScaleIntensityd(keys),
        Resized(keys, (32, 32)),
        RandFlipd(keys, prob=0.5),
    ]
)
dataset: Any
if options.kind == "cache":
    dataset = CacheDataset(data, transform, num_workers=2, progress=False)
elif options.kind == "persistent":
    dataset = PersistentDataset(data, transform, cache_dir=os.path.join(options.out, "cache"))
else:
    dataset = Dataset(data, transform)
if options.kind == "threads":
    loader: Any = ThreadDataLoader(dataset, batch_size=4, shuffle=True, num_workers=2)
else:
    loader = DataLoader(dataset, batch_size=4, shuffle=True, num_workers=2)
model = torch.nn.Conv2d(3, 1, 3, padding=1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(2):
    for batch in loader:
        image, mask = batch["image"].as_tensor(), batch["mask"].as_tensor()
        seen.batch(image, mask)
        loss = torch.nn.functional.mse_loss(model(image), mask)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.loss(loss)
seen.save(model.state_dict())
