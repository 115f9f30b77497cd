"""The readers that people use, with files that the reader alone has, against the real files."""

from __future__ import annotations

import mmap
import pickle
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
import pytest
import skimage
import torch
import torchvision.io
from PIL import Image

from prefeed.interception import reads_from

from .conftest import KeptFiles

PHOTOS = ["rocket.jpg", "chelsea.png", "chessboard_GRAY.png", "multipage.tif", "no_time_for_that_tiny.gif"]
MAPPED = ["plain.bmp", "sideways.tif", "packed.tif", "multipage.tif"]  # by Pillow
MADE = [
    "sideways.jpg",
    "sideways.tif",
    "plain.bmp",
    "packed.tif",
    "sixteen.png",
    "alpha.png",
    "broken.jpg",
    "empty.jpg",
]


def picture(name: str, folder: Path) -> Path:
    path = folder / name
    if name in PHOTOS:
        path.write_bytes((Path(skimage.data_dir) / name).read_bytes())
        return path
    pixels = np.arange(40 * 30 * 3, dtype=np.uint8).reshape(30, 40, 3)
    image = Image.fromarray(pixels)
    exif = Image.Exif()
    exif[0x0112] = 6  # orientation: turn right
    if name.startswith("sideways"):
        image.save(path, exif=exif)
    elif name == "packed.tif":
        image.save(path, compression="tiff_lzw")
    elif name == "sixteen.png":
        Image.fromarray(np.arange(1200, dtype=np.uint16).reshape(30, 40) * 50).save(path)
    elif name == "alpha.png":
        image.convert("RGBA").save(path)
    elif name == "broken.jpg":
        image.save(path)
        path.write_bytes(path.read_bytes()[:500])
    elif name == "empty.jpg":
        path.touch()
    else:
        image.save(path)
    return path


