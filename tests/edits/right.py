"""Edits after which a trace is as right as before: the judge must find it clean."""
from __future__ import annotations

import json
import shutil
from pathlib import Path

import h5py
import numpy as np
import trace_file
from checkpoint import Checkpoint
from h5py import h5d, h5p, h5s
from passes import (drop_request, join, page_size, put_rope, rename, rename_in, renumber,
                    repage, split)
from registry import CLEAN, DIVERGED, DOUBT, Place, add, edit, edit_files, wants
from tensors import values_of
from trace_model import PREFILL, Pass, Request, Trace, clone_tensor
from wrong_values import bits, keep_cache

AS_THEY_ARE = ["greedy", "sampled", "prefix", "samples", "recompute", "swap", "forced", "stop",
               "fp16", "fp32", "qwen2", "moe"]
for name in AS_THEY_ARE:
    add("nothing", name, CLEAN, "nothing but the file is new, written by these tests",
        lambda _: None, name in ("greedy", "prefix"))


# The file.

@edit("greedy", expect=DOUBT)
def columns_compressed(trace: Trace) -> None:
    """Columns are chunked and compressed, where the layout says that they are contiguous: a small
    file could ask for any amount of memory."""
    trace.columns = {"chunks": True, "compression": "gzip", "shuffle": True}


@edit("greedy", expect=CLEAN)
def columns_in_another_order(trace: Trace) -> None:
    """The columns come into their groups in another order."""
    def change(file: h5py.File) -> None:
        for group in ("passes", "requests", "logits"):
            for column in reversed(list(file[group])):
                file.move(f"{group}/{column}", "aside")
                file.move("aside", f"{group}/{column}")
    trace.after.append(change)


@edit("greedy", expect=DOUBT)
def tensors_compressed(trace: Trace) -> None:
    """A tensor is chunked and compressed, where the layout says that it is contiguous."""
    def change(file: h5py.File) -> None:
        path = "tensors/pass000001/layer002/attn.q"
        old, kept = file[path].id, dict(file[path].attrs)
        stored, values = old.get_type(), np.empty(old.shape, np.uint16)
        old.read(h5s.ALL, h5s.ALL, values, mtype=stored)
        del file[path]
        chunks = h5p.create(h5p.DATASET_CREATE)
        chunks.set_chunk((1, *values.shape[1:]))
        chunks.set_deflate(4)
        new = h5d.create(file.id, path.encode(), stored, h5s.create_simple(values.shape), chunks)
        new.write(h5s.ALL, h5s.ALL, values, mtype=stored)
        file[path].attrs.update(kept)
    trace.after.append(change)


@edit("greedy", expect=CLEAN, quick=True)
def unknown_additions(trace: Trace) -> None:
    """Datasets, groups and attributes of which the layout says nothing."""
    def change(file: h5py.File) -> None:
        file["notes/temperature_of_the_room"] = np.array([21.5])
        file["passes/milliseconds"] = np.array([1.5] * len(trace.passes))
        file["index"].attrs["colour"] = "blue"
        file.attrs["author"] = "somebody"
    trace.after.append(change)


@edit("greedy", expect=CLEAN)
def passes_stored_in_another_order(trace: Trace) -> None:
    """The last pass comes first in the file, with its own number."""
    trace.passes.insert(0, trace.passes.pop())


# Words for people.

@edit("greedy", expect=CLEAN)
def facts_changed(trace: Trace) -> None:
    """Provenance that only people read is other, and there is more of it."""
    trace.provenance |= {"compiler": "another", "command_line": "lockstep --fault ü",
                         "git_sha": "0" * 40, "created_utc": "1999-12-31T23:59:59Z",
                         "engine": "theirs", "device": "abacus", "weather": "rain"}


@edit("greedy", expect=CLEAN)
def facts_few(trace: Trace) -> None:
    """Provenance has no more than another engine has to say: schema and size of a page."""
    trace.provenance = {name: trace.provenance[name] for name in ("schema_json", "page_size")}


