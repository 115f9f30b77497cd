"""A loop prepared by Accelerate: ``python accelerated.py DATA OUT``."""

import sys
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from seen import Seen
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder


def main(data: str, out: str) -> None:
    set_seed(0)
    seen = Seen(out)
    prepare = transforms.Compose([transforms.RandomResizedCrop(32), transforms.ToTensor()])
    accelerator = Accelerator(cpu=True)
    model: Any = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 10))
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.01)
    loader: Any = DataLoader(ImageFolder(data, prepare), batch_size=8, shuffle=True, num_workers=2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for _ in range(2):
        for images, labels in loader:
            seen.batch(images, labels)
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            seen.loss(loss)
    seen.save(accelerator.unwrap_model(model).state_dict())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
