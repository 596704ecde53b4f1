"""Dumps what llama.cpp computes, a file a pass, for `lockstep-import --map llama.cpp`.

    import llama_cpp                                     # llama-cpp-python
    from lockstep.llama_cpp import Recorder
    parameters = llama_cpp.llama_context_default_params()
    with Recorder("dump") as recorder:
        recorder.hook(parameters)                        # its cb_eval, before the context is made
        context = llama_cpp.llama_init_from_model(model, parameters)
        recorder.requests = [0] * 6 + [1] * 4            # of each row of the batch; left out: one
        llama_cpp.llama_decode(context, batch)

A pass is a graph that is evaluated: a batch of more tokens than n_ubatch is several. Tensors of any
backend are read. Their keys are `NAME:OP`, NAME as llama.cpp's graph has it, or, of a product that
it does not name, as its weight (`blk.0.attn_output.weight:MUL_MAT`).
"""
from __future__ import annotations

import ctypes
import os
import pathlib
import re
import types
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.errors import LockstepError, check
from lockstep.mapping import read_map

# By number in enum ggml_type. bf16 is uint16 bits, which no node of a graph has: weights do.
STORED: dict[int, type[np.generic]] = {0: np.float32, 1: np.float16, 26: np.int32, 27: np.int64}
SOURCES = 10


class Node(ctypes.Structure):
    """struct ggml_tensor, as ggml.h has it since 2023."""


Node._fields_ = [
    ("type", ctypes.c_int), ("buffer", ctypes.c_void_p), ("ne", ctypes.c_int64 * 4),
    ("nb", ctypes.c_size_t * 4), ("op", ctypes.c_int), ("op_params", ctypes.c_int32 * 16),
    ("flags", ctypes.c_int32), ("src", ctypes.POINTER(Node) * SOURCES),
    ("view_src", ctypes.c_void_p), ("view_offs", ctypes.c_size_t), ("data", ctypes.c_void_p),
    ("name", ctypes.c_char * 64)]
NodePointer = ctypes.POINTER(Node)


class Recorder:
    """Writes PATH/pass00000.npz, pass00001.npz, ... names: the map whose tensors are wanted."""

    def __init__(self, path: str | os.PathLike[str], names: str = "llama.cpp") -> None:
        self.requests: Sequence[int] | None = None
        self._path = pathlib.Path(path)
        self._path.mkdir(parents=True, exist_ok=True)
        check(not any(self._path.iterdir()), f"{path} is not empty: a dump is written into a "
              "folder of its own")
        self._map = read_map(names)
        self._ggml = _Ggml()
        self._passes = 0
        self._tensors: dict[str, NDArray[Any]] = {}
        self._trouble: BaseException | None = None
        self._callback: Any = None

    def hook(self, parameters: Any) -> None:
        """Has contexts that are made with these llama_context_params call the recorder."""
        import llama_cpp
        self._callback = llama_cpp.ggml_backend_sched_eval_callback(self._evaluated)
        parameters.cb_eval = self._callback

    def close(self) -> None:
        """Writes the last pass. Raises what went wrong while llama.cpp computed."""
        self._end_pass()
        if self._trouble is not None:
            raise LockstepError(f"the recorder of llama.cpp failed: {self._trouble}"
                                ) from self._trouble

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: types.TracebackType | None) -> None:
        if kind is None:
            self.close()

    def _evaluated(self, pointer: int, ask: bool, _user: Any) -> bool:
        """Asked of each node whether it is wanted, and called when it was computed. True: go on."""
        try:
            node = ctypes.cast(pointer, NodePointer).contents
            key = self._ggml.key_of(node)
            wanted = key.endswith(":GET_ROWS") and self._ggml.is_embedding(node) or \
                self._is_of_a_point(key)
            if not ask and wanted:
                self._take(key, node)
            return wanted or not ask
        except BaseException as error:  # nothing may be raised through C
            self._trouble = self._trouble or error
            return not ask

    def _is_of_a_point(self, key: str) -> bool:
        return any(rule.match.fullmatch(key) for rule in self._map.rules)

    def _take(self, key: str, node: Node) -> None:
        if self._ggml.is_embedding(node):
            self._end_pass()
            self._begin_pass(self._ggml.array_of(node.src[1].contents).reshape(-1))
        check("tokens" in self._tensors, f"{key} was computed before the embedding of its tokens: "
              "batches of embeddings are not recorded")
        if key.endswith(":ROPE") and "positions" not in self._tensors:
            self._tensors["positions"] = self._ggml.array_of(node.src[1].contents).reshape(-1)
        self._tensors[key] = self._ggml.array_of(node)

    def _begin_pass(self, tokens: NDArray[Any]) -> None:
        """A batch's requests are those of the passes that its rows were cut into, in order."""
        self._tensors = {"tokens": tokens}
        if self.requests is not None:
            own, rest = self.requests[:len(tokens)], self.requests[len(tokens):]
            check(len(own) == len(tokens), f"a pass has {len(tokens)} rows and the requests of "
                  f"{len(own)} were named: those of each row of the batch were wanted")
            self._tensors["requests"] = np.asarray(own, np.int64)
            self.requests = rest or None

    def _end_pass(self) -> None:
        tensors, self._tensors = self._tensors, {}
        if tensors:
            np.savez(self._path / f"pass{self._passes:05}.npz", **tensors)
            self._passes += 1


