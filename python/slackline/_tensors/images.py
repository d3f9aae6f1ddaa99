"""Images of a run: PNG files in its folder, from which `slackline report` makes TensorBoard's."""

from __future__ import annotations

import os
import re
import struct
import sys
import zlib
from typing import Any, Dict, Set

import torch

from slackline._tensors import files

_CALL = "job.log_image()"
# One part of a path, which is no hidden file.
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}")
_SIDE_MAX = 2048
_NAMES_MAX = 100
_IMAGES_MAX = 1000  # Of a name.
# By channels: grey, RGB, RGB with alpha (PNG specification, 11.2.2).
_COLOR_TYPES = {1: 0, 3: 2, 4: 6}


def encode_png(image: Any) -> bytes:
    """An image of H x W or C x H x W as PNG with 8 bits. Raises ValueError for what is none."""
    try:
        pixels = torch.as_tensor(image).detach().cpu()
    except (TypeError, RuntimeError, ValueError) as error:
        raise ValueError(
            f"{_CALL}: the image is a {type(image).__name__}; a tensor or an array is required ({error})"
        ) from None
    shape = list(pixels.shape)
    if pixels.dim() == 2:
        pixels = pixels[None]
    if pixels.dim() != 3 or pixels.shape[0] not in _COLOR_TYPES:
        last = pixels.dim() == 3 and pixels.shape[2] in _COLOR_TYPES
        raise ValueError(
            f"{_CALL}: the image has shape {shape}; height x width, or channels x height x width with "
            f"1, 3 or 4 channels, is required{'. With channels last, permute(2, 0, 1)' if last else ''}"
        )
    channels, height, width = pixels.shape
    if not (1 <= height <= _SIDE_MAX and 1 <= width <= _SIDE_MAX):
        raise ValueError(
            f"{_CALL}: the image has shape {shape}; height and width of 1 to {_SIDE_MAX} are required"
        )
    if pixels.is_floating_point():
        # Not min(): that of a NaN depends on the type.
        if not bool(((pixels >= 0) & (pixels <= 1)).all()):
            raise ValueError(
                f"{_CALL}: the image has values from {float(pixels.min()):.4g} to "
                f"{float(pixels.max()):.4g}; float in [0, 1], or uint8, is required. image.clamp(0, 1) "
                "cuts off the rest"
            )
        pixels = (pixels.float() * 255).round().to(torch.uint8)
    elif pixels.dtype != torch.uint8:
        raise ValueError(f"{_CALL}: the image is {pixels.dtype}; float in [0, 1], or uint8, is required")
    # Each row begins with its filter: 0, none.
    rows = torch.zeros(height, 1 + width * channels, dtype=torch.uint8)
    rows[:, 1:] = pixels.permute(1, 2, 0).reshape(height, width * channels)
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOR_TYPES[channels], 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + _chunk(b"IHDR", header)
        + _chunk(b"IDAT", zlib.compress(files.memory_of(rows)))
        + _chunk(b"IEND", b"")
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


class Images:
    """Those of one process, in OUT/images/NAME/STEP.png. Without a folder none is written."""

    def __init__(self, out: str) -> None:
        self._folder = os.path.join(out, "images") if out else ""
        self._counts: Dict[str, int] = {}  # By name, in the folder.
        self._said: Set[str] = set()

    def write(self, name: str, step: int, image: Any) -> None:
        if not isinstance(name, str) or _NAME.fullmatch(name) is None:
            raise ValueError(
                f"{_CALL}: the name is {name!r}; 1 to 64 letters, digits, '_', '-' and '.' are "
                "required, and no '.' at the start"
            )
        png = encode_png(image)
        if not self._folder:
            self._say_once("there is no folder, so no image is written; give slackline.join(out=...)")
            return
        folder = os.path.join(self._folder, name)
        if name not in self._counts:
            if len(self._counts) == _NAMES_MAX:
                raise ValueError(
                    f"{_CALL}: '{name}' is a name more than the {_NAMES_MAX} that are allowed; take one "
                    "name for what is shown, the step is written down with it"
                )
            os.makedirs(folder, exist_ok=True)
            self._counts[name] = sum(file.endswith(".png") for file in os.listdir(folder))
        path = os.path.join(folder, f"{step}.png")
        if not os.path.exists(path):
            if self._counts[name] >= _IMAGES_MAX:
                self._say_once(
                    f"there are {_IMAGES_MAX} images of '{name}', and no more are written; call it in "
                    "fewer steps"
                )
                return
            self._counts[name] += 1
        part = f"{path}.{os.getpid()}.part"
        with open(part, "wb") as file:
            file.write(png)
        os.replace(part, path)

    def _say_once(self, what: str) -> None:
        if what not in self._said:
            print(f"slackline: {_CALL}: {what}", file=sys.stderr, flush=True)
        self._said.add(what)
