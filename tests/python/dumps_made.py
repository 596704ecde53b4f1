"""Dumps as other tools lay them out, made of a captured trace: of tools that no test can run here.

Each function is written after the tool's own source, and knows nothing of how dumps are read.
"""
from __future__ import annotations

import dataclasses
import json
import pathlib

import numpy as np
import torch

LAYERS, HEAD_DIM = 3, 32  # of tests/data/tiny/qwen3-default


@dataclasses.dataclass
class Seen:
    """What a pass of an engine with fused modules would have shown."""

    tokens: torch.Tensor
    positions: torch.Tensor
    lengths: torch.Tensor                 # of each request
    requests: torch.Tensor                # the engine's own ids
    modules: dict[str, list[torch.Tensor]]


class OfRank:
    """What one rank of a trace over ranks would have dumped; reduced: after each sum."""

    SUMS = {"attn.o": "attn.o_partial", "mlp.down": "mlp.down_partial"}

    def __init__(self, trace, rank, ranks, reduced):
        self.trace, self.rank, self.ranks, self.reduced = trace, rank, ranks, reduced
        self.passes = trace.passes

    def tensor(self, point, layer=None, number=0):
        if point in self.SUMS and not self.reduced:
            return self.trace.tensor(self.SUMS[point], layer, number=number)[:, self.rank]
        whole = self.trace.tensor(point, layer, number=number)
        if whole.ndim == 3 or point in ("mlp.gate", "mlp.up", "mlp.act"):
            return numpy_part(whole, self.rank, self.ranks)
        return whole


