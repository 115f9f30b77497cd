"""Batches whose memory escapes in every way that we know, looked at to the end: ``escapes ROOT``.

Each way of ``KEEP`` meets each of ``LET_GO``, in a tensor of its own, of one batch. Then the loop goes on, the loader is
deleted, the interpreter ends: what is kept must not change. It prints the ways that failed, as JSON.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import ctypes
import gc
import io
import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.multiprocessing
from PIL import Image
from torch.utils.data import Dataset

import prefeed

NUM_SAMPLES = 32
BATCH = 4
SIDE = 144  # 81 KiB a batch: too large to be sent as bytes

Read = Callable[[], Any]


def _picture(array: Any) -> Read:
    picture = Image.frombuffer("L", (SIDE, BATCH * SIDE), array, "raw", "L", 0, 1)
    return lambda: np.asarray(picture)


def _reader_of(array: Any) -> Read:
    return lambda: array


KEEP: dict[str, Callable[[torch.Tensor], Read]] = {
    "tensor": lambda x: lambda: x.numpy(),
    "view": lambda x: (lambda view: lambda: view.numpy())(x.view(-1)[:]),
    "array": lambda x: _reader_of(x.numpy()),
    "array of a view": lambda x: _reader_of(x.view(-1)[1:].numpy()),
    "array of detached": lambda x: _reader_of(x.detach().numpy()),
    "asarray": lambda x: _reader_of(np.asarray(x)),
    "buffer": lambda x: _reader_of(memoryview(x.numpy())),
    "dlpack": lambda x: _reader_of(np.from_dlpack(x)),
    "torch's dlpack": lambda x: (lambda other: lambda: other.numpy())(torch.from_dlpack(x)),
    "storage": lambda x: (lambda storage: lambda: torch.empty(0, dtype=x_dtype).set_(storage).numpy())(
        x.untyped_storage()
    ),
    "picture": lambda x: _picture(x.numpy()),
    "ctypes": lambda x: _reader_of((ctypes.c_ubyte * x.nbytes).from_buffer(x.numpy())),
}
x_dtype = torch.uint8
"""How something else than the tensor comes to have its memory; the value reads it."""


def _send(x: torch.Tensor) -> None:
    receiver, sender = torch.multiprocessing.get_context("fork").Pipe(duplex=False)
    sender.send(x)
    receiver.close()
    sender.close()


def _set(x: torch.Tensor) -> None:
    x.set_()  # type: ignore[call-overload]


def _set_data(x: torch.Tensor) -> None:
    x.data = torch.zeros(3, dtype=torch.uint8)


def _swap(x: torch.Tensor) -> None:
    with contextlib.suppress(RuntimeError):  # torch refuses where something else refers to the tensor
        torch.utils.swap_tensors(x, torch.zeros(3, dtype=torch.uint8))


LET_GO: dict[str, Callable[[torch.Tensor], object]] = {
    "nothing": lambda x: None,
    "share_memory_": lambda x: x.share_memory_(),
    "its storage's share_memory_": lambda x: x.untyped_storage().share_memory_(),
    "a name in shared memory": lambda x: x.untyped_storage()._share_filename_cpu_(),
    "a pipe": _send,
    "set_": _set,
    "data": _set_data,
    "swap_tensors": _swap,
}
"""What torch is told to do with the tensor then: it may take another piece of memory, and let go of the first."""

WAYS = [
    (keep, let_go)
    for keep in KEEP
    for let_go in LET_GO
    if not (keep == "tensor" and let_go != "nothing")
    # What has a tensor by DLPack knows the tensor only, and reads what torch itself has freed.
    and not ("dlpack" in keep and let_go in ("set_", "data"))
]


class Samples(Dataset[Any]):
    """A tensor for each way, filled with a number that no other sample has; each sample knows a file."""

    def __init__(self, root: Path) -> None:
        self.files = [str(root / f"{i}") for i in range(NUM_SAMPLES)]
        for name in self.files:
            Path(name).write_bytes(b"x")

    def train_data_list(self) -> list[str]:
        return self.files

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> Any:
        return [torch.full((SIDE, SIDE), index, dtype=torch.uint8) for _ in WAYS] + [torch.tensor([index] * 9)]


class Escaped:
    """What was taken out of one batch, and what it was."""

    def __init__(self) -> None:
        self.failed: list[str] = []
        self._kept: dict[str, tuple[Read, bytes]] = {}

    def take(self, batch: list[torch.Tensor]) -> None:
        for (keep, let_go), x in zip(WAYS, batch, strict=False):
            read = KEEP[keep](x)
            self._kept[f"{keep}, {let_go}"] = read, bytes(read())
            LET_GO[let_go](x)
        labels = batch[-1]  # small: sent as bytes
        array = labels.numpy()
        self._kept["labels"] = _reader_of(array), array.tobytes()
        labels.share_memory_()

    def look(self, when: str) -> bool:
        """Note what changed; True when nothing did."""
        with contextlib.suppress(ImportError):  # it may be too late for that
            gc.collect()
        changed = [f"{name}: {when}" for name, (read, bytes_then) in self._kept.items() if bytes(read()) != bytes_then]
        self.failed += changed
        return not changed

    def __del__(self) -> None:
        for name in list(self._kept):  # Pillow and torch's storages cannot be used any more; torch's own abort, too
            if name.startswith(("picture", "storage")):
                del self._kept[name]
        if not self.look("the interpreter ends"):
            print("changed when the interpreter ended", file=sys.stderr)


class Slow(io.BytesIO):
    """A file that waits in its first write."""

    def __init__(self, go_on: threading.Event) -> None:
        super().__init__()
        self._go_on = go_on

    def write(self, data: Any) -> int:
        self._go_on.wait()
        return super().write(data)


def _child(escaped: Escaped, queue: Any, told: Any, answers: Any) -> None:
    received = [queue.get().numpy() for _ in range(2)]
    told.get()
    escaped.look("in a child")
    if any(len(np.unique(array)) != BATCH for array in received):
        escaped.failed.append("what a child got by a queue")
    answers.send(escaped.failed)


def main(root: str) -> list[str]:
    """Return what failed."""
    Path(root).mkdir()
    escaped = _exiting[0]
    loader = prefeed.DataLoader(Samples(Path(root)), batch_size=BATCH, num_workers=1)
    iterator = iter(loader)
    batch = next(iterator)
    assert "memfd:prefeed-batches" in _mapping_of(batch[-2]), "the batch is not in recycled memory"
    go_on, file = threading.Event(), None
    file = Slow(go_on)
    saving = threading.Thread(target=torch.save, args=(batch[0].view(-1), file), daemon=True)
    saving.start()
    expected = batch[0].clone()
    escaped.take(batch)
    context = torch.multiprocessing.get_context("fork")
    queue, told = context.Queue(), context.SimpleQueue()
    answer, answers = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(escaped, queue, told, answers), daemon=True)
    child.start()
    answers.close()
    second = next(iterator)
    arrays = [second[0].numpy(), second[1].numpy()]
    copies = [array.copy() for array in arrays]
    for tensor in second[:2]:
        queue.put(tensor)
    del batch, second, tensor
    for _ in iterator:
        pass
    escaped.look("the ring is alive")
    for _ in range(2):
        for _ in loader:
            pass
    escaped.look("the epochs are over")
    told.put(None)
    try:
        escaped.failed += answer.recv()
    except EOFError:
        child.join()
        escaped.failed.append(f"a child ended with {child.exitcode}")
    child.join()
    del loader, iterator
    escaped.look("the loader is gone")
    _scribble()
    escaped.look("memory was taken by others")
    go_on.set()
    saving.join()
    file.seek(0)
    if not torch.equal(torch.load(file), expected.view(-1)):
        escaped.failed.append("torch.save in a thread")
    if not all(np.array_equal(array, copied) for array, copied in zip(arrays, copies, strict=True)):
        escaped.failed.append("an array of what went through a queue")
    return escaped.failed


def _scribble() -> None:
    """Have memory that was let go used for something else."""
    for _ in range(50):
        torch.full((BATCH * SIDE * SIDE,), 255, dtype=torch.uint8)
        np.full(72, 255, dtype=np.uint8)


def _mapping_of(tensor: torch.Tensor) -> str:
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(address, 16) for address in line.split()[0].split("-"))
        if start <= tensor.data_ptr() < end:
            return line
    return ""


_exiting = [Escaped()]  # looks once more when the interpreter takes the modules apart

if __name__ == "__main__":
    builtins._escaped = _exiting[0]  # type: ignore[attr-defined]  # the module that is taken apart last
    atexit.register(lambda: _exiting[0].look("atexit"))
    print(json.dumps(main(sys.argv[1])))