@pytest.fixture(params=PHOTOS + MADE)
def photo(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return picture(request.param, tmp_path)


def same_array(served: Any, expected: Any) -> None:
    assert type(served) is type(expected)
    if expected is None:
        return
    assert served.dtype == expected.dtype
    assert served.shape == expected.shape
    assert served.flags.c_contiguous == expected.flags.c_contiguous
    assert served.flags.writeable == expected.flags.writeable
    assert served.flags.owndata == expected.flags.owndata
    assert served.tobytes() == expected.tobytes()


def same_tensor(served: Any, expected: Any) -> None:
    assert served.dtype == expected.dtype
    assert served.is_contiguous() == expected.is_contiguous()
    assert served.device == expected.device
    assert torch.equal(served, expected)


# ---------------------------------------------------------------- Pillow


@pytest.mark.parametrize("name", [*sorted(set(PHOTOS) - set(MAPPED)), "sideways.jpg", "sixteen.png", "alpha.png"])
def test_pillow(name: str, tmp_path: Path, reader: KeptFiles) -> None:
    path = picture(name, tmp_path)
    with Image.open(path) as image:
        expected = (image.format, image.mode, image.filename, dict(image.getexif()), image.tobytes())
    reader.keep_and_remove(path)
    with reads_from(reader), Image.open(path) as image:
        assert (image.format, image.mode, image.filename, dict(image.getexif()), image.tobytes()) == expected
    assert reader.asked == [str(path)]


@pytest.mark.parametrize("name", MAPPED)
def test_pillow_maps_the_real_file(name: str, tmp_path: Path, reader: KeptFiles) -> None:
    path = picture(name, tmp_path)
    with Image.open(path) as image:
        expected = image.tobytes()
    reader.keep(path)
    with reads_from(reader), Image.open(path) as image:
        assert image.tobytes() == expected
    assert set(reader.asked) == {str(path)}


# ---------------------------------------------------------------- OpenCV

FLAGS = [
    cv2.IMREAD_COLOR,
    cv2.IMREAD_UNCHANGED,
    cv2.IMREAD_GRAYSCALE,
    cv2.IMREAD_ANYDEPTH,
    cv2.IMREAD_ANYCOLOR | cv2.IMREAD_ANYDEPTH,
    cv2.IMREAD_REDUCED_COLOR_2,
    cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION,
    cv2.IMREAD_COLOR_RGB,
]


@pytest.mark.parametrize("flags", FLAGS)
def test_imread(flags: int, photo: Path, reader: KeptFiles) -> None:
    expected = cv2.imread(str(photo), flags)
    reader.keep(photo)
    with reads_from(reader):
        same_array(cv2.imread(str(photo), flags), expected)
    assert reader.asked == [str(photo)]


IMREAD_FORMS: dict[str, Callable[[Any], Any]] = {
    "name alone": lambda p: cv2.imread(str(p)),
    "flags": lambda p: cv2.imread(str(p), 0),
    "keyword flags": lambda p: cv2.imread(str(p), flags=0),
    "all keywords": lambda p: cv2.imread(filename=str(p), flags=-1),
    "keyword name": lambda p: cv2.imread(filename=str(p)),
    "no dst": lambda p: cv2.imread(str(p), None),
    "no dst, flags": lambda p: cv2.imread(str(p), None, 0),
    "no dst, keyword flags": lambda p: cv2.imread(str(p), None, flags=0),
    "keyword dst": lambda p: cv2.imread(str(p), dst=None, flags=0),
    "path": lambda p: cv2.imread(p),
    "bytes": lambda p: cv2.imread(str(p).encode()),
}


@pytest.mark.parametrize("read", IMREAD_FORMS.values(), ids=IMREAD_FORMS.keys())
def test_forms_of_imread(read: Callable[[Any], Any], tmp_path: Path, reader: KeptFiles) -> None:
    photo = picture("sideways.jpg", tmp_path)
    expected = read(photo)
    assert expected is not None
    reader.keep_and_remove(photo)
    with reads_from(reader):
        same_array(read(photo), expected)


ODD_IMREADS: dict[str, Callable[[Any], Any]] = {
    "into dst": lambda p: cv2.imread(str(p), np.zeros((40, 30, 3), np.uint8)),
    "into dst, flags": lambda p: cv2.imread(str(p), np.zeros((40, 30), np.uint8), 0),
    "flags twice": lambda p: cv2.imread(str(p), 0, flags=0),
    "name twice": lambda p: cv2.imread(str(p), filename=str(p)),
    "float flags": lambda p: cv2.imread(str(p), 1.0),
    "numpy flags": lambda p: cv2.imread(str(p), np.int64(0)),
    "true": lambda p: cv2.imread(str(p), True),
    "no name": lambda p: cv2.imread(),
    "None": lambda p: cv2.imread(None),
    "a number": lambda p: cv2.imread(3),
    "unknown keyword": lambda p: cv2.imread(str(p), color=1),
    "too many": lambda p: cv2.imread(str(p), None, 0, 0),
    "text": lambda p: cv2.imread(__file__),
    "missing": lambda p: cv2.imread("/no/such.jpg"),
    "folder": lambda p: cv2.imread(str(p.parent)),
}


@pytest.mark.parametrize("read", ODD_IMREADS.values(), ids=ODD_IMREADS.keys())
def test_odd_calls_of_imread_are_its_own(read: Callable[[Any], Any], tmp_path: Path, reader: KeptFiles) -> None:
    def result() -> Any:
        try:
            return read(photo)
        except (cv2.error, TypeError) as error:
            return type(error), str(error)

    photo = picture("sideways.jpg", tmp_path)
    expected = result()
    reader.keep(photo, Path(__file__))
    with reads_from(reader):
        served = result()
    if isinstance(expected, tuple):
        assert served == expected
    else:
        same_array(served, expected)


# ---------------------------------------------------------------- torchvision


@pytest.fixture
def deprecated() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        yield


@contextmanager
def warnings_counted() -> Iterator[list[Any]]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        yield seen


TORCHVISION: dict[str, Callable[[Any], Any]] = {
    "read_file": lambda p: torchvision.io.read_file(str(p)),
    "of the module": lambda p: torchvision.io.image.read_file(p),
    "decode_image": lambda p: torchvision.io.decode_image(str(p)),
    "decode_image, mode": lambda p: torchvision.io.decode_image(p, mode="GRAY"),
    "read_image": lambda p: torchvision.io.read_image(str(p)),
    "decode_jpeg": lambda p: torchvision.io.decode_jpeg(torchvision.io.read_file(str(p))),
    "operator": lambda p: torch.ops.image.read_file(str(p)),
}


@pytest.mark.usefixtures("deprecated")
@pytest.mark.parametrize("read", TORCHVISION.values(), ids=TORCHVISION.keys())
def test_torchvision(read: Callable[[Any], Any], tmp_path: Path, reader: KeptFiles) -> None:
    photo = picture("sideways.jpg", tmp_path)
    with warnings_counted() as before:
        expected = read(photo)
    reader.keep_and_remove(photo)
    with reads_from(reader), warnings_counted() as after:
        served = read(photo)
    same_tensor(served, expected)
    served += 1
    assert [str(w.message) for w in after] == [str(w.message) for w in before]
    assert reader.asked == [str(photo)]


@pytest.mark.usefixtures("deprecated")
def test_torchvision_functions_bound_by_name(tmp_path: Path, reader: KeptFiles) -> None:
    read_file = torchvision.io.read_file
    photo = picture("rocket.jpg", tmp_path)
    reader.keep_and_remove(photo)
    with reads_from(reader):
        assert read_file(str(photo)).numel() > 0


@pytest.mark.usefixtures("deprecated")
@pytest.mark.parametrize("make", [lambda p: p / "missing", lambda p: picture("empty.jpg", p)], ids=["missing", "empty"])
def test_torchvision_fails_in_its_own_words(make: Callable[[Path], Path], tmp_path: Path, reader: KeptFiles) -> None:
    path = make(tmp_path)
    if path.is_file():
        reader.keep(path)
    with pytest.raises(RuntimeError) as expected:
        torchvision.io.read_file(str(path))
    with reads_from(reader), pytest.raises(RuntimeError) as served:
        torchvision.io.read_file(str(path))
    assert str(served.value).splitlines()[0] == str(expected.value).splitlines()[0]


@pytest.mark.usefixtures("deprecated")
def test_the_operator_is_itself_to_torchscript(reader: KeptFiles, tmp_path: Path) -> None:
    def read(path: str) -> torch.Tensor:
        return torch.ops.image.read_file(path)

    photo = picture("rocket.jpg", tmp_path)
    packet = torch.ops.image.read_file
    with reads_from(reader):
        assert repr(torch.ops.image.read_file) == repr(packet)
        assert torch.ops.image.read_file.default is packet.default
        assert packet.default is torch.ops.image.read_file.default
        scripted = torch.jit.script(read)
    same_tensor(scripted(str(photo)), read(str(photo)))
    assert torch.ops.image.read_file is packet


# ---------------------------------------------------------------- numpy

ITEMS = [np.uint8, "<f4", ">i2", "c", "S3", np.dtype([("a", "<i4"), ("b", "u1")]), "M8[s]", bool, None, float]


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    path = tmp_path / "raw.bin"
    np.arange(101, dtype=np.uint8).tofile(path)
    return path


def array_or_error(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except (OSError, ValueError, TypeError, OverflowError, DeprecationWarning) as error:
        return type(error)


def compare_arrays(served: Any, expected: Any) -> None:
    if isinstance(expected, type):
        assert served is expected
    else:
        same_array(served, expected)


@pytest.mark.parametrize("items", ITEMS, ids=str)
@pytest.mark.parametrize("count", [-1, 0, 1, 5, 1000, np.int64(4)])
@pytest.mark.parametrize("offset", [0, 7, 101])
def test_fromfile_by_path(items: Any, count: int, offset: int, raw: Path, reader: KeptFiles) -> None:
    expected = np.fromfile(raw, items, count, offset=offset)
    reader.keep_and_remove(raw)
    with reads_from(reader):
        same_array(np.fromfile(raw, items, count, offset=offset), expected)
    assert reader.asked == [str(raw)]


@pytest.mark.parametrize("items", ITEMS, ids=str)
@pytest.mark.parametrize("count", [-1, 0, 3, 1000])
@pytest.mark.parametrize("offset", [0, 7])
def test_fromfile_of_an_open_file(items: Any, count: int, offset: int, raw: Path, reader: KeptFiles) -> None:
    def read() -> tuple[Any, int, Any, int]:
        with open(raw, "rb") as file:
            file.read(3)
            first = np.fromfile(file, items, count, offset=offset)
            return first, file.tell(), np.fromfile(file, np.uint8, 2), file.tell()

    expected = read()
    reader.keep_and_remove(raw)
    with reads_from(reader):
        served = read()
    same_array(served[0], expected[0])
    same_array(served[2], expected[2])
    assert served[1::2] == expected[1::2]


@pytest.mark.parametrize(
    "arguments",
    [
        {"offset": -1},
        {"offset": 102},
        {"offset": 1000},
        {"offset": 1.5},
        {"offset": "1"},
        {"count": -2},
        {"count": 1.5},
        {"dtype": object},
        {"dtype": "S"},
        {"dtype": "no such"},
        {"dtype": (np.uint8, 3)},
        {"dtype": np.uint8, "sep": ","},
        {"sep": " "},
        {"sep": 3},
        {"like": np.empty(0)},
        {"dtype": np.uint8, "like": np.empty(0)},
    ],
    ids=str,
)
def test_unusual_calls_of_fromfile_are_numpys_own(arguments: dict[str, Any], raw: Path, reader: KeptFiles) -> None:
    def read_both() -> tuple[Any, Any]:
        with open(raw, "rb") as file:
            file.read(2)
            return (
                array_or_error(lambda: np.fromfile(raw, **arguments)),
                array_or_error(lambda: np.fromfile(file, **arguments)),
            )

    expected = read_both()
    reader.keep(raw)
    with reads_from(reader):
        served = read_both()
    for mine, theirs in zip(served, expected, strict=True):
        compare_arrays(mine, theirs)


def test_numbers_in_text(tmp_path: Path, reader: KeptFiles) -> None:
    (tmp_path / "numbers").write_text("1 2 3")
    reader.keep(tmp_path / "numbers")
    with reads_from(reader):
        assert np.fromfile(tmp_path / "numbers", sep=" ").tolist() == [1, 2, 3]
        assert np.loadtxt(tmp_path / "numbers").tolist() == [1, 2, 3]


def test_numpy_load(tmp_path: Path, reader: KeptFiles) -> None:
    array = np.arange(10000, dtype="<f4").reshape(100, 100)
    np.save(tmp_path / "a.npy", array)
    np.savez_compressed(tmp_path / "a.npz", array=array)
    np.save(tmp_path / "objects.npy", np.array([{"a": 1}], dtype=object))
    expected = np.load(tmp_path / "a.npy")
    reader.keep_and_remove(*tmp_path.iterdir())
    with reads_from(reader):
        same_array(np.load(tmp_path / "a.npy"), expected)
        with np.load(tmp_path / "a.npz") as arrays:
            same_array(arrays["array"], expected)
        assert np.load(tmp_path / "objects.npy", allow_pickle=True)[0] == {"a": 1}


def test_numpy_maps_the_real_file(tmp_path: Path, reader: KeptFiles) -> None:
    np.save(tmp_path / "a.npy", np.arange(100))
    reader.keep(tmp_path / "a.npy")
    with reads_from(reader):
        mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
    assert type(mapped) is np.memmap
    assert isinstance(mapped.base, mmap.mmap)
    assert mapped.sum() == 4950


# ---------------------------------------------------------------- torch.load, pickle, HDF5

STATE = {"weights": torch.arange(1000.0), "step": 3, "names": ["a", "b"]}


@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "legacy"])
def test_torch_load(weights_only: bool, is_zip: bool, tmp_path: Path, reader: KeptFiles) -> None:
    path = tmp_path / "state.pt"
    torch.save(STATE, path, _use_new_zipfile_serialization=is_zip)
    reader.keep(path)
    if is_zip:
        path.unlink()  # the old format is read from the descriptor
    with reads_from(reader):
        state = torch.load(path, weights_only=weights_only)
    assert torch.equal(state.pop("weights"), STATE["weights"])
    assert state == {"step": 3, "names": ["a", "b"]}
    assert reader.asked == [str(path)]


def test_torch_load_mapped(tmp_path: Path, reader: KeptFiles) -> None:
    path = tmp_path / "state.pt"
    torch.save(STATE, path)
    reader.keep(path)
    with reads_from(reader):
        assert torch.equal(torch.load(path, mmap=True)["weights"], STATE["weights"])


def test_pickles(tmp_path: Path, reader: KeptFiles) -> None:
    value = {"many": list(range(100_000)), "bytes": b"x" * 300_000}
    (tmp_path / "value").write_bytes(pickle.dumps(value))
    reader.keep_and_remove(tmp_path / "value")
    with reads_from(reader), open(tmp_path / "value", "rb") as file:
        assert pickle.load(file) == value
        assert file.read() == b""


def test_hdf5_opens_its_files_itself(tmp_path: Path, reader: KeptFiles) -> None:
    path = tmp_path / "data.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(100)
    reader.keep(path)
    with reads_from(reader), h5py.File(path, "r") as file:
        assert file["x"][:].sum() == 4950
    assert reader.asked == []
    with reads_from(reader), open(path, "rb") as opened, h5py.File(opened, "r") as file:
        assert file["x"][:].sum() == 4950