class _Ggml:
    """What is asked of ggml itself."""

    def __init__(self) -> None:
        import llama_cpp
        folder = pathlib.Path(llama_cpp.__file__).parent / "lib"
        library = next((file for file in sorted(folder.glob("*ggml-base*"))), None)
        check(library is not None, f"{folder} has no ggml-base: llama-cpp-python of 2025 or later "
              "was wanted")
        self._library = ctypes.CDLL(str(library))
        for name, result in (("ggml_get_name", ctypes.c_char_p), ("ggml_op_name", ctypes.c_char_p),
                             ("ggml_nbytes", ctypes.c_size_t)):
            getattr(self._library, name).restype = result

    def key_of(self, node: Node) -> str:
        name = self._library.ggml_get_name(ctypes.byref(node)) or b""
        check(name == node.name, "struct ggml_tensor of this llama.cpp is not the one that "
              "lockstep/llama_cpp.py knows: another version of llama-cpp-python was wanted")
        text = name.decode(errors="replace")
        if re.fullmatch(r"(node_\d+)?", text) and node.src[0]:
            text = node.src[0].contents.name.decode(errors="replace")
        return f"{text}:{self._library.ggml_op_name(node.op).decode()}"

    def is_embedding(self, node: Node) -> bool:
        """Whether it is the look-up of the tokens' rows."""
        return bool(node.src[0]) and node.src[0].contents.name == b"token_embd.weight" and \
            self._library.ggml_op_name(node.op) == b"GET_ROWS"

    def array_of(self, node: Node) -> NDArray[Any]:
        """A copy of its elements, outermost axis first; axes of one element before the last are
        left out."""
        stored = STORED.get(node.type)
        check(stored is not None, f"{node.name.decode(errors='replace')} is of ggml's type "
              f"{node.type}: fp32, fp16 or integers were wanted")
        size = self._library.ggml_nbytes(ctypes.byref(node))
        raw = (ctypes.c_char * size)()
        self._library.ggml_backend_tensor_get(ctypes.byref(node), raw, ctypes.c_size_t(0),
                                              ctypes.c_size_t(size))
        shape, strides = tuple(node.ne)[::-1], tuple(node.nb)[::-1]
        flat = np.frombuffer(raw, np.uint8)
        whole = np.ndarray(shape, stored, buffer=flat, strides=strides).copy()
        return whole.reshape([n for n in whole.shape[:-1] if n != 1] + [whole.shape[-1]])
