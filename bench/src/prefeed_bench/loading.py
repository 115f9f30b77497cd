"""One variant of a loading benchmark in a process of its own: a data set, a loader, some epochs without a model.

Run as ``python -m prefeed_bench.loading JOB``, where ``JOB`` is a ``LoadingJob`` as JSON; prints a
``LoadingOutcome`` as JSON. A process of its own starts without the caches, connections and random state of the
variant before it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
import xxhash

from prefeed_bench.errors import BenchFailedError
from prefeed_bench.origin import RequestCounter
from prefeed_bench.processes import main_of_child, run_child

if TYPE_CHECKING:
    import torch.utils.data

IMAGENET_MEAN: Final = (0.485, 0.456, 0.406)
IMAGENET_STD: Final = (0.229, 0.224, 0.225)

Sample = Literal["imagenet", "listed", "bytes"]
Loader = Literal["torch", "prefeed"]


class LoadingJob(msgspec.Struct, frozen=True, kw_only=True):
    """What one variant does.

    Attributes:
        loader: Whose ``DataLoader``.
        data: Directory, or URL of a plain HTTP server with an index file.
        sample: ``imagenet``: decode, resize 256, crop 224, normalise; ``listed``: pictures that a list names, decode,
            random crop 224 and flip, normalise; ``bytes``: the object as it is.
        epochs: Epochs to iterate.
        batch_size: Samples per batch.
        num_workers: Worker processes.
        persistent_workers: Keep workers between epochs.
        seed: Seed of torch's generator, which draws the orders.
        first_objects: Use only that many objects, 0 = all (torch's loader only).
        origin_url: Server whose requests are counted per epoch; empty = none.
        shuffle: Draw an order each epoch; else in the order of the files.
        torchvision: prefeed's loader over a data set without prefeed, such as torchvision's ``ImageFolder``.
        cached: That ``ImageFolder`` in a ``prefeed.CachedDataset``.
        in_memory: All objects are read before the first epoch and kept in a list (torch's loader, ``bytes`` only).
    """

    loader: Loader
    data: str
    sample: Sample = "imagenet"
    epochs: int = 1
    batch_size: int = 64
    num_workers: int = 2
    persistent_workers: bool = False
    seed: int = 0
    first_objects: int = 0
    origin_url: str = ""
    shuffle: bool = True
    torchvision: bool = False
    cached: bool = False
    in_memory: bool = False


class EpochOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """One epoch: from ``iter(loader)`` to its end.

    Attributes:
        samples: Samples seen.
        seconds: Whole epoch, start of the workers included.
        first_batch_seconds: Until the first batch was there.
        origin_requests: Requests that the server answered since the epoch before ended; -1 = not counted.
        digest: Hash of all batches up to the end of this epoch; see ``LoadingOutcome``.
    """

    samples: int
    seconds: float
    first_batch_seconds: float
    origin_requests: int
    digest: str = ""


class LoadingOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What one variant measured.

    Attributes:
        open_seconds: Time to make data set and loader: a listing, for example.
        epochs: The epochs in order.
        digest: Hash of labels and of a raster of every batch's pixels, in order: equal digests, equal batches.
        statistics: prefeed's own counts at the end; empty for torch's loader.
    """

    open_seconds: float
    epochs: list[EpochOutcome]
    digest: str
    statistics: dict[str, Any]


def run_loading(job: LoadingJob, *, env: Mapping[str, str] | None = None) -> LoadingOutcome:
    """Run one variant in a new process and return what it measured.

    Args:
        job: What to do.
        env: Set in the child's environment, over this process's own.

    Raises:
        BenchFailedError: The child failed; the end of what it wrote is in the message.
    """
    return run_child("prefeed_bench.loading", job, LoadingOutcome, name=f"the {job.loader} variant", env=env)


def check_same_batches(outcomes: Iterable[LoadingOutcome]) -> None:
    """Raise unless all variants saw the same batches in the same order in the epochs that they share.

    Raises:
        BenchFailedError: They did not.
    """
    for number, epochs in enumerate(zip_longest(*(outcome.epochs for outcome in outcomes)), start=1):
        digests = {epoch.digest for epoch in epochs if epoch is not None}
        if len(digests) != 1:
            raise BenchFailedError(
                f"the variants saw different batches in epoch {number}: digests {', '.join(sorted(digests))}"
            )


def measure(job: LoadingJob) -> LoadingOutcome:
    """Do the job in this process."""
    import torch  # bench modules are imported by the command line, which must start without torch

    torch.manual_seed(job.seed)
    started = time.perf_counter()
    loader = _make_loader(job)
    open_seconds = time.perf_counter() - started
    digest = xxhash.xxh3_64()
    counter = RequestCounter(job.origin_url) if job.origin_url else None
    epochs = []
    counted = 0
    for _ in range(job.epochs):
        samples, seconds, first = _iterate(loader, digest)
        total = counter.count() if counter is not None else 0
        requests = total - counted if counter is not None else -1
        counted = total
        outcome = EpochOutcome(
            samples=samples,
            seconds=seconds,
            first_batch_seconds=first,
            origin_requests=requests,
            digest=digest.hexdigest(),
        )
        epochs.append(outcome)
    return LoadingOutcome(
        open_seconds=open_seconds, epochs=epochs, digest=digest.hexdigest(), statistics=_statistics(job, loader.dataset)
    )


def _iterate(loader: Iterable[Any], digest: xxhash.xxh3_64) -> tuple[int, float, float]:
    """Return samples, seconds, and seconds to the first batch of one epoch."""
    samples = 0
    first = 0.0
    started = time.perf_counter()
    for batch in loader:
        if samples == 0:
            first = time.perf_counter() - started
        samples += _digest_batch(batch, digest)
    return samples, time.perf_counter() - started, first


def _digest_batch(batch: Any, digest: xxhash.xxh3_64) -> int:
    """Add one batch to the digest and return its number of samples."""
    if isinstance(batch, list) and isinstance(batch[0], bytes):
        for data in batch:
            digest.update(data[:64] + len(data).to_bytes(8, "little"))
        return len(batch)
    images, labels = batch
    # images: (batch, channels, height, width); every 32nd pixel tells pictures apart and costs nothing
    digest.update(images[:, :, ::32, ::32].contiguous().numpy().tobytes())
    digest.update(labels.numpy().tobytes())
    return len(labels)


def imagenet_transform() -> Callable[[Any], torch.Tensor]:
    """Return ResNet's usual preprocessing without randomness: resize 256, crop 224, to tensor, normalise."""
    from torchvision import transforms  # as torch above

    chain: Callable[[Any], torch.Tensor] = transforms.Compose(
        [
            transforms.Resize(256),
            transforms.CenterCrop(224),
            transforms.ToTensor(),
            transforms.Normalize(IMAGENET_MEAN, IMAGENET_STD),
        ]
    )
    return chain


def training_transform() -> Callable[[Any], torch.Tensor]:
    """Return ResNet's usual preprocessing in training: random crop 224 and flip, to tensor, normalise."""
    from torchvision import transforms  # as torch above

    chain: Callable[[Any], torch.Tensor] = transforms.Compose(
        [
            transforms.RandomResizedCrop(224),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(IMAGENET_MEAN, IMAGENET_STD),
        ]
    )
    return chain


def loader_class(loader: Loader) -> Any:
    """Return whose ``DataLoader``; torch's variants import nothing of ``prefeed.torch``."""
    if loader == "torch":
        import torch.utils.data  # as above

        return torch.utils.data.DataLoader
    from prefeed import DataLoader

    return DataLoader


def _make_loader(job: LoadingJob) -> torch.utils.data.DataLoader[Any]:
    loader: torch.utils.data.DataLoader[Any] = loader_class(job.loader)(
        _prefeed_dataset(job) if job.loader == "prefeed" else _torch_dataset(job),
        batch_size=job.batch_size,
        shuffle=job.shuffle,
        num_workers=job.num_workers,
        persistent_workers=job.persistent_workers and job.num_workers > 0,
    )
    return loader


def _torch_dataset(job: LoadingJob) -> Any:
    """Return the data set that somebody without prefeed would write."""
    from torchvision.datasets import ImageFolder

    from prefeed_bench.plain import FileObjects, HttpObjects, ListedPictures, PicturesOf

    if job.sample == "listed":
        return ListedPictures(job.data, training_transform())
    remote = "://" in job.data
    if job.sample == "imagenet" and not remote:
        return ImageFolder(job.data, transform=imagenet_transform())
    objects = HttpObjects(job.data, job.first_objects) if remote else FileObjects(job.data)
    if job.sample == "bytes":
        return [objects[index] for index in range(len(objects))] if job.in_memory else objects
    return PicturesOf(objects, imagenet_transform())


def _prefeed_dataset(job: LoadingJob) -> Any:
    """Return prefeed's data set, or torchvision's, cached or not."""
    import prefeed
    from prefeed.datasets import ImageFolder, ImageList, Objects  # as above

    if job.torchvision or job.cached:
        pictures = _torch_dataset(job)
        return prefeed.CachedDataset(pictures) if job.cached else pictures
    if job.sample == "bytes":
        return Objects(job.data, pattern="**/*.jpg")
    if job.sample == "listed":
        return ImageList(job.data, transform=training_transform())
    return ImageFolder(job.data, transform=imagenet_transform())


def _statistics(job: LoadingJob, dataset: Any) -> dict[str, Any]:
    if job.loader == "torch":
        return {}
    from prefeed.client.node import NodeClient  # torch's variant must not touch prefeed
    from prefeed.config import resolve

    with NodeClient.connect(resolve()) as client:
        found: dict[str, Any] = msgspec.to_builtins(client.statistics())
    if job.cached:
        found["cache"] = msgspec.to_builtins(dataset.get_stat())
    return found


if __name__ == "__main__":
    main_of_child(LoadingJob, measure)
