"""What the kernel is asked for, by the nodes that it has; whether it does it: ``process/test_memory_nodes.py``."""

from __future__ import annotations

import pytest

from prefeed.system import memory_nodes


@pytest.mark.parametrize(
    ("allowed", "mode"), [([0], memory_nodes._DEFAULT), ([0, 1], memory_nodes._INTERLEAVE), ([63, 64, 700], 3)]
)
def test_all_nodes_in_turn_if_there_are_several(monkeypatch: pytest.MonkeyPatch, allowed: list[int], mode: int) -> None:
    asked = []

    def syscall(number: int, *arguments) -> int:
        if number == 239:
            for node in allowed:
                arguments[1][node // 64] |= 1 << node % 64
        else:
            asked.append((arguments[0], None if arguments[1] is None else list(arguments[1])))
        return 0

    monkeypatch.setattr(memory_nodes.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(memory_nodes.ctypes, "CDLL", lambda name: type("Libc", (), {"syscall": staticmethod(syscall)}))

    assert memory_nodes.spread_new_pages() == allowed

    ((wanted, mask),) = asked
    assert wanted == mode
    assert mask is None if mode == memory_nodes._DEFAULT else sum(word.bit_count() for word in mask) == len(allowed)


@pytest.mark.parametrize("refused", [238, 239])
def test_where_it_is_not_allowed_nothing_is_said(monkeypatch: pytest.MonkeyPatch, refused: int) -> None:
    monkeypatch.setattr(memory_nodes.platform, "machine", lambda: "x86_64")
    libc = type("Libc", (), {"syscall": staticmethod(lambda number, *_: -(number == refused))})
    monkeypatch.setattr(memory_nodes.ctypes, "CDLL", lambda name: libc)

    assert memory_nodes.spread_new_pages() == []


def test_other_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_nodes.platform, "machine", lambda: "riscv64")

    assert memory_nodes.spread_new_pages() == []
