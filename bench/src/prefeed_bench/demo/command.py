"""``prefeed demo``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Self

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from prefeed.cli import render
from prefeed.cli.options import json_option
from prefeed_bench.demo.report import make_summary, make_table, write_chart
from prefeed_bench.demo.runner import DemoOptions, DemoResult, run_demo
from prefeed_bench.demo.training import Step
from prefeed_bench.signals import terminated_like_interrupted

_DEFAULTS = DemoOptions()


@click.command(name="demo")
@click.option("--images", type=click.IntRange(min=200), default=_DEFAULTS.num_photos, show_default=True,
              help="Pictures to train on.")  # fmt: skip
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), default=Path("demo-output"),
              show_default=True, help="Directory for chart and figures.")  # fmt: skip
@json_option
def command(images: int, output: Path, as_json: bool) -> None:
    """Train on a slow object store, with and without prefeed.

    Makes JPEGs from real photographs, serves them over HTTP with 20 ms added to each request, and trains ResNet-18
    on them for three epochs: once with torch's DataLoader, once with prefeed's. Both must see the same batches and
    reach the same losses. Takes two to four minutes on two cores, needs no network, and cleans up after itself.
    """
    console = Console(stderr=as_json)
    with terminated_like_interrupted(), _Bars(console) as bars:
        result = run_demo(DemoOptions(num_photos=images), bars)
    chart = _write(result, output)
    if as_json:
        render.print_json({**result.to_json(), "chart": str(chart)})
        return
    console.print(make_table(result))
    console.print(make_summary(result), style="bold")
    console.print(f"Chart: {chart}", highlight=False, soft_wrap=True)


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
