"""Trains from a directory whose files are slow to open; a stage cache right after reading keeps them in memory.

    python examples/train_from_network_storage.py --enable_cache True --cache_session_id $(cache_admin -g | awk 'END {print $NF}')

``run_train_nfs_cache.sh`` starts a server, makes a session, and runs this. Augmentation draws at random and therefore stays
above the cache. Without --dataset_path a few pictures are made up, and reading one waits as network storage would.
"""

from __future__ import annotations

import argparse
import ast
import io
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn
from torchvision import datasets, models, transforms

import prefeed

augment = transforms.Compose([
    transforms.RandomResizedCrop(224),
    transforms.RandomHorizontalFlip(),
    transforms.ToTensor(),
])  # fmt: skip


def read_bytes(path: str, *, open_seconds: float = 0.0) -> bytes:
    """Return a file's content, after the time that opening it would take on network storage."""
    time.sleep(open_seconds)
    with open(path, "rb") as file:
        return file.read()


def decode_and_augment(sample: tuple[bytes, int]) -> tuple[torch.Tensor, int]:
    """Make a training picture of a file's bytes, another one each time."""
    data, label = sample
    return augment(Image.open(io.BytesIO(data)).convert("RGB")), label


def create_dataset(
    dataset_path: str, *, open_seconds: float, enable_cache: bool = False, cache_session_id: str | None = None
) -> Any:
    """Return the pictures of a folder; what was read of them is kept when a cache is enabled."""
    read = partial(read_bytes, open_seconds=open_seconds)
    files: Any = datasets.DatasetFolder(dataset_path, read, datasets.folder.IMG_EXTENSIONS)
    if enable_cache:
        if not cache_session_id:
            raise ValueError("a cache session_id must be provided to use the cache: see `cache_admin -g`")
        files = prefeed.CachedDataset(files, prefeed.DatasetCache(session_id=int(cache_session_id), size=0))
    return prefeed.mapped(files, decode_and_augment)


def create_net(name: str, num_classes: int) -> nn.Module:
    """Return a network of torchvision's by name, or one that is small enough for a demonstration."""
    if name != "tiny":
        net: nn.Module = models.get_model(name, num_classes=num_classes)
        return net
    layers = [nn.Conv2d(3, 8, 7, stride=8), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(8 * 16, num_classes))


def train(args: argparse.Namespace, dataset_path: str, *, open_seconds: float = 0.0) -> None:
    """Train for some epochs, and print what each one takes."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(1)
    dataset = create_dataset(
        dataset_path, open_seconds=open_seconds, enable_cache=args.enable_cache, cache_session_id=args.cache_session_id
    )
    # torch's own loader, so that the cache alone is seen: prefeed.DataLoader would fetch the files ahead as well.
    loader: Any = torch.utils.data.DataLoader(
        dataset, batch_size=args.batch_size, shuffle=True, num_workers=args.num_workers
    )
    net = create_net(args.net, args.num_classes).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    for epoch in range(args.epoch_size):
        start = time.perf_counter()
        losses = []
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        milliseconds = 1000 * (time.perf_counter() - start)
        print(
            f"epoch: [{epoch:3}/{args.epoch_size:3}], step:[{len(losses):5}/{len(loader):5}], loss:[{losses[-1]:.3f}]"
        )
        print(
            f"epoch time: {milliseconds:.3f}, per step time: {milliseconds / len(losses):.3f}, "
            f"avg loss: {sum(losses) / len(losses):.3f}",
            flush=True,
        )
    if args.enable_cache:
        found = dataset.dataset.get_stat()
        print(
            f"cache: {found.num_mem_cached} rows of {found.avg_cache_sz} bytes, {found.hits} hits, {found.misses} misses"
        )


def make_pictures(scratch: Path, args: argparse.Namespace) -> None:
    """Write random pictures, in one folder per class."""
    for number in range(args.made_up):
        folder = scratch / f"class{number % args.num_classes}"
        folder.mkdir(exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 255, (300, 300, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:04}.jpg")


def parse_args() -> argparse.Namespace:
    """Return the options; names as in MindSpore's MobileNetV2."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", default="tiny", help="tiny, or a model of torchvision such as mobilenet_v2")
    parser.add_argument("--dataset_path", default="", help="folder of training pictures; empty: some are made up")
    parser.add_argument("--num_classes", type=int, default=2)
    parser.add_argument("--enable_cache", type=ast.literal_eval, default=False, help="keep the files in memory")
    parser.add_argument("--cache_session_id", default="", help="session of the cache")
    parser.add_argument("--epoch_size", type=int, default=3)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--num_workers", type=int, default=2)
    parser.add_argument("--made_up", type=int, default=64, help="pictures to make up, if no folder is given")
    parser.add_argument("--open_seconds", type=float, default=0.02, help="how long reading one of these waits first")
    return parser.parse_args()


def main() -> None:
    """Train on the folder given, or on pictures that are made up."""
    args = parse_args()
    if args.dataset_path:
        train(args, args.dataset_path)
        return
    with tempfile.TemporaryDirectory() as scratch:
        make_pictures(Path(scratch), args)
        train(args, scratch, open_seconds=args.open_seconds)


if __name__ == "__main__":
    main()
