"""timm's training script in small: ``python timm_folder.py DATA OUT [--endless]``."""

import argparse
from typing import Any

import timm
import torch
from seen import Seen
from timm.data import create_dataset, create_loader

SIZE = 32

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("data")
parser.add_argument("out")
parser.add_argument("--endless", action="store_true", help="one iterator for all epochs: use_multi_epochs_loader")
options = parser.parse_args()

torch.manual_seed(0)
seen = Seen(options.out)
dataset = create_dataset("", root=options.data)
loader: Any = create_loader(
    dataset, input_size=(3, SIZE, SIZE), batch_size=8, is_training=True, num_workers=2, use_prefetcher=False,
    use_multi_epochs_loader=options.endless, device=torch.device("cpu"),
)  # fmt: skip
model = timm.create_model("test_resnet", pretrained=False, num_classes=10)
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
