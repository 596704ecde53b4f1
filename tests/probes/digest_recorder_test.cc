#include "probes/digest_recorder.h"

#include <gtest/gtest.h>

#include "probes/digest_ring.h"
#include "tests/helpers.h"

namespace lockstep {
namespace {

// A pass of two tokens whose attn.q is 0, 1, ... on the host.
Pass shown_to(const Selection& selection, bool tensors) {
  Pass pass;
  DigestRecorder recorder(selection, tensors, [&](Pass seen) { pass = std::move(seen); });
  std::vector<float> values(8);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const Tensor q = tensor_of<float>(values, {2, 2, 2}, DType::f32);
  Probe probe(&recorder);
  probe.begin({.rows = {{.row = {0, 0}}, {.row = {0, 1}}}});
  probe(point("attn.q"), 0, q);
  const std::vector<Row> rows = {{0, 0}, {0, 1}};
  probe(point("attn.kv"), 0, rows, q.view().reshaped({2, 2, 2, 1}));
  probe.end();
  EXPECT_EQ(probe.failure(), "");
  return pass;
}

TEST(DigestRecorder, KeepsDigestsOfWhatTheHostHasAndNoNumbers) {
  const Pass pass = shown_to({}, false);
  ASSERT_EQ(pass.tensors.size(), 2u);
  for (const RecordedTensor& tensor : pass.tensors) {
    EXPECT_TRUE(tensor.data.view().empty());
    EXPECT_EQ(tensor.row_hashes.size(), 2u);
  }
  EXPECT_EQ(pass.tensors[0].digest.sum_abs, 28);
  EXPECT_FALSE(pass.tensors[1].digest.has_numbers()) << "of a cache hashes alone are kept";
  EXPECT_EQ(pass.tensors[1].digest.count, 8);
}

TEST(DigestRecorder, KeepsTheNumbersThatAreAskedForButOfTheCache) {
  const Pass pass = shown_to({}, true);
  ASSERT_EQ(pass.tensors.size(), 2u);
  EXPECT_EQ(value_at(pass.tensors[0].data, 7), 7);
  EXPECT_TRUE(pass.tensors[1].data.view().empty());
}

TEST(DigestRecorder, TakesDigestsOfADeviceUnlessItWantsSomeRowsOnly) {
  const auto ignore = [](Pass) {};
  EXPECT_NE(DigestRecorder({}, false, ignore).digests(), nullptr);
  EXPECT_NE(DigestRecorder(Selection("attn.*", "0", "", ""), false, ignore).digests(), nullptr);
  EXPECT_EQ(DigestRecorder(Selection("", "", "3", ""), false, ignore).digests(), nullptr);
  EXPECT_EQ(DigestRecorder(Selection("", "", "", "1"), false, ignore).digests(), nullptr);
}

TEST(Probe, HasNoRingForASinkThatWantsTensors) {
  Recorder recorder({}, true, [](Pass) {});
  Probe probe(&recorder), off;
  EXPECT_EQ(probe.digests(), nullptr);
  EXPECT_EQ(off.digests(), nullptr);
  probe.flush();
  off.flush();
}

}  // namespace
}  // namespace lockstep
