"""Runs a Hugging Face model and writes what each of its ops computed as a Lockstep trace.

python capture.py MODEL OUT.h5 [--dtype bf16] [--attention sdpa] [--tokens 1,2,3 | --count 97]
    [--steps 6] [--chunks 40,57] [--leave-out attn.kv,...] [--declare] [--forced 5,6,...]
"""
from __future__ import annotations

import argparse
import copy
import dataclasses
import functools
import json
import pathlib

import torch
import transformers
from torch import nn
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.cache_utils import Cache

import trace_file
from recorder import Recorder
from trace_file import Pass, Request, Row, Trace, qwen_graph
from lockstep.contracts import rounding

Tensor = torch.Tensor

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}

TEXT = (
    "First Citizen: Before we proceed any further, hear me speak. All: Speak, speak. "
    "First Citizen: You are all resolved rather to die than to famish? All: Resolved. resolved. "
    "First Citizen: First, you know Caius Marcius is chief enemy to the people. "
    "All: We know't, we know't. First Citizen: Let us kill him, and we'll have corn at our own "
    "price. Is't a verdict? All: No more talking on't; let it be done: away, away! Second "
    "Citizen: One word, good citizens. First Citizen: We are accounted poor citizens, the "
    "patricians good. ")


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is asked of the model: prompts, how they are cut, and how many tokens follow."""

    prompts: tuple[tuple[int, ...], ...]
    steps: int = 6
    chunks: tuple[int, ...] = ()          # tokens of each prefill pass; none: all at once
    forced: tuple[int, ...] = ()          # what is fed back in the place of the likeliest token
    all_logits: bool = False              # of every row of the prompt and not of its last alone
    leave_out: frozenset[str] = frozenset()


@functools.cache
def load(folder: str, dtype: str, attention: str) -> nn.Module:
    """A model of a checkpoint folder, ready to compute; one of each kind is kept."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    options = {"dtype": DTYPES[dtype], "attn_implementation": attention}
    if "Moe" in json.loads(pathlib.Path(folder, "config.json").read_text())["architectures"][0]:
        options["experts_implementation"] = "eager"
    return AutoModelForCausalLM.from_pretrained(folder, **options).eval()


def prompt_of(folder: str, count: int) -> tuple[int, ...]:
    """Ids of a text, or where there is no tokenizer ids that look random."""
    tokenizer = pathlib.Path(folder, "tokenizer.json")
    if tokenizer.exists():
        from tokenizers import Tokenizer
        return tuple(Tokenizer.from_file(str(tokenizer)).encode(TEXT).ids[:count])
    vocabulary = json.loads(pathlib.Path(folder, "config.json").read_text())["vocab_size"]
    return tuple((7919 * i * i + 104729 * i + 31) % vocabulary for i in range(count))


def greedy(logits: Tensor) -> Tensor:
    """The likeliest token of each row, found as `generate` finds it."""
    return torch.argmax(logits.to(torch.float32), dim=-1).to(torch.int32)


def declared_rounding(attention: str, other: dict[str, str] | None = None) -> dict[str, str]:
    """Of each point, where it rounds inside."""
    return rounding("eager" if attention == "eager" else "hf") | (other or {})


