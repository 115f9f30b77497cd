"""``prefeed bench``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from prefeed.cli import render
from prefeed.cli.options import json_option
from prefeed.config import resolve
from prefeed.errors import ConfigError
from prefeed_bench.cases import CASES, run_case
from prefeed_bench.errors import MissingRequirementError
from prefeed_bench.harness import BenchResult, Options
from prefeed_bench.processes import terminated_like_interrupted

_QUICK_PHOTOS = 200
_WIDTH = max(len(name) for name in CASES)


def _numbers(_context: click.Context, _option: click.Parameter, value: str | None) -> tuple[str, ...]:
    """Return numbers of processes as the setting takes them, each once."""
    found = tuple(dict.fromkeys(filter(None, map(str.strip, (value or "").split(",")))))
    for number in found:
        try:
            resolve({"fetch_processes": number})
        except ConfigError as err:
            raise click.BadParameter(str(err)) from err
    return found


@click.command(name="bench", epilog="\b\n" + "\n".join(f"{name:<{_WIDTH}}  {what}" for name, what in CASES.items()))
@click.argument("names", metavar="[NAME]...", nargs=-1, type=click.Choice(list(CASES)))
@click.option("--runs", type=click.IntRange(min=1), help="Runs of each variant.  [default: 3]")
@click.option("--objects", type=click.IntRange(min=1), help="Objects in the manifest of scale.  [default: 10000000]")
@click.option("--images", type=click.IntRange(min=_QUICK_PHOTOS), help="Pictures in the data set.  [default: 4000]")
@click.option(
    "--quick", is_flag=True, help="Small data, one run: shows that the benchmark works; the figures mean nothing."
)
@click.option("--data", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
              help="Where the pictures are kept between runs.  [default: ~/.cache/prefeed-bench]")  # fmt: skip
@click.option("--charts", type=click.Path(file_okay=False, path_type=Path), default=Path("bench-output"), metavar="DIR",
              show_default=True, help="Where charts are written.")  # fmt: skip
@click.option("--fetch-processes", metavar="N,N", callback=_numbers,
              help="fetch: numbers of fetch processes, each a variant.  [default: auto]")  # fmt: skip
@json_option
def command(
    *, names: tuple[str, ...], runs: int | None, images: int | None, quick: bool, data: Path | None, charts: Path,
    as_json: bool, **of_one_case: Any,
) -> None:  # fmt: skip
    """Measure the same work with and without prefeed: all benchmarks, or the named ones.

    Each starts its own server of pictures (nginx) and its own empty cache, runs its variants in turn, prints medians,
    and cleans up. With --json, prints one object per benchmark and line, with every run and the facts of this machine.
    """
    default = Options(quick=quick)
    options = Options(
        runs=runs or (1 if quick else default.runs),
        num_photos=images or (_QUICK_PHOTOS if quick else default.num_photos),
        num_objects=of_one_case["objects"] or 0,
        quick=quick,
        data_dir=data,
        charts_dir=charts,
        fetch_processes=of_one_case["fetch_processes"],
        say=_say,
    )
    for name in names or CASES:
        _say(f"{name}: {CASES[name]}")
        try:
            with terminated_like_interrupted():
                result = run_case(name, options)
        except MissingRequirementError as err:
            if names:
                raise
            click.echo(f"prefeed: {name} was not run: {err}", err=True)  # the others can be
            continue
        if as_json:
            render.print_json(result.to_json())
        else:
            render.print_rows(result.name, _rows(result))
            render.print_lines(f"  {note}" for note in result.notes)


def _say(text: str) -> None:
    click.secho(text, err=True, dim=True)


def _rows(result: BenchResult) -> list[render.Row]:
    shown = result.to_json()
    rows = []
    for name in result.fields:
        low_high = shown["spread"].get(name)
        spread = f"   ({low_high[0]} to {low_high[1]})" if low_high and low_high[0] != low_high[1] else ""
        rows.append((name, f"{shown[name]}{spread}"))
    return rows
