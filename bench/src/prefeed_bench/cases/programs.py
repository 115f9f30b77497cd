"""``prefeed run`` before scripts of other libraries, in their first epoch, on a directory whose opens are slow.

None of their datasets says which files it will open. Libraries that are not installed are left out.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from prefeed_bench.cases.zero_code import PLAIN_BATCHES, Run, check_same_batches, run_local, run_plain, run_prefeed
from prefeed_bench.errors import BenchFailedError
from prefeed_bench.harness import BenchResult, Options, Samples, alternate
from prefeed_bench.photos import PhotoFolder

_SCRIPT: Final = "library.py"
_MODULES: Final = {
    "timm": "timm",
    "huggingface": "datasets",
    "monai": "monai",
    "unet": "torch",
    "fastai": "fastai",
}
"""What is measured, as ``library.py`` calls it, and what it imports."""
_PAIRS: Final = 2000
"""Most pairs of a picture and a mask."""

NOTES: Final = (
    "one epoch, timed from iter(loader) on, the start of the workers included; batch 64, 2 workers",
    "plain: the first 10 batches of the slow directory without prefeed; local: the same files in the page cache",
    "prefeed: started empty before the run, so that of_local and over_plain are those of a first epoch",
    "unet: pairs of a picture and a mask, found by name inside the sample; 2,000 of them",
)


def run(options: Options) -> BenchResult:
    """Measure each library's script: slow directory, slow directory under ``prefeed run``, local directory."""
    found = [name for name, module in _MODULES.items() if importlib.util.find_spec(module) is not None]
    photos = options.photos()
    with _pairs(photos, options) as pairs:
        roots = {name: pairs if name == "unet" else photos.root for name in found}
        variants: dict[str, Callable[[], Run]] = {}
        for name, root in roots.items():
            library = ["--library", name]
            plain = [*library, "--batches", str(PLAIN_BATCHES)]
            variants[f"{name}_plain"] = functools.partial(run_plain, _SCRIPT, root, plain)
            variants[f"{name}_local"] = functools.partial(run_local, _SCRIPT, root, library)
            variants[f"{name}_prefeed"] = functools.partial(run_prefeed, _SCRIPT, root, library)
        runs = alternate(variants, runs=options.runs, say=options.say)
    return _result(found, runs)


@contextlib.contextmanager
def _pairs(photos: PhotoFolder, options: Options) -> Iterator[Path]:
    """Make a directory of pictures and their masks, beside the pictures, for the time of the block."""
    with tempfile.TemporaryDirectory(prefix=".pairs-", dir=photos.root.parent) as directory:
        options.say("pictures and masks")
        root = Path(directory)
        for folder in ("imgs", "masks"):
            (root / folder).mkdir()
        for path in sorted(photos.root.glob("*/*.jpg"), key=lambda path: path.name)[:_PAIRS]:
            image = root / "imgs" / path.name
            try:
                os.link(path, image)
            except OSError:  # a file system without hard links
                shutil.copyfile(path, image)
            _write_mask(path, root / "masks" / f"{path.stem}_mask.png")
        yield root


def _write_mask(picture: Path, to: Path) -> None:
    from PIL import Image

    with Image.open(picture) as opened:
        opened.convert("L").point([0] * 128 + [1] * 128).save(to)


def _result(found: Sequence[str], runs: Mapping[str, Sequence[Run]]) -> BenchResult:
    samples = Samples()
    for name in found:
        plain, local, prefeed = (runs[f"{name}_{kind}"] for kind in ("plain", "local", "prefeed"))
        try:
            check_same_batches([*local, *plain, *prefeed])
        except BenchFailedError as err:
            raise BenchFailedError(f"{name}: {err}") from err
        for number in range(len(local)):
            samples.add(**_figures(name, plain[number], local[number], prefeed[number]))
    missing = [f"{name}: not measured, {_MODULES[name]} is not installed" for name in _MODULES if name not in found]
    notes = [*NOTES, *missing, *(["pip install 'prefeed-bench[programs]' brings the libraries"] if missing else [])]
    detail = {name: [run.summary() for run in of_variant] for name, of_variant in runs.items()}
    return samples.result("programs", detail, *notes)


def _figures(name: str, plain: Run, local: Run, prefeed: Run) -> dict[str, float]:
    return {
        f"{name}_img_s": prefeed.rate(0),
        f"{name}_of_local": prefeed.rate(0) / local.rate(0),
        f"{name}_over_plain": prefeed.rate(0) / plain.rate(0),
    }
