"""Trains ResNet-50 on the pictures that a list names, read from a sample set, an object store or a directory.

    python examples/resnet50.py sampleset://imagenet --epochs 2 --batch-size 96
    torchrun --nproc-per-node 2 examples/resnet50.py s3://bucket/imagenet --batch-size 96

The data set has Paddle's layout: train_list.txt with a line ``train/0001.jpg 17`` a picture, paths relative to the root. Of two
processes each trains on its half; on a node both read from one cache, so that a file is fetched once. Settings begin as
those of PaddleClas's ResNet50.yaml: SGD with momentum, learning rate 0.1 divided by ten after 30, 60 and 90 epochs.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler
from torchvision import models

import prefeed
from prefeed.vision import Normalize, ResizeCropNormalize


@dataclass(frozen=True)
class Place:
    """Which of the processes this is, and what it computes with."""

    rank: int
    world_size: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        """True for the process that prints and saves."""
        return self.rank == 0


def make_batches(args: argparse.Namespace, place: Place) -> tuple[Any, DistributedSampler[Any]]:
    """Return batches on the device, ready before they are asked for, and what orders them."""
    decode = ResizeCropNormalize(crop=args.image_size, train=True, normalize=False)
    dataset = prefeed.datasets.ImageList(args.data, args.list, loader=decode)
    lowest, highest = min(dataset.targets), max(dataset.targets)
    if lowest < 0:
        sys.exit(f"resnet50: {args.list} has labels below 0, such as {lowest}")
    if highest >= args.class_num:
        sys.exit(f"resnet50: {args.list} has labels up to {highest}: give --class-num {highest + 1} or more")
    sampler: DistributedSampler[Any] = DistributedSampler(
        dataset, num_replicas=place.world_size, rank=place.rank, shuffle=True, seed=args.seed
    )
    loader: prefeed.DataLoader[Any] = prefeed.DataLoader(
        dataset,
        batch_size=args.batch_size,
        sampler=sampler,
        num_workers=args.num_workers,
        persistent_workers=args.num_workers > 0,
        pin_memory=place.device.type == "cuda",
    )
    # Pictures travel as bytes, a quarter of what floats take, and become floats on the device.
    normalize = Normalize(channels_last=True)
    return prefeed.DevicePrefetcher(loader, place.device, normalize, resumable=True), sampler


class Training:
    """A network and what changes it; all of it can be saved, and gone on with in the middle of an epoch."""

    def __init__(self, args: argparse.Namespace, place: Place) -> None:
        torch.manual_seed(args.seed)
        network = models.get_model(args.arch, num_classes=args.class_num)
        self.network: nn.Module = network.to(place.device, memory_format=torch.channels_last)
        self.model = DistributedDataParallel(self.network) if place.world_size > 1 else self.network
        self.optimizer = torch.optim.SGD(
            self.network.parameters(), lr=args.lr, momentum=args.momentum, weight_decay=args.weight_decay
        )
        self.scheduler = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [30, 60, 90])
        self.uses_amp = args.amp and place.device.type == "cuda"
        self.scaler = torch.amp.GradScaler(enabled=self.uses_amp)

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Learn from one batch; return its loss."""
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(images.device.type, enabled=self.uses_amp):
            loss = nn.functional.cross_entropy(self.model(images), labels)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.detach()

    def parts(self) -> dict[str, Any]:
        """Return what is saved, by name."""
        parts = {"network": self.network, "optimizer": self.optimizer, "scheduler": self.scheduler}
        return {**parts, "scaler": self.scaler}


def save(path: Path, training: Training, place: Place, batches: Any, *, epoch: int, step: int) -> None:
    """Write a checkpoint: ``epoch`` is the one to go on in, of which ``step`` batches are done."""
    own = batches.state_dict() if step else None
    loaders = [own] * place.world_size
    if place.world_size > 1:
        dist.all_gather_object(loaders, own)  # each rank's loader is in a place of its own
    if place.is_first:
        state = {name: part.state_dict() for name, part in training.parts().items()}
        written = path.with_suffix(".new")
        torch.save({**state, "epoch": epoch, "step": step, "loaders": loaders}, written)
        written.replace(path)


def resume(path: Path, training: Training, place: Place, batches: Any) -> tuple[int, int]:
    """Go on from a checkpoint; return the epoch, and how many of its steps are done."""
    saved = torch.load(path, map_location=place.device, weights_only=True)
    for name, part in training.parts().items():
        part.load_state_dict(saved[name])
    loaders = saved["loaders"]
    if saved["step"] and len(loaders) != place.world_size:
        sys.exit(
            f"resnet50: {path} is of {len(loaders)} processes in the middle of an epoch, not of {place.world_size}"
        )
    if saved["step"]:
        batches.load_state_dict(loaders[place.rank])
    return saved["epoch"], saved["step"]


