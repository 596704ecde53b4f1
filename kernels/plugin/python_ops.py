"""The other side of `lockstep run --ops mine.py`: a Python of the user's that calls the functions
of one file on tensors in memory which it shares with the command.

lockstep starts it. Its arguments are the path of the file as it was named, the same absolute, and
the device; it finds three files open: LINES, a socket, MEMORY, where tensors are, and SAID, which
faulthandler writes to. What the lines say stands in python_process.h. It needs torch, and nothing
of lockstep's.
"""
import ctypes
import faulthandler
import importlib.util
import inspect
import mmap
import os
import pathlib
import signal
import sys
import types
from collections import namedtuple

LINES, MEMORY, SAID = 3, 4, 5
GUARD_BYTES = 256  # on either side of an output
PARAMETERS = {
    "gather_rows": "out, index, table",
    "rms_norm": "out, x, weight, eps",
    "matmul": "out, x, weight, bias",
    "rope": "out, x, cos, sin, positions",
    "kv_write": "cache, k, v, slots",
    "kv_gather": "out, cache, page_table",
    "paged_attention": "out, q, cache, batch, scale, window",
    "silu_mul": "out, gate, up",
    "add": "out, a, b",
    "argmax": "out, logits",
    "top_k": "out, logits",
    "softmax_of": "out, logits, index, normalised",
    "expert_matmul": "out, x, index, weights",
    "weighted_sum": "out, x, weights",
    # Fused ops: what lies between their pieces is stored nowhere.
    "add_rms_norm": "out, sum, a, b, weight, eps",
    "qkv_matmul": "q, k, v, x, weights, biases",
    "qk_norm_rope_kv_write": "q_rope, cache, q, k, v, q_weight, k_weight, eps, cos, sin, "
                             "positions, slots",
    "gate_up_silu": "out, x, gate_weight, up_weight",
    "decoder_layer": "out, cache, x, weights, eps, cos, sin, positions, slots, batch, scale, "
                     "window",
}
DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "int32": "int32",
          "int64": "int64", "uint8": "uint8"}
Cache = namedtuple("Cache", "k v")
Batch = namedtuple("Batch", "query_start context_length page_table")
LayerWeights = namedtuple("LayerWeights", "attn_norm q k v q_bias k_bias v_bias q_norm k_norm o "
                                          "o_bias mlp_norm gate up down")


class Trouble(Exception):
    """A sentence for the user, as it is."""


class Tensors:
    """The tensors of a call, where the command put them, or copies on a device of them."""

    def __init__(self, device):
        import torch
        self.torch, self.device, self.map = torch, device, None
        self.copies = []  # (bytes here, the same bytes on the device)

    def begin(self, size):
        """A call whose tensors take that many bytes begins."""
        if self.map is None or len(self.map) != size:
            self.map = mmap.mmap(MEMORY, size)
        self.copies = []

    def whole(self, begin, end):
        here = self.torch.frombuffer(self.map, dtype=self.torch.uint8, count=end - begin,
                                     offset=begin)
        if self.device == "cpu":
            return here
        there = here.to(self.device)
        self.copies.append((here, there))
        return there

    def tensor(self, text, guard=0):
        dtype, offset, shape = text.split("/")
        kind, extents = getattr(self.torch, DTYPES[dtype]), [int(n) for n in shape.split(",")]
        count = kind.itemsize
        for extent in extents:
            count *= extent
        if count == 0:
            return self.torch.empty(extents, dtype=kind, device=self.device)
        begin = int(offset)
        all_bytes = self.whole(begin - guard, begin + count + guard)
        return all_bytes[guard:guard + count].view(kind).view(extents)

    def end(self):
        """Waits for what was queued, and brings back what lies on a device."""
        if self.device == "cpu":
            return
        self.torch.cuda.synchronize()
        for here, there in self.copies:
            here.copy_(there)


def arguments_of(words, tensors):
    """The arguments that a line names, in order."""
    words = iter(words)

    def one():
        kind, _, text = next(words).partition(":")
        if kind == "out":
            return tensors.tensor(text, GUARD_BYTES)
        if kind == "tensor":
            return tensors.tensor(text)
        if kind == "none":
            return None
        if kind == "cache":
            return Cache(one(), one())
        if kind == "batch":
            return Batch(one(), one(), one())
        if kind == "layer":
            return LayerWeights(*[one() for _ in LayerWeights._fields])
        if kind == "list":
            return [one() for _ in range(int(text))]
        return {"float": float, "int": int, "bool": lambda word: word == "1"}[kind](text)

    made = []
    while True:
        try:
            made.append(one())
        except StopIteration:
            return made


