"""What torchvision makes of a PIL image, within the stated differences, with its random numbers."""

from __future__ import annotations

import io
import multiprocessing
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image
from torchvision import transforms

import prefeed
from prefeed.errors import ImageDecodeError, RandomStageError
from prefeed.vision import Normalize, ResizeCropNormalize

pytestmark = pytest.mark.usefixtures("sandbox")

Photos = dict[str, list[bytes]]

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
NORMALIZED = [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
WHOLE = [transforms.Resize(256), transforms.CenterCrop(224)]
RANDOM = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip()]


def opened(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data)).convert("RGB")


def levels(steps: list[Any]) -> Callable[[bytes], torch.Tensor]:
    compose = transforms.Compose([*steps, transforms.PILToTensor()])
    return lambda data: compose(opened(data))


def differences(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> np.ndarray:
    """Return how far apart the values are, sorted."""
    apart = [(a.double() - b.double()).abs().ravel().numpy() for a, b in zip(found, wanted, strict=True)]
    return np.sort(np.concatenate(apart))


def made(transform: Callable[[bytes], torch.Tensor], pictures: list[bytes], seed: int = 3) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    return [transform(data) for data in pictures]


def share(values: np.ndarray, part: float) -> float:
    return float(values[int(part * (len(values) - 1))])


# ---------------------------------------------------------------- equal to torchvision's


@pytest.mark.parametrize("size", ["small", "large"])
@pytest.mark.parametrize(("steps", "options"), [(WHOLE, {}), (RANDOM, {"train": True})], ids=["whole", "random"])
def test_at_full_size_levels_differ_by_one_or_none(size: str, steps: Any, options: Any, photos: Photos) -> None:
    found = made(ResizeCropNormalize(normalize=False, reducing_gap=None, **options), photos[size])

    apart = differences(found, made(levels(steps), photos[size]))
    assert apart.max() <= 1
    assert apart.mean() < 0.1


def test_small_pictures_are_decoded_at_full_size(photos: Photos) -> None:
    by_default, exact = (ResizeCropNormalize(normalize=False, reducing_gap=gap) for gap in (2.0, None))

    for data in photos["small"]:
        assert torch.equal(by_default(data), exact(data))


def test_large_pictures_are_decoded_at_a_smaller_scale_and_differ_little(photos: Photos) -> None:
    wanted = made(levels(WHOLE), photos["large"])

    apart = differences(made(ResizeCropNormalize(normalize=False), photos["large"]), wanted)

    assert 0.1 < apart.mean() < 0.5  # it was scaled
    assert share(apart, 0.999) <= 4
    assert apart.max() <= 16


def test_random_crops_of_large_pictures_differ_by_a_fraction_of_a_pixel(photos: Photos) -> None:
    wanted = made(levels(RANDOM), photos["large"])

    apart = differences(made(ResizeCropNormalize(normalize=False, train=True), photos["large"]), wanted)

    assert apart.mean() < 1
    assert share(apart, 0.999) <= 24


@pytest.mark.parametrize("channels_last", [False, True])
def test_normalising_is_torchvisions_bit_by_bit(channels_last: bool, photos: Photos) -> None:
    as_levels = ResizeCropNormalize(normalize=False)
    as_numbers = ResizeCropNormalize(channels_last=channels_last)

    for data in photos["small"][:3]:
        image = Image.fromarray(as_levels(data).permute(1, 2, 0).numpy())
        assert torch.equal(as_numbers(data), transforms.Compose(NORMALIZED)(image))


def test_the_whole_pipeline_differs_by_less_than_a_level(photos: Photos) -> None:
    pipeline = transforms.Compose([*WHOLE, *NORMALIZED])

    apart = differences(
        made(ResizeCropNormalize(), photos["small"]), made(lambda d: pipeline(opened(d)), photos["small"])
    )

    assert apart.max() <= 1.01 / 255 / min(STD)
    assert apart.mean() < 0.001


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    "options", [{}, {"scale": (0.3, 0.6), "ratio": (0.9, 2.0)}, {"scale": (0.9, 1), "ratio": (4, 5)}]
)
@pytest.mark.parametrize("version", [transforms, transforms.v2], ids=["v1", "v2"])
def test_draws_what_torchvision_draws(seed: int, options: Any, version: Any, photos: Photos) -> None:
    steps = [version.RandomResizedCrop(224, **options), version.RandomHorizontalFlip(0.3)]
    random = ResizeCropNormalize(train=True, normalize=False, reducing_gap=None, flip=0.3, **options)

    wanted = made(levels(steps), photos["small"], seed)
    state = torch.get_rng_state()

    assert differences(made(random, photos["small"], seed), wanted).max() <= 1
    assert torch.equal(torch.get_rng_state(), state)


