"""Settings of libraries that change what samples are: one table of what is read where.

Found by trying what changes bits (torch 2.15, torchvision 0.29, NumPy 2.4, Pillow 13, OpenCV 5.0; November 2026). Only libraries
that are imported are asked; a setting that is as the library sets it says nothing, so that one process that has imported
a library and one that has not yet agree. Left out, since they change no sample's bits: how arrays are printed, what is warned
of, which errors of floating point raise, gradients, numbers of threads of NumPy and OpenCV.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

_TABLE: Final[tuple[tuple[str, str, Callable[[Any], Any], Any], ...]] = (
    # module, what is set, how it is read, what it is if it was not set
    ("torch", "default dtype", lambda torch: str(torch.get_default_dtype()), "torch.float32"),
    ("torch", "default device", lambda torch: str(torch.get_default_device()), "cpu"),
    ("torch", "float32 matmul", lambda torch: torch.get_float32_matmul_precision(), "highest"),
    ("torch", "deterministic", lambda torch: torch.are_deterministic_algorithms_enabled(), False),
    ("torch", "fills memory", lambda torch: torch.utils.deterministic.fill_uninitialized_memory, True),
    ("torch", "denormals", lambda torch: torch.full((), 1e-310, dtype=torch.float64).mul(1.0).item() == 0.0, False),
    ("torch", "autocast", lambda torch: torch.is_autocast_enabled("cpu"), False),
    ("torch", "autocast dtype", lambda torch: str(torch.get_autocast_dtype("cpu")), "torch.bfloat16"),
    ("torch", "mkldnn", lambda torch: torch._C._get_mkldnn_enabled(), True),
    ("torch", "mkldnn deterministic", lambda torch: torch._C._get_mkldnn_deterministic(), False),
    ("torch", "nnpack", lambda torch: torch._C._get_nnpack_enabled(), True),
    ("torch", "cudnn", lambda torch: torch._C._get_cudnn_enabled(), True),
    ("torch", "cudnn benchmark", lambda torch: torch._C._get_cudnn_benchmark(), False),
    ("torch", "cudnn deterministic", lambda torch: torch._C._get_cudnn_deterministic(), False),
    ("torchvision", "image backend", lambda torchvision: torchvision.get_image_backend(), "PIL"),
    ("torchvision", "video backend", lambda torchvision: torchvision.get_video_backend(), "pyav"),
    ("PIL.ImageFile", "truncated", lambda module: module.LOAD_TRUNCATED_IMAGES, False),
    ("PIL.Image", "largest", lambda module: module.MAX_IMAGE_PIXELS, 1024**3 // 4 // 3),
    ("PIL.GifImagePlugin", "frames", lambda module: int(module.LOADING_STRATEGY), 0),
    ("PIL.TiffImagePlugin", "libtiff", lambda module: module.READ_LIBTIFF, False),
    ("cv2", "optimized", lambda cv2: cv2.useOptimized(), True),
    ("cv2", "IPP", lambda cv2: (cv2.ipp.useIPP(), cv2.ipp.useIPP_NotExact()), (True, False)),
    ("cv2", "OpenCL", lambda cv2: cv2.ocl.useOpenCL(), False),
    ("decimal", "context", lambda decimal: _decimal(decimal.getcontext()), (28, "ROUND_HALF_EVEN")),
    ("locale", "numbers", lambda locale: locale.setlocale(locale.LC_NUMERIC), "C"),
    ("locale", "times", lambda locale: locale.setlocale(locale.LC_TIME), "C"),
)

_ENVIRONMENT: Final = (
    *("TZ", "ATEN_CPU_CAPABILITY", "DNNL_MAX_CPU_ISA", "ONEDNN_MAX_CPU_ISA", "ONEDNN_DEFAULT_FPMATH_MODE", "MKL_CBWR"),
    *("MKL_ENABLE_INSTRUCTIONS", "OPENBLAS_CORETYPE", "NPY_DISABLE_CPU_FEATURES", "OPENCV_IPP", "OPENCV_CPU_DISABLE"),
)
"""Variables by which other machine code is chosen, or another time zone."""


def _decimal(context: Any) -> tuple[int, str]:
    return context.prec, context.rounding


def library_state() -> dict[str, Any]:
    """Return settings that somebody has changed, by name; a few microseconds each."""
    found: dict[str, Any] = {}
    for module_name, what, read, usual in _TABLE:
        module = sys.modules.get(module_name)
        if module is None or getattr(getattr(module, "__spec__", None), "_initializing", False):
            continue
        try:
            value = read(module)
        except Exception:  # noqa: BLE001 - another version, which has no such setting
            continue
        if value != usual:
            found[f"{module_name} {what}"] = value
    found.update((name, os.environ[name]) for name in _ENVIRONMENT if name in os.environ)
    return found


def threads_now() -> int:
    """Return with how many threads torch computes in this process; 0 until it is imported.

    This is no part of a key: workers have one, and would share nothing with loops that have none. A sum over many numbers
    differs in its last bit between one thread and two, so that samples are compared only where they have as many.
    """
    torch: Any = sys.modules.get("torch")
    count = getattr(torch, "get_num_threads", None)
    return 0 if count is None else int(count())


@contextmanager
def computing_with(threads: int) -> Iterator[bool]:
    """Inside it torch computes with that many threads, if that can be had: one always can. Gives whether it does."""
    now = threads_now()
    if 0 in (now, threads) or now == threads:
        yield True
    elif threads == 1:
        torch: Any = sys.modules["torch"]
        torch.set_num_threads(1)
        try:
            yield True
        finally:
            torch.set_num_threads(now)
    else:
        yield False  # a forked worker must not start any
