"""A device that does nothing before it has to, over memory of this process.

Work lies in queues, and is done when somebody waits for a mark, or when the test says which queue goes first. Memory
that is given back is overwritten by the queue that had it, like an allocator's that gives it to the next in that queue;
memory that another queue is to read must be kept for it.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from prefeed.torch.device import cast

POISON = 0xEE
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class Mark:
    def __init__(self, device: LateDevice, queue: deque[Any]) -> None:
        self.device = device
        self.queue = queue
        self.is_reached = False

    def query(self) -> bool:
        return self.is_reached

    def synchronize(self) -> None:
        with self.device.lock:
            self.device.run_to(self)


class Block:
    """Some memory of the device.

    Attributes:
        kept_for: Queues that may be using it.
        until: It is not to be used again before these.
    """

    def __init__(self, num_bytes: int, queue: deque[Any]) -> None:
        self.memory: Bytes = np.full(num_bytes, POISON, np.uint8)
        self.queue = queue
        self.kept_for: list[deque[Any]] = []
        self.until: list[Mark] = []


class LateDevice:
    """The protocol ``Streams``.

    Attributes:
        loops: The queue of the loop.
        side: The queue aside.
        num_blocks: Pieces of memory that there were at the same time, at most.
        in_thread: Threads that entered.
        lock: Held while anything of it changes.
    """

    def __init__(self) -> None:
        self.loops: deque[Any] = deque()
        self.side: deque[Any] = deque()
        self.lock = threading.RLock()
        self.in_thread: list[threading.Thread] = []
        self.num_blocks = 0
        self._blocks: dict[int, Block] = {}
        self._gone: list[Block] = []
        self._current = threading.local()

    # -------------------------------------------------------- as a prefetcher sees it

    def enter_thread(self) -> None:
        self.in_thread.append(threading.current_thread())

    @contextmanager
    def aside(self) -> Iterator[None]:
        before = self.current()
        self._current.queue = self.side
        try:
            yield
        finally:
            self._current.queue = before

    def current(self) -> deque[Any]:
        queue: deque[Any] = getattr(self._current, "queue", self.loops)
        return queue

    def mark(self) -> Mark:
        mark = Mark(self, self.current())
        with self.lock:
            mark.queue.append(mark)
        return mark

    def wait(self, mark: Mark) -> None:
        with self.lock:
            self.current().append(("wait", mark))

    def has(self, tensor: torch.Tensor) -> bool:
        return self._block_of(tensor) is not None

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def copy(self, tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
        if self.has(tensor):
            return tensor
        shape, old = tuple(tensor.shape), tensor.dtype
        source = memory_at(tensor.data_ptr(), tensor.nbytes)
        there = self.empty(shape, cast(torch.empty(0, dtype=old), dtype).dtype)
        self.put(lambda to: to.copy_(tensor_over(source, old, shape)), there)
        return there

    def move(self, value: Any) -> Any:
        return value.to(self, non_blocking=True)

    def keep(self, tensor: torch.Tensor) -> None:
        with self.lock:
            block = self._block_of(tensor)
            assert block is not None, "not on the device"
            block.kept_for.append(self.current())

    # -------------------------------------------------------- as the loop and its transform use it

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return a tensor with memory of the current queue; nobody knows what is in it."""
        num_bytes = torch.empty(shape, dtype=dtype, device="meta").nbytes
        with self.lock:
            block = self._take(num_bytes)
        array = block.memory.view()
        weakref.finalize(array, self._free, block)
        return tensor_over(array, dtype, shape)

    def put(self, function: Callable[..., Any], *tensors: torch.Tensor) -> None:
        """Have a function called with tensors on the device, when the current queue comes to it.

        As with a real one: that the work is yet to be done keeps no tensor alive.
        """
        places = [(memory_at(t.data_ptr(), t.nbytes), t.dtype, tuple(t.shape)) for t in tensors]
        with self.lock:
            self.current().append(lambda: function(*(tensor_over(*place) for place in places)))

    def applied(self, function: Callable[[torch.Tensor], torch.Tensor], tensor: torch.Tensor) -> torch.Tensor:
        """Return what the current queue makes of a tensor; shape and dtype stay."""
        there = self.empty(tuple(tensor.shape), tensor.dtype)
        self.put(lambda out, given: out.copy_(function(given)), there, tensor)
        return there

    # -------------------------------------------------------- as the test drives it

    def finish(self, *queues: deque[Any]) -> None:
        """Do all work, of these queues first."""
        with self.lock:
            for queue in (*queues, self.side, self.loops):
                while queue:
                    self._step(queue)

    def run_to(self, mark: Mark) -> None:
        while not mark.is_reached:
            self._step(mark.queue)

    def _step(self, queue: deque[Any]) -> None:
        step = queue.popleft()
        if isinstance(step, Mark):
            step.is_reached = True
        elif isinstance(step, tuple):
            self.run_to(step[1])
        else:
            step()

    # -------------------------------------------------------- memory

    def _take(self, num_bytes: int) -> Block:
        queue = self.current()
        for block in self._gone:
            if (
                block.queue is queue
                and block.memory.nbytes == num_bytes
                and all(mark.is_reached for mark in block.until)
            ):
                self._gone.remove(block)
                block.until.clear()
                return block
        block = Block(num_bytes, queue)
        self._blocks[block.memory.ctypes.data] = block
        self.num_blocks = len(self._blocks)
        return block

    def _free(self, block: Block) -> None:
        with self.lock:
            for queue in block.kept_for:
                mark = Mark(self, queue)
                queue.append(mark)
                block.until.append(mark)
            if not block.kept_for:
                block.queue.append(lambda: block.memory.fill(POISON))
            block.kept_for.clear()
            self._gone.append(block)

    def _block_of(self, tensor: torch.Tensor) -> Block | None:
        return self._blocks.get(tensor.untyped_storage().data_ptr())


def memory_at(address: int, num_bytes: int) -> Bytes:
    """Return memory, without keeping what it belongs to."""
    return np.frombuffer((ctypes.c_uint8 * num_bytes).from_address(address), np.uint8)


def tensor_over(array: Bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.from_numpy(array).view(dtype).view(shape)


class PinnedRows:
    """A loader of batches in memory that is used for something else as soon as the batch is gone.

    Attributes:
        num_asked: Batches that were asked for.
        may_go_on: Cleared: the next batch is not there before it is set.
    """

    def __init__(self, num_batches: int, shape: tuple[int, ...] = (4, 3)) -> None:
        self.num_batches = num_batches
        self.shape = shape
        self.num_asked = 0
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self._memory: list[Bytes] = []

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[Any]:
        for number in range(self.num_batches):
            self.num_asked += 1
            assert self.may_go_on.wait(60)
            yield self.batch(number)

    def batch(self, number: int) -> Any:
        """Return a batch, all of whose values are its number."""
        return self.tensor(number)

    def tensor(self, value: float) -> torch.Tensor:
        memory = np.full(self.shape, value, np.float32).view(np.uint8).reshape(-1)
        self._memory.append(memory)
        array = memory.view()
        weakref.finalize(array, memory.fill, POISON)
        return tensor_over(array, torch.float32, self.shape)
