"""``prefeed mount`` and ``prefeed umount``."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

import click

from prefeed.cli.options import config_of, home_option
from prefeed.cli.text import printable
from prefeed.cli.url import absolute_url
from prefeed.mount import MountHandle, start_mount, stop_mount
from prefeed.system.signals import END_SIGNALS, ignore_job_signals


@click.command(name="mount")
@click.argument("url")
@click.argument("directory", metavar="DIR")
@click.option(
    "--writable-below", "outputs", multiple=True, metavar="NAME=DIR",
    help="Show NAME in the mount as a link to DIR, for output. May be repeated.",
)  # fmt: skip
@click.option("--allow-other", is_flag=True, help="Let other users read the mount as well.")
@click.option("--foreground", is_flag=True, help="Stay until the mount ends; SIGTERM unmounts.")
@home_option
def command(
    *, url: str, directory: str, outputs: tuple[str, ...], allow_other: bool, foreground: bool, home: str | None,
) -> None:  # fmt: skip
    """Show an origin as a read-only directory, for programs in any language.

    URL is a directory, s3://, gs://, az://, http(s):// or sampleset://NAME; DIR is an empty directory. Small files are read through
    the node's cache, large local files by the kernel itself. `prefeed umount DIR` ends it.
    """
    config = config_of(home=home)
    pairs = [output.partition("=") for output in outputs]
    if wrong := [name for name, equals, target in pairs if not (name and equals and target)]:
        raise click.UsageError(f"--writable-below takes NAME=DIR, such as logs=/scratch/logs, not {wrong[0]!r}")
    mounting = start_mount(
        absolute_url(url), directory, config, links={name: target for name, _, target in pairs}, others=allow_other,
    )  # fmt: skip
    click.echo(printable(f"{url} is mounted at {mounting.point}; `prefeed umount {mounting.point}` ends it"))
    if foreground:
        with _ended_by_signals(mounting):
            click.get_current_context().exit(mounting.holder.wait())


@click.command(name="umount")
@click.argument("directory", metavar="DIR")
@click.option("--lazy", is_flag=True, help="Also while it is in use: open files can be read until they are closed.")
def umount(*, directory: str, lazy: bool) -> None:
    """End a mount of `prefeed mount`."""
    stop_mount(directory, lazily=lazy)


@contextlib.contextmanager
def _ended_by_signals(mounting: MountHandle) -> Iterator[None]:
    """Inside it, signals that end this process end the mount."""

    def end(number: int, frame: FrameType | None) -> None:
        mounting.holder.terminate()

    before = {number: signal.signal(number, end) for number in END_SIGNALS}
    try:
        with ignore_job_signals():
            yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
