"""How a device of torch's is asked. There is none here: its module is a stand-in that writes down what it is asked."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torchvision import tv_tensors

from prefeed.torch.device import TorchStreams, _can_be_pinned, cast, has_streams, moved


class Module:
    """As ``torch.cuda`` and ``torch.xpu`` are."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.stack = ["loops"]

    def current_device(self) -> int:
        return 3

    def current_stream(self, device: torch.device) -> Any:
        assert device.index == 3
        return self.Queue(self, self.stack[-1])

    def set_device(self, device: torch.device) -> None:
        self.asked.append(("device", device.index))

    @contextmanager
    def stream(self, stream: Any) -> Any:
        self.stack.append(stream)
        yield
        self.stack.pop()

    def Stream(self, *, device: torch.device) -> str:  # noqa: N802
        assert device.index == 3
        return "side"

    def Event(self, **options: Any) -> Any:  # noqa: N802
        return self.Mark(self, options)

    class Queue:
        def __init__(self, module: Module, name: str) -> None:
            self.module, self.name = module, name

        def wait_event(self, event: Any) -> None:
            self.module.asked.append((self.name, "waits"))

    class Mark:
        def __init__(self, module: Module, options: dict[str, Any]) -> None:
            self.module, self.options = module, options

        def record(self, queue: Any) -> None:
            self.module.asked.append((queue.name, "mark", self.options))


def test_marks_are_in_the_current_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    module = Module()
    monkeypatch.setattr(torch, "cuda", module)
    streams = TorchStreams(torch.device("cuda"))
    streams.enter_thread()
    mark = streams.mark()
    with streams.aside():
        streams.wait(mark)
        mark = streams.mark()
    streams.wait(mark)
    blocking = {"blocking": True}
    assert module.asked == [
        ("device", 3),
        ("loops", "mark", blocking),
        ("side", "waits"),
        ("side", "mark", blocking),
        ("loops", "waits"),
    ]


def test_what_is_asked_is_what_torch_has() -> None:
    for name in ("cuda", "xpu"):
        module = getattr(torch, name)
        names = ("Stream", "Event", "stream", "current_stream", "current_device", "set_device")
        assert all(callable(getattr(module, asked)) for asked in names)
        assert all(hasattr(module.Event, asked) for asked in ("record", "query", "synchronize"))
        assert hasattr(module.Stream, "wait_event")


@pytest.mark.parametrize(("name", "expected"), [("cuda", True), ("xpu:1", True), ("cpu", False), ("mps", False)])
def test_devices_with_queues(name: str, expected: bool) -> None:
    assert has_streams(torch.device(name)) is expected


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, None])
def test_only_floating_point_is_cast(dtype: torch.dtype | None) -> None:
    assert cast(torch.ones(1), dtype).dtype is (dtype or torch.float32)
    for other in (torch.uint8, torch.int64, torch.bool, torch.complex64):
        assert cast(torch.ones(1, dtype=other), dtype).dtype is other


def test_an_object_may_not_know_of_blocking() -> None:
    class Old:
        def to(self, device: torch.device) -> str:
            return device.type

    class New:
        def to(self, device: torch.device, *, non_blocking: bool) -> str:
            return f"{device.type} {non_blocking}"

    assert [moved(value, torch.device("cpu")) for value in (Old(), New())] == ["cpu", "cpu True"]


def test_only_plain_dense_tensors_are_pinned() -> None:
    assert _can_be_pinned(torch.ones(2))
    for other in (
        torch.ones(0),
        torch.ones(2, requires_grad=True),
        torch.eye(2).to_sparse(),
        tv_tensors.Image(torch.ones(3, 2, 2)),
        torch.ones(2, device="meta"),
    ):
        assert not _can_be_pinned(other)
