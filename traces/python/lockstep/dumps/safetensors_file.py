"""Files of safetensors, read without the packages safetensors and torch: numpy has no bf16."""
from __future__ import annotations

import json
import math
import pathlib
from typing import Any

import numpy as np

from lockstep.dumps.loads import Load
from lockstep.elements import Elements
from lockstep.errors import LockstepError, check

MOST_HEADER_BYTES = 100 << 20  # as safetensors itself has it
DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4",
          "I16": "<i2", "I8": "i1", "U8": "u1", "U16": "<u2", "U32": "<u4", "BOOL": "u1"}


def read_safetensors(path: pathlib.Path) -> dict[str, Load]:
    """The tensors of a file, each read when it is wanted: bf16 as Elements, others as arrays."""
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            check(size >= 8 and length <= min(size - 8, MOST_HEADER_BYTES),
                  f"{path} is no safetensors file that can be read (it is {size} bytes, its header "
                  f"{length})")
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        return {name: _load(path, name, entry, 8 + length, size)
                for name, entry in header.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise LockstepError(f"{path} is no safetensors file that can be read ({error})") from error


def _load(path: pathlib.Path, name: str, entry: dict[str, Any], base: int, size: int) -> Load:
    shape = [int(extent) for extent in entry["shape"]]
    begin, end = (int(at) for at in entry["data_offsets"])
    check(0 <= begin <= end <= size - base and all(extent >= 0 for extent in shape),
          f"{path} is no safetensors file that can be read ({name} lies outside of it)")
    kind = str(entry["dtype"])

    def get() -> Any:
        check(kind in DTYPES, f"{path}: {name} is {kind}, which has no place in a trace")
        stored = np.dtype(DTYPES[kind])
        check(math.prod(shape) * stored.itemsize == end - begin,
              f"{path}: {name} is damaged: {shape} of {kind} are not {end - begin} bytes")
        with open(path, "rb") as file:
            file.seek(base + begin)
            found = np.fromfile(file, stored, math.prod(shape)).reshape(shape)
        return Elements(found, "bf16") if kind == "BF16" else found
    return get
