"""A run of llama.cpp, recorded: two requests in one batch, then steps of both."""
import contextlib
import ctypes
import dataclasses

import llama_cpp
import numpy as np
from lockstep.llama_cpp import Recorder

GGML = {"fp32": 0, "fp16": 1, "q8_0": 8}


@dataclasses.dataclass(frozen=True)
class Plan:
    """What it is asked: prompts of these lengths in one batch, then steps of all of them."""

    lengths: tuple[int, ...] = (113, 31)
    steps: int = 6
    vocabulary: int = 4000


@dataclasses.dataclass(frozen=True)
class Way:
    """How it computes what a checkpoint leaves open."""

    flash: bool = False
    cache: str = "fp16"  # llama.cpp's default
    ubatch: int = 512
    threads: int = 1


def quiet():
    """llama.cpp says nothing of what it loads."""
    silent = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(silent, ctypes.c_void_p(0))
    return silent


def context_of(model, way, plan, recorder):
    parameters = llama_cpp.llama_context_default_params()
    parameters.n_ctx, parameters.n_batch, parameters.n_ubatch = 512, 512, way.ubatch
    parameters.n_seq_max, parameters.kv_unified = len(plan.lengths), True
    parameters.n_threads = parameters.n_threads_batch = way.threads
    parameters.flash_attn_type = 1 if way.flash else 0
    parameters.type_k = parameters.type_v = GGML[way.cache]
    recorder.hook(parameters)
    return llama_cpp.llama_init_from_model(model, parameters)


def decode(context, recorder, rows, wanted):
    """Has a batch of (request, position, token) computed; logits of the rows `wanted`."""
    batch = llama_cpp.llama_batch_init(len(rows), 0, 1)
    batch.n_tokens = len(rows)
    for i, (request, position, token) in enumerate(rows):
        batch.token[i], batch.pos[i] = token, position
        batch.n_seq_id[i], batch.seq_id[i][0] = 1, request
        batch.logits[i] = i in wanted
    recorder.requests = [request for request, *_ in rows]
    status = llama_cpp.llama_decode(context, batch)
    llama_cpp.llama_batch_free(batch)
    if status:
        raise RuntimeError(f"llama_decode returned {status}")
    vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(
        llama_cpp.llama_get_model(context)))
    return [int(np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, i),
                                      (vocabulary,)).argmax()) for i in wanted]


def run(gguf, dump, way, plan=Plan(), seed=1):
    """Has the prompts and steps computed, with everything recorded into the folder `dump`."""
    random = np.random.default_rng(seed)
    with contextlib.ExitStack() as stack:
        recorder = stack.enter_context(Recorder(dump))
        model = llama_cpp.llama_model_load_from_file(
            str(gguf).encode(), llama_cpp.llama_model_default_params())
        if not model:
            raise RuntimeError(f"llama.cpp does not load {gguf}")
        stack.callback(llama_cpp.llama_model_free, model)
        context = context_of(model, way, plan, recorder)
        stack.callback(llama_cpp.llama_free, context)
        rows = [(request, position, int(random.integers(1, plan.vocabulary)))
                for request, length in enumerate(plan.lengths) for position in range(length)]
        chosen = decode(context, recorder, rows, list(np.cumsum(plan.lengths) - 1))
        for step in range(plan.steps):
            rows = [(request, length + step, chosen[request])
                    for request, length in enumerate(plan.lengths)]
            chosen = decode(context, recorder, rows, list(range(len(rows))))
