"""``prefeed demo``: the same training twice, from slow storage, without and with prefeed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from prefeed.cli import render
from prefeed.cli.options import json_option
from prefeed_bench import demo_page
from prefeed_bench.errors import BenchFailedError
from prefeed_bench.harness import host_facts
from prefeed_bench.home import temporary_home
from prefeed_bench.origin import Origin, python_origin
from prefeed_bench.photos import PhotoFolder, PhotoRecipe, make_photos
from prefeed_bench.processes import command_of, failed, terminated_like_interrupted
from prefeed_bench.training import EpochReport, Event, Step, TrainingJob

_LOADERS: Final = {"plain": "torch", "prefeed": "prefeed"}
"""Variant to whose loader it has."""

_STOP_SECONDS: Final = 5.0
_COMPUTING: Final = "#3b6ea5"
_WAITING: Final = "#e08a3c"


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


# ---------------------------------------------------------------- the command

_DEFAULTS = DemoOptions()


@click.command(name="demo")
@click.option("--images", type=click.IntRange(min=200), default=_DEFAULTS.num_photos, show_default=True,
              help="Pictures to train on.")  # fmt: skip
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), default=Path("demo-output"),
              show_default=True, help="Directory for chart and figures.")  # fmt: skip
@click.option("--html", "as_html", is_flag=True,
              help="Also write a page of its own, and the chart as SVG for both color schemes.")  # fmt: skip
@json_option
def command(images: int, output: Path, as_html: bool, as_json: bool) -> None:
    """Train on a slow object store, with and without prefeed.

    Makes JPEGs from real photographs, serves them over HTTP with 20 ms added to each request, and trains ResNet-18
    on them for three epochs: once with torch's DataLoader, once with prefeed's. Both must see the same batches and
    reach the same losses. Takes two to four minutes on two cores, needs no network, and cleans up after itself.
    """
    console = Console(stderr=as_json)
    with terminated_like_interrupted(), _Bars(console) as bars:
        result = run_demo(DemoOptions(num_photos=images), bars)
    chart = _write(result, output)
    pages = write_pages(result.to_json(), output) if as_html else []
    if as_json:
        render.print_json({**result.to_json(), "chart": str(chart), **({"page": str(pages[0])} if pages else {})})
        return
    console.print(make_table(result))
    console.print(make_summary(result), style="bold")
    console.print(f"Chart: {chart}", highlight=False, soft_wrap=True)
    for page in pages[:1]:
        console.print(f"Page: {page}", highlight=False, soft_wrap=True)


def write_pages(facts: Mapping[str, Any], output: Path) -> list[Path]:
    """Write the page and its picture for each color scheme; return the files, the page first."""
    texts = {"prefeed-demo.html": demo_page.page(facts)}
    for scheme, colors in demo_page.SCHEMES.items():
        texts[f"prefeed-demo-{scheme}.svg"] = demo_page.chart(facts, colors)
    for name, text in texts.items():
        (output / name).write_text(text, encoding="utf-8")
    return [output / name for name in texts]


def _write(result: DemoResult, output: Path) -> Path:
    output.mkdir(parents=True, exist_ok=True)
    chart = output / "prefeed-demo.png"
    write_chart(result, chart)
    (output / "prefeed-demo.json").write_text(json.dumps(result.to_json(), indent=1) + "\n")
    return chart


class _Bars:
    """Progress bars: one for the pictures, one a training."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
        )
        self._tasks: dict[str, TaskID] = {}
        self._epochs = 0

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._progress.stop()

    def _task(self, name: str, description: str, total: int | None) -> TaskID:
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(description, total=total, note="")
        return self._tasks[name]

    def photos(self, done: int, total: int) -> None:
        """Show how many pictures are written."""
        self._progress.update(self._task("photos", "making JPEGs", total), completed=done)

    def training(self, variant: str, epochs: int) -> None:
        """Show that a training begins."""
        self._epochs = epochs
        self._task(variant, f"training, {variant}", None)

    def step(self, variant: str, step: Step) -> None:
        """Show how far a training is."""
        done = step.epoch * step.num_images + step.images
        note = f"epoch {step.epoch + 1} of {self._epochs}, loss {step.loss:.2f}"
        task = self._tasks[variant]
        self._progress.update(task, completed=done, total=self._epochs * step.num_images, note=note)


# ---------------------------------------------------------------- two trainings, compared


