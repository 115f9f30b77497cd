"""DeepSpeed's engine with the loader that it makes of a dataset: ``python deepspeed_engine.py DATA OUT``."""

import sys
from pathlib import Path
from typing import Any

import deepspeed
import torch
from seen import Seen
from torchvision import transforms
from torchvision.datasets import ImageFolder


def main(data: str, out: str) -> None:
    Path(out).mkdir()
    torch.distributed.init_process_group("gloo", init_method=f"file://{out}/rendezvous", rank=0, world_size=1)
    torch.manual_seed(0)
    seen = Seen(out)
    prepare = transforms.Compose([transforms.RandomResizedCrop(32), transforms.ToTensor()])
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 10))
    engine: Any
    engine, _, loader, _ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), training_data=ImageFolder(data, prepare),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01), config={"train_micro_batch_size_per_gpu": 8},
    )  # fmt: skip
    for _ in range(2):
        for images, labels in loader:
            seen.batch(images, labels)
            loss = torch.nn.functional.cross_entropy(engine(images), labels)
            engine.backward(loss)
            engine.step()
            seen.loss(loss)
    seen.save(engine.module.state_dict())
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
