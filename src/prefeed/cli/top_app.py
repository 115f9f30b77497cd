"""The screen of ``prefeed top``. Imports Textual, which is an extra: only ``prefeed top`` imports this."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import ClassVar, Final

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.css.query import NoMatches
from textual.events import Resize
from textual.message import Message
from textual.screen import ModalScreen, Screen
from textual.widgets import Footer, Static

from prefeed.cli.top import Poller
from prefeed.cli.top_view import (
    NARROWEST,
    SECTIONS,
    History,
    Look,
    Section,
    Sort,
    header,
    next_sort,
    sections,
    title_line,
)

HELP: Final = """\
q  quit        p  pause or resume
s  sort plans: by arrival, by progress, by speed, by waiting
?  this page; any key closes it

Tiers     bytes held, and the limit
Rates     over the last second; the chart shows two minutes
Plans     position: objects that the loop has received, of its epoch
          hits: found in a tier when requested, since the start
          best: best hit ratio without read-ahead, with this budget
          waited: share of its last epoch that the loop waited for data
Waiting   at 5 % or more, run `prefeed doctor`

This view never starts a server."""


class Looked(Message):
    """The poller has looked."""

    def __init__(self, look: Look) -> None:
        super().__init__()
        self.look = look


class HelpScreen(ModalScreen[None]):
    """What the keys do and the columns mean."""

    CSS = """
    HelpScreen { align: center middle; }
    #help { width: auto; max-width: 100%; height: auto; max-height: 100%; padding: 1 2; border: round $primary; background: $surface; }
    """

    def compose(self) -> ComposeResult:
        yield Static(Text(HELP), id="help")

    def on_key(self) -> None:
        """Close, whatever the key."""
        self.dismiss()


class TopApp(App[None]):
    """Shows looks at the server as they come.

    Args:
        look: Looks at the server; called in a thread. None when looks come by ``show``.
        home: Which cache it is, for the first line.
        interval_seconds: Between two looks.
    """

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #header { height: 1; background: $panel; padding: 0 1; }
    #body { padding: 0 0 0 1; scrollbar-size-vertical: 1; scrollbar-gutter: stable; }
    .section { height: auto; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("p", "pause", "Pause"),
        Binding("s", "sort", "Sort plans"),
        Binding("question_mark", "help", "Help", key_display="?"),
    ]

    def __init__(self, look: Callable[[], Look] | None, *, home: str, interval_seconds: float = 1.0) -> None:
        super().__init__()
        self.history: History = History()
        self.sort: Sort = "order"
        self.is_paused: bool = False
        self._home = home
        self._columns = NARROWEST
        self._poller: Poller | None = None
        if look is not None:
            self._poller = Poller(look, self._post, interval_seconds=interval_seconds)

    def compose(self) -> ComposeResult:
        yield Static(id="header")
        with VerticalScroll(id="body"):
            yield from (Static(id=name, classes="section") for name in SECTIONS)
        yield Footer()

    def on_mount(self) -> None:
        """Begin to look."""
        if self._poller is not None:
            self._poller.start()

    def on_unmount(self) -> None:
        """Look no more."""
        if self._poller is not None:
            self._poller.stop()

    def on_looked(self, message: Looked) -> None:
        """Show it."""
        self.show(message.look)

    def on_resize(self, event: Resize) -> None:
        """Draw everything for the new width."""
        self._columns = event.size.width
        self._draw()

    def show(self, look: Look) -> None:
        """Remember the look and draw it; nothing while paused."""
        if not self.is_paused:
            self.history.add(look)
            self._draw()

    def action_pause(self) -> None:
        """Pause, or resume."""
        self.is_paused = not self.is_paused
        if self._poller is not None:
            self._poller.is_paused = self.is_paused
        self._draw()

    def action_sort(self) -> None:
        """Sort plans another way."""
        self.sort = next_sort(self.sort)
        self._draw()

    def action_help(self) -> None:
        """Explain keys and columns."""
        self.push_screen(HelpScreen())

    def _post(self, look: Look) -> None:
        with contextlib.suppress(RuntimeError):  # the screen has just been closed
            self.post_message(Looked(look))

    def _draw(self) -> None:
        if self.screen_stack:
            with contextlib.suppress(NoMatches):  # the screen is being composed or closed
                self._draw_on(self.screen_stack[0])

    def _draw_on(self, main: Screen[object]) -> None:
        width = self._columns - 2  # the padding
        line = header(self.history, home=self._home, width=width, is_paused=self.is_paused)
        main.query_one("#header", Static).update(line)
        shown = {section.name: section for section in sections(self.history, width=width, sort=self.sort)}
        for name in SECTIONS:
            section, widget = shown.get(name), main.query_one(f"#{name}", Static)
            widget.display = section is not None and bool(section.lines)
            if section is not None:
                widget.update(_text_of(section, width))


def _text_of(section: Section, width: int) -> Text:
    lines = [title_line(section.title, width), *section.lines] if section.title else [*section.lines]
    return Text("\n").join(lines)
