"""Tokens out of a memory map, without a loader, as nanoGPT does: ``python nanogpt.py DATA OUT``."""

import os
import sys

import numpy as np
import torch
from seen import Seen

BLOCK, BATCH, VOCABULARY = 16, 4, 256


def main(data: str, out: str) -> None:
    torch.manual_seed(1337)
    seen = Seen(out)

    def get_batch(split: str) -> tuple[torch.Tensor, torch.Tensor]:
        tokens = np.memmap(os.path.join(data, f"{split}.bin"), dtype=np.uint16, mode="r")
        starts = torch.randint(len(tokens) - BLOCK, (BATCH,))
        x = torch.stack([torch.from_numpy(tokens[i : i + BLOCK].astype(np.int64)) for i in starts])
        y = torch.stack([torch.from_numpy(tokens[i + 1 : i + 1 + BLOCK].astype(np.int64)) for i in starts])
        return x, y

    model = torch.nn.Sequential(torch.nn.Embedding(VOCABULARY, 8), torch.nn.Linear(8, VOCABULARY))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(10):
        x, y = get_batch("train")
        seen.batch(x, y)
        loss = torch.nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.loss(loss)
    seen.save(model.state_dict())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
