"""A loop over DeepSpeed's own loader, which makes torch's anew each epoch: ``python deepspeed_loader.py DATA OUT``.

The loader is what DeepSpeed's engine makes of ``training_data``; the engine itself compiles C++ where there is no GPU.
"""

import sys
from typing import Any

import torch
from deepspeed.runtime.dataloader import DeepSpeedDataLoader
from seen import Seen
from torchvision import transforms
from torchvision.datasets import ImageFolder


def main(data: str, out: str) -> None:
    torch.manual_seed(0)
    seen = Seen(out)
    prepare = transforms.Compose([transforms.RandomResizedCrop(32), transforms.ToTensor()])
    loader: Any = DeepSpeedDataLoader(
        dataset=ImageFolder(data, prepare), batch_size=8, pin_memory=False, local_rank=0, tput_timer=None,
        num_local_io_workers=2, data_parallel_world_size=1, data_parallel_rank=0,
    )  # fmt: skip
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(2):
        for images, labels in loader:
            seen.batch(images, labels)
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            seen.loss(loss)
    seen.save(model.state_dict())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
