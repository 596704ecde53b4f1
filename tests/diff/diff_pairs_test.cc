// Two traces whose engines turn RoPE's pairs alike, and hold them in other orders.
#include <gtest/gtest.h>

#include <set>
#include <string_view>

#include "src/judge/ledger.h"
#include "tests/diff/diff_runs.h"

namespace lockstep {
namespace {

// Dim i of the halves goes to 2 i, dim i + dim / 2 to 2 i + 1: of Q, of K, and of the K of a cache.
void interleave(RecordedTensor& tensor) {
  const std::vector<double> halves = values_of(tensor.data);
  std::vector<double> pairs = halves;
  const size_t heads = halves.size() / kDim;
  for (size_t head = 0; head < heads; ++head) {
    if (tensor.point->is_cache() && head / kKvHeads % 2 == 1) continue;  // V
    for (size_t i = 0; i < kDim / 2; ++i) {
      pairs[head * kDim + 2 * i] = halves[head * kDim + i];
      pairs[head * kDim + 2 * i + 1] = halves[head * kDim + i + kDim / 2];
    }
  }
  tensor.data = rounded_tensor(pairs, tensor.shape, tensor.dtype);
  tensor.row_hashes = row_hashes_of(tensor.data);
  if (!tensor.point->is_cache()) tensor.digest = digest_of(tensor.data);
}

FakeRun interleaved(FakeRun run) {
  const std::set<std::string_view> paired = {
      "attn.q", "attn.k", "attn.q_norm", "attn.k_norm", "attn.q_rope", "attn.k_rope", "attn.kv"};
  for (Pass& pass : run.passes)
    for (RecordedTensor& tensor : pass.tensors)
      if (paired.contains(tensor.point->name)) interleave(tensor);
  run.manifest.provenance["rope_pairs"] = "interleaved";
  return run;
}

TEST(DiffPairs, ATraceThatSaysThatItsAreInterleavedIsComparedInHalves) {
  const FakeRun right = run_of();
  for (const bool swapped : {false, true}) {
    const DiffResult r =
        swapped ? diff_of(interleaved(right), right) : diff_of(right, interleaved(right));
    EXPECT_EQ(r.verdict, DiffResult::Verdict::identical) << r.story;
    ASSERT_EQ(r.remarks.size(), 1u);
    EXPECT_NE(r.remarks[0].find(swapped ? "the first trace" : "the second trace"),
              std::string::npos)
        << r.remarks[0];
  }
  const DiffResult both = diff_of(interleaved(right), interleaved(right));
  EXPECT_EQ(both.verdict, DiffResult::Verdict::identical) << both.story;
  EXPECT_TRUE(both.remarks.empty()) << "nothing had to be put in halves";
}

TEST(DiffPairs, WhatIsWrongOfThemIsStillNamed) {
  const FakeRun wrong = run_of(DType::bf16, spoil_at("attn.k_rope", 1, [](std::vector<double>& v) {
                                 for (double& x : v) x = -x;
                               }));
  const DiffResult r = diff_of(run_of(), interleaved(wrong));
  ASSERT_TRUE(r.first_kind) << r.story;
  EXPECT_EQ(text_of(r.first_kind->id.place), "layer 1 attn.k_rope");
}

TEST(DiffPairs, UndeclaredTheyAreDifferent) {
  FakeRun silent = interleaved(run_of());
  silent.manifest.provenance.erase("rope_pairs");
  const DiffResult r = diff_of(run_of(), silent);
  EXPECT_EQ(r.verdict, DiffResult::Verdict::different) << r.story;
}

TEST(DiffPairs, HashesOfAnotherOrderSayNothing) {
  FakeRun halves = run_of(), pairs = interleaved(run_of());
  for (FakeRun* run : {&halves, &pairs})
    for (Pass& pass : run->passes)
      for (RecordedTensor& tensor : pass.tensors) tensor.data = {};
  const DiffResult r = diff_of(halves, pairs);
  EXPECT_NE(r.verdict, DiffResult::Verdict::different) << r.story;
  EXPECT_LT(r.equal, r.rows) << "nobody knows whether they are";
}

TEST(DiffPairs, AnUnknownOrderIsRefused) {
  FakeRun odd = run_of();
  odd.manifest.provenance["rope_pairs"] = "quarters";
  try {
    diff_of(run_of(), odd);
    ADD_FAILURE() << "it was compared";
  } catch (const Error& error) {
    EXPECT_NE(std::string_view(error.what()).find("'quarters'"), std::string_view::npos);
  }
}

}  // namespace
}  // namespace lockstep