@edit("greedy", expect=CLEAN)
def model_moved(trace: Trace) -> None:
    """The checkpoint was in another folder then."""
    trace.provenance["model"] = "/somewhere/else"


@edit("greedy", "moe", "qwen2", expect=CLEAN, quick=True)
def schema_undeclared(trace: Trace) -> None:
    """No point says where it rounds, so that the judge has to try."""
    trace.provenance["schema_json"] = "{}"


@edit("greedy", expect=CLEAN)
def selection_that_takes_nothing_away(trace: Trace) -> None:
    """The selection, a text for people, names every layer, and everything is there."""
    trace.attributes["selection"] = "--layers 0-5"


@edit("greedy", expect=CLEAN)
def names_of_requests(trace: Trace) -> None:
    """Requests have names, and all the same one."""
    for request in trace.requests:
        request.name = "Ophelia – “ü”"


# Requests.

@edit("greedy", "prefix", expect=CLEAN, quick=True)
def ids_renamed(trace: Trace) -> None:
    """Requests have other ids, far apart and in another order, throughout."""
    rename(trace, lambda request: 2_000_000_000 - 1000 * request)


@edit("greedy", expect=CLEAN)
def requests_in_another_order(trace: Trace) -> None:
    """/requests is the other way round."""
    trace.requests.reverse()


@edit("greedy", expect=CLEAN)
def requests_not_declared(trace: Trace) -> None:
    """/requests is empty: the tokens fed are taken for granted."""
    trace.requests = []


@edit("greedy", "moe", expect=CLEAN, quick=True)
def a_request_taken_out(trace: Trace) -> None:
    """One request is in no pass, tensor, table or list, as if it had never been served."""
    drop_request(trace, trace.requests[1].id)


@edit("greedy", "sampled", "moe", expect=CLEAN)
def run_that_ended_earlier(trace: Trace) -> None:
    """The last pass is not there, nor what was chosen in it: a run that ended earlier."""
    last = trace.passes.pop()
    for best in last.best:
        request = trace.request(best.request)
        request.tokens.pop()
        request.argmax.pop()


# Rows, tensors and passes.

@edit("greedy", "moe", expect=CLEAN, quick=True)
def rows_in_another_order(trace: Trace) -> None:
    """The requests of each pass come in the opposite order, in rows, tensors and tables."""
    for one in trace.passes:
        order = [i for request in reversed(one.requests()) for i, row in enumerate(one.rows)
                 if row.request == request]
        one.rows = [one.rows[i] for i in order]
        one.logit_rows = sorted(order.index(i) for i in one.logit_rows)
        one.pages.reverse()
        place = {row.label: i for i, row in enumerate(one.rows)}
        for tensor in one.tensors:
            if not tensor.is_cache:
                tensor.take(sorted(range(len(tensor.rows)), key=lambda i: place[tensor.rows[i]]))
        one.refresh_best()


@edit("greedy", expect=CLEAN)
def rows_of_a_tensor_in_another_order(trace: Trace) -> None:
    """One tensor has its requests the other way round, labels and all: a row is known by request
    and position."""
    tensor = trace.passes[1].find("mlp.act", 2)
    tensor.take(sorted(range(len(tensor.rows)), key=lambda i: -tensor.rows[i][0]))


@edit("greedy", expect=CLEAN)
def tensors_in_another_order(trace: Trace) -> None:
    """Within a layer, V comes before K and Q, and up before gate: as legal an order."""
    early = {"attn.v": "attn.q", "mlp.up": "mlp.gate"}
    for one in trace.passes:
        for point, before in early.items():
            for layer in range(trace.layers):
                moved = one.find(point, layer)
                one.tensors.remove(moved)
                one.tensors.insert(one.tensors.index(one.find(before, layer)), moved)


def alone(trace: Trace) -> list[list[Pass]]:
    """The passes of each request, in which it is alone."""
    parts = [part for one in trace.passes for part in split(one)]
    return [[part for part in parts if part.rows[0].request == request.id]
            for request in trace.requests]


