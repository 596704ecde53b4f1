"""Checks one op without a model: a function, on inputs of our own, against the exact result."""
from __future__ import annotations

import dataclasses
import inspect
import operator
import pathlib
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lockstep.checkpoint import write_checkpoint
from lockstep.errors import LockstepError, check, one_line
from lockstep.graph import graph_of, with_tables
from lockstep.one_op import OPS, PAGE, Batch, Cache, Case, Numbers, Op, Recipe
from lockstep.points import AXES, FLOAT32_POINTS, INTEGER_POINTS, LOGIT_POINTS, nearest
from lockstep.verdict import Finding, Verdict, judge
from lockstep.writer import Writer

DTYPES = ("bfloat16", "float16", "float32")
GUARD = 64  # elements on either side of an output


@dataclasses.dataclass(frozen=True)
class Worst:
    """The element that came nearest to its limit, or passed it farthest."""

    budgets: float           # 1: as far off as a right op may be
    case: str                # "outliers"
    row: int                 # of the output
    inputs: Mapping[str, Any]  # of the call, by parameter


@dataclasses.dataclass(frozen=True)
class Wrong:
    """What the judge found in one call."""

    case: str                # "outliers"
    shape: tuple[int, ...]   # of `shapes`
    index: tuple[int, ...]   # of the worst element in the output; (): it is of all calls together
    finding: Finding         # .want .got .statistic .value .limit .rule
    inputs: Mapping[str, Any]  # of the call, by parameter

    def __str__(self) -> str:
        f = self.finding
        element = f", element {list(self.index)}: want {f.want:.6g}, got {f.got:.6g}" \
            if self.index and f.want is not None and f.got is not None else ""
        over = f"{f.statistic}: {f.value:.3g} over {f.limit:.3g}" \
            if f.value is not None and f.limit is not None else f.statistic
        return f"{self.case} {list(self.shape)}{element} ({over}); {f.rule}"


@dataclasses.dataclass(frozen=True)
class OpCheck:
    """What a check said of a function. It is true where the verdict is clean."""

    op: str
    verdict: str             # clean, diverged or inconclusive
    expected: int            # calls of the function
    judged: int
    worst: Worst | None      # None: of an op without a budget, whose results are right or wrong
    findings: tuple[Wrong, ...]
    results: tuple[Verdict, ...]  # of the judge: one a model that the op was put into

    def __bool__(self) -> bool:
        return self.verdict == "clean"

    def __str__(self) -> str:
        if self.findings:
            return f"{self.op} is wrong in {len(self.findings)} of {self.judged}: " \
                   f"{self.findings[0]}"
        if self.verdict != "clean":
            return f"{self.op} is {self.verdict}: {self.judged} of {self.expected} calls judged"
        near = f", nearest {self.worst.budgets:.3g} of an element's budget" if self.worst else ""
        return f"{self.op} is clean in {self.judged} of {self.expected} calls{near}"


def check_op(op: str, function: Callable[..., Any], shapes: Sequence[Sequence[int]] | None = None,
             dtype: Any = "bfloat16", *, device: str = "cpu", rounding: str = "fused",
             seed: int = 0, command: str = "") -> OpCheck:
    """Calls function(out, ...) as `lockstep run --ops` does, and has each result judged.

    op: a name of kernels/lockstep_ops.h, such as "rms_norm"; its header says what it computes.
    function: takes torch tensors on `device` in the order of that file, and writes the first one.
    shapes: see OPS of lockstep.one_op for the axes; each is tried on ordinary numbers, channels
    that are far larger, 16 binades, large and small numbers, rows of zeros. dtype: bfloat16,
    float16 or float32. rounding: the contract it is held to (traces/README.md). Raises
    LockstepError for what is no op, shape, device or contract, and where the function fails,
    returns what it should write, leaves an element unwritten, or writes beside it or into an input.
    """
    check(op in OPS, f"'{op}' is no op{_near(op)}: {', '.join(OPS)} are")
    check(isinstance(rounding, str), f"rounding of {op} is the name of a contract, such as hf: "
          f"found {rounding!r}")
    check(hasattr(seed, "__index__") and -1 << 63 <= operator.index(seed) < 1 << 64,
          f"seed of {op} is a whole number of 64 bits: found {seed!r}")
    name = str(dtype).rpartition(".")[2]
    check(name in DTYPES, f"ops compute in {', '.join(DTYPES)}, found {dtype}")
    some = list(OPS[op].shapes) if shapes is None else _shapes_of(op, shapes)
    for shape in some:
        _check_shape(op, shape)
    _check_parameters(op, OPS[op], function)
    _check_device(op, device)
    judged: list[tuple[tuple[int, ...], Recipe, Verdict]] = []
    for shape in some:
        for recipe in OPS[op].recipes(Numbers(name, seed), shape):
            judged.append((shape, recipe, _judged(op, function, recipe, device, rounding, command)))
    return _result_of(op, judged)


