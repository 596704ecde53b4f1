"""Thins the goldens of Hugging Face (npz) to what the tests read: convert_goldens.py NPZ_FOLDER OUT_FOLDER"""

import json
import re
import struct
import sys
from pathlib import Path

import numpy as np

# Every stored op of these layers is kept: the first, a middle one and the last.
BARD_LAYERS = {0, 3, 5}
# The prompt whose ops are kept, beside the logits of all prompts.
BARD_PROMPT = "romeo"
WIDTHS = {"F64": 8, "F32": 4, "I32": 4, "BF16": 2}


def kept(key: str, bard: bool) -> bool:
    op = key.split("/")[-1]
    if op in ("logits", "prompt_ids", "greedy_ids") or not bard:
        return True
    if f"/{BARD_PROMPT}/" not in key:
        return False
    layer = re.match(r"layers\.(\d+)\.", op)
    return layer is None or int(layer[1]) in BARD_LAYERS


def encode(key: str, array: np.ndarray) -> tuple[str, list[int], bytes]:
    """dtype, shape and bytes as safetensors has them; bfloat16 values must be exactly that."""
    shape = list(array.shape)
    if array.dtype.kind in "iu":
        small = array.astype("<i4")
        assert (small == array).all(), key
        return "I32", shape, small.tobytes()
    if "bfloat16/" in key:
        bits = array.astype("<f4").view("<u4")
        assert (bits & 0xFFFF == 0).all(), key
        return "BF16", shape, (bits >> 16).astype("<u2").tobytes()
    if array.dtype == np.float64:
        return "F64", shape, array.astype("<f8").tobytes()
    assert array.dtype == np.float32, key
    return "F32", shape, array.astype("<f4").tobytes()


def convert(source: Path, target: Path, bard: bool) -> None:
    tensors = {}
    with np.load(source) as arrays:
        header = {"__metadata__": {"meta": json.dumps(json.loads(str(arrays["meta"])))}}
        for key in arrays.files:
            if key != "meta" and kept(key, bard):
                array = arrays[key]
                tensors[key] = encode(key, array[-1:] if key.endswith("/logits") else array)
    data, end = [], 0
    # Wide types first, so that every tensor is aligned to its dtype.
    for key, (dtype, shape, raw) in sorted(tensors.items(), key=lambda t: (-WIDTHS[t[1][0]], t[0])):
        header[key] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + len(raw)]}
        end += len(raw)
        data.append(raw)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    target.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data))
    print(f"{target}: {len(header) - 1} tensors, {target.stat().st_size} bytes")


def main() -> None:
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    for name in ("bard-qwen3", "bard-qwen2.5", "tiny"):
        convert(source / f"{name}-dev.npz", target / f"{name}.safetensors", name != "tiny")
    convert(source / "rope-tables.npz", target / "rope-tables.safetensors", False)


main()
