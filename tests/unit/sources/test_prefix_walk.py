"""Objects below few prefixes are listed many prefixes at a time; others page by page. Requests are counted, not timed."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pytest

from leaks import wait_until
from prefeed.sources.store_listing import walk_prefixes
from prefeed.types import ObjectInfo

pytestmark = pytest.mark.usefixtures("sandbox")


class Store:
    """Lists names a page at a time, and counts requests.

    Args:
        names: Of the objects; those that end in ``/`` are directories' markers.
        page: Names a request.
        together: Requests below `train` are answered when so many were under way at one time.
    """

    def __init__(self, names: Sequence[str], *, page: int = 1000, together: int = 1) -> None:
        self.names, self.page, self.together = sorted(names), page, together
        self.requests: list[str] = []
        self.most_at_a_time = 0
        self._waiting = 0
        self._changed = threading.Condition()

    def list_pages(self, prefix: str) -> Iterator[list[ObjectInfo]]:
        start = f"{prefix}/" if prefix else ""
        names = [name for name in self.names if name.startswith(start)]
        for at in range(0, len(names), self.page):
            self._ask(prefix)
            yield [info(name) for name in names[at : at + self.page]]

    def list_level(self, prefix: str) -> tuple[list[ObjectInfo], list[str]]:
        self._ask(f"{prefix}?")
        start = f"{prefix}/" if prefix else ""
        rests = [(name, name[len(start) :].partition("/")) for name in self.names if name.startswith(start)]
        objects = [info(name) for name, (_, slash, _) in rests if not slash]
        return objects, sorted({f"{start}{first}" for _, (first, slash, _) in rests if slash})

    def _ask(self, what: str) -> None:
        with self._changed:
            self.requests.append(what)
            if "/" not in what or what.endswith("?"):
                return
            self._waiting += 1
            self.most_at_a_time = max(self.most_at_a_time, self._waiting)
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self.most_at_a_time >= self.together, timeout=60)
            self._waiting -= 1

    def walk(self, threads: int = 32) -> Iterator[list[ObjectInfo]]:
        return walk_prefixes(self.list_pages, self.list_level, threads=threads)

    def walked(self) -> list[str]:
        return [found.path for batch in self.walk() for found in batch]


def info(name: str) -> ObjectInfo:
    return ObjectInfo(path=name, size_bytes=len(name), version="1")


def names_below(prefixes: int, each: int) -> list[str]:
    return [f"train/class{prefix:04}/{index:04}.jpg" for prefix in range(prefixes) for index in range(each)]


def test_prefixes_are_listed_at_the_same_time() -> None:
    """100,000 objects below 100 prefixes: 32 requests at a time, and few more than the pages there are."""
    store = Store(names_below(100, 1000), together=32)
    found = store.walked()
    assert sorted(found) == store.names
    assert store.most_at_a_time == 32
    assert len(store.requests) == 2 + 2 + 2 + 100  # the root and `train`, two pages and a level each; 100 prefixes


def test_few_objects_are_one_request() -> None:
    store = Store([*names_below(10, 50), "a", "b"])
    assert sorted(store.walked()) == store.names
    assert store.requests == [""]


@pytest.mark.parametrize(
    "names",
    [
        pytest.param([f"{index:05}.jpg" for index in range(5000)], id="flat"),
        pytest.param([f"sample{index:05}/image.jpg" for index in range(5000)], id="a prefix each"),
    ],
)
def test_many_names_on_one_level_are_listed_page_by_page(names: list[str]) -> None:
    store = Store(names)
    assert store.walked() == store.names
    assert len(store.requests) == 5


def test_levels_may_be_mixed() -> None:
    """Objects beside prefixes, large prefixes with levels of their own, small ones, and one that is flat and large."""
    names = (
        names_below(3, 2500) + [f"val/{index}.jpg" for index in range(3500)] + ["index.txt", "zz", "test/only/one/here"]
    )
    names += [f"{a}/{b}/{index}" for a in "pq" for b in "xy" for index in range(700)]
    store = Store(names)
    found = store.walked()
    assert sorted(found) == sorted(names)


def test_an_error_of_any_request_is_raised_and_ends_the_listing() -> None:
    class Refusing(Store):
        def list_pages(self, prefix: str) -> Iterator[list[ObjectInfo]]:
            if prefix.endswith("7"):
                raise PermissionError(prefix)
            return super().list_pages(prefix)

    store = Refusing(names_below(120, 1000))
    with pytest.raises(PermissionError, match=r"train/class\d+7"):
        list(store.walk(threads=4))
    assert len(store.requests) < 60  # 8 answers wait in the queue, 4 requests run
    assert wait_until(lambda: threading.active_count() == 1, timeout_seconds=60)


def test_who_takes_nothing_more_holds_the_listing_up_and_may_leave() -> None:
    store = Store(names_below(120, 1000))
    walk = store.walk(threads=4)
    next(walk)
    requests = len(store.requests)
    assert requests <= 6 + 3 * 4 + 1  # as many pages as wait to be taken, and one for each thread
    walk.close()
    assert len(store.requests) <= requests + 4 + 3 * 4
