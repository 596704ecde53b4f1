"""Dumps of a few tensors a layer, which are judged over all that lies between them, and of rows of
which some are padding, or at positions that nobody names.

python import_parts_test.py LOCKSTEP
"""
import numpy as np
import safetensors.torch
import torch

import import_test
import support
from support import TINY

import lockstep

torch.set_num_threads(1)


class Parts(import_test.Dumped):
    def test_a_cache_as_attention_reads_it(self):
        """TensorRT Edge-LLM dumps nothing else of a layer: regions are all that is before it."""
        self.made("edge_llm")
        prompts = [row.token for row in self.right.passes[0].rows]
        file = self.folder / "dump/edgellm_dump.safetensors"
        report, out = self.imported("edge-llm", file, tokens=prompts)
        self.assertEqual((report.kind, report.passes), ("edge-llm", 2))
        with lockstep.Trace(out) as trace:
            self.assert_same(trace, ("attn.k_rope", "attn.v", "logits", "token"), caches=12)
        right = lockstep.judge(out, TINY)
        self.assertEqual((right.verdict, right.findings), ("clean", ()), right)
        # V of the token of the second round, and K of one of the first.
        for index, place in (((1, 1, slice(None), 6), "layer 2 attn.v"),
                             ((0, 0, slice(None), 2), "layer 2 attn.kv")):
            content = safetensors.torch.load_file(file)
            kept = content["round_1.layer_2.kv"].clone()
            content["round_1.layer_2.kv"][index] *= 1.5
            safetensors.torch.save_file(content, file)
            _, out = self.imported("edge-llm", file, tokens=prompts)
            first = lockstep.judge(out, TINY).first
            self.assertEqual((first.place, first.number), (place, 1), first)
            safetensors.torch.save_file(content | {"round_1.layer_2.kv": kept}, file)

    def saved_with_padding(self, names):
        """npz files, [batch, column, ...], whose padding holds other numbers than those of rows."""
        shape, lengths = {0: (2, 6), 1: (2, 1)}, [4, 6]
        for number, run in enumerate(self.right.passes):
            keep = np.arange(shape[number][1])[None] >= shape[number][1] - np.array(
                [[4], [6]] if number == 0 else [[1], [1]])

            def padded(rows, keep=keep):
                made = np.full((*keep.shape, *rows.shape[1:]), 7, rows.dtype)
                made[keep] = rows
                return made
            arrays = {name: padded(self.right.tensor(point, layer, number=number))
                      for name, (point, layer) in names.items()}
            mask = np.arange(6 + number)[None] >= 6 - np.array(lengths)[:, None]
            np.savez(self.folder / f"dump/step_{number}.npz", **arrays, attention_mask=mask,
                     input_ids=padded(np.array([row.token for row in run.rows])),
                     lm_head=self.right.tensor("logits", None, number=number)[:, None])

    def test_padding_of_a_batch_is_no_row(self):
        """What a loop over a padded batch saves by hand: its attention_mask says what is what."""
        (self.folder / "dump").mkdir()
        names = {"model.embed_tokens": ("embed", None), "model.norm": ("final.norm", None)}
        for i in range(3):
            names |= {f"model.layers.{i}.{name}": (point, i) for name, point in (
                ("input_layernorm", "attn.norm"), ("self_attn.q_proj", "attn.q"),
                ("self_attn.k_proj", "attn.k"), ("self_attn.v_proj", "attn.v"),
                ("self_attn.o_proj", "attn.o"), ("mlp.down_proj", "mlp.down"))}
        self.saved_with_padding(names)
        _, out = self.imported("huggingface", schema="hf")
        with lockstep.Trace(out) as trace:
            self.assertEqual([[(row.request, row.position) for row in run.rows]
                              for run in trace.passes],
                             [[(0, i) for i in range(4)] + [(1, i) for i in range(6)],
                              [(0, 4), (1, 6)]])
        right = lockstep.judge(out, TINY)
        self.assertEqual((right.verdict, right.judged), ("clean", right.expected), right)

    def test_positions_that_nobody_names_follow_from_the_order(self):
        """By request, where these are named; what was taken for granted is said, and what is not
        known is left out, with all that would have to go on behind it."""
        (self.folder / "dump").mkdir()

        def dumped(passes):
            for old in (self.folder / "dump").iterdir():
                old.unlink()
            for number, (fed, requests) in enumerate(passes):
                named = {} if requests is None else {"requests": np.array(requests)}
                np.savez(self.folder / f"dump/step_{number}.npz", tokens=np.array(fed),
                         embed=np.ones((len(fed), 64), "f4"), **named)
            report, out = self.imported("points")
            with lockstep.Trace(out) as trace:
                return report.notes, [[(row.request, row.position) for row in run.rows]
                                      for run in trace.passes]

        notes, rows = dumped([([8, 9, 21], [5, 5, 3]), ([22, 30], [3, 5]), ([31], [5])])
        self.assertEqual(rows, [[(0, 0), (0, 1), (1, 0)], [(1, 1), (0, 2)], [(0, 3)]])
        self.assertEqual(notes, ["no positions are named: each row was taken to stand behind those "
                                 "that its request had so far"])
        notes, rows = dumped([([8, 9, 21], None), ([30, 31], None)])
        self.assertEqual(rows, [[(0, 0), (0, 1), (0, 2)], [(0, 3), (0, 4)]])
        self.assertIn("neither positions nor requests are named: all rows were taken", notes[0])
        notes, rows = dumped([([8, 9], [5, 5]), ([30], None)])
        self.assertEqual(rows, [[(0, 0), (0, 1)], [(0, 2)]])  # the one that is there
        notes, rows = dumped([([8, 9], [5, 3]), ([30], None)])
        self.assertEqual(rows, [[(0, 0), (1, 0)]])
        self.assertIn("pass 1 names neither positions nor requests, of which the dump had several",
                      notes[1])
        notes, rows = dumped([([8, 9, 21], [5] * 3), ([30, 31, 32], [5, 3]), ([33], [5])])
        self.assertEqual(rows, [[(0, 0), (0, 1), (0, 2)]])
        self.assertIn("pass 1 names 2 requests and no position of its 3 rows", notes[1])
        self.assertIn("pass 2 names no positions and comes after one that is left out", notes[2])

    def test_what_each_layer_left_of_each_request(self):
        """vLLM's connector of hidden states: the region of a layer is the layer."""
        self.made("vllm_hidden_states")
        report, out = self.imported("vllm-hidden-states")
        self.assertEqual((report.kind, report.passes, report.tensors),
                         ("vllm-hidden-states", 2, 6))
        with lockstep.Trace(out) as trace:
            for request, count in ((0, 5), (1, 7)):
                for position in range(count):
                    at = {"request": request, "position": position}
                    np.testing.assert_array_equal(trace.tensor("mlp.residual", 1, **at),
                                                  self.right.tensor("mlp.residual", 1, **at))
        right = lockstep.judge(out, TINY)
        # Without logits nothing that chooses a token is judged.
        self.assertEqual((right.verdict, right.judged, right.findings), ("inconclusive", 6, ()),
                         right)
        file = self.folder / "dump/cmpl-1.safetensors"
        content = safetensors.torch.load_file(file)
        content["hidden_states"][2, 2, 17] += 2
        safetensors.torch.save_file(content, file)
        _, out = self.imported("vllm-hidden-states")
        first = lockstep.judge(out, TINY).first
        self.assertEqual((first.place, first.request, first.position),
                         ("layer 2 mlp.residual", 1, 2), first)


if __name__ == "__main__":
    support.main()