def test_without_a_flip_no_number_is_drawn_for_it(photos: Photos) -> None:
    wanted = made(levels(RANDOM[:1]), photos["small"])

    found = made(ResizeCropNormalize(train=True, normalize=False, flip=0), photos["small"])

    assert differences(found, wanted).max() <= 1


@pytest.mark.parametrize(
    ("resize", "crop"),
    [
        (256, 224),
        (300, (200, 250)),
        ((240, 320), 224),
        (64, 64),
        (375, 375),
        (600, 500),
        (100, 224),
        (31, 1),
        (224, 600),
    ],
)
def test_sizes_are_torchvisions(resize: Any, crop: Any, photos: Photos) -> None:
    steps = [transforms.Resize(resize), transforms.CenterCrop(crop)]
    lean = ResizeCropNormalize(resize, crop, normalize=False, reducing_gap=None)

    apart = differences(made(lean, photos["small"]), made(levels(steps), photos["small"]))
    assert apart.max() <= 2
    assert apart.mean() < 0.1


@pytest.mark.parametrize("size", [(1, 1), (2, 900), (700, 3), (5, 5)])
@pytest.mark.parametrize("train", [False, True])
def test_odd_pictures(size: tuple[int, int], train: bool, photo: Image.Image) -> None:
    image = photo.resize(size)
    wanted = transforms.Compose([*(RANDOM if train else WHOLE), transforms.PILToTensor()])
    torch.manual_seed(0)
    expected = wanted(image)
    torch.manual_seed(0)

    assert differences([ResizeCropNormalize(train=train, normalize=False)(image)], [expected]).max() <= 1


# ---------------------------------------------------------------- the result


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("channels_last", [False, True])
def test_dtypes_and_layouts(dtype: torch.dtype, channels_last: bool, photos: Photos) -> None:
    data = photos["small"][0]

    found = ResizeCropNormalize(dtype=dtype, channels_last=channels_last)(data)

    assert (found.shape, found.dtype) == ((3, 224, 224), dtype)
    assert found.stride() == ((1, 672, 3) if channels_last else (50176, 224, 1))
    assert torch.equal(found, ResizeCropNormalize()(data).to(dtype))


@pytest.mark.parametrize("channels_last", [False, True])
def test_bytes_for_the_device_are_the_same_levels(channels_last: bool, photos: Photos) -> None:
    data = photos["small"][0]
    found = ResizeCropNormalize(normalize=False, channels_last=channels_last)(data)

    assert (found.shape, found.dtype) == ((3, 224, 224), torch.uint8)
    assert found.untyped_storage().nbytes() == 3 * 224 * 224
    torch.testing.assert_close(Normalize()(found[None])[0], ResizeCropNormalize()(data), rtol=1e-6, atol=1e-6)


def test_the_result_is_not_shared() -> None:
    pixels = np.full((224, 224, 3), 7, np.uint8)
    for channels_last in (False, True):
        found = ResizeCropNormalize(224, 224, normalize=False, channels_last=channels_last)(pixels)
        found.zero_()

    assert (pixels == 7).all()


@pytest.mark.parametrize("train", [False, True])
def test_a_picture_is_the_same_in_every_form(train: bool, photos: Photos, tmp_path: Path) -> None:
    data = photos["small"][0]
    (tmp_path / "a.jpg").write_bytes(data)
    forms = [data, tmp_path / "a.jpg", io.BytesIO(data), opened(data), np.asarray(opened(data))]
    transform = ResizeCropNormalize(train=train)

    first, *others = [made(transform, [form])[0] for form in forms]  # type: ignore[list-item]

    assert all(torch.equal(first, other) for other in others)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.jpg").write_bytes(b"no picture")

    with pytest.raises(ImageDecodeError, match=r"bad\.jpg of 10 bytes"):
        ResizeCropNormalize()(tmp_path / "bad.jpg")