class Progress:
    """Counts an epoch's pictures and what the loop waited for them, and prints it."""

    def __init__(self, args: argparse.Namespace, place: Place, epoch: int) -> None:
        self.args = args
        self.place = place
        self.epoch = epoch
        self.images = 0
        self.steps = 0
        self.waited = 0.0
        self.loss = torch.zeros((), device=place.device)
        self.started = time.perf_counter()

    def timed(self, batches: Any) -> Iterator[Any]:
        """Give the batches, and add up how long each was waited for."""
        asked = time.perf_counter()
        for batch in batches:
            self.waited += time.perf_counter() - asked
            yield batch
            asked = time.perf_counter()
        self.waited += time.perf_counter() - asked

    def add(self, loss: torch.Tensor, num_images: int) -> None:
        """Count a step."""
        self.steps += 1
        self.images += num_images
        self.loss += loss  # on the device: to look at it now would be to wait for it
        if self.steps % self.args.print_batch_step == 0:
            self.show(f"epoch {self.epoch + 1}/{self.args.epochs}, step {self.steps}")

    def show(self, what: str) -> None:
        """Print where the training is; images/s are those of all processes."""
        if not self.place.is_first:
            return
        loss = float(self.loss) / max(self.steps, 1)  # waits for the device: the time below is that of all steps
        seconds = time.perf_counter() - self.started
        rate = self.images * self.place.world_size / seconds
        print(f"{what}: loss {loss:.4f}, {rate:.1f} images/s, waited {self.waited / seconds:.1%}", flush=True)


def train(args: argparse.Namespace, place: Place) -> None:
    """Train for some epochs."""
    checkpoint = Path(args.output_dir) / "checkpoint.pt"
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    batches, sampler = make_batches(args, place)
    training = Training(args, place)
    first, done = resume(Path(args.resume), training, place, batches) if args.resume else (0, 0)
    if place.is_first:
        on = f"{len(sampler.dataset)} images of {args.data}, {place.world_size} x {place.device.type}"  # type: ignore[arg-type]
        print(f"{args.arch}: {on}, from epoch {first + 1}, step {done}", flush=True)
    for epoch in range(first, args.epochs):
        sampler.set_epoch(epoch)
        progress = Progress(args, place, epoch)
        for images, labels in progress.timed(batches):
            progress.add(training.step(images, labels), len(images))
            done += 1
            if args.save_steps and done % args.save_steps == 0:
                save(checkpoint, training, place, batches, epoch=epoch, step=done)
            if done == args.steps:
                break
        training.scheduler.step()
        done = 0
        progress.show(f"epoch {epoch + 1}/{args.epochs}")
        save(checkpoint, training, place, batches, epoch=epoch + 1, step=0)


def parse_args() -> argparse.Namespace:
    """Return the options; names and values as in ResNet50.yaml where it has them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="sampleset://NAME, s3://BUCKET/PREFIX, another URL, or a directory")
    parser.add_argument("--list", default="train_list.txt", help="names the pictures and their labels, below the root")
    parser.add_argument("--arch", default="resnet50", help="a model of torchvision")
    parser.add_argument("--class-num", type=int, default=1000)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--epochs", type=int, default=120)
    parser.add_argument("--batch-size", type=int, default=64, help="of each process")
    parser.add_argument("--num-workers", type=int, default=4, help="of each process")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--weight-decay", type=float, default=1e-4)
    parser.add_argument("--amp", action=argparse.BooleanOptionalAction, default=True, help="half precision, on CUDA")
    parser.add_argument("--steps", type=int, default=0, help="end each epoch after so many; 0: all")
    parser.add_argument("--print-batch-step", type=int, default=10, help="print each so many steps")
    parser.add_argument("--output-dir", default="output", help="where checkpoint.pt is written after each epoch")
    parser.add_argument("--save-steps", type=int, default=0, help="and in the epoch, each so many steps; 0: not")
    parser.add_argument("--resume", default="", metavar="CHECKPOINT", help="go on from there")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.arch not in models.list_models(models):
        parser.error(f"--arch: torchvision has no {args.arch}")
    if args.resume and not Path(args.resume).is_file():
        parser.error(f"--resume: there is no {args.resume}")
    return args


def main() -> None:
    """Train in this process, or in as many as ``torchrun`` has started."""
    args = parse_args()
    local = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    is_distributed = "WORLD_SIZE" in os.environ
    if is_distributed:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    place = Place(dist.get_rank(), dist.get_world_size(), device) if is_distributed else Place(0, 1, device)
    try:
        train(args, place)
    except prefeed.errors.PrefeedError as err:
        sys.exit(f"resnet50: {err}")
    finally:
        if is_distributed:
            dist.destroy_process_group()


if __name__ == "__main__":
    main()
