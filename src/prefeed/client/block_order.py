"""Which blocks of an object are read next, and whether a whole block may be fetched for a few bytes of it; pure.

A reader that goes through the object gets whole blocks, more of them ahead the further it has come. One that takes regular steps
gets the blocks of its next steps, if it reads at least half of them. Where the format of the object says what follows, the blocks
of that are fetched, also if they leave gaps. One that seeks wildly gets what it asks for: the
bytes fetched are at most 1.1 times those asked for, and one block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

_MOST_AHEAD_BYTES: Final = 64 * 1024**2
_LEAST_AHEAD_BLOCKS: Final = 2
_STEPS: Final = 3
"""This number of equal steps is a stride."""

_OVERHEAD: Final = 1.1
END_BYTES: Final = 64 * 1024
"""Of a Parquet file that are read first."""


class Order:
    """What one reader of one object has asked for, and what follows from it.

    Attributes:
        block_bytes: Size of the blocks except the last.
        run_bytes: Bytes read without a gap up to the last read.
        planned: Blocks that are fetched whole for this reader, until the plan ends.
    """

    def __init__(
        self, *, size_bytes: int, block_bytes: int, most_bytes: int, readahead: bool | None, slack_bytes: int = 0
    ) -> None:
        """Begin with nothing.

        Args:
            size_bytes: Of the object.
            block_bytes: Of a block.
            most_bytes: That may be fetched ahead.
            readahead: True: all of it is read in order; False: never ahead; None: as the reads show.
            slack_bytes: A read that begins so far before or behind the end of the last one continues it as well.
        """
        self.block_bytes = block_bytes
        self.run_bytes: int = 0
        self._size = size_bytes
        self._num_blocks = -(-size_bytes // block_bytes)
        self._most_ahead = max(_LEAST_AHEAD_BLOCKS, min(most_bytes, _MOST_AHEAD_BYTES) // block_bytes)
        self._readahead = readahead
        self._slack = slack_bytes
        self._last = (0, 0)  # offset and bytes of the last read
        self._stride = 0
        self._num_strides = 0
        self._asked = 0
        self._fetched = 0
        self.planned: set[int] = set()
        self._following: Callable[[int], Iterable[tuple[int, int]]] | None = None
        self._planned_end = 0
        self._known_for = -1  # block, and what was said to follow it
        self._first_block = 0
        self._before = self._state()

    @property
    def last(self) -> tuple[int, int]:
        """Offset and number of bytes of the last read."""
        return self._last

    @property
    def is_sequential(self) -> bool:
        """True when the last read went on after a quarter of a block or more, or all of the object is going to be read."""
        return bool(self._readahead) or self.run_bytes - self._last[1] >= max(1, self.block_bytes // 4)

    def follows(self, offset: int) -> bool:
        """Return whether a read there continues where the last one has ended."""
        return abs(offset - sum(self._last)) <= self._slack

    def note(self, offset: int, count: int) -> None:
        """Note what the reader asks for."""
        self._before = self._state()
        step = offset - self._last[0]
        self._num_strides = self._num_strides + 1 if step == self._stride and step > 0 else 0
        self._stride = step
        self.run_bytes = self.run_bytes + count if self.follows(offset) else count
        self._last = offset, count
        self._asked += count
        self._first_block = offset // self.block_bytes

    def take_back(self) -> None:
        """What was noted last was looked at, and is not read yet: the next read may begin there, and continues what was read."""
        self._last, self._stride, self._num_strides, self.run_bytes, self._asked, self._first_block = self._before

    def may_take(self, index: int, count: int) -> bool:
        """Return whether a whole block may be fetched for ``count`` bytes of it, and count it if so."""
        size = self._size_of(index)
        if index in self.planned:
            return True
        asked = self._asked - self._last[1] + count  # what else is asked for now is not fetched yet
        is_worth_it = self.is_sequential or self._is_strided or count * _OVERHEAD >= size
        if is_worth_it or self._fetched + size <= _OVERHEAD * asked + self.block_bytes:
            self._fetched += size
            return True
        return False

    def expect(self, following: Callable[[int], Iterable[tuple[int, int]]]) -> None:
        """From now on it is known what follows.

        Args:
            following: Yields the parts that are read after a position, in order: the first byte, and the one behind the last.
        """
        self._following = following

    def fetched(self, count: int) -> None:
        """Count bytes that came from the origin for this reader alone."""
        self._fetched += count

    def begin(self, index: int, end: int) -> list[int]:
        """Return the blocks that are read next, from a missing one on.

        Args:
            index: The missing block.
            end: Where the read ends that needs it.
        """
        last = (end - 1) // self.block_bytes
        if known := self._known(end):
            blocks = [*dict.fromkeys([*range(index, last + 1), *known])]
        elif self._readahead is not False and self._is_strided and not self.is_sequential:
            blocks = self._strided(index)
        else:
            ahead = self._ahead if self._readahead is not False and self.is_sequential else 0
            blocks = [*range(index, min(self._num_blocks, last + 1 + ahead))]
            if not ahead and last > index and not self._covers(last, end):
                blocks.pop()  # a few bytes of it are wanted
        self._plan([block for block in blocks if block != index])
        self.planned.add(index)
        return blocks

    def begin_as(self, other: Order, *, end_first: bool, end_alone: bool = False) -> list[int]:
        """Return the blocks to fetch first for a reader that has read half of another object, and reads this one the same way.

        A reader of all bytes there reads all bytes here.

        Args:
            other: Of the other object.
            end_first: The reader looks at the end of an object before it reads the rest.
            end_alone: What else it reads is told by ``take_parts``.
        """
        blocks: dict[int, None] = {}
        if end_first:
            first = max(0, self._size - END_BYTES) // self.block_bytes
            blocks.update(dict.fromkeys(range(first, self._num_blocks)))
        if other.is_all_read and not end_alone:
            blocks.update(dict.fromkeys(range(min(self._num_blocks, self._most_ahead))))
        self._plan(list(blocks))
        return list(blocks)

    def take_parts(self, parts: Iterable[tuple[int, int]], other: Order) -> list[int]:
        """Return the blocks to fetch of parts that are going to be read, in that order, by a reader that is at another object still.

        Their bytes, with those that the reader will ask for without getting a block, are at most 1.1 times those of the parts and
        of what it asked for there, and one block.

        Args:
            parts: Of each the first byte, and the one behind the last.
            other: Of the other object.
        """
        step, most = self.block_bytes, min(other._asked, self._most_ahead * self.block_bytes)
        counts: dict[int, int] = {}
        total = 0
        for start, end in parts:
            total += end - start
            for index in range(start // step, (end - 1) // step + 1):
                counts[index] = counts.get(index, 0) + min(end, (index + 1) * step) - max(start, index * step)
            if total >= most:
                break
        expected, fetched = min(END_BYTES, self._size), 0  # the reader begins with the end
        found = []
        for index in range(max(0, self._size - END_BYTES) // step, self._num_blocks):
            fetched += self._size_of(index)
            expected += counts.pop(index, 0)
        for index, count in counts.items():
            size = self._size_of(index)
            expected += count
            is_taken = index in self.planned or fetched + size <= _OVERHEAD * min(expected, most) + step
            fetched += size if is_taken else count
            if is_taken and index not in self.planned:
                found.append(index)
        self._plan(found)
        return found

    def plan(self, blocks: Iterable[int]) -> list[int]:
        """Return those of these blocks that are not planned yet; from now on they are."""
        found = [block for block in blocks if block not in self.planned]
        self._plan(found)
        return found

    @property
    def num_blocks(self) -> int:
        """Number of blocks of the object."""
        return self._num_blocks

    @property
    def is_all_read(self) -> bool:
        """True when the reader has read all that lies before the end of its last read."""
        return self._asked * _OVERHEAD >= sum(self._last)

    @property
    def asked_bytes(self) -> int:
        """Bytes that the reader has asked for."""
        return self._asked

    def is_half_read(self) -> bool:
        """Return True once the reader has come half as far as it goes; who reads the end first has not."""
        return 2 * self._asked >= self._size or self._size <= 2 * sum(self._last) < 2 * self._size

    def extend(self, position: int) -> list[int]:
        """Return the blocks that follow those of the plan, once the reader has come half as far; at most as far as it may go."""
        if (known := self._extend_known(position)) is not None:
            return known
        if self._readahead is False or not (self.is_sequential or self._is_strided):
            return []
        if self._is_strided and not self.is_sequential:
            blocks = [block for block in self._strided(self._first_block) if block >= self._planned_end]
            self._plan(blocks)
            return blocks
        index = position // self.block_bytes
        ahead = self._ahead
        if self._planned_end - index > ahead // 2:
            return []
        blocks = [*range(max(self._planned_end, index + 1), min(self._num_blocks, index + 1 + ahead))]
        self._plan(blocks)
        return blocks

    def is_followed(self) -> bool:
        """Return False when the last read was of none of the blocks of the plan."""
        last = max(self._first_block, (sum(self._last) - 1) // self.block_bytes)
        return bool(self._readahead) or any(block in self.planned for block in range(self._first_block, last + 1))

    def end(self) -> None:
        """There is no plan any more."""
        self.planned.clear()
        self._planned_end = 0
        self._known_for = -1

    @property
    def _is_strided(self) -> bool:
        return self._num_strides >= _STEPS and 2 * self._last[1] >= min(self._stride, self.block_bytes)

    @property
    def _ahead(self) -> int:
        """Blocks that may be fetched ahead: twice as many as were read without a gap."""
        if self._readahead:
            return self._most_ahead
        return min(self._most_ahead, max(_LEAST_AHEAD_BLOCKS, 2 * self.run_bytes // self.block_bytes))

    def _extend_known(self, position: int) -> list[int] | None:
        """Return the blocks that follow, once at most half of them are planned, else none; None: what follows is not known."""
        if self._following is None:
            return None
        index = position // self.block_bytes
        if index == self._known_for:
            return []
        known = self._known(position)
        if not known:
            return None
        self._known_for = index
        more = [block for block in known if block not in self.planned]
        if 2 * len(more) < len(known):
            return []
        self._plan(more)
        return more

    def _known(self, position: int) -> list[int]:
        """Return the blocks that are known to follow, at most twice as many as were read."""
        if self._following is None or self._readahead is not None:
            return []
        most = min(self._most_ahead, max(_LEAST_AHEAD_BLOCKS, 2 * self._asked // self.block_bytes))
        found: dict[int, None] = {}
        for start, end in self._following(position):
            found.update(dict.fromkeys(range(start // self.block_bytes, (end - 1) // self.block_bytes + 1)))
            if len(found) >= most:
                break
        return list(found)[:most]

    def _state(self) -> tuple[tuple[int, int], int, int, int, int, int]:
        return self._last, self._stride, self._num_strides, self.run_bytes, self._asked, self._first_block

    def _size_of(self, index: int) -> int:
        return min(self.block_bytes, self._size - index * self.block_bytes)

    def _covers(self, index: int, end: int) -> bool:
        size = self._size_of(index)
        return (end - index * self.block_bytes) * _OVERHEAD >= size

    def _strided(self, index: int) -> list[int]:
        """Return the blocks of this step and of twice as many as there were before it."""
        offset, count = self._last
        found: dict[int, None] = {index: None}
        for _ in range(min(2 * self._num_strides, self._most_ahead)):
            offset += self._stride
            if offset >= self._size or len(found) > self._most_ahead:
                break
            end = min(offset + count, self._size)
            found.update(dict.fromkeys(range(offset // self.block_bytes, (end - 1) // self.block_bytes + 1)))
        return list(found)

    def _plan(self, blocks: list[int]) -> None:
        for block in blocks:
            if block not in self.planned:
                self.planned.add(block)
                self._fetched += self._size_of(block)
        self._planned_end = max([self._planned_end, *(block + 1 for block in blocks)])
