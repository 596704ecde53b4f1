"""Elements as numpy holds them. numpy has no bf16: its 16 bits are uint16 here, its values fp32."""
from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lockstep.errors import LockstepError, check

# The dtypes of a trace, by the name that its index has, and how their bits are stored.
STORAGE: dict[str, np.dtype] = {
    "fp32": np.dtype("<f4"), "bf16": np.dtype("<u2"), "fp16": np.dtype("<f2"),
    "int32": np.dtype("<i4")}
# The least normal number of each.
TINY: dict[str, float] = {"fp32": 2.0**-126, "bf16": 2.0**-126, "fp16": 2.0**-14, "int32": 0.0}


class Elements(NamedTuple):
    """A tensor in host memory: contiguous bits of one of the dtypes of STORAGE."""

    bits: NDArray[Any]
    dtype: str

    def values(self) -> NDArray[np.float32]:
        """The elements as fp32, exact of each dtype but of an int32 beyond 2^24."""
        return widened(self.bits, self.dtype)

    @property
    def nbytes(self) -> int:
        return self.bits.nbytes


def widened(bits: NDArray[Any], dtype: str) -> NDArray[np.float32]:
    """The values that bits stand for, as fp32."""
    if dtype == "bf16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits.astype(np.float32, copy=False)


def bf16_bits(values: NDArray[Any]) -> NDArray[np.uint16]:
    """The bits of fp32 values each of which is a bf16. Raises where one is not."""
    raw = np.ascontiguousarray(values, np.float32).view(np.uint32)
    check(not (raw & 0xFFFF).any(), "a value of the array is no bf16, and none is rounded here: "
          "show it as fp32, or round it as your engine does")
    return (raw >> 16).astype(np.uint16)


# By torch dtype: its name, and the integers of torch that hold its bits where numpy has none.
_TORCH_TYPES: dict[Any, tuple[str, Any]] = {}  # filled when torch is there


def _torch_type(dtype: Any) -> tuple[str, Any]:
    import torch
    if not _TORCH_TYPES:
        _TORCH_TYPES.update({
            torch.bfloat16: ("bf16", torch.uint16), torch.float32: ("fp32", None),
            torch.float16: ("fp16", None), **dict.fromkeys(
                (torch.int32, torch.int64, torch.int16, torch.uint8), ("int32", None))})
    if dtype not in _TORCH_TYPES:
        raise LockstepError(f"a tensor of {dtype} has no place in a trace: fp32, bf16, fp16 or "
                            "integers were wanted")
    return _TORCH_TYPES[dtype]


def view_of_torch(tensor: Any) -> tuple[NDArray[Any], str]:
    """The bits of a torch tensor, in its own memory and layout where that is the host's."""
    name, integers = _TORCH_TYPES.get(tensor.dtype) or _torch_type(tensor.dtype)
    if tensor.requires_grad:
        tensor = tensor.detach()
    if not tensor.is_cpu:
        tensor = tensor.cpu()
    if integers is not None:
        return tensor.view(integers).numpy(), name
    return tensor.numpy().astype(STORAGE[name], copy=False), name


def from_torch(tensor: Any) -> Elements:
    """A torch tensor of any device and layout; what it shares with the tensor is not copied."""
    bits, name = view_of_torch(tensor)
    return Elements(np.ascontiguousarray(bits), name)


def elements_of(tensor: Any, dtype: str = "") -> Elements:
    """A torch tensor or a numpy array as elements.

    dtype "bf16" takes uint16 as the bits of bf16, and fp32 whose values are all bf16. "": as the
    array is, where bfloat16 of ml_dtypes is known too. Raises LockstepError for what has no place.
    """
    if type(tensor).__module__.partition(".")[0] == "torch":
        found = from_torch(tensor)
        if dtype != "bf16" or found.dtype == "bf16":
            return found
        tensor = found.bits
    array = np.asarray(tensor)
    if dtype == "bf16" and array.dtype != np.uint16 and array.dtype.name != "bfloat16":
        return Elements(bf16_bits(array), "bf16")
    if dtype == "bf16" or array.dtype.name == "bfloat16":
        return Elements(np.ascontiguousarray(array).view(np.uint16), "bf16")
    if array.dtype.kind in "iu":
        array = array.astype(np.int32)
    for name, stored in STORAGE.items():
        if name != "bf16" and array.dtype == stored:
            return Elements(np.ascontiguousarray(array), name)
    raise LockstepError(f"an array of {array.dtype} has no place in a trace: fp32, bf16, fp16 or "
                        "integers were wanted")