def numpy_part(whole, rank, ranks):
    """A stretch of the first axis after that of rows; of an axis too short for all, a copy."""
    count = whole.shape[1]
    first = rank * count // ranks
    return whole[:, first:first + max(1, count // ranks)]


def rank_of(trace):
    return getattr(trace, "rank", 0)


def tensor_of(trace, number, point, layer=None):
    """A tensor of a pass as torch has it."""
    return torch.from_numpy(trace.tensor(point, layer, number=number)).to(torch.bfloat16)


def fused_passes(trace):
    """The outputs of SGLang's and vLLM's modules, in the order in which they are called."""
    for number, run in enumerate(trace.passes):
        last = {row.request: row.position + 1 for row in run.rows}

        def get(point, layer=None, number=number):
            made = tensor_of(trace, number, point, layer)
            return made.flatten(1)

        modules = {"model.embed_tokens": [get("embed")]}
        for i in range(LAYERS):
            m = f"model.layers.{i}"
            stream = [get("mlp.residual", i - 1)] if i else []
            modules |= {
                f"{m}.input_layernorm": [get("attn.norm", i)] + stream,
                f"{m}.self_attn.qkv_proj": [torch.cat([get(f"attn.{x}", i) for x in "qkv"], 1)],
                f"{m}.self_attn.q_norm": [get("attn.q_norm", i).reshape(-1, HEAD_DIM)],
                f"{m}.self_attn.k_norm": [get("attn.k_norm", i).reshape(-1, HEAD_DIM)],
                f"{m}.self_attn.rotary_emb": [get("attn.q_rope", i), get("attn.k_rope", i)],
                f"{m}.self_attn.attn": [get("attn.out", i)],
                f"{m}.self_attn.o_proj": [get("attn.o", i)],
                f"{m}.post_attention_layernorm": [get("mlp.norm", i), get("attn.residual", i)],
                f"{m}.mlp.gate_up_proj": [torch.cat([get("mlp.gate", i), get("mlp.up", i)], 1)],
                f"{m}.mlp.act_fn": [get("mlp.act", i)],
                f"{m}.mlp.down_proj": [get("mlp.down", i)]}
        modules["model.norm"] = [get("final.norm"), get("mlp.residual", LAYERS - 1)]
        modules["logits_processor"] = [get("logits").float()]
        yield Seen(torch.tensor([row.token for row in run.rows]),
                   torch.tensor([row.position for row in run.rows]),
                   torch.tensor(list(last.values())), torch.tensor([7 + r for r in last]), modules)


def batch_of(seen):
    return {"input_ids": seen.tokens, "positions": seen.positions, "seq_lens": seen.lengths,
            "req_pool_indices": seen.requests}


def sglang_dumper(trace, folder: pathlib.Path, old: bool = False) -> None:
    """One file a tensor; values that are no tensors among them."""
    index = 0

    def dump(step, name, value):
        nonlocal index
        index += 1
        if old:
            facts = {"forward_pass_id": step, "rank": rank_of(trace), "name": name,
                     "dump_index": index}
        else:
            facts = {"step": step, "rank": rank_of(trace), "dump_index": index, "name": name,
                     "recompute_status": "disabled"}
        file = "___".join(f"{key}={text}" for key, text in facts.items()) + ".pt"
        torch.save(value if old else {"value": value, "meta": facts}, folder / file)

    for step, seen in enumerate(fused_passes(trace)):
        for name, tensor in batch_of(seen).items():
            dump(step, name, tensor)
        dump(step, "rids", ["a", "b"])
        for module, tensors in seen.modules.items():
            if module == "logits_processor":
                dump(step, f"non_intrusive__{module}.output.next_token_logits", tensors[0])
            elif len(tensors) == 1:
                dump(step, f"non_intrusive__{module}.output", tensors[0])
            else:
                for i, tensor in enumerate(tensors):
                    dump(step, f"non_intrusive__{module}.output.{i}", tensor)
            dump(step, f"non_intrusive__{module}.inputs.0", tensors[0])


def pass_files(trace, folder: pathlib.Path, of_vllm: bool = False) -> None:
    """Pass00000.pt, ...: what `model` and `logits_processor` returned stands one file later."""
    late = {}
    rank = rank_of(trace)
    inner = folder / f"TP{rank}_PP0_Rank{rank}_pid{1234 + rank}"
    inner.mkdir()
    for number, seen in enumerate(fused_passes(trace)):
        batch = batch_of(seen)
        names = ("input_ids", "positions") if of_vllm else ("input_ids", "seq_lens", "positions")
        content = dict(late)
        content |= {f"model.forward_batch_info.{name}": batch[name] for name in names}
        content |= {module: tensors[0] if len(tensors) == 1 else tensors
                    for module, tensors in seen.modules.items() if module != "logits_processor"}
        content["model.layers.0.self_attn.attn_mode"] = "triton"
        torch.save(content, inner / f"Pass{number:05d}.pt")
        late = {"model": seen.modules["model.norm"][0],
                "logits_processor": seen.modules["logits_processor"][0]}


def vllm_intermediates(trace, folder: pathlib.Path) -> None:
    """OUT/UUID/step_0/MODULE/outputs_0_cuda_0.pt"""
    for step, seen in enumerate(fused_passes(trace)):
        root = folder / "0b1c" / f"step_{step}"

        def save(module, name, tensor, root=root):
            (root / module).mkdir(parents=True, exist_ok=True)
            torch.save(tensor, root / module / f"{name}_cuda_{rank_of(trace)}.pt")

        save("model", "inputs_input_ids", seen.tokens)
        save("model", "inputs_positions", seen.positions)
        for module, tensors in seen.modules.items():
            save(module, "inputs_0", tensors[0])
            for i, tensor in enumerate(tensors):
                save(module, f"outputs_{i}" if len(tensors) > 1 else "outputs", tensor)
        (root / "module_calls.txt").write_text("\n".join(seen.modules))


def vllm_hidden_states(trace, folder: pathlib.Path) -> None:
    """A file a request: its tokens but the last one that was chosen, and what each layer left."""
    from safetensors.torch import save_file
    for request in {row.request for row in trace.passes[0].rows}:
        rows, states = [], []
        for number, run in enumerate(trace.passes):
            own = [i for i, row in enumerate(run.rows) if row.request == request]
            rows += [run.rows[i].token for i in own]
            states.append(torch.stack([tensor_of(trace, number, "mlp.residual", layer)[own]
                                       for layer in range(LAYERS)], 1))
        save_file({"hidden_states": torch.cat(states), "token_ids": torch.tensor(rows)},
                  folder / f"cmpl-{request}.safetensors")


def edge_llm(trace, folder: pathlib.Path) -> None:
    """One file of all rounds; the cache has room for 32 columns, in which nothing is meant."""
    from safetensors.torch import save_file
    content = {}
    for number, run in enumerate(trace.passes):
        lengths = {row.request: row.position + 1 for row in run.rows}
        content[f"round_{number}.logits"] = tensor_of(trace, number, "logits")
        for i in range(LAYERS):
            cache = torch.full((len(lengths), 2, 2, 32, HEAD_DIM), torch.nan, dtype=torch.bfloat16)
            for b, (request, length) in enumerate(lengths.items()):
                for before in range(number + 1):
                    for row, (k, v) in zip(trace.passes[before].rows, zip(
                            tensor_of(trace, before, "attn.k_rope", i),
                            tensor_of(trace, before, "attn.v", i))):
                        if row.request == request:
                            cache[b, :, :, row.position] = torch.stack((k, v))
            content[f"round_{number}.layer_{i}.kv"] = cache
        content[f"round_{number}.context_lengths"] = torch.tensor(list(lengths.values()),
                                                                  dtype=torch.int32)
        chosen = trace.tensor("token", number=number)
        content[f"round_{number}.generated_token_ids"] = torch.from_numpy(chosen.astype("int32"))
    save_file(content, folder / "edgellm_dump.safetensors")


def msprobe(trace, folder: pathlib.Path) -> None:
    """step0/rank0/dump.json of level mix, of vLLM's modules."""
    for step, seen in enumerate(fused_passes(trace)):
        root = folder / f"step{step}" / f"rank{rank_of(trace)}"
        (root / "dump_tensor_data").mkdir(parents=True)
        data = {"Tensor.add.0.forward": {"input_args": [], "output": [{"data_name": "a.pt"}]}}

        def entry(name, tensor, root=root):
            torch.save(tensor, root / "dump_tensor_data" / f"{name}.pt")
            return {"type": "torch.Tensor", "dtype": str(tensor.dtype), "Max": 1.0,
                    "shape": list(tensor.shape), "data_name": f"{name}.pt"}

        key = "Module.model.Qwen3Model.forward.0"
        data[key] = {"input_args": [{"type": "int", "value": 1}], "output": [], "input_kwargs": {
            name: entry(f"{key}.input.{name}", batch_of(seen)[name])
            for name in ("input_ids", "positions")}}
        for module, tensors in seen.modules.items():
            key = f"Module.{module}.AnyClass.forward.0"
            data[key] = {"input_args": [entry(f"{key}.input.0", tensors[0])], "input_kwargs": {},
                         "output": [entry(f"{key}.output.{i}", t) for i, t in enumerate(tensors)]}
        (root / "dump.json").write_text(json.dumps({
            "task": "tensor", "level": "mix", "framework": "pytorch", "data": data}))
        (root / "stack.json").write_text("{}")


def tensorrt_llm_rotary(trace, folder: pathlib.Path) -> None:
    """The same where attention turns nothing itself: a module between its norms and its output."""
    tensorrt_llm_hooks(trace, folder, {"4.RotaryEmbedding": "self_attn.rotary_emb"})


def tensorrt_llm_hooks(trace, folder: pathlib.Path, between: dict[str, str] | None = None) -> None:
    """rank0/1.Qwen3Model-2.Qwen3DecoderLayer-1.RMSNorm-output.0.pt: numbers are of calls."""
    root, between = folder / f"rank{rank_of(trace)}", between or {}
    o_proj = f"2.Qwen3Attention-{4 + len(between)}.Linear"
    root.mkdir()
    for number, seen in enumerate(fused_passes(trace)):
        def save(path, side, name, tensor, number=number):
            torch.save(tensor, root / f"{number + 1}.Qwen3Model-{path}-{side}.{name}.pt")

        save("1.Embedding", "input", "input", seen.tokens)
        save("1.Embedding", "output", "0", seen.modules["model.embed_tokens"][0])
        torch.save(seen.positions, root / f"{number + 1}.Qwen3Model-input.position_ids.pt")
        for i in range(LAYERS):
            names = {"1.RMSNorm": "input_layernorm", "2.Qwen3Attention-1.Linear":
                     "self_attn.qkv_proj", "2.Qwen3Attention-2.RMSNorm": "self_attn.q_norm",
                     "2.Qwen3Attention-3.RMSNorm": "self_attn.k_norm",
                     **{f"2.Qwen3Attention-{path}": module for path, module in between.items()},
                     o_proj: "self_attn.o_proj",
                     "3.RMSNorm": "post_attention_layernorm",
                     "4.GatedMLP-1.Linear": "mlp.gate_up_proj", "4.GatedMLP-2.Linear":
                     "mlp.down_proj"}
            layer = f"{i + 2}.Qwen3DecoderLayer"
            for path, module in names.items():
                for k, tensor in enumerate(seen.modules[f"model.layers.{i}.{module}"]):
                    save(f"{layer}-{path}", "output", str(k), tensor)
            save(f"{layer}-{o_proj}", "input", "input",
                 seen.modules[f"model.layers.{i}.self_attn.attn"][0])
            save(f"{layer}-4.GatedMLP-2.Linear", "input", "input",
                 seen.modules[f"model.layers.{i}.mlp.act_fn"][0])
        for k, tensor in enumerate(seen.modules["model.norm"]):
            save("8.RMSNorm", "output", str(k), tensor)
        save("9.LMHead", "output", "0", seen.modules["logits_processor"][0])


def tensorrt_llm_npy(trace, folder: pathlib.Path) -> None:
    """PP_1/TP_1/iteration_0/NAME.npy: bf16 is widened to fp32."""
    for number, seen in enumerate(fused_passes(trace)):
        root = folder / "PP_1/TP_1" / f"iteration_{number}"
        root.mkdir(parents=True)
        arrays = {"input_ids": seen.tokens.int(), "position_ids": seen.positions.int(),
                  "request_ids": seen.requests, "logits": seen.modules["logits_processor"][0]}
        for i in range(LAYERS):
            for name, module in (("attention", "self_attn.o_proj"), ("mlp", "mlp.down_proj")):
                arrays[f"transformer.layers.{i}.{name}_output"] = \
                    seen.modules[f"model.layers.{i}.{module}"][0]
        for name, tensor in arrays.items():
            wide = tensor.float() if tensor.is_floating_point() else tensor
            np.save(root / f"{name}.npy", wide.numpy())


def npz_a_pass(trace, folder: pathlib.Path) -> None:
    """step0.npz, ...: named_modules() names as Hugging Face has them, batch first, fp32."""
    names = {"self_attn.q_proj": "attn.q", "self_attn.k_proj": "attn.k",
             "self_attn.v_proj": "attn.v", "self_attn.o_proj": "attn.o",
             "input_layernorm": "attn.norm", "mlp.down_proj": "mlp.down"}
    for number, seen in enumerate(fused_passes(trace)):
        arrays = {"input_ids": seen.tokens[None].numpy(), "position_ids": seen.positions.numpy()}
        for i in range(LAYERS):
            for module, point in names.items():
                arrays[f"model.layers.{i}.{module}"] = trace.tensor(point, i, number=number)[None]
        arrays["model.layers.0.self_attn.q_prj"] = arrays["model.layers.0.self_attn.q_proj"]
        np.savez(folder / f"step{number}.npz", **arrays)


def npy_a_tensor(trace, folder: pathlib.Path) -> None:
    """pass_0/layers.3.attn.q.npy: Lockstep's own names, one file a tensor."""
    for number, seen in enumerate(fused_passes(trace)):
        root = folder / f"pass_{number}"
        root.mkdir()
        np.save(root / "tokens.npy", seen.tokens.numpy())
        np.save(root / "positions.npy", seen.positions.numpy())
        np.save(root / "embed.npy", trace.tensor("embed", number=number))
        for i in range(LAYERS):
            for point in ("attn.norm", "mlp.norm", "mlp.gate"):
                np.save(root / f"layers.{i}.{point}.npy", trace.tensor(point, i, number=number))
