"""One call of attention as a file of arrays, for `lockstep replay`."""
from __future__ import annotations

import json
import os
import pathlib
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lockstep.checkpoint import NAMES
from lockstep.dumps.dump import load_pickle
from lockstep.elements import elements_of
from lockstep.errors import LockstepError, Parser, check, one_line, tell

WANTED = ("q", "k", "v", "cu_seqlens")


def write_bundle(path: str | pathlib.Path, arrays: Mapping[str, Any]) -> None:
    """Writes torch tensors (of any device) and numpy arrays as a .safetensors file.

    arrays: by the names that `lockstep replay` knows: q, k, v, cu_seqlens, block_tables,
    slot_mapping, seqused_k, cu_seqlens_k, window, softmax_scale, out. None is left out. Raises
    LockstepError for what is no array of numbers, and where the file is there already or cannot be
    written.
    """
    _check_free(path)
    header: dict[str, Any] = {}
    parts: list[bytes] = []
    end = 0
    for name, value in arrays.items():
        if value is None:
            continue
        dtype, array = _stored(value)
        header[name] = {"dtype": dtype, "shape": list(array.shape),
                        "data_offsets": [end, end + array.nbytes]}
        end += array.nbytes
        parts.append(array.tobytes())
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    try:
        pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))
    except OSError as error:
        raise LockstepError(f"{path} cannot be written ({one_line(error)}): choose another "
                            "place") from error


def _check_free(path: str | os.PathLike[str]) -> None:
    """What is there may be the only file of another call, or the weights of a model."""
    check(not os.path.isdir(path), f"{path} is a folder: name the .safetensors file that the call "
          "is to be")
    check(not os.path.lexists(path), f"{path} exists already: remove it or choose another place "
          "for the call")


def _stored(value: Any) -> tuple[str, np.ndarray[Any, Any]]:
    """The name of its type in safetensors, and its bits. Whole numbers keep all of theirs."""
    if hasattr(value, "is_cpu"):
        value = value.detach().cpu()
        if not value.dtype.is_floating_point:
            value = value.numpy()
    if isinstance(value, int):
        value = np.array([value], np.int64)
    if isinstance(value, float):
        value = np.array([value], np.float32)
    if isinstance(value, np.ndarray) and value.dtype.kind in "iu" and value.dtype != np.uint16:
        return "I64", np.ascontiguousarray(value, np.int64)
    elements = elements_of(value, "bf16" if getattr(value, "dtype", None) == np.uint16 else "")
    return NAMES[elements.dtype], elements.bits


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0, or 2 with one sentence on stderr."""
    parser = Parser(
        prog="python -m lockstep bundle", description="Writes what torch.save wrote of one call of "
        "attention, a dict of tensors, as a file that lockstep replay takes.")
    parser.add_argument("source", metavar="CALL.pt", help="a dict with q, k, v, cu_seqlens, ...")
    parser.add_argument("out", metavar="OUT.safetensors", help="the file to write")
    options = parser.parse_args(arguments)
    try:
        check(options.out.endswith(".safetensors"),
              f"{options.out} does not end in .safetensors, by which lockstep replay knows it")
        _check_free(options.out)
        check(pathlib.Path(options.source).is_file(), f"{options.source} is no file: what "
              "torch.save wrote was wanted")
        found = load_pickle(pathlib.Path(options.source))
        check(isinstance(found, dict), f"{options.source} holds a {type(found).__name__}: a dict "
              f"of tensors by name was wanted ({', '.join(WANTED)}, ...)")
        lacking = [name for name in WANTED if name not in found]
        check(not lacking or "cu_seqlens_q" in found and lacking == ["cu_seqlens"],
              f"{options.source} has no {', '.join(lacking)}: it has {', '.join(map(str, found))}")
        write_bundle(options.out, found)
    except LockstepError as error:
        return tell(str(error))
    return 0