def _check_device(op: str, device: str) -> None:
    """Finds out whether tensors can be made there and fetched, which one of meta cannot."""
    import torch
    try:
        torch.zeros(1, device=device).cpu()
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:
        raise LockstepError(f"device of {op} is cpu, cuda or cuda:N, where torch has that: found "
                            f"{device!r} ({one_line(error)})") from error


def _near(op: str) -> str:
    found = nearest(op, OPS) if isinstance(op, str) else ""
    return f" ({found} is the nearest)" if found else ""


def _shapes_of(op: str, shapes: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    try:
        some = [tuple(operator.index(i) for i in shape) for shape in shapes]
    except TypeError as error:
        raise LockstepError(f"shapes of {op} are a list of tuples of whole numbers, such as "
                            f"{list(OPS[op].shapes)}: found {shapes!r}") from error
    check(some, f"shapes of {op} are none: name one at least, such as {list(OPS[op].shapes)}, or "
          "leave shapes out")
    return some


def _check_shape(op: str, shape: tuple[int, ...]) -> None:
    ranks = {part.count(",") + 1 for part in OPS[op].axes.split(" or ")}
    check(len(shape) in ranks and min(shape) > 0,
          f"a shape of {op} is ({OPS[op].axes}), found {shape}")
    check(op not in ("rope", "kv_write", "kv_gather", "paged_attention") or shape[-1] % 2 == 0,
          f"a head has an even number of elements, found {shape[-1]} in {shape}")


def _check_parameters(op: str, about: Op, function: Callable[..., Any]) -> None:
    check(callable(function), f"{op} is called with ({about.parameters}): a function was wanted, "
          f"found {function!r}")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*about.parameters.split(", "))
    except TypeError:
        raise LockstepError(f"{op} is called with ({about.parameters}), and the function takes "
                            f"{signature}") from None


def _judged(op: str, function: Callable[..., Any], recipe: Recipe, device: str, rounding: str,
            command: str) -> Verdict:
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        write_checkpoint(folder, recipe.config, recipe.weights)
        graph = graph_of(recipe.config)
        with Writer(folder / "op.h5", recipe.config, dtype=_short(recipe.config["dtype"]),
                    schema={recipe.point: rounding}, selection=f"one op, {op}",
                    graph=with_tables(graph) if recipe.tables else graph) as writer:
            for case in recipe.cases:
                _show(writer, recipe, case, call(op, function, case, device))
        try:
            return judge(folder / "op.h5", folder, "--points", recipe.point, command=command)
        except LockstepError as error:  # the file is gone when the sentence is read
            said = str(error).removeprefix(f"{folder / 'op.h5'}: schema_json: {recipe.point}: ")
            raise LockstepError(f"rounding of {op}: {said}" if said != str(error) else said
                                ) from error


def _short(dtype: str) -> str:
    return {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}[dtype]