@edit("greedy", "moe", "prefix", expect=CLEAN, quick=True)
def batches_split(trace: Trace) -> None:
    """Each pass of several requests is one pass for each of them."""
    trace.passes = [part for one in trace.passes for part in split(one)]
    renumber(trace)


@edit("greedy", "moe", expect=CLEAN)
def one_request_after_the_other(trace: Trace) -> None:
    """Requests, which are independent, are served alone, the last one first."""
    trace.passes = [one for passes in reversed(alone(trace)) for one in passes]
    renumber(trace)


@edit("greedy", expect=CLEAN)
def requests_interleaved_otherwise(trace: Trace) -> None:
    """Requests are alone in their passes and take turns, the last one first."""
    served = alone(trace)
    longest = max(len(passes) for passes in served)
    trace.passes = [passes[i] for i in range(longest) for passes in reversed(served)
                    if i < len(passes)]
    renumber(trace)


@edit("greedy", expect=CLEAN)
def chunks_joined(trace: Trace) -> None:
    """Each prompt is computed in one pass, where it was computed in chunks."""
    joined: list[Pass] = []
    for passes in alone(trace):
        whole, chunks = passes[0], 1
        while passes[chunks].rows[0].phase == PREFILL:
            whole, chunks = join(whole, passes[chunks]), chunks + 1
        joined += [whole, *passes[chunks:]]
    wants(len(joined) < sum(map(len, alone(trace))), "a prompt of several chunks")
    trace.passes = joined
    renumber(trace)


@edit("greedy", expect=CLEAN)
def logits_of_every_row(trace: Trace) -> None:
    """Every row of a prompt has logits too, made of its final norm."""
    weight = Checkpoint(Path(trace.provenance["model"])).weight("model.embed_tokens.weight")
    chosen = next(one.find("token", -1) for one in trace.passes if one.logit_rows)
    template = next(one.find("logits", -1) for one in trace.passes if one.logit_rows)
    for one in trace.passes:
        norm = one.find("final.norm", -1)
        known = dict(zip(one.find("logits", -1).rows, one.find("logits", -1).values(),
                         strict=True)) if one.logit_rows else {}
        logits, token = clone_tensor(template), clone_tensor(chosen)
        logits.rows, token.rows = list(norm.rows), list(norm.rows)
        logits.put(np.stack([known.get(label, row @ weight.T)
                             for label, row in zip(norm.rows, norm.values(), strict=True)]))
        token.put_bits(logits.values().argmax(-1).astype(np.int32))
        one.tensors = [t for t in one.tensors if t.point not in ("logits", "token")]
        one.tensors += [logits, token]
        one.logit_rows = list(range(len(one.rows)))
        one.refresh_best()


@edit("greedy", expect=CLEAN)
def a_fork(trace: Trace) -> None:
    """A request ends earlier, and another one goes on from there: it inherits what the first one
    computed, up to the end of a page."""
    old, heir, first = trace.request(0), 9, 2 * page_size(trace)
    fed = {row.position: row.token for one in trace.passes for row in one.rows
           if row.request == 0}
    wants(len(old.prompt) < first <= max(fed), "a page that ends while request 0 decodes")
    prompt = [fed[position] for position in range(first + 1)]
    step = first + 1 - len(old.prompt)
    trace.requests.append(Request(heir, "", 0, prompt, [], old.tokens[step:], old.argmax[step:]))
    old.tokens, old.argmax = old.tokens[:step], old.argmax[:step]
    entered = False
    for one in trace.passes:
        if all(row.request != 0 or row.position < first for row in one.rows):
            continue
        if not entered:
            one.inherited.append((heir, prompt[:first]))
            entered = True
        rename_in(one, lambda request: heir if request == 0 else request)


# Pages and caches.

