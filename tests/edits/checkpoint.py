"""Checkpoints as far as edits need them: weights, and copies that are wrong."""
from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import DTypeLike
from tensors import bits_of, values_of

TYPES: dict[str, tuple[str, DTypeLike]] = {
    "BF16": ("bf16", np.uint16), "F16": ("fp16", np.uint16), "F32": ("fp32", np.uint32)}


class Checkpoint:
    """A folder with config.json and one model.safetensors."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "model.safetensors"
        with self.file.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            self.header = json.loads(file.read(size))
        self.begin = 8 + size

    def _bits(self, name: str, mode: Literal["r", "r+"]) -> tuple[np.memmap, str]:
        entry = self.header[name]
        dtype, storage = TYPES[entry["dtype"]]
        offset = self.begin + entry["data_offsets"][0]
        return np.memmap(self.file, storage, mode, offset, tuple(entry["shape"])), dtype

    def weight(self, name: str) -> np.ndarray:
        """In fp64."""
        stored, dtype = self._bits(name, "r")
        return values_of(np.array(stored), dtype)

    def scale(self, name: str, row: int, by: float) -> None:
        stored, dtype = self._bits(name, "r+")
        stored[row] = bits_of(by * values_of(np.array(stored[row]), dtype), dtype)
        stored.flush()


def altered(source: Path, target: Path, config: Callable[[dict], None] | None) -> Path:
    """A copy of a checkpoint whose config.json says something else."""
    shutil.copytree(source, target)
    if config is not None:
        told = json.loads((target / "config.json").read_text())
        config(told)
        (target / "config.json").write_text(json.dumps(told))
    return target
