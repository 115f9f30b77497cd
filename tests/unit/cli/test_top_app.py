"""The screen of ``prefeed top``: how it looks, and what its keys do.

``python -m pytest tests/unit/cli/test_top_app.py --snapshot-update`` makes the pictures anew; look at them then.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from textual.pilot import Pilot
from textual.widgets import Static

from prefeed.cli.top_app import HelpScreen, TopApp
from prefeed.cli.top_view import Look
from top_looks import HOME, NO_SERVER, SAMPLE, looks

pytestmark = pytest.mark.usefixtures("sandbox")

SMALL, LARGE = (80, 24), (120, 40)


def screen() -> TopApp:
    return TopApp(None, home=HOME)


def after(shown: list[Look]) -> Callable[[Pilot[None]], Awaitable[None]]:
    async def show(pilot: Pilot[None]) -> None:
        for look in shown:
            pilot.app.show(look)  # type: ignore[attr-defined]
        await pilot.pause()

    return show


def text_of(app: TopApp, name: str) -> str:
    return str(app.screen_stack[0].query_one(f"#{name}", Static).render())


def on_screen(app: TopApp, use: Callable[[Pilot[None]], Awaitable[None]], size: tuple[int, int] = SMALL) -> None:
    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            await use(pilot)

    asyncio.run(run())


@pytest.mark.parametrize("size", [SMALL, LARGE], ids=["small", "large"])
def test_it_looks_as_it_did(snap_compare, size: tuple[int, int]) -> None:
    assert snap_compare(screen(), terminal_size=size, run_before=after(looks()))


def test_without_a_server_it_says_so_and_how_to_start_one(snap_compare) -> None:
    assert snap_compare(screen(), terminal_size=SMALL, run_before=after([*looks(3), NO_SERVER]))


def test_help(snap_compare) -> None:
    assert snap_compare(screen(), terminal_size=SMALL, run_before=after(looks(3)), press=["question_mark"])


def test_any_key_closes_the_help() -> None:
    async def use(pilot: Pilot[None]) -> None:
        await pilot.press("question_mark")
        assert isinstance(pilot.app.screen, HelpScreen)
        pilot.app.show(looks(1)[0])  # type: ignore[attr-defined]
        await pilot.press("x")
        assert not isinstance(pilot.app.screen, HelpScreen)
        assert "memory" in text_of(app, "tiers")  # drawn beneath it

    app = screen()
    on_screen(app, use)


def test_q_ends_it() -> None:
    app = screen()

    async def use(pilot: Pilot[None]) -> None:
        await pilot.press("q")

    on_screen(app, use)
    assert app.return_code == 0


def test_s_sorts_and_comes_back_to_the_first_way() -> None:
    app = screen()
    firsts = []

    async def use(pilot: Pilot[None]) -> None:
        await after(looks(3))(pilot)
        for _ in range(5):
            title, _, row, *_ = text_of(app, "plans").splitlines()
            firsts.append((title.partition(" ─")[0], row.partition("  ")[0].partition(" …")[0]))
            await pilot.press("s")

    on_screen(app, use)
    assert firsts == [
        ("Plans (3)", "ImageFolder r0"),
        ("Plans (3, by progress)", "ImageFolder r0"),
        ("Plans (3, by speed)", "ImageFolder r0"),
        ("Plans (3, by waiting)", "ImageFolder r1"),
        ("Plans (3)", "ImageFolder r0"),
    ]


def test_paused_it_stands_still_and_says_so() -> None:
    app = screen()

    async def use(pilot: Pilot[None]) -> None:
        await after(looks(3))(pilot)
        before = text_of(app, "rates")
        await pilot.press("p")
        await after(looks(9)[3:])(pilot)
        assert text_of(app, "rates") == before
        assert "paused" in text_of(app, "header")
        await pilot.press("p")
        await after(looks(9)[8:])(pilot)
        assert text_of(app, "rates") != before
        assert "paused" not in text_of(app, "header")

    on_screen(app, use)


@pytest.mark.parametrize("size", [(200, 60), (60, 12), (20, 5)], ids=str)
def test_it_fits_again_after_a_resize(size: tuple[int, int]) -> None:
    app = screen()

    async def use(pilot: Pilot[None]) -> None:
        await after(looks(3))(pilot)
        await pilot.resize_terminal(*size)
        await pilot.pause()
        for name in ("tiers", "rates", "plans"):
            widths = {len(line) for line in text_of(app, name).splitlines()}
            assert max(widths) <= max(60, size[0] - 2), name
        assert app.size.width == size[0]

    on_screen(app, use)


def test_a_server_that_comes_back_is_shown_again() -> None:
    app = screen()

    async def use(pilot: Pilot[None]) -> None:
        await after([*looks(3), NO_SERVER])(pilot)
        assert "no server" in text_of(app, "header")
        assert not app.query_one("#tiers").display
        await after([Look(sample=replace(SAMPLE, status=replace(SAMPLE.status, pid=99, uptime_seconds=1.0)))])(pilot)
        assert "pid 99" in text_of(app, "header")
        assert app.query_one("#tiers").display
        assert not app.query_one("#trouble").display

    on_screen(app, use)


def test_markup_in_names_is_shown_as_it_is() -> None:
    app = screen()
    plan = replace(SAMPLE.plans[2], dataset="/mnt/[red]x[/nonsense]\udcff")

    async def use(pilot: Pilot[None]) -> None:
        await after([Look(sample=replace(SAMPLE, plans=(plan,)))])(pilot)
        assert "/mnt/[red]x[/nonsense]\\udcff" in text_of(app, "plans")

    on_screen(app, use, LARGE)


def test_it_looks_by_itself_until_it_is_closed() -> None:
    endless = itertools.cycle(looks(30))  # two equal looks have no rates between them
    app = TopApp(lambda: next(endless), home=HOME, interval_seconds=0.001)

    async def use(pilot: Pilot[None]) -> None:
        while not app.history.series(lambda r: r.hits):
            await asyncio.sleep(0)
        assert "memory" in text_of(app, "tiers")

    on_screen(app, use)


def test_a_look_that_comes_while_the_screen_closes_is_no_error() -> None:
    app = screen()

    async def use(pilot: Pilot[None]) -> None:
        for name in ("plans", "body", "header"):
            await pilot.app.query_one(f"#{name}").remove()
            await after(looks(2))(pilot)

    on_screen(app, use)
