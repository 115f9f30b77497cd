"""Progress of a listing on a terminal. Imported only if stderr is a terminal, because rich is slow to import."""

from __future__ import annotations

from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from prefeed.types import ListingProgress


class ListingOnTerminal:
    """Context manager that shows the number of listed objects."""

    def __init__(self, url: str) -> None:
        columns = (TextColumn("listing {task.description}: {task.completed:,.0f} objects"), TimeElapsedColumn())
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._url = url

    def __enter__(self) -> ListingProgress:
        progress = self._progress
        progress.start()
        task = progress.add_task(self._url, total=None)
        return lambda objects, size: progress.update(task, completed=objects)

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