def _show(writer: Writer, recipe: Recipe, case: Case, out: Any) -> None:
    """A pass that has the op's inputs and output, and zeros at all other places, which nobody looks
    at: what is not recorded would be computed."""
    rows = len(case.positions)
    writer.begin_pass(case.tokens or [1] * rows, case.positions, case.requests,
                      logit_rows=range(rows) if recipe.point == "token" else None,
                      inherited=case.inherited)
    shown = dict(case.shown)
    if recipe.point != "attn.kv":
        shown[recipe.point] = out[:, None] if recipe.point == "attn.v" else out
    contexts = {request: at + 1 for request, at in zip(case.requests, case.positions)}
    for node in writer.graph:
        if node.point == "attn.kv":
            for request, context in contexts.items():
                kv = out if recipe.point == "attn.kv" else case.caches.get(request)
                writer.show_cache(0, request, _zeros(recipe, node.point, context) if kv is None
                                  else kv)
        elif node.point in shown:
            writer.show(node.point, node.layer, shown[node.point])
        else:
            count = len(contexts) if node.point in LOGIT_POINTS else rows
            writer.show(node.point, node.layer, _zeros(recipe, node.point, count))


def _zeros(recipe: Recipe, point: str, count: int) -> Any:
    """A tensor of that point, in that many rows."""
    import torch
    config = recipe.config
    width = config.get("moe_intermediate_size") if "expert" in point else None
    sizes = {"head": config["num_attention_heads"], "kv head": config["num_key_value_heads"],
             "dim": config["head_dim"], "pair": config["head_dim"] // 2, "k|v": 2,
             "hidden": config["hidden_size"], "vocab": config["vocab_size"],
             "intermediate": width or config["intermediate_size"],
             "expert": config.get("num_experts"), "choice": config.get("num_experts_per_tok")}
    dtype = torch.int32 if point in INTEGER_POINTS else torch.float32 \
        if point in FLOAT32_POINTS else getattr(torch, config["dtype"])
    return torch.zeros((count, *[sizes[axis] for axis in AXES[point].split(", ")[1:]]), dtype=dtype)


def call(op: str, function: Callable[..., Any], case: Case, device: str) -> Any:
    """What the function writes when it is called as that case says, on the host."""
    inputs = {name: _on(value, device) for name, value in case.inputs.items()}
    if op == "kv_write":
        return _written_cache(function, case, inputs, device)
    out = _Output(case.out, device)
    _called(op, function, [out.tensor, *inputs.values()])
    _check_unchanged(op, case, inputs)
    return out.taken(op, case.name)


def _called(op: str, function: Callable[..., Any], arguments: list[Any]) -> None:
    try:
        result = function(*arguments)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        said = " ".join(str(error).split())
        raise LockstepError(f"{op} failed: {where.filename}:{where.lineno}: "
                            f"{type(error).__name__}: {said}") from error
    first = arguments[0]
    same = result is None or result is first or (
        hasattr(result, "data_ptr") and hasattr(first, "data_ptr") and
        result.data_ptr() == first.data_ptr())
    check(same, f"{op} returned a {type(result).__name__}: an op writes into its first argument, "
          "as out.copy_(...) does")


def _on(value: Any, device: str) -> Any:
    """A copy there of the tensors of an argument."""
    if isinstance(value, (Cache, Batch)):
        return type(value)(*[_on(part, device) for part in value])
    if isinstance(value, list):
        return [_on(part, device) for part in value]
    return value.clone().to(device) if hasattr(value, "clone") else value


def _tensors(value: Any) -> list[Any]:
    if isinstance(value, (Cache, Batch, list)):
        return list(value)
    return [value] if hasattr(value, "clone") else []


def _check_unchanged(op: str, case: Case, inputs: Mapping[str, Any]) -> None:
    import torch
    for name, value in inputs.items():
        same = all(torch.equal(now.cpu(), before) for now, before in
                   zip(_tensors(value), _tensors(case.inputs[name])))
        check(same, f"{op} changed its input {name} ({case.name}): it may write its output alone, "
              "so work on a copy")


