"""Makes the pictures and the slow server, trains twice, and compares: the demo without its output."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from prefeed_bench.demo.training import EpochReport, Event, Step, TrainingJob
from prefeed_bench.harness import host_facts
from prefeed_bench.home import temporary_home
from prefeed_bench.origin import Origin, python_origin
from prefeed_bench.photos import PhotoFolder, PhotoRecipe, make_photos
from prefeed_bench.requirements import BenchFailedError

VARIANTS: Final = ("plain", "prefeed")
_SHOWN_CHARACTERS: Final = 4000
_STOP_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """What the demo does.

    Attributes:
        num_photos: Pictures to train on.
        epochs: Epochs of each training.
        latency_seconds: Time that the server adds to each request.
        crop_pixels: Side of the crop that the network sees; small, so that the demo ends soon without a GPU.
    """

    num_photos: int = 2400
    epochs: int = 3
    latency_seconds: float = 0.02
    crop_pixels: int = 32


class Watcher(Protocol):
    """Is told how far the demo is."""

    def photos(self, done: int, total: int) -> None:
        """So many pictures are written."""

    def training(self, variant: str, epochs: int) -> None:
        """This training begins."""

    def step(self, variant: str, step: Step) -> None:
        """One step of it is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """What the two trainings measured.

    Attributes:
        options: What was asked for.
        photos: What they trained on.
        epochs: Reports by variant, in order.
        same_batches: Both saw the same batches, bit by bit.
        same_losses: Both had the same loss at every step, exactly.
    """

    options: DemoOptions
    photos: PhotoFolder
    epochs: Mapping[str, Sequence[EpochReport]]
    same_batches: bool
    same_losses: bool

    def seconds(self, variant: str) -> float:
        """Return the time of all epochs of one training."""
        return sum(epoch.seconds for epoch in self.epochs[variant])

    @property
    def speedup(self) -> float:
        """How many times as long the plain training took."""
        return self.seconds("plain") / self.seconds("prefeed")

    def to_json(self) -> dict[str, Any]:
        """Return one object: the comparison, then every epoch without its long lists, then the host."""
        return {
            "images": self.photos.num_photos,
            "image_bytes": self.photos.total_bytes,
            "latency_seconds": self.options.latency_seconds,
            "speedup": round(self.speedup, 3),
            "same_batches": self.same_batches,
            "same_losses": self.same_losses,
            "epochs": {variant: [_epoch_object(e) for e in reports] for variant, reports in self.epochs.items()},
            "host": host_facts(),
        }


def _epoch_object(report: EpochReport) -> dict[str, Any]:
    return {
        "seconds": round(report.seconds, 3),
        "images_per_s": round(report.images / report.seconds, 1),
        "waiting_ratio": round(report.waiting_seconds / report.seconds, 4),
        "hit_ratio": None if report.hit_ratio is None else round(report.hit_ratio, 4),
        "origin_requests": report.origin_requests,
        "first_loss": report.losses[0],
        "last_loss": report.losses[-1],
    }


def run_demo(options: DemoOptions, watcher: Watcher) -> DemoResult:
    """Do everything: pictures, server, both trainings, comparison; nothing is left behind, whatever happens.

    Raises:
        MissingRequirementError: A package of the demo extra is not installed.
        BenchFailedError: A training failed, or the two did not see the same data.
    """
    with tempfile.TemporaryDirectory(prefix="prefeed-demo-") as scratch:
        recipe = PhotoRecipe(num_photos=options.num_photos)
        photos = make_photos(recipe, cache_dir=Path(scratch), progress=watcher.photos)
        env = {"TMPDIR": scratch}  # a training that is ended leaves the scratch files of torch and its workers
        with python_origin(photos.root, options.latency_seconds) as origin:
            epochs = {"plain": _train(options, origin, "plain", env, watcher)}
            with temporary_home(2 * photos.total_bytes) as home:
                epochs["prefeed"] = _train(options, origin, "prefeed", {**env, **home.env}, watcher)
    return compared(options, photos, epochs)


def compared(options: DemoOptions, photos: PhotoFolder, epochs: Mapping[str, Sequence[EpochReport]]) -> DemoResult:
    """Return the result of both trainings.

    Raises:
        BenchFailedError: They did not see the same batches, or did not reach the same losses.
    """
    plain, prefeed = epochs["plain"], epochs["prefeed"]
    result = DemoResult(
        options=options,
        photos=photos,
        epochs=epochs,
        same_batches=[e.batch_digests for e in plain] == [e.batch_digests for e in prefeed],
        same_losses=[e.losses for e in plain] == [e.losses for e in prefeed],
    )
    if not (result.same_batches and result.same_losses):
        raise BenchFailedError(
            "the two trainings differ, which prefeed promises never to cause: "
            f"same batches: {result.same_batches}, same losses: {result.same_losses}; please report this"
        )
    return result


def _train(
    options: DemoOptions, origin: Origin, variant: str, env: Mapping[str, str], watcher: Watcher
) -> list[EpochReport]:
    """Run one training in its own process and return its epochs."""
    watcher.training(variant, options.epochs)
    job = TrainingJob(
        prefeed=variant == "prefeed", url=origin.url, epochs=options.epochs, crop_pixels=options.crop_pixels
    )
    reports = []
    for event in _events(job, env):
        if isinstance(event, EpochReport):
            reports.append(event)
        else:
            watcher.step(variant, event)
    return reports


def _events(job: TrainingJob, env: Mapping[str, str]) -> Iterator[Event]:
    """Yield what the training process reports; it is ended when the caller stops listening."""
    command = [sys.executable, "-m", "prefeed_bench.demo.training", msgspec.json.encode(job).decode()]
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, env={**os.environ, **env}, start_new_session=True
        )
        with _ended(process):
            assert process.stdout is not None
            for line in process.stdout:
                yield msgspec.json.decode(line, type=Event)
            if process.wait() != 0:
                errors.seek(0)
                said = errors.read().decode(errors="replace")[-_SHOWN_CHARACTERS:]
                raise BenchFailedError(f"the training ended with status {process.returncode}:\n{said}")


@contextlib.contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """End the process and its loader workers at the end of the block, if it has not ended by itself."""
    try:
        yield
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if process.stdout is not None:
            process.stdout.close()