def run_demo(options: DemoOptions, bars: _Bars) -> DemoResult:
    """Do everything: pictures, server, both trainings, comparison; nothing is left behind, whatever happens.

    Raises:
        MissingRequirementError: scikit-image does not ship the photographs.
        BenchFailedError: A training failed, or the two did not see the same data.
    """
    with tempfile.TemporaryDirectory(prefix="prefeed-demo-") as scratch:
        recipe = PhotoRecipe(num_photos=options.num_photos)
        photos = make_photos(recipe, cache_dir=Path(scratch), progress=bars.photos)
        env = {"TMPDIR": scratch}  # a training that is ended leaves the scratch files of torch and its workers
        with python_origin(photos.root, options.latency_seconds) as origin:
            epochs = {"plain": _train(options, origin, "plain", env, bars)}
            with temporary_home(2 * photos.total_bytes) as home:
                epochs["prefeed"] = _train(options, origin, "prefeed", {**env, **home.env}, bars)
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
    options: DemoOptions, origin: Origin, variant: str, env: Mapping[str, str], bars: _Bars
) -> list[EpochReport]:
    """Run one training in its own process and return its epochs."""
    bars.training(variant, options.epochs)
    job = TrainingJob(
        prefeed=variant == "prefeed", url=origin.url, epochs=options.epochs, crop_pixels=options.crop_pixels
    )
    reports = []
    for event in _events(job, env):
        if isinstance(event, EpochReport):
            reports.append(event)
        else:
            bars.step(variant, event)
    return reports


def _events(job: TrainingJob, env: Mapping[str, str]) -> Iterator[Event]:
    """Yield what the training process reports; it is ended when the caller stops listening."""
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command_of("prefeed_bench.training", job),
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, **env},
            start_new_session=True,
        )
        with _ended(process):
            assert process.stdout is not None
            for line in process.stdout:
                yield msgspec.json.decode(line, type=Event)
            if process.wait() != 0:
                errors.seek(0)
                raise failed("the training", process.returncode, errors.read())


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


# ---------------------------------------------------------------- what is shown


def make_table(result: DemoResult) -> Table:
    """Return the table of both trainings, one row per epoch."""
    latency_ms = 1000 * result.options.latency_seconds
    title = (
        f"ResNet-18 on {result.photos.num_photos:,} JPEGs of {result.photos.mean_bytes / 1000:.0f} KB, "
        f"{latency_ms:g} ms per request"
    )
    table = Table(title=title, title_justify="left")
    table.add_column("loader", no_wrap=True)
    for heading in ("epoch", "time", "images/s", "waiting\nfor data", "hit\nratio", "origin\nrequests"):
        table.add_column(heading, justify="right", no_wrap=True)
    for variant in _LOADERS:
        for report in result.epochs[variant]:
            table.add_row(*_row(variant, report), end_section=report is result.epochs[variant][-1])
    return table


def _row(variant: str, report: EpochReport) -> tuple[str, ...]:
    return (
        _LOADERS[variant] if report.epoch == 0 else "",
        str(report.epoch + 1),
        f"{report.seconds:.1f} s",
        f"{report.images / report.seconds:.0f}",
        f"{100 * report.waiting_seconds / report.seconds:.0f} %",
        "-" if report.hit_ratio is None else f"{100 * report.hit_ratio:.0f} %",
        f"{report.origin_requests:,}",
    )


def make_summary(result: DemoResult) -> str:
    """Return the one sentence that a hurried reader takes home."""
    plain, prefeed = result.seconds("plain"), result.seconds("prefeed")
    return (
        f"The same training, {result.speedup:.1f} times as fast: {prefeed:.0f} s instead of {plain:.0f} s. "
        "Every batch and every loss is identical, bit by bit."
    )


def write_chart(result: DemoResult, path: Path) -> None:
    """Draw time per epoch, computing and waiting apart, one bar per epoch and loader."""
    from matplotlib.figure import Figure  # takes a second to import, and the table is shown first

    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.add_subplot()
    reports = [(variant, report) for variant in _LOADERS for report in result.epochs[variant]]
    labels = [f"{_LOADERS[variant]}, epoch {report.epoch + 1}" for variant, report in reports]
    waiting = [report.waiting_seconds for _, report in reports]
    computing = [report.seconds - report.waiting_seconds for _, report in reports]
    axes.barh(labels, computing, color=_COMPUTING, label="computing")
    axes.barh(labels, waiting, left=computing, color=_WAITING, label="waiting for data")
    for row, (_, report) in enumerate(reports):
        axes.text(report.seconds, row, f"  {report.seconds:.1f} s", va="center")
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.set_xlabel("seconds per epoch")
    axes.spines[["top", "right"]].set_visible(False)
    latency_ms = 1000 * result.options.latency_seconds
    figure.suptitle(
        f"ResNet-18 on {result.photos.num_photos:,} JPEGs, {latency_ms:g} ms per request: "
        f"{result.speedup:.1f} times as fast, same batches, same losses"
    )
    figure.legend(frameon=False, loc="outside lower right", ncols=2)
    figure.savefig(path, dpi=150)
