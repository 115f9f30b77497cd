"""A learner of fastai over a folder: ``python fastai_vision.py DATA OUT [--blocks]``."""

import argparse
from typing import Any

import torch
from fastai.vision.all import (
    Callback,
    CategoryBlock,
    DataBlock,
    ImageBlock,
    ImageDataLoaders,
    Learner,
    RandomSplitter,
    Resize,
    get_image_files,
    parent_label,
    set_seed,
)
from seen import Seen

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("data")
parser.add_argument("out")
parser.add_argument("--blocks", action="store_true", help="a DataBlock, whose training set is sorted out by functions")
options = parser.parse_args()
seen = Seen(options.out)


class Watching(Callback):  # type: ignore[misc]
    """Looks at every batch and loss."""

    def before_batch(self) -> None:
        seen.batch(*self.learn.xb, *self.learn.yb)

    def after_loss(self) -> None:
        seen.loss(self.learn.loss)


set_seed(0, reproducible=True)
dls: Any
if options.blocks:
    block = DataBlock(
        blocks=(ImageBlock, CategoryBlock), get_items=get_image_files, get_y=parent_label,
        splitter=RandomSplitter(0.2, seed=0), item_tfms=Resize(32),
    )  # fmt: skip
    dls = block.dataloaders(options.data, bs=8, num_workers=2)
else:
    dls = ImageDataLoaders.from_folder(options.data, valid_pct=0.2, seed=0, item_tfms=Resize(32), bs=8, num_workers=2)
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 10))
learner = Learner(dls, model, loss_func=torch.nn.functional.cross_entropy, cbs=[Watching()], path=options.out)
with learner.no_bar(), learner.no_logging():
    learner.fit(2, lr=0.01)
seen.save(model.state_dict())
