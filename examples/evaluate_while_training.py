"""Trains with an evaluation after each epoch; the evaluation's preprocessing is kept in a stage cache.

    python examples/evaluate_while_training.py --enable_cache True --cache_session_id $(cache_admin -g | awk 'END {print $NF}')

``run_evaluate_while_training.sh`` starts a server, makes a session, and runs this. Without --dataset_path a few pictures
are made up, so that it runs anywhere in a few seconds.
"""

from __future__ import annotations

import argparse
import ast
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn
from torchvision import datasets, models, transforms

import prefeed

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def create_dataset(
    dataset_path: str, *, do_train: bool, enable_cache: bool = False, cache_session_id: str | None = None
) -> Any:
    """Return a folder of pictures as ResNet-50 is given them; the prepared pictures are kept when a cache is enabled."""
    if do_train:
        steps: list[Any] = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip()]
    else:
        steps = [transforms.Resize(256), transforms.CenterCrop(224)]
    to_tensor = transforms.Compose([*steps, transforms.ToTensor(), transforms.Normalize(MEAN, STD)])
    dataset = datasets.ImageFolder(dataset_path, to_tensor)
    if not enable_cache:
        return dataset
    if not cache_session_id:
        raise ValueError("a cache session_id must be provided to use the cache: see `cache_admin -g`")
    return prefeed.CachedDataset(dataset, prefeed.DatasetCache(session_id=int(cache_session_id), size=0))


def create_net(name: str, num_classes: int) -> nn.Module:
    """Return a network of torchvision's by name, or one that is small enough for a demonstration."""
    if name != "tiny":
        net: nn.Module = models.get_model(name, num_classes=num_classes)
        return net
    layers = [nn.Conv2d(3, 8, 7, stride=8), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(8 * 16, num_classes))


def train_epoch(net: nn.Module, loader: Any, optimizer: torch.optim.Optimizer, device: str) -> float:
    """Train on every batch; return the mean loss."""
    net.train()
    losses = []
    for images, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(images.to(device)), labels.to(device))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)


@torch.inference_mode()
def evaluate(net: nn.Module, loader: Any, device: str) -> float:
    """Return the share of pictures that are told right."""
    net.eval()
    right = [(net(images.to(device)).argmax(1).cpu() == labels) for images, labels in loader]
    return torch.cat(right).float().mean().item()


def make_pictures(root: Path, *, count: int, side: int = 400) -> str:
    """Write JPEGs of two classes, which differ in their colour."""
    for number in range(count):
        folder = root / ("red", "green")[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 200, (side, side, 3), dtype=np.uint8)
        pixels[..., number % 2] += 50
        Image.fromarray(pixels).save(folder / f"{number:04}.jpg")
    return str(root)


def parse_args() -> argparse.Namespace:
    """Return the options; names as in MindSpore's ResNet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", default="tiny", help="tiny, or a model of torchvision such as resnet50")
    parser.add_argument("--dataset_path", default="", help="folder of training pictures; empty: some are made up")
    parser.add_argument("--eval_dataset_path", default="", help="folder of pictures for evaluation")
    parser.add_argument("--run_eval", type=ast.literal_eval, default=True, help="evaluate while training")
    parser.add_argument("--eval_start_epoch", type=int, default=1, help="first epoch that is evaluated")
    parser.add_argument("--eval_interval", type=int, default=1, help="epochs from one evaluation to the next")
    parser.add_argument("--enable_cache", type=ast.literal_eval, default=False, help="keep prepared pictures in memory")
    parser.add_argument("--cache_session_id", default="", help="session of the cache")
    parser.add_argument("--epoch_size", type=int, default=3)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--num_workers", type=int, default=2)
    parser.add_argument(
        "--made_up", type=int, default=48, help="pictures to make up of each kind, if no folder is given"
    )
    return parser.parse_args()


def run(args: argparse.Namespace, train_path: str, eval_path: str) -> None:
    """Train, and evaluate after each epoch."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(1)
    train_set = create_dataset(train_path, do_train=True)
    eval_set = create_dataset(
        eval_path, do_train=False, enable_cache=args.enable_cache, cache_session_id=args.cache_session_id
    )
    settings = {
        "batch_size": args.batch_size,
        "num_workers": args.num_workers,
        "persistent_workers": args.num_workers > 0,
    }
    train_loader = prefeed.DataLoader(train_set, shuffle=True, **settings)
    eval_loader = prefeed.DataLoader(eval_set, **settings)
    net = create_net(args.net, len(train_set.classes)).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    for epoch in range(1, args.epoch_size + 1):
        start = time.perf_counter()
        loss = train_epoch(net, train_loader, optimizer, device)
        print(f"epoch: {epoch}, train_cost:{time.perf_counter() - start:.2f}, loss: {loss:.4f}", flush=True)
        if (
            args.run_eval
            and epoch >= args.eval_start_epoch
            and (epoch - args.eval_start_epoch) % args.eval_interval == 0
        ):
            start = time.perf_counter()
            accuracy = evaluate(net, eval_loader, device)
            print(f"epoch: {epoch}, acc: {accuracy}, eval_cost:{time.perf_counter() - start:.2f}", flush=True)
    if args.enable_cache:
        found = eval_set.get_stat()
        print(
            f"cache: {found.num_mem_cached} rows of {found.avg_cache_sz} bytes, {found.hits} hits, {found.misses} misses"
        )


def main() -> None:
    """Train on the folders given, or on pictures that are made up."""
    args = parse_args()
    if args.dataset_path:
        run(args, args.dataset_path, args.eval_dataset_path or args.dataset_path)
        return
    with tempfile.TemporaryDirectory() as scratch:
        train_path, eval_path = (make_pictures(Path(scratch, name), count=args.made_up) for name in ("train", "eval"))
        run(args, train_path, eval_path)


if __name__ == "__main__":
    main()
