"""An open object, read in blocks: what ``prefeed.open`` returns."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn

import numpy as np

from prefeed.client.block_order import END_BYTES, Order
from prefeed.client.blocks import BlockObject, Blocks, blocks_of
from prefeed.client.row_groups import FooterReader, RowGroups, read_footer, row_groups_of
from prefeed.errors import PrefeedError
from prefeed.types import Buffer

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_SMALL_BYTES: Final = 16 * 1024
"""Reads of fewer bytes, one after the other, are served from a copy of the bytes that follow."""

_COPIED_BYTES: Final = 128 * 1024
_REPORTED_HITS: Final = 64
"""Reads of the tier that are told to the server at once, where no plan waits for them."""

_LARGEST_DIRECT_BYTES: Final = 8 * 1024**2
"""A reader without a server reads no further ahead than this, with one request."""


class BlockFile(io.BufferedIOBase):
    """An object opened for reading: a binary file.

    Bytes are those of the version that the object had when it was opened: if it changes, reads of what is not cached raise
    ``ObjectChangedError``, whose ``errno`` is ``ESTALE``.

    **Ownership**: holds no descriptor and no credentials; at most one block in memory, where the tier has no room for it, and an object
    without a version whole.
    **Threads and processes**: ``read_range`` in any thread; the rest has one position, like any file. May be used in forked
    children, each with its own position. **Blocking**: a read of bytes that the tier has waits for nothing.
    """

    def __init__(
        self,
        opened: BlockObject,
        blocks: Blocks,
        *,
        readahead: bool | None = None,
        read_part: Callable[[int, int], Buffer] | None = None,
        waits: Callable[[], None] | None = None,
        slack_bytes: int = 0,
    ) -> None:
        """Read an object.

        Args:
            opened: The object.
            blocks: Where its blocks come from.
            readahead: True: all of it is read, in order, from the first read on; False: nothing is read ahead; None: as the
                reads show.
            read_part: Returns bytes that are not cached, less than a block, by first byte and number; raises as a source. None: the
                origin is asked.
            waits: Called before a read waits for the server or the origin, after its place was noted.
            slack_bytes: A read that begins so far before or behind the end of the last one continues it as well.
        """
        self._opened = opened
        self._blocks = blocks
        self._size = opened.info.size_bytes
        self._position = 0
        self._order = Order(
            size_bytes=self._size,
            block_bytes=opened.block_bytes,
            most_bytes=blocks.config.limits.lookahead_bytes,
            readahead=readahead,
            slack_bytes=slack_bytes,
        )
        self._read_part = read_part
        self._waits = waits
        self._consumer = 0
        self._planning = threading.Lock()
        self._done: list[int] = []
        self._fetching: set[int] = set()
        self._hits = self._hit_bytes = 0
        self._copy: tuple[int, bytes] = 0, b""  # the bytes from a place on
        self._held: tuple[int, Buffer] | None = None  # bytes from a place on that the tier has no room for
        self._is_collected = False
        self._at_half: list[Callable[[BlockFile], None]] = []  # one at most
        self._next: BlockFile | None = None  # that is read after this one, if it is told what is read of this one
        self._told: tuple[int, int] = 0, 0  # columns and blocks of this one of which it was told
        self._footer = FooterReader(self._size)
        self._unread_footer = b""
        self._row_groups: RowGroups | None = None

    @property
    def name(self) -> str:
        """Full path or URL of the object."""
        return self._opened.location

    @property
    def mode(self) -> str:
        """Always ``rb``."""
        return "rb"

    @property
    def size(self) -> int:
        """Size of the object in bytes."""
        return self._size

    @property
    def version(self) -> str:
        """Version that the object had when it was opened, as its origin names it; empty where there is none."""
        return self._opened.info.version

    def __repr__(self) -> str:
        state = " closed" if self.closed else ""
        return f"<prefeed file {self.name}: {self._size} bytes{state}>"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(f"cannot pickle {self!r}: open it in each process")

    def readable(self) -> bool:
        """Return True."""
        self._require_open()
        return True

    def seekable(self) -> bool:
        """Return True."""
        self._require_open()
        return True

    def writable(self) -> bool:
        """Return False."""
        self._require_open()
        return False

    def tell(self) -> int:
        """Return the position."""
        self._require_open()
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move the position, also behind the end, and return it."""
        self._require_open()
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}.get(whence)
        if start is None:
            raise ValueError(f"invalid whence ({whence}, should be 0, 1 or 2)")
        if start + offset < 0:
            raise ValueError(f"negative seek position {start + offset}")
        self._position = start + offset
        return self._position

    def read(self, size: int | None = -1, /) -> bytes:
        """Return ``size`` bytes, fewer at the end; all the rest for None and negative sizes."""
        self._require_open()
        left = max(0, self._size - self._position)
        data = self._bytes_at(self._position, left if size is None or size < 0 else min(size, left))
        self._position += len(data)
        return data

    def read1(self, size: int = -1, /) -> bytes:
        """Return bytes up to the end of the block, at most ``size``."""
        self._require_open()
        left = self._left_in_block(self._position)
        data = self._bytes_at(self._position, left if size < 0 else min(size, left))
        self._position += len(data)
        return data

    def read_buffer(self, size: int) -> memoryview:
        """Return ``size`` bytes, fewer at the end, as ``read`` does, with a copy less: pyarrow reads by this."""
        self._require_open()
        count = max(0, min(size, self._size - self._position))
        data = np.empty(count, dtype=np.uint8).data
        self._fill(self._position, data)
        if self._footer.may_be_in(self._position, count):
            self._unread_footer = self._footer.look(self._position, data)
        self._position += count
        return data

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Fill the buffer, from the tier without another copy; return how many bytes."""
        self._require_open()
        with memoryview(buffer).cast("B") as target:
            count = min(len(target), max(0, self._size - self._position))
            self._fill(self._position, target[:count])
        self._position += count
        return count

    readinto1 = readinto

    def peek(self, size: int = 0, /) -> bytes:
        """Return bytes from the position on without moving it: at least one, unless it is at the end."""
        self._require_open()
        data = self._bytes_at(self._position, min(_SMALL_BYTES - 1, self._left_in_block(self._position)))
        if data:
            self._order.take_back()
        return data

    def read_range(self, offset: int, size: int) -> bytes:
        """Return bytes of any place, fewer at the end; the position stays.

        Raises:
            ValueError: The file is closed, or a number is negative.
        """
        self._require_open()
        if offset < 0 or size < 0:
            raise ValueError(f"no range begins at {offset} and has {size} bytes")
        return self._bytes_at(offset, min(size, max(0, self._size - offset)))

    def read_range_into(self, offset: int, target: memoryview) -> int:
        """Fill ``target``, of bytes, with those of any place; return how many, fewer at the end; raises as ``read_range``."""
        self._require_open()
        if offset < 0:
            raise ValueError(f"no range begins at {offset}")
        count = min(len(target), max(0, self._size - offset))
        self._fill(offset, target[:count])
        return count

    def begin(self) -> None:
        """Let the node fetch ahead from now on, before anything is read; for a file that is read in order."""
        self._require_open()
        if self._blocks.pid != os.getpid():
            self._continue_forked()
        has_tier = self._size and self._blocks.tier(self._opened) is not None
        if not self._consumer and has_tier and not self._is_in_tier(0):
            self._begin_plan(0, 1)

    def begin_as(self, before: BlockFile) -> None:
        """The same, for a file that is read as another one was: in order, or the same columns of it; see ``Order.begin_as``."""
        self._require_open()
        groups = before._row_groups
        takes_columns = groups is not None and groups.are_some_read()
        if self._size and self._blocks.tier(self._opened) is not None and (takes_columns or not self._is_in_tier(0)):
            has_footer = bool(before._unread_footer) or groups is not None
            self._tell_next(self._order.begin_as(before._order, end_first=has_footer, end_alone=takes_columns))
            if takes_columns:
                before._next = self

    def when_half_read(self, act: Callable[[BlockFile], None]) -> None:
        """Call this once with the file, in a thread that reads it, when half of it has been read."""
        self._at_half = [act]

    def expects(self, index: int) -> bool:
        """Return whether a block is being fetched for this reader, or will be."""
        return index in self._fetching or index in self._order.planned

    def follows(self, offset: int) -> bool:
        """Return whether a read there continues the last one."""
        return self._order.follows(offset)

    def rest(self) -> None:
        """Nothing is read ahead until the next read, and what was read is reported."""
        if self._consumer:
            self._end_plan()
        elif self._hits:
            self._report(0)

    def close(self) -> None:
        """Let go of the object; nothing is read ahead any more. Idempotent."""
        if self.closed:
            return
        super().close()
        self._held, self._copy, self._next = None, (0, b""), None
        if self._blocks.pid != os.getpid():
            return
        consumer, self._consumer = self._consumer, 0
        if self._is_collected:  # any thread, at any moment, perhaps one that holds a lock
            if consumer:
                self._blocks.end_later(consumer)
            return
        self._blocks.end_file(self._opened, consumer, *self._taken_reads())

    def __del__(self) -> None:
        self._is_collected = True
        super().__del__()

    # ------------------------------------------------------------ inside

    def _require_open(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")

    def _left_in_block(self, offset: int) -> int:
        step = self._order.block_bytes
        return max(0, min((offset // step + 1) * step, self._size) - offset)

    def _bytes_at(self, offset: int, count: int) -> bytes:
        if not count:
            return b""
        copied_at, copied = self._copy  # both of one read: another thread may read now
        start = offset - copied_at
        if start >= 0 and start + count <= len(copied):
            self._note(offset, count)
            return copied[start : start + count]
        is_small = count < _SMALL_BYTES and (self._order.follows(offset) or offset == 0)
        length = max(count, min(_COPIED_BYTES, self._left_in_block(offset))) if is_small else count
        data = self._from_tier(offset, length, count) if self._opened.is_split else None
        if data is None:
            filled = bytearray(length)
            self._fill(offset, memoryview(filled), wanted=count)
            data = bytes(filled)
        if is_small:
            self._copy = offset, data
            data = data[:count]
        if self._footer.may_be_in(offset, count):
            self._unread_footer = self._footer.look(offset, data)
        return data

    def _whole(self) -> Buffer:
        """Return an object without a version, which this file keeps: another request might get another one."""
        with self._planning:
            if self._held is None:
                data = self._peek(0, self._size)
                self._held = 0, self._blocks.read_block(self._opened, 0, 0) if data is None else data
                if data is not None:
                    self._note_hit(0, 0, self._size)
            return self._held[1]

    def _from_tier(self, offset: int, length: int, wanted: int) -> bytes | None:
        """Return bytes that the tier has all of, by one copy; None for all others."""
        data = self._peek(offset, length)
        if data is None:
            return None
        self._note(offset, wanted)
        step, end = self._order.block_bytes, offset + length
        for index in range(offset // step, (end - 1) // step + 1):
            start = max(0, offset - index * step)
            self._note_hit(index, start, min(step, end - index * step) - start)
        self._after(end)
        return data

    def _peek(self, offset: int, length: int) -> bytes | None:
        """Return the same, and note nothing."""
        if self._blocks.pid != os.getpid() or (tier := self._blocks.tier(self._opened)) is None:
            return None
        step, end = self._order.block_bytes, offset + length
        data = bytearray(length)
        for index in range(offset // step, (end - 1) // step + 1):
            start = max(0, offset - index * step)
            part = memoryview(data)[
                index * step + start - offset : min(step, end - index * step) + index * step - offset
            ]
            if tier.read_into(self._opened.key(index), part, start) != len(part):
                return None
        return bytes(data)

    def _fill(self, offset: int, target: memoryview, *, wanted: int | None = None) -> None:
        """Copy bytes from a place on; all of them exist.

        Args:
            offset: Of the first.
            target: Is filled.
            wanted: How many of them the reader has asked for; None: all.
        """
        if self._blocks.pid != os.getpid():
            self._continue_forked()
        self._note(offset, len(target) if wanted is None else wanted)
        if not self._opened.is_split:
            target[:] = memoryview(self._whole())[offset : offset + len(target)]
            return
        tier = self._blocks.tier(self._opened)
        step = self._order.block_bytes
        done = 0
        while done < len(target):
            if tier is not None:
                while done < len(target):
                    index, start = divmod(offset + done, step)
                    part = target[done : done + step - start]
                    if tier.read_into(self._opened.key(index), part, start) != len(part):
                        break
                    done += len(part)
                    self._note_hit(index, start, len(part))
            if done < len(target):
                done += self._read_missing(offset + done, target[done:])
        self._after(offset + len(target))

    def _note(self, offset: int, count: int) -> None:
        """Note what the reader asks for; a plan that it does not follow ends."""
        self._order.note(offset, count)
        if self._row_groups is not None:
            self._row_groups.note(offset, count)
        if self._consumer and not self._order.is_followed():
            self._end_plan()

    def _learn(self) -> None:
        """A block is missing: what its format says of the object shows what is read next, from the last read on."""
        footer, self._unread_footer = self._unread_footer, b""
        found = None if self._row_groups is not None else row_groups_of(footer)
        if found is not None:
            found.note(*self._order.last)
            self._row_groups = found
            self._order.expect(found.after)

    def _after(self, end: int) -> None:
        """The bytes up to there were read."""
        if self._consumer:
            self._go_on(end)
        elif self._hits >= _REPORTED_HITS:
            self._report(0)
        if self._at_half and self._order.is_half_read():
            self._reach_half()
        if self._next is not None:
            self._lead(self._next, end)

    def _read_missing(self, offset: int, target: memoryview) -> int:
        """Copy bytes of one block that the tier does not hold; return how many."""
        index, start = divmod(offset, self._order.block_bytes)
        part = target[: self._left_in_block(offset)]
        held = self._held
        if held is not None:
            held_at, data = held
            begin = offset - held_at
            if 0 <= begin < len(data):
                found = memoryview(data)[begin : begin + len(part)]
                part[: len(found)] = found
                return len(found)
        self._held = None
        has_node = self._opened.dataset is not None
        if self._opened.num_blocks == 1 or (has_node and self._order.may_take(index, len(part))):
            self._begin_plan(index, offset + len(target))
            self._fetching.add(index)
            if self._at_half and self._is_half_of_columns():
                self._reach_half()  # while the block is fetched
            try:
                if self._waits is not None:
                    self._waits()
                data = self._blocks.read_block(self._opened, index, self._consumer)
            finally:
                self._fetching.discard(index)
            part[:] = memoryview(data)[start : start + len(part)]
            if not self._is_in_tier(index):
                self._held = index * self._order.block_bytes, data
            return len(part)
        length = len(part)
        if not has_node:
            ahead = max(len(target), min(self._order.run_bytes, self._size - offset))
            length = max(length, min(ahead, _LARGEST_DIRECT_BYTES))
        if self._waits is not None:
            self._waits()
        data = (
            self._read_part(offset, length) if self._read_part else self._blocks.read_part(self._opened, offset, length)
        )
        if length > len(part):
            self._held = offset, data
        part[:] = memoryview(data)[: len(part)]
        self._order.fetched(length)
        return len(part)

    def _is_in_tier(self, index: int) -> bool:
        tier = self._blocks.tier(self._opened)
        return tier is not None and tier.size_of(self._opened.key(index)) is not None

    def _note_hit(self, index: int, start: int, count: int) -> None:
        self._hits += 1
        self._hit_bytes += count
        if self._consumer and start + count == self._left_in_block(index * self._order.block_bytes):
            self._done.append(index)

    # ------------------------------------------------------------ reading ahead

    def _begin_plan(self, index: int, end: int) -> None:
        """A block is missing: tell the server which ones follow, if that is known."""
        if self._consumer or not self._planning.acquire(blocking=False):
            return  # by another thread that reads the same file
        try:
            self._begin_plan_alone(index, end)
        finally:
            self._planning.release()

    def _begin_plan_alone(self, index: int, end: int) -> None:
        if self._consumer:
            return
        if self._unread_footer:
            self._learn()
        indices = self._order.begin(index, end)
        self._tell_next(indices if len(indices) > 1 else [])

    def _go_on(self, position: int) -> None:
        """The reader has come so far: report, and tell what follows."""
        more = self._order.extend(position)
        if more:
            self._report(self._consumer)
            self._blocks.extend_plan(self._opened, self._consumer, more)
        elif len(self._done) >= 8:
            self._report(self._consumer)

    def _is_half_of_columns(self) -> bool:
        """Return True when some columns are read, and half of them have been: those of a small part of the file may be all."""
        groups = self._row_groups
        if groups is None or not groups.are_some_read() or not groups.is_half_read():
            return False
        return len(groups.names_read) == 1 or not self._order.is_all_read

    def _reach_half(self) -> None:
        with suppress(IndexError):  # another thread that reads this file has done it
            self._at_half.pop()(self)

    def _lead(self, after: BlockFile, end: int) -> None:
        """Tell the file that is read next which columns are read of this one; ``end`` is where the last read ended."""
        groups = self._row_groups
        names = groups.names_read if groups is not None else ()
        told = len(names), self._order.asked_bytes // self._order.block_bytes
        if groups is not None and told != self._told:
            is_last = next(groups.after(end), None) is None  # as far as it is known
            with suppress(PrefeedError, OSError):  # who reads it meets the error
                if after._follow(names, self._order, waits=is_last):
                    self._told = told

    def _follow(self, names: Collection[str], before: Order, *, waits: bool) -> bool:
        """Fetch these columns, as far as the reader has come in another file; False: the footer is not there yet.

        Args:
            before: What was read of the other file.
            waits: For the footer: the reader comes here for the last time, and would wait for it when it opens this file.
        """
        if not self._planning.acquire(blocking=False):
            return False
        try:
            if self._row_groups is None:
                footer = read_footer(self._size, END_BYTES, partial(self._bytes_ahead, waits=waits))
                if footer is None:
                    return False
                self._row_groups = row_groups_of(footer)
            if self._row_groups is None:
                return True
            if not self._order.asked_bytes:
                self._row_groups.want(names)
                self._order.expect(self._row_groups.after)
            self._tell_next(self._order.take_parts(self._row_groups.parts_of(names), before))
            if self.closed and self._consumer:
                self._end_plan()
        finally:
            self._planning.release()
        return True

    def _bytes_ahead(self, start: int, *, waits: bool) -> bytes | None:
        """Return the bytes from a place to the end, which are fetched; None: the tier does not have them yet."""
        data, first = self._peek(start, self._size - start), start // self._order.block_bytes
        if data is None:
            blocks = range(first, self._order.num_blocks)
            self._tell_next(self._order.plan(blocks))
            if waits:
                parts = [self._blocks.read_block(self._opened, index, self._consumer) for index in blocks]
                data = b"".join(parts)[start - first * self._order.block_bytes :]
        return data

    def _tell_next(self, indices: list[int]) -> None:
        """Tell the server of more blocks that will be read."""
        if indices and self._consumer:
            self._blocks.extend_plan(self._opened, self._consumer, indices)
        elif indices:
            resident = not self._blocks.config.read_once
            self._consumer = self._blocks.begin_plan(self._opened, indices, resident=resident)
        if not self._consumer:
            self._order.end()

    def _end_plan(self) -> None:
        """The reader has gone elsewhere."""
        consumer, self._consumer = self._consumer, 0
        self._report(consumer)
        self._blocks.end_plan(consumer)
        self._order.end()

    def _report(self, consumer: int) -> None:
        done, hits, num_bytes = self._taken_reads()
        if hits or done:
            self._blocks.consumed(self._opened, consumer, done, hits, num_bytes)

    def _taken_reads(self) -> tuple[list[int], int, int]:
        """Return what was not reported yet, and count it as reported: blocks read to their ends, number of reads, bytes."""
        done, self._done = self._done, []
        hits, num_bytes = self._hits, self._hit_bytes
        self._hits = self._hit_bytes = 0
        return done, hits, num_bytes

    def _continue_forked(self) -> None:
        """Leave to the parent what is its own: this is a forked child."""
        self._blocks = blocks_of(self._blocks.config)
        info, given = self._opened.info, self._opened.given
        self._opened = BlockObject(given, self._blocks.source(given), info)
        self._consumer = 0
        self._planning = threading.Lock()
        self._next = None
        self._order.end()
        self._done.clear()
        self._hits = self._hit_bytes = 0
