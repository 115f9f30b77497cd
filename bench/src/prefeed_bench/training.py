"""One training of the demo: ResNet-18 on pictures from a slow server, in a process of its own.

Run as ``python -m prefeed_bench.training JOB``: writes one ``Step`` or ``EpochReport`` as JSON per line.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
import xxhash

from prefeed_bench.origin import RequestCounter

if TYPE_CHECKING:
    import torch
    import torch.utils.data

Report = Callable[["Event"], None]


class TrainingJob(msgspec.Struct, frozen=True, kw_only=True):
    """What is trained, and how.

    Attributes:
        prefeed: With ``prefeed.DataLoader``; else with torch's own.
        url: Server of the pictures.
        epochs: Epochs to train.
        batch_size: Pictures per batch.
        num_workers: Loader workers.
        crop_pixels: Side of the random crop that the network sees.
        seed: Seed of everything that is random.
    """

    prefeed: bool
    url: str
    epochs: int = 3
    batch_size: int = 64
    num_workers: int = 2
    crop_pixels: int = 64
    seed: int = 0


class Step(msgspec.Struct, frozen=True, kw_only=True, tag="step"):
    """One optimiser step is done.

    Attributes:
        epoch: Epoch, from 0.
        images: Pictures of this epoch so far.
        num_images: Pictures of a whole epoch.
        loss: Loss of this batch.
    """

    epoch: int
    images: int
    num_images: int
    loss: float


class EpochReport(msgspec.Struct, frozen=True, kw_only=True, tag="epoch"):
    """One epoch is done.

    Attributes:
        epoch: Epoch, from 0.
        images: Pictures seen.
        seconds: Whole epoch, start of the workers included.
        waiting_seconds: Part of it in which the training waited for a batch.
        origin_requests: Requests that the server answered during it.
        hit_ratio: Share of the reads that prefeed had ready; None without prefeed.
        losses: Loss of every step, exact.
        batch_digests: Hash of every batch: all pixels, all labels.
    """

    epoch: int
    images: int
    seconds: float
    waiting_seconds: float
    origin_requests: int
    hit_ratio: float | None
    losses: list[float]
    batch_digests: list[str]


Event = Step | EpochReport


def train(job: TrainingJob, report: Report) -> None:
    """Train in this process and report every step and epoch."""
    import torch  # the command line imports this module and must start without torch
    from torchvision.models import resnet18

    torch.manual_seed(job.seed)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)  # the same sums in the same order, and the other core is for the workers
    loader = _make_loader(job)
    model = resnet18(num_classes=10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    counter = RequestCounter(job.url)
    hits = _HitRatio() if job.prefeed else None
    requests = 0
    for epoch in range(job.epochs):
        done = _train_epoch(epoch, loader, model, optimizer, report)
        total = counter.count()
        ratio = hits.of_epoch() if hits is not None else None
        report(msgspec.structs.replace(done, origin_requests=total - requests, hit_ratio=ratio))
        requests = total


def _train_epoch(
    epoch: int,
    loader: torch.utils.data.DataLoader[Any],
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    report: Report,
) -> EpochReport:
    from torch.nn.functional import cross_entropy  # as above

    images, waiting, losses, digests = 0, 0.0, [], []
    num_images = len(loader.dataset)  # type: ignore[arg-type]  # torch types a data set without a length
    started = time.perf_counter()
    for pictures, labels, waited in _timed(loader):
        waiting += waited
        digests.append(_digest(pictures, labels))
        optimizer.zero_grad()
        loss = cross_entropy(model(pictures), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        images += len(labels)
        report(Step(epoch=epoch, images=images, num_images=num_images, loss=losses[-1]))
    return EpochReport(
        epoch=epoch,
        images=images,
        seconds=time.perf_counter() - started,
        waiting_seconds=waiting,
        origin_requests=0,
        hit_ratio=None,
        losses=losses,
        batch_digests=digests,
    )


def _timed(loader: torch.utils.data.DataLoader[Any]) -> Iterator[tuple[torch.Tensor, torch.Tensor, float]]:
    """Yield pictures, labels, and the seconds that the training waited for them."""
    started = time.perf_counter()
    for pictures, labels in loader:
        yield pictures, labels, time.perf_counter() - started
        started = time.perf_counter()


def _digest(pictures: torch.Tensor, labels: torch.Tensor) -> str:
    digest = xxhash.xxh3_64(pictures.numpy().tobytes())
    digest.update(labels.numpy().tobytes())
    return digest.hexdigest()


class _HitRatio:
    """Hit ratio of each epoch, from prefeed's counts since the server started."""

    def __init__(self) -> None:
        self._hits = self._reads = 0

    def of_epoch(self) -> float | None:
        """Return the hit ratio since the last call."""
        from prefeed.client.node import NodeClient  # the training without prefeed must not touch it
        from prefeed.config import resolve

        now = NodeClient.connect(resolve()).statistics()
        hits, reads = now.hits - self._hits, now.reads - self._reads
        self._hits, self._reads = now.hits, now.reads
        return hits / reads if reads else None


def _make_loader(job: TrainingJob) -> torch.utils.data.DataLoader[Any]:
    """Return the loader; between the two branches lies all that a user of prefeed changes."""
    from torchvision import transforms  # as above

    transform = transforms.Compose(
        [transforms.RandomResizedCrop(job.crop_pixels), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    )
    loader_class, dataset = _prefeed_parts(job, transform) if job.prefeed else _torch_parts(job, transform)
    loader: torch.utils.data.DataLoader[Any] = loader_class(
        dataset, batch_size=job.batch_size, shuffle=True, num_workers=job.num_workers
    )
    return loader


def _prefeed_parts(job: TrainingJob, transform: Callable[[Any], Any]) -> tuple[Any, Any]:
    from prefeed import DataLoader
    from prefeed.datasets import ImageFolder  # as above

    return DataLoader, ImageFolder(job.url, transform=transform)


def _torch_parts(job: TrainingJob, transform: Callable[[Any], Any]) -> tuple[Any, Any]:
    from torch.utils.data import DataLoader  # as above

    from prefeed_bench.plain import HttpObjects, PicturesOf

    return DataLoader, PicturesOf(HttpObjects(job.url), transform)


def main() -> None:
    """Entry point of the process."""
    job = msgspec.json.decode(sys.argv[1], type=TrainingJob)

    def report(event: Event) -> None:
        sys.stdout.write(msgspec.json.encode(event).decode() + "\n")
        sys.stdout.flush()

    with suppress(KeyboardInterrupt):
        train(job, report)


if __name__ == "__main__":
    main()