# ---------------------------------------------------------------- in data sets


@pytest.fixture
def folder(photos: Photos, tmp_path: Path) -> Path:
    for number, data in enumerate(photos["small"]):
        path = tmp_path / "images" / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return tmp_path / "images"


@pytest.fixture
def _close_readers() -> Iterator[None]:
    yield
    prefeed.datasets._readers.close()


@pytest.mark.usefixtures("_close_readers")
def test_as_transform_and_as_loader_of_every_data_set(folder: Path) -> None:
    lean = ResizeCropNormalize(normalize=False)
    paths = sorted(folder.glob("*/*.jpg"))
    wanted = [lean(path) for path in paths]

    for dataset in (
        torchvision.datasets.ImageFolder(str(folder), transform=lean),
        torchvision.datasets.ImageFolder(str(folder), loader=lean),
        prefeed.datasets.ImageFolder(folder, transform=lean),
        prefeed.datasets.ImageFolder(folder, loader=lean),
    ):
        assert all(torch.equal(image, good) for (image, _), good in zip(dataset, wanted, strict=True))
    objects = prefeed.datasets.Objects(folder, decode=lean)
    assert all(torch.equal(objects[index], good) for index, good in enumerate(wanted))


def test_files_of_a_loader_come_through_the_cache(folder: Path) -> None:
    dataset = torchvision.datasets.ImageFolder(str(folder), loader=ResizeCropNormalize(normalize=False))
    before = prefeed.statistics()

    batches = list(prefeed.DataLoader(dataset, batch_size=5))

    assert prefeed.statistics().reads - before.reads == len(dataset)
    assert torch.equal(torch.cat([images for images, _ in batches]), torch.stack([image for image, _ in dataset]))


def test_a_cached_stage_takes_the_whole_and_refuses_the_random(folder: Path) -> None:
    dataset = torchvision.datasets.ImageFolder(str(folder), transform=ResizeCropNormalize())
    cached = prefeed.CachedDataset(dataset)

    assert all(torch.equal(cached[i][0], dataset[i][0]) for i in (0, 1, 0, 1))
    cached.close()
    dataset.transform = ResizeCropNormalize(train=True)
    with pytest.raises(RandomStageError, match="ResizeCropNormalize"):
        prefeed.CachedDataset(dataset)[0]


def shape_in_child(transform: ResizeCropNormalize, data: bytes) -> tuple[int, ...]:
    return tuple(transform(data).shape)


@pytest.mark.parametrize("options", [{}, {"train": True, "dtype": torch.bfloat16, "channels_last": True}])
def test_can_be_pickled(options: Any, photos: Photos) -> None:
    transform = ResizeCropNormalize(**options)
    copied = pickle.loads(pickle.dumps(transform))

    assert torch.equal(made(copied, photos["small"][:1])[0], made(transform, photos["small"][:1])[0])
    assert repr(copied) == repr(transform)


def test_works_in_a_forked_process_after_use(photos: Photos) -> None:
    transform = ResizeCropNormalize(2048, 2048)  # large enough for OpenCV's threads
    transform(photos["small"][0])

    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(shape_in_child, (transform, photos["small"][1])) == (3, 2048, 2048)
        pool.close()
        pool.join()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"resize": 0}, "resize must be"),
        ({"resize": (1, 2, 3)}, "resize must be"),
        ({"crop": -1}, "crop must be"),
        ({"crop": (4, 0)}, "crop must be"),
        ({"mean": (0.5,), "std": (0.5,)}, "three values"),
        ({"std": (1, 1, 0)}, "std must be positive"),
        ({"dtype": torch.float64}, "dtype must be one of"),
        ({"flip": 1.5}, "flip must be a probability"),
        ({"reducing_gap": 0.5}, "reducing_gap must be at least 1"),
    ],
    ids=str,
)
def test_parameters_that_cannot_be(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ResizeCropNormalize(**options)