class Runner:
    """Takes a plan through the model, a pass at a time."""

    def __init__(self, model: nn.Module, plan: Plan, cache: Cache | None = None) -> None:
        self.model, self.plan = model, plan
        self.cache = DynamicCache(config=model.config) if cache is None else cache
        self.recorder = Recorder(model)
        self.requests = [Request(b, list(prompt), forced=list(plan.forced))
                         for b, prompt in enumerate(plan.prompts)]
        longest = max(map(len, plan.prompts))
        self.padding = [longest - len(prompt) for prompt in plan.prompts]
        self.passes: list[Pass] = []
        self.done = 0                     # columns of the batch behind us, padding included

    @torch.no_grad()
    def run(self) -> list[Pass]:
        longest = max(map(len, self.plan.prompts))
        ids = torch.tensor([[0] * skipped + list(prompt)
                            for skipped, prompt in zip(self.padding, self.plan.prompts)])
        with self.recorder.watching():
            for part in torch.split(ids, list(self.plan.chunks) or [longest], dim=1):
                tokens = self.step(part, decode=False)
            for step in range(self.plan.steps):
                if self.plan.forced:
                    tokens = torch.full_like(tokens, self.plan.forced[step])
                for request, token in zip(self.requests, tokens.tolist()):
                    request.tokens.append(token)
                tokens = self.step(tokens[:, None].long(), decode=True)
        for request, token in zip(self.requests, tokens.tolist()):
            request.tokens.append(token)
        return self.passes

    def step(self, ids: Tensor, decode: bool) -> Tensor:
        """One call of the model; returns the likeliest token of each request."""
        columns = torch.arange(self.done, self.done + ids.shape[1])
        keep = columns[None, :] >= torch.tensor(self.padding)[:, None]
        run = Pass([Row(b, int(columns[t]) - self.padding[b], int(ids[b, t]), decode)
                    for b, t in keep.nonzero().tolist()], [])
        self.done += ids.shape[1]
        behind = [self.done - skipped for skipped in self.padding]
        last = [i for i, row in enumerate(run.rows) if row.position == behind[row.request] - 1]
        run.logit_rows = list(range(len(run.rows))) if self.plan.all_logits else last
        self.recorder.begin(run, keep, behind, self.padding)
        self.model(ids, past_key_values=self.cache, use_cache=True,
                   logits_to_keep=0 if self.plan.all_logits else 1, **self.masks(columns))
        tokens = greedy(run.tensors[-1, "logits"])
        run.tensors[-1, "token"] = tokens
        self.passes.append(run)
        chosen = tokens[[run.logit_rows.index(i) for i in last]]
        ended = all(row.position + 1 >= len(self.plan.prompts[row.request]) for row in
                    (run.rows[i] for i in last))
        if ended:
            for request, token in zip(self.requests, chosen.tolist()):
                request.argmax.append(token)
        return chosen

    def masks(self, columns: Tensor) -> dict[str, Tensor]:
        """What a padded batch needs besides its ids; of one without padding, nothing."""
        if not any(self.padding):
            return {}
        padding = torch.tensor(self.padding)[:, None]
        return {"attention_mask": (torch.arange(self.done)[None, :] >= padding).long(),
                "position_ids": (columns[None, :] - padding).clamp(min=0)}


def trace_of(model: nn.Module, runner: Runner, provenance: dict[str, str],
             schema: dict[str, str] | None) -> Trace:
    """What a run saw, with what it says of itself; points left out are left out here."""
    left_out = runner.plan.leave_out
    passes = [copy.copy(run) for run in runner.passes]
    for run in passes:
        run.tensors = {place: t for place, t in run.tensors.items() if place[1] not in left_out}
        run.caches = {} if "attn.kv" in left_out else run.caches
    layers = model.model.layers
    facts = {"engine": "transformers", "engine_version": transformers.__version__,
             "torch_version": str(torch.__version__), **provenance}
    graph = qwen_graph(len(layers), hasattr(layers[0].self_attn, "q_norm"),
                       [i for i, layer in enumerate(layers) if hasattr(layer.mlp, "experts")])
    return Trace(graph, trace_file.DTYPE_NAMES[model.dtype], passes, runner.requests, facts,
                 schema or {})


def same_logits(model: nn.Module, runner: Runner) -> bool:
    """Whether the model, without a recorder, gives the same bits in every pass of a plain run."""
    cache = DynamicCache(config=model.config)
    for run in runner.passes:
        ids = torch.tensor([[row.token for row in run.rows]])
        with torch.no_grad():
            logits = model(ids, past_key_values=cache, use_cache=True,
                           logits_to_keep=0 if runner.plan.all_logits else 1).logits[0]
        if not torch.equal(logits, run.tensors[-1, "logits"]):
            return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("model")
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--attention", choices=("sdpa", "eager"), default="sdpa")
    parser.add_argument("--tokens", help="ids of the prompt")
    parser.add_argument("--count", type=int, default=97, help="tokens of the prompt made here")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--chunks", default="", help="tokens of each prefill pass")
    parser.add_argument("--forced", default="", help="tokens fed back, one a step")
    parser.add_argument("--leave-out", default="", help="points that are not written")
    parser.add_argument("--all-logits", action="store_true")
    parser.add_argument("--declare", action="store_true", help="say where each point rounds")
    options = parser.parse_args()

    def ids(text: str) -> tuple[int, ...]:
        return tuple(int(part) for part in text.split(",") if part)

    torch.set_num_threads(1)
    model = load(options.model, options.dtype, options.attention)
    prompt = ids(options.tokens) if options.tokens else prompt_of(options.model, options.count)
    forced = ids(options.forced)
    plan = Plan((prompt,), len(forced) or options.steps, ids(options.chunks), forced,
                options.all_logits, frozenset(filter(None, options.leave_out.split(","))))
    runner = Runner(model, plan)
    runner.run()
    schema = declared_rounding(options.attention) if options.declare else None
    trace = trace_of(model, runner, {"attention": options.attention}, schema)
    trace_file.write(options.out, trace)
    print(f"recording changes {'no' if same_logits(model, runner) else 'SOME'} bits of the logits")


if __name__ == "__main__":
    main()