@edit("greedy", "prefix", expect=CLEAN, quick=True)
def pages_renumbered(trace: Trace) -> None:
    """Pages have other numbers of the same pool, in tables and slots."""
    size = page_size(trace)
    many = int(trace.provenance["pages"])

    def new(page: int) -> int:
        return many - 1 - page

    for one in trace.passes:
        one.pages = [(request, [new(page) for page in pages]) for request, pages in one.pages]
        for row in one.rows:
            row.slot = new(row.slot // size) * size + row.slot % size


@edit("greedy", expect=CLEAN)
def pages_of_another_size(trace: Trace) -> None:
    """Pages are half as large, and twice as many."""
    size = page_size(trace) // 2
    most = 1 + max(row.position for one in trace.passes for row in one.rows) // size
    order = [request.id for request in trace.requests]
    repage(trace, lambda request, i: i * len(order) + order.index(request), size)
    trace.provenance["pages"] = str(most * len(order))


@edit("greedy", expect=CLEAN)
def inherited_not_said(trace: Trace) -> None:
    """The columns of what is inherited are left out, and every request begins at position 0."""
    trace.inherited_known = False


@edit("greedy", expect=CLEAN)
def cache_kept(trace: Trace) -> None:
    """The bytes of every cache are kept too."""
    keep_cache(trace)


# Numbers.

@edit("greedy", expect=CLEAN)
def minus_zero(trace: Trace) -> None:
    """Norms of 0.0 are -0.0, and a norm is not held to be exact bit for bit."""
    found = False
    for one in trace.passes:
        for tensor in one.tensors:
            if tensor.point.endswith(".norm") and (bits(tensor) == 0).any():
                out = bits(tensor)
                out[out == 0] = 0x8000
                tensor.put_bits(out)
                found = True
    wants(found, "a norm that is 0")


@edit("greedy", expect=CLEAN)
def rope_in_fp64(trace: Trace) -> None:
    """What RoPE makes is made anew in fp64 and rounded once, and the cache is made of it."""
    put_rope(trace)


def tf32_logits(trace: Trace) -> Place:
    """Makes the logits of a decode pass anew, of operands that are rounded to tf32."""
    one = next(one for one in trace.passes[1:] if len(one.logit_rows) > 0)
    weight = Checkpoint(Path(trace.provenance["model"])).weight("model.embed_tokens.weight")
    inputs = bits(one.find("final.norm", -1)).astype(np.uint64)
    rounded = (inputs + 0xFFF + ((inputs >> 13) & 1)) >> 13 << 13
    logits = one.find("logits", -1)
    logits.put(values_of(rounded.astype(np.uint32), "fp32") @ weight.T)
    one.refresh_best()
    return Place(one.number, -1, "logits")


@edit("fp32", expect=CLEAN)
def tf32_declared(trace: Trace) -> None:
    """Logits are made of operands in tf32, and the trace says so."""
    tf32_logits(trace)
    trace.provenance["accumulator"] = "tf32"


@edit("fp32", expect=DIVERGED)
def tf32_undeclared(trace: Trace) -> Place:
    """Logits are made of operands in tf32, where the trace says fp32."""
    return tf32_logits(trace)


@edit("fp32", expect=CLEAN)
def tf32_allowed_and_not_used(trace: Trace) -> None:
    """Linear ops may round their operands to tf32, and do not."""
    trace.provenance["accumulator"] = "tf32"


@edit_files("folder", CLEAN)
def segments_split(source: Path, target: Path) -> None:
    """Each segment of a folder is as many as it has passes."""
    target.mkdir()
    for file in ("manifest.json", "run.journal"):
        shutil.copy(source / file, target / file)
    passes = 0
    for segment in sorted(source.glob("seg-*.h5")):
        whole = trace_file.load(segment)
        seq = whole.first_seq
        for one in whole.passes:
            part = whole.clone()
            part.passes, part.first_seq = [one], seq
            trace_file.save(part, target / f"seg-{passes:06}.h5")
            seq += len(one.tensors)
            passes += 1
    wants(json.loads((target / "manifest.json").read_text())["passes"] == passes, "a whole folder")


@edit_files("folder", CLEAN)
def folder_without_journal(source: Path, target: Path) -> None:
    """The journal of a whole folder is gone: it is read only when something is missing."""
    shutil.copytree(source, target)
    (target / "run.journal").unlink()
