"""A training job as people write it: pictures, a loader, and a device that is busy for a while with each batch.

The device is a wait, so that the processor is the loader's, as it is beside a real one. Each option is one thing that
engineers change by hand. Prints a line of JSON per epoch: images, seconds, seconds spent waiting for batches, and the same of the first batch.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, as it were."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batches", type=int, default=0, help="end each epoch after this number of batches; 0 = all")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--step-ms", type=float, default=50.0, help="milliseconds that the device is busy per batch")
    parser.add_argument("--train", action="store_true", help="random crops and flips")
    parser.add_argument("--background", action="store_true", help="ask the loader in another thread")
    parser.add_argument("--device", action="store_true", help="copy batches to the device ahead of the loop")
    parser.add_argument("--lean", action="store_true", help="prefeed.vision instead of torchvision's transforms")
    parser.add_argument("--cached", action="store_true", help="samples in a stage cache")
    options = parser.parse_args(arguments)

    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = make_loader(options)
    for _ in range(options.epochs):
        sys.stdout.write(json.dumps(run_epoch(loader, options)) + "\n")
        sys.stdout.flush()


def make_loader(options: argparse.Namespace) -> Iterable[Any]:
    """Return the loader, wrapped in what was asked for."""
    dataset: Any = make_dataset(options)
    if options.cached:
        from prefeed import CachedDataset

        dataset = CachedDataset(dataset)
    loader: Any = DataLoader(dataset, batch_size=options.batch_size, shuffle=True, num_workers=options.workers)
    if options.background and not options.device:
        return Background(loader)
    if options.device:
        from prefeed import DevicePrefetcher

        return DevicePrefetcher(Background(loader) if options.background else loader)
    return loader  # type: ignore[no-any-return]


class Background:
    """Each epoch of a loader, asked for in a thread."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        from prefeed import BackgroundGenerator

        return BackgroundGenerator(self.loader)


def make_dataset(options: argparse.Namespace) -> ImageFolder:
    """Return pictures as tensors."""
    if options.lean:
        from prefeed.vision import ResizeCropNormalize

        # Bytes, a quarter of what floats take on their way; a real device normalises them, in a fraction of its step.
        return ImageFolder(options.data, loader=ResizeCropNormalize(train=options.train, normalize=False))
    return ImageFolder(options.data, transform=usual_transform(is_training=options.train))


def usual_transform(*, is_training: bool) -> Callable[[Any], Any]:
    """Return what everybody does with pictures of ImageNet's kind."""
    sized: list[Any] = (
        [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip()]
        if is_training
        else [transforms.Resize(256), transforms.CenterCrop(224)]
    )
    chain: Callable[[Any], Any] = transforms.Compose([*sized, transforms.ToTensor(), transforms.Normalize(MEAN, STD)])
    return chain


def run_epoch(loader: Iterable[Any], options: argparse.Namespace) -> dict[str, Any]:
    """Return what an epoch took, from its start on."""
    num_images = first_images = 0
    waited = first_seconds = 0.0
    started = asked = time.perf_counter()
    for num_batches, (images, _) in enumerate(loader, 1):
        waited += time.perf_counter() - asked
        num_images += len(images)
        if num_batches == 1:
            first_images, first_seconds = num_images, time.perf_counter() - started
        time.sleep(options.step_ms / 1000)
        if num_batches == options.batches:
            break
        asked = time.perf_counter()
    return {
        "images": num_images,
        "seconds": time.perf_counter() - started,
        "waited_seconds": waited,
        "first_images": first_images,
        "first_seconds": first_seconds,
    }


if __name__ == "__main__":
    main()
