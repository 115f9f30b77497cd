"""A training script as users of a library write it, without a model: ``library.py DATA --library timm``.

Reads one epoch from two workers, and prints a line of JSON: images, seconds, and a checksum of every batch.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

WORKERS = 2


def timm_loader(root: str, batch_size: int) -> Iterable[Any]:
    """Return timm's training loader over a folder of classes."""
    from timm.data import create_dataset, create_loader

    loader: Iterable[Any] = create_loader(
        create_dataset("", root=root), input_size=(3, 224, 224), batch_size=batch_size, is_training=True,
        num_workers=WORKERS, use_prefetcher=False, device=torch.device("cpu"),
    )  # fmt: skip
    return loader


def huggingface_loader(root: str, batch_size: int) -> Iterable[Any]:
    """Return torch's loader over a table of paths, decoded and transformed when they are asked for."""
    import datasets

    prepare = transforms.Compose([transforms.Resize(256), transforms.CenterCrop(224), transforms.ToTensor()])
    paths = sorted(str(path) for path in Path(root).glob("*/*.jpg"))
    classes = sorted({Path(path).parent.name for path in paths})
    labels = [classes.index(Path(path).parent.name) for path in paths]
    table = datasets.Dataset.from_dict({"image": paths, "label": labels}).cast_column("image", datasets.Image())

    def transform(rows: dict[str, Any]) -> dict[str, Any]:
        rows["image"] = [prepare(image.convert("RGB")) for image in rows["image"]]
        return rows

    table.set_transform(transform)
    return DataLoader(table, batch_size=batch_size, shuffle=True, num_workers=WORKERS)


def monai_loader(root: str, batch_size: int) -> Iterable[Any]:
    """Return MONAI's loader over dicts of paths."""
    from monai.data import DataLoader as MonaiLoader
    from monai.data import Dataset as MonaiDataset
    from monai.transforms import Compose, EnsureChannelFirstd, LoadImaged, Resized, ScaleIntensityd

    prepare = Compose(
        [
            LoadImaged("image", reader="PILReader"),
            EnsureChannelFirstd("image"),
            ScaleIntensityd("image"),
            Resized("image", (224, 224)),
        ]
    )
    data = [{"image": str(path)} for path in sorted(Path(root).glob("*/*.jpg"))]
    loader: Iterable[Any] = MonaiLoader(
        MonaiDataset(data, prepare), batch_size=batch_size, shuffle=True, num_workers=WORKERS
    )
    return loader


class Pairs(Dataset[Any]):
    """Pictures in ``imgs`` and their masks in ``masks``, found by name when a sample is asked for, as in Pytorch-UNet."""

    def __init__(self, root: str) -> None:
        self.images_dir, self.mask_dir = Path(root, "imgs"), Path(root, "masks")
        self.ids = sorted(path.stem for path in self.images_dir.iterdir())

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        name = self.ids[index]
        image, mask = Image.open(self.images_dir / f"{name}.jpg"), Image.open(self.mask_dir / f"{name}_mask.png")
        size = (224, 224)
        pixels = np.asarray(image.resize(size, Image.Resampling.BICUBIC)).transpose(2, 0, 1) / 255.0
        values = np.asarray(mask.resize(size, Image.Resampling.NEAREST))
        return {"image": torch.from_numpy(pixels).float(), "mask": torch.from_numpy(values.copy()).long()}


def unet_loader(root: str, batch_size: int) -> Iterable[Any]:
    """Return torch's loader over pairs of pictures and masks."""
    return DataLoader(Pairs(root), batch_size=batch_size, shuffle=True, num_workers=WORKERS)


def fastai_loader(root: str, batch_size: int) -> Iterable[Any]:
    """Return the training loader of fastai's loaders over a folder of classes."""
    from fastai.vision.all import ImageDataLoaders, Resize, get_image_files, parent_label

    paths = sorted(get_image_files(root))  # which are in the order of each file system's own
    loaders = ImageDataLoaders.from_path_func(
        root, paths, parent_label, valid_pct=0.05, seed=0, item_tfms=Resize(224), bs=batch_size, num_workers=WORKERS
    )
    loader: Iterable[Any] = loaders.train
    return loader


LOADERS: dict[str, Callable[[str, int], Iterable[Any]]] = {
    "timm": timm_loader,
    "huggingface": huggingface_loader,
    "monai": monai_loader,
    "unet": unet_loader,
    "fastai": fastai_loader,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Read one epoch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("--library", choices=LOADERS, required=True)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--batches", type=int, default=0, help="end the epoch after this number of batches; 0 = all")
    options = parser.parse_args(arguments)

    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    loader = LOADERS[options.library](options.data, options.batch_size)
    sys.stdout.write(json.dumps(read_epoch(loader, options.batches)) + "\n")


def read_epoch(loader: Iterable[Any], max_batches: int) -> dict[str, Any]:
    """Return what was seen in one epoch, and how long it took from its start on."""
    checksums: list[int] = []
    num_images = 0
    started = time.perf_counter()
    for batch in loader:
        found = batch["image"] if isinstance(batch, dict) else batch[0]
        images = found.as_subclass(torch.Tensor)  # libraries have classes of their own
        # images: (batch, channels, height, width); every 32nd pixel tells pictures apart and costs nothing
        checksums.append(zlib.crc32(images[:, :, ::32, ::32].contiguous().numpy().tobytes()))
        num_images += len(images)
        if len(checksums) == max_batches:
            break
    return {"images": num_images, "seconds": time.perf_counter() - started, "checksums": checksums}


if __name__ == "__main__":
    main()
