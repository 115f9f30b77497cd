"""Pictures of a folder, made small and large again, as torch's example super_resolution: ``python super_resolution.py DATA OUT``."""

import sys
from os import listdir
from os.path import join
from typing import Any

import torch
from PIL import Image
from seen import Seen
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import CenterCrop, Compose, Resize, ToTensor

SIZE, UPSCALE = 32, 2


def is_image_file(filename: str) -> bool:
    return any(filename.endswith(extension) for extension in [".png", ".jpg", ".jpeg"])


def load_img(filepath: str) -> Any:
    img = Image.open(filepath).convert("YCbCr")
    y, _, _ = img.split()
    return y


class DatasetFromFolder(Dataset[Any]):
    def __init__(self, image_dir: str, input_transform: Any = None, target_transform: Any = None) -> None:
        super().__init__()
        self.image_filenames = [join(image_dir, x) for x in listdir(image_dir) if is_image_file(x)]
        self.input_transform = input_transform
        self.target_transform = target_transform

    def __getitem__(self, index: int) -> Any:
        input = load_img(self.image_filenames[index])
        target = input.copy()
        if self.input_transform:
            input = self.input_transform(input)
        if self.target_transform:
            target = self.target_transform(target)
        return input, target

    def __len__(self) -> int:
        return len(self.image_filenames)


def main(data: str, out: str) -> None:
    torch.manual_seed(123)
    seen = Seen(out)
    train_set = DatasetFromFolder(
        join(data, "imgs"),
        input_transform=Compose([CenterCrop(SIZE), Resize(SIZE // UPSCALE), ToTensor()]),
        target_transform=Compose([CenterCrop(SIZE), ToTensor()]),
    )
    training_data_loader: Any = DataLoader(dataset=train_set, num_workers=2, batch_size=4, shuffle=True)
    model = torch.nn.Sequential(torch.nn.Conv2d(1, UPSCALE**2, 3, padding=1), torch.nn.PixelShuffle(UPSCALE))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(2):
        for batch in training_data_loader:
            input, target = batch[0], batch[1]
            seen.batch(input, target)
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(input), target)
            seen.loss(loss)
            loss.backward()
            optimizer.step()
    seen.save(model.state_dict())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