def place_of(error, path, file):
    """The last line of that file that took part: "mine.py:7: ", or ""."""
    if isinstance(error, SyntaxError) and error.filename == file:
        return f"{path}:{error.lineno}: "
    at, trace = "", error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == file:
            at = f"{path}:{trace.tb_lineno}: "
        trace = trace.tb_next
    return at


def sentence_of(error, path, file):
    if isinstance(error, Trouble):
        return str(error)
    at = place_of(error, path, file)
    if isinstance(error, KeyboardInterrupt):
        return f"{at}it was interrupted"
    if isinstance(error, SystemExit):
        return f"{at}it called exit: raise an error that says what went wrong"
    said = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{at}{type(error).__name__}{': ' if said else ''}{said}"


def load(file):
    """The module of the file."""
    sys.path[0] = str(pathlib.Path(file).parent)
    spec = importlib.util.spec_from_file_location("lockstep_user_ops", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def public_functions(module):
    """By name: what the file defines, and what it imports under the name of an op."""
    return {name: value for name, value in vars(module).items()
            if not name.startswith("_") and callable(value) and
            (name in PARAMETERS or (isinstance(value, types.FunctionType) and
                                    value.__module__ == module.__name__))}


def check_parameters(name, function, path):
    """Raises Trouble where the function does not take what the op has."""
    wanted = PARAMETERS[name]
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # one that C wrote says nothing of what it takes
    try:
        signature.bind(*wanted.split(", "))
    except TypeError:
        raise Trouble(f"{name} of {path} takes {signature}: it is called with "
                      f"({wanted})") from None


def check_returned(value, arguments, name):
    """Raises Trouble where a result was returned that should have been written."""
    first = arguments[0]
    if value is None or value is first:
        return
    same = getattr(value, "data_ptr", None)
    if same is not None and hasattr(first, "data_ptr") and same() == first.data_ptr():
        return
    into = PARAMETERS[name].partition(",")[0]
    raise Trouble(f"it returned a {type(value).__name__}: an op writes into {into}, as "
                  "out.copy_(...) does")


def open_device(device):
    """The tensors of that device. Raises Trouble without torch, or when torch has no such one."""
    try:
        tensors = Tensors(device)
    except ImportError as error:
        raise Trouble(f"{sys.executable} has no torch ({error}): install it there, or name another "
                      "Python in LOCKSTEP_PYTHON") from None
    if device != "cpu":
        if not tensors.torch.cuda.is_available():
            raise Trouble(f"the torch of {sys.executable} sees no CUDA device, and the run is on "
                          f"{device}: install one that does, or leave out --device")
        tensors.torch.cuda.set_device(device)
    tensors.torch.set_grad_enabled(False)
    return tensors


class Server:
    def __init__(self, path, file, device):
        self.path, self.file, self.device = path, file, device
        self.functions, self.tensors = {}, None
        self.lines, self.answers = os.fdopen(os.dup(LINES), "r"), os.fdopen(LINES, "w")

    def answer(self, *words):
        print(*[" ".join(str(word).split()) for word in words], file=self.answers, flush=True)

    def call(self, name, size, *words):
        self.tensors.begin(int(size))
        made = arguments_of(words, self.tensors)
        check_returned(self.functions[name](*made), made, name)
        self.tensors.end()

    def use(self, *names):
        """The command has found these among the functions."""
        for name in names:
            check_parameters(name, self.functions[name], self.path)
        self.tensors = open_device(self.device)

    def load(self):
        self.functions = public_functions(load(self.file))
        return sorted(self.functions)

    def answered(self, work, *words):
        """Does it, and says how it went."""
        try:
            self.answer("done", *(work(*words) or ()))
        except BaseException as error:  # exit and Ctrl-C too
            self.answer("failed", sentence_of(error, self.path, self.file))

    def serve(self):
        self.answered(self.load)
        while True:
            try:
                line = self.lines.readline()
            except KeyboardInterrupt:
                continue  # it came when nothing was called
            if not line:
                return
            what, *words = line.split()
            self.answered({"use": self.use, "call": self.call}[what], *words)


def main():
    # Killed when the command dies, or a function that never returns would stay behind.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    os.dup2(2, 1)  # what functions print is not the command's result
    faulthandler.enable(SAID)
    Server(*sys.argv[1:]).serve()
    os._exit(0)  # with no function of the user's


main()
