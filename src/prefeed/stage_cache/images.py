"""Pillow's images in entries of stage caches. A plug-in of ``plug_ins.py``."""

from __future__ import annotations

import math
from typing import Any, Final

from PIL import Image, ImageFile

from prefeed.stage_cache.decoding import Source
from prefeed.stage_cache.encoding import Parts, RefusedError, copy_buffer, take_apart
from prefeed.stage_cache.layout import Node, Op
from prefeed.stage_cache.plug_ins import CompileNode, Handler, Reader

_PACKAGE: Final = "PIL"


def handler_of(cls: type) -> Handler | None:
    """Return what encodes exact instances of the class; None when nothing does.

    An opened file comes back as a plain image, as ``Image.copy`` and ``Image.convert`` return it.
    """
    return _take_image if cls is Image.Image or issubclass(cls, ImageFile.ImageFile) else None


def _take_image(value: Image.Image, parts: Parts) -> Node:
    try:
        data = value.tobytes()
    except (OSError, ValueError, SyntaxError) as err:
        raise RefusedError(value, f"has no pixels: {err}", can_pickle=False) from err
    parts.values += [list(value.size), len(data)]
    parts.add_block(data, len(data), copy_buffer)
    palette = _take_palette(value, parts)
    return [Op.PLUG_IN, _PACKAGE, value.mode, palette, *_take_info(value, parts)]


def _take_palette(value: Image.Image, parts: Parts) -> str:
    if value.palette is None:
        return ""
    mode = value.palette.mode
    parts.values.append(value.im.getpalette(mode, mode))
    return mode


def _take_info(value: Image.Image, parts: Parts) -> list[Node]:
    """Encode what the file said of the image: resolution, transparency, orientation; a part without an encoding is left."""
    nodes: list[Node] = []
    for key, child in value.info.items():
        num_values, num_blocks, payload_bytes, depth = (
            len(parts.values),
            len(parts.blocks),
            parts.payload_bytes,
            parts.depth,
        )
        try:
            nodes += (take_apart(key, parts), take_apart(child, parts))
        except RefusedError:
            del parts.values[num_values:], parts.blocks[num_blocks:]
            parts.payload_bytes, parts.depth = payload_bytes, depth
    return nodes


def reader_of(node: list[Any], compile_node: CompileNode) -> Reader:
    """Return what decodes a node that a handler of this module has made."""
    mode, palette_mode = str(node[2]), str(node[3])
    readers = [compile_node(child) for child in node[4:]]
    pairs = list(zip(readers[::2], readers[1::2], strict=True))

    def read(source: Source) -> Image.Image:
        image = _read_pixels(mode, source)
        if palette_mode:
            image.putpalette(next(source.values), palette_mode)
        image.info = {read_key(source): read_value(source) for read_key, read_value in pairs}
        return image

    return read


def _read_pixels(mode: str, source: Source) -> Image.Image:
    width, height = next(source.values)
    num_bytes = next(source.values)
    start = source.take(num_bytes)
    # A pixel has at least a bit: checked before room is made for them.
    if min(width, height) < 0 or math.ceil(width / 8) * height > num_bytes:
        raise ValueError(f"{num_bytes} bytes for {width} x {height} pixels")
    if not num_bytes:
        return Image.new(mode, (width, height))
    return Image.frombytes(mode, (width, height), source.buffer[start : start + num_bytes])
