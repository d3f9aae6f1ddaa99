"""Models as safetensors files."""

from __future__ import annotations

import ctypes
import json
import os
import struct
from typing import Dict, Mapping, Sequence, Union

import torch

from slackline import _core
from slackline._tensors import devices

# Of tensors, as files name them.
TYPES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.complex64: "C64",
}
# Types that PyTorch did not always have.
for _type, _name in (
    ("uint16", "U16"),
    ("uint32", "U32"),
    ("uint64", "U64"),
    ("float8_e4m3fn", "F8_E4M3"),
    ("float8_e5m2", "F8_E5M2"),
):
    if hasattr(torch, _type):
        TYPES[getattr(torch, _type)] = _name
NAMES = {name: dtype for dtype, name in TYPES.items()}
# The format's own limit.
_HEADER_BYTES_MAX = 100_000_000


def why_not(tensor: torch.Tensor) -> str:
    """Why a file cannot have the tensor; empty: it can."""
    if tensor.dtype not in TYPES:
        return str(tensor.dtype)
    if tensor.layout != torch.strided:
        return str(tensor.layout)
    return "without values" if tensor.device.type == "meta" else ""


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The values of a strided tensor as bytes, on the host."""
    flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return flat.view(torch.uint8) if flat.numel() else torch.empty(0, dtype=torch.uint8)


def memory_of(data: torch.Tensor) -> memoryview:
    """Bytes as of ``bytes_of()``, in the tensor's memory, which has to live as long. Without NumPy."""
    if data.numel() == 0:
        return memoryview(b"")
    return memoryview((ctypes.c_ubyte * data.numel()).from_address(data.data_ptr())).cast("B")


def tensor_of(data: torch.Tensor, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    """The other way; the bytes have to make the shape."""
    flat = torch.empty(data.numel() // torch.empty(0, dtype=dtype).element_size(), dtype=dtype)
    if data.numel():
        flat.view(torch.uint8).copy_(data)
    return flat.reshape(shape)


def typed_tensor(name: str, tensor: torch.Tensor) -> "_core.TypedTensor":
    """A copy of the tensor for a file. Raises ValueError for what files do not have."""
    why = why_not(tensor)
    if why:
        raise ValueError(f"tensor '{name}': {why} cannot be written to a safetensors file")
    return _core.TypedTensor(name, TYPES[tensor.dtype], list(tensor.shape), devices.handed(bytes_of(tensor)))


def save(
    state: Mapping[str, torch.Tensor],
    path: Union[str, "os.PathLike[str]"],
    metadata: Mapping[str, str] = {},
) -> None:
    """Writes tensors to a safetensors file, atomically.

    ``state`` is as of ``Module.state_dict()``. Raises ValueError naming a tensor
    that cannot be written, and JobError when the file cannot.
    """
    tensors = [typed_tensor(name, tensor) for name, tensor in state.items()]
    _core.write_safetensors(os.fspath(path), tensors, dict(metadata))


def load(path: Union[str, "os.PathLike[str]"]) -> Dict[str, torch.Tensor]:
    """Reads a safetensors file: what ``Module.load_state_dict()`` takes.

    Raises OSError if the file cannot be read, ValueError naming file and tensor
    if it is damaged.
    """

    def damaged(what: str) -> ValueError:
        return ValueError(f"{path}: {what}; the file is damaged or not a safetensors file")

    with open(path, "rb") as file:
        data = file.read()
    if len(data) < 8:
        raise damaged("it is shorter than its header")
    (size,) = struct.unpack_from("<Q", data)
    if size > min(_HEADER_BYTES_MAX, len(data) - 8):
        raise damaged(f"the header size {size} is above {min(_HEADER_BYTES_MAX, len(data) - 8)}")
    try:
        header = json.loads(data[8 : 8 + size].decode("utf-8"))
    except ValueError as error:
        raise damaged(f"the header is not JSON ({error})") from None
    if not isinstance(header, dict):
        raise damaged("the header is not a JSON map")
    header.pop("__metadata__", None)
    body = memoryview(data)[8 + size :]
    result = {}
    for name, entry in header.items():
        try:
            dtype = NAMES[entry["dtype"]]
            shape = [int(n) for n in entry["shape"]]
            begin, end = (int(n) for n in entry["data_offsets"])
        except (KeyError, TypeError, ValueError) as error:
            raise damaged(f"tensor '{name}': no dtype, shape and data_offsets ({error!r})") from None
        if not 0 <= begin <= end <= len(body):
            raise damaged(f"tensor '{name}': bytes [{begin}, {end}) are outside of [0, {len(body)})")
        elements = 1
        for n in shape:
            elements *= n
        if min(shape, default=0) < 0 or elements * torch.empty(0, dtype=dtype).element_size() != end - begin:
            raise damaged(f"tensor '{name}': shape {shape} does not make {end - begin} bytes")
        part = bytearray(body[begin:end])
        made = torch.frombuffer(part, dtype=torch.uint8) if part else torch.empty(0, dtype=torch.uint8)
        result[name] = tensor_of(made, dtype, shape)
    return result
