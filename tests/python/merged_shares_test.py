"""Attention in two shares that nearly cancel, merged in fp64 of what is recorded of them.

python merged_shares_test.py LOCKSTEP. Nobody merges them better, and no node shows anything; only
all of them together have more roundings that turn than an attention at once would.
"""
import json
import os
import subprocess
import unittest

import numpy as np
import support
from support import DATA, InFolder

import lockstep
from lockstep.graph import graph_of

MODEL = DATA / "tiny/qwen2-mha"
PAGE, REQUESTS, LAYERS, CANCEL = 8, 24, 3, 1500
JUDGED = ("attn.kv", "attn.partial", "attn.lse", "attn.out")
ROUNDED_ONCE = ("attn.q_rope", *JUDGED[1:])


def rounded(x):
    return np.asarray(x).astype(np.float16)


def shares(q, keys, values, cuts):
    """partial [share, head, dim] and lse [share, head] of one query, rounded to fp32."""
    partial, lse = [], []
    for begin, end in cuts:
        scores = np.einsum("hd,jhd->hj", q, keys[begin:end]) / np.sqrt(q.shape[-1])
        powers = np.exp(scores)
        partial.append(np.einsum("hj,jhd->hd", powers, values[begin:end]) / powers.sum(1)[:, None])
        lse.append(np.log(powers.sum(1)))
    return np.float32(partial), np.float32(lse)


def merged(partial, lse):
    powers = np.exp(np.float64(lse))
    weights = powers / powers.sum(0)
    return (weights[..., None] * np.float64(partial)).sum(0)


class MergedShares(InFolder):
    def cancelling(self, random, heads, dim, length):
        """q, K and V whose two shares are of about 1 and -1, and their merge of 1 / CANCEL."""
        second = -(-length // PAGE) // 2 * PAGE
        cuts = ((0, second), (second, length))
        q, keys = (np.float64(rounded(random.standard_normal(shape) * .5))
                   for shape in ((heads, dim), (length, heads, dim)))
        values = random.standard_normal((length, heads, dim)) * .02
        sign = np.where(random.random((heads, dim)) < .5, -1, 1)
        lse = np.float64(shares(q, keys, values, cuts)[1])
        ratio = np.exp(lse[0] - lse[1])[:, None]
        values[:cuts[0][1]] += sign
        values[cuts[1][0]:] -= sign * ratio
        wanted = random.standard_normal((heads, dim)) / CANCEL
        values = np.float64(rounded(values))
        weight = 1 / (1 + ratio)
        for some in (length // 2, length // 8, length // 16, 4, 2):
            off = wanted - merged(*shares(q, keys, values, cuts))
            at = cuts[1][0] + random.permutation(length - cuts[1][0])[:some]
            mass = weight * some / (length - cuts[1][0])
            values[at] = rounded(values[at] + off / mass)
        return q, keys, values, cuts

    def trace(self, out_of, requests):
        """out_of(layer, partial, lse): what is stored of a request."""
        config = json.loads((MODEL / "config.json").read_text())
        heads, dim = config["num_attention_heads"], config["hidden_size"] // 4
        random = np.random.default_rng(3)
        path = self.folder / "shares.h5"
        lengths = [40 + request for request in range(requests)]
        with lockstep.Writer(path, config, dtype="fp16", schema={p: "fused" for p in ROUNDED_ONCE},
                             provenance={"page_size": str(PAGE)},
                             graph=graph_of(config, shares=True)) as writer:
            writer.begin_pass([5] * requests, [n - 1 for n in lengths], list(range(requests)),
                              inherited={r: [1 + r] * (n - 1) for r, n in enumerate(lengths)})
            for layer in range(LAYERS):
                made = [self.cancelling(random, heads, dim, n) for n in lengths]
                parts = [shares(*of) for of in made]
                rows = {"attn.q_rope": [rounded(q) for q, *_ in made],
                        "attn.k_rope": [rounded(keys[-1]) for _, keys, *_ in made],
                        "attn.v": [rounded(values[-1]) for _, _, values, _ in made],
                        "attn.partial": [partial for partial, _ in parts],
                        "attn.lse": [lse for _, lse in parts],
                        "attn.out": [out_of(layer, *part) for part in parts]}
                for point in ("attn.q_rope", "attn.k_rope", "attn.v"):
                    writer.show(point, layer, np.stack(rows.pop(point)))
                for request, (_, keys, values, _) in enumerate(made):
                    writer.show_cache(layer, request, rounded(np.stack([keys, values], 1)))
                for point, shown in rows.items():
                    writer.show(point, layer, np.stack(shown))
        return path

    def wrong(self, out_of, requests):
        """The places that are called wrong, in their order, of all."""
        made = subprocess.run(
            [os.environ["LOCKSTEP"], "judge", self.trace(out_of, requests), "--model", MODEL,
             "--points", ",".join(JUDGED), "--format", "json"], capture_output=True, text=True,
            check=False)
        self.assertTrue(made.stdout, made.stderr)
        result = json.loads(made.stdout)
        self.assertEqual(result["nodes"]["judged"], requests * LAYERS * len(JUDGED))
        return list(dict.fromkeys((f["layer"], f["point"]) for f in result["findings"]
                                  if f["point"] in JUDGED))

    def test_right_merges_are_not_wrong_together(self):
        self.assertEqual(self.wrong(lambda layer, *part: rounded(merged(*part)), REQUESTS), [])

    def test_a_wrong_merge_is_named_and_no_right_one(self):
        def out_of(layer, partial, lse):
            return rounded(merged(partial[:1], lse[:1]) if layer == 1 else merged(partial, lse))
        self.assertEqual(self.wrong(out_of, REQUESTS // 2), [(1, "attn.out")])


if __name__ == "__main__":
    support.main()
