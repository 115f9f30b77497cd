"""Pairs of pictures and masks, all masks looked at first by a pool of processes, as Pytorch-UNet does: ``python unet.py DATA OUT``."""

import sys
from functools import partial
from multiprocessing import Pool
from os import listdir
from os.path import isfile, join, splitext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from seen import Seen
from torch.utils.data import DataLoader, Dataset, random_split


def load_image(filename: Path) -> Any:
    return Image.open(filename)


def unique_mask_values(idx: str, mask_dir: Path, mask_suffix: str) -> Any:
    mask_file = next(iter(mask_dir.glob(idx + mask_suffix + ".*")))
    return np.unique(np.asarray(load_image(mask_file)))


class BasicDataset(Dataset[Any]):
    def __init__(self, images_dir: str, mask_dir: str, scale: float = 1.0, mask_suffix: str = "") -> None:
        self.images_dir = Path(images_dir)
        self.mask_dir = Path(mask_dir)
        self.scale = scale
        self.mask_suffix = mask_suffix
        self.ids = sorted(
            splitext(file)[0]
            for file in listdir(images_dir)
            if isfile(join(images_dir, file)) and not file.startswith(".")
        )
        with Pool(2) as pool:
            scan = partial(unique_mask_values, mask_dir=self.mask_dir, mask_suffix=self.mask_suffix)
            unique = list(pool.imap(scan, self.ids))
        self.mask_values = sorted(np.unique(np.concatenate(unique)).tolist())

    def __len__(self) -> int:
        return len(self.ids)

    def preprocess(self, picture: Any, *, is_mask: bool) -> Any:
        size = (int(picture.width * self.scale), int(picture.height * self.scale))
        picture = picture.resize(size, resample=Image.NEAREST if is_mask else Image.BICUBIC)
        array = np.asarray(picture)
        if is_mask:
            mask = np.zeros(array.shape, dtype=np.int64)
            for number, value in enumerate(self.mask_values):
                mask[array == value] = number
            return mask
        return array.transpose((2, 0, 1)) / 255.0

    def __getitem__(self, idx: int) -> dict[str, torch.Tensor]:
        name = self.ids[idx]
        mask_file = list(self.mask_dir.glob(name + self.mask_suffix + ".*"))
        img_file = list(self.images_dir.glob(name + ".*"))
        assert len(img_file) == 1, f"Either no image or multiple images found for the ID {name}: {img_file}"
        assert len(mask_file) == 1, f"Either no mask or multiple masks found for the ID {name}: {mask_file}"
        mask = load_image(mask_file[0])
        img = load_image(img_file[0])
        assert img.size == mask.size, f"Image and mask {name} should be the same size"
        return {
            "image": torch.as_tensor(self.preprocess(img, is_mask=False).copy()).float().contiguous(),
            "mask": torch.as_tensor(self.preprocess(mask, is_mask=True).copy()).long().contiguous(),
        }


class CarvanaDataset(BasicDataset):
    def __init__(self, images_dir: str, mask_dir: str, scale: float = 1) -> None:
        super().__init__(images_dir, mask_dir, scale, mask_suffix="_mask")


def main(data: str, out: str) -> None:
    torch.manual_seed(0)
    seen = Seen(out)
    dataset = CarvanaDataset(join(data, "imgs"), join(data, "masks"), 0.5)
    num_val = int(len(dataset) * 0.25)
    train_set, val_set = random_split(
        dataset, [len(dataset) - num_val, num_val], generator=torch.Generator().manual_seed(0)
    )
    loader_args: Any = {"batch_size": 2, "num_workers": 2, "pin_memory": False}
    train_loader: Any = DataLoader(train_set, shuffle=True, **loader_args)
    val_loader: Any = DataLoader(val_set, shuffle=False, drop_last=False, **loader_args)
    model = torch.nn.Conv2d(3, len(dataset.mask_values), 3, padding=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(2):
        model.train()
        for batch in train_loader:
            seen.batch(batch)
            loss = torch.nn.functional.cross_entropy(model(batch["image"]), batch["mask"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen.loss(loss)
        model.eval()
        with torch.inference_mode():
            for batch in val_loader:
                seen.batch(batch)
                seen.loss(torch.nn.functional.cross_entropy(model(batch["image"]), batch["mask"]))
    seen.save(model.state_dict())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