class _Output:
    """The output of a call, which shows what was written of it."""

    def __init__(self, like: Any, device: str) -> None:
        import torch
        self._bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[like.element_size()]
        # A signalling NaN, which neither arithmetic nor a conversion makes, and -1 of an index.
        self._fill = {torch.float32: 0x7FA5A5A5, torch.bfloat16: 0x7FA5,
                      torch.float16: 0x7DA5}.get(like.dtype, -1)
        count = like.numel()
        self._whole = torch.full((count + 2 * GUARD,), self._fill, dtype=self._bits, device=device)
        self.tensor = self._whole[GUARD:GUARD + count].view(like.dtype).view(like.shape)

    def taken(self, op: str, case: str) -> Any:
        whole = self._whole.cpu()
        shape = list(self.tensor.shape)
        inside = whole[GUARD:-GUARD]
        check((whole[:GUARD] == self._fill).all() and (whole[-GUARD:] == self._fill).all(),
              f"{op} wrote beside its output {shape} ({case}): mind the shape of the tensor")
        left = (inside == self._fill).nonzero()
        check(not len(left), f"{op} left element {int(left[0]) if len(left) else 0} of its output "
              f"{shape} unwritten ({case}): cover the last rows and the tails")
        return self.tensor.cpu()


def _written_cache(function: Callable[..., Any], case: Case, inputs: Mapping[str, Any],
                   device: str) -> Any:
    """K and V of the request after the call, [positions, 2, kv heads, dim]."""
    import torch
    cache = _on(case.out, device)
    _called("kv_write", function, [cache, *inputs.values()])
    _check_unchanged("kv_write", case, inputs)
    slots, halves = case.inputs["slots"][:-1], []
    for name, after, before in (("k", cache.k, case.out.k), ("v", cache.v, case.out.v)):
        now, then = after.cpu().flatten(0, 1), before.flatten(0, 1).clone()
        then[slots] = now[slots]
        other = (now != then).flatten(1).any(1).nonzero()
        slot = int(other[0]) if len(other) else 0
        check(not len(other), f"kv_write wrote {name} into slot {slot} ({case.name}), which is of "
              f"no row: a page has {PAGE} slots, and those of others stay as they are")
        halves.append(now[slots])
    return torch.stack(halves, 1)


def _result_of(op: str,
               judged: Sequence[tuple[tuple[int, ...], Recipe, Verdict]]) -> OpCheck:
    findings: list[Wrong] = []
    worst: list[Worst] = []
    for shape, recipe, verdict in judged:
        for finding in verdict.findings:
            case = recipe.cases[finding.number]
            index = finding.index and (_row(case, finding.index[0], finding.request),
                                       *finding.index[1:])
            findings.append(Wrong(case.name, shape, index, finding, case.inputs))
        worst += _worst_of(recipe, verdict)
    expected, count = (sum(getattr(verdict, which) for _, _, verdict in judged)
                       for which in ("expected", "judged"))
    # A judge may doubt the tokens of such a trace, which are nobody's.
    said = "diverged" if findings else "clean" if 0 < count == expected else "inconclusive"
    return OpCheck(op, said, expected, count, max(worst, key=lambda w: w.budgets, default=None),
                   tuple(findings), tuple(verdict for _, _, verdict in judged))


def _row(case: Case, position: int, request: int) -> int:
    """The row of a call that stands at that position of a request."""
    found = [row for row, place in enumerate(zip(case.positions, case.requests))
             if place == (position, request)]
    return found[0] if found else position


def _worst_of(recipe: Recipe, verdict: Verdict) -> list[Worst]:
    made = []
    for place in verdict.result["points"]:
        at = place["worst"]
        if at["t1"] is not None:
            case = recipe.cases[at["pass"]]
            made.append(Worst(float(at["t1"]), case.name,
                              _row(case, at["position"], at["request"]), case.inputs))
    return made
