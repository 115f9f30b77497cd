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
    help="Link NAME in the mount to DIR, for output; may be repeated.",
)  # fmt: skip
@click.option("--allow-other", is_flag=True, help="Allow other users to read the mount.")
@click.option("--foreground", is_flag=True, help="Stay in the foreground; SIGTERM unmounts.")
@home_option
def command(
    *, url: str, directory: str, outputs: tuple[str, ...], allow_other: bool, foreground: bool, home: str | None,
) -> None:  # fmt: skip
    """Mount an origin as a read-only directory, for programs in any language.

    URL is a directory, s3://, gs://, az://, http(s):// or sampleset://NAME; DIR is an empty directory. Small files are read
    through the cache of the node, large local files directly by the kernel. `prefeed umount DIR` unmounts it.
    """
    config = config_of(home=home)
    pairs = [output.partition("=") for output in outputs]
    if wrong := [name for name, equals, target in pairs if not (name and equals and target)]:
        raise click.UsageError(f"--writable-below takes NAME=DIR, such as logs=/scratch/logs, not {wrong[0]!r}")
    mounting = start_mount(
        absolute_url(url), directory, config, links={name: target for name, _, target in pairs}, others=allow_other,
    )  # fmt: skip
    click.echo(printable(f"{url} is mounted at {mounting.point}; `prefeed umount {mounting.point}` unmounts it"))
    if foreground:
        with _unmount_on_signals(mounting):
            click.get_current_context().exit(mounting.holder.wait())


@click.command(name="umount")
@click.argument("directory", metavar="DIR")
@click.option("--lazy", is_flag=True, help="Unmount also if files are open; these can be read until they are closed.")
def umount(*, directory: str, lazy: bool) -> None:
    """Unmount a directory that `prefeed mount` has mounted."""
    stop_mount(directory, lazily=lazy)


@contextlib.contextmanager
def _unmount_on_signals(mounting: MountHandle) -> Iterator[None]:
    """Unmount when a signal that ends this process arrives."""

    def end(number: int, frame: FrameType | None) -> None:
        mounting.holder.terminate()

    before = {number: signal.signal(number, end) for number in END_SIGNALS}
    try:
        with ignore_job_signals():
            yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
