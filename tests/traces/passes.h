// Passes that are known to the last bit by their number, for the tests of traces. Written without
// the recorder: digests are digest_of's (tested by itself), everything else is plain.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>

#include "probes/qwen_graph.h"
#include "tests/helpers.h"
#include "traces/trace.h"

namespace lockstep {

// Requests of 5, 1 and 3 prompt tokens: pass 0 computes them all, each later pass one token of
// each.
inline constexpr int kPrompts[] = {5, 1, 3};

inline Manifest test_manifest(TraceLevel level = TraceLevel::full) {
  Manifest m;
  m.provenance = {{"model", "tests/bard"}, {"engine", "lockstep"}, {"command_line", "run \u00fc"}};
  m.graph = qwen_graph({.layers = 2, .qk_norm = true, .expert_layers = {0, 1}});
  m.dtype = DType::bf16;
  m.level = level;
  m.selection = "--layers 0-1";
  m.contracts = {{"attn.norm", RoundingContract::hf},
                 {"attn.out", RoundingContract::eager},
                 {"mlp.act", RoundingContract::fused}};
  for (int r = 0; r < 3; ++r) {
    m.requests.push_back({.id = r, .name = r == 1 ? "second" : ""});
    m.requests.back().prompt.assign(static_cast<size_t>(kPrompts[r]), 100 + r);
  }
  m.requests[2].forced = {7, 8};
  m.requests[1].sampled = true;
  return m;
}

inline std::vector<RequestInfo> ended_requests() {
  std::vector<RequestInfo> requests = test_manifest().requests;
  for (RequestInfo& request : requests) request.tokens = request.argmax = {1, 2, request.id};
  requests[0].max_new = 3;
  requests[1].max_new = int64_t{1} << 40;
  requests[1].stopped = true;
  return requests;
}

inline PassInfo test_info(int number) {
  PassInfo info{.pass = number};
  for (int r = 0; r < 3; ++r) {
    const int first = number == 0 ? 0 : kPrompts[r] + number - 1;
    const int count = number == 0 ? kPrompts[r] : 1;
    for (int p = first; p < first + count; ++p)
      info.rows.push_back({{r, p},
                           1000 * r + p,
                           int64_t{1} << (30 + r),
                           number == 0 ? Phase::prefill : Phase::decode});
    info.logit_rows.push_back(static_cast<int32_t>(info.rows.size()) - 1);
    info.pages.push_back({r, std::vector<int32_t>(static_cast<size_t>(r), 9 - r)});
  }
  // Somebody else's tokens are in the cache from pass 1 on, and of pass 2 those of two.
  if (number >= 1) info.inherited.push_back({2, {4, 5, 6 + number}});
  if (number == 2) info.inherited.push_back({0, {}});
  return info;
}

// Any bits are a tensor: NaNs with payloads, infinities, subnormals and both zeros are among them.
inline RecordedTensor test_tensor(const Point& point, int layer, std::vector<Row> rows, DType dtype,
                                  std::vector<int64_t> extents, unsigned seed, bool with_data) {
  extents.insert(extents.begin(), std::ssize(rows));
  RecordedTensor kept{.point = &point,
                      .layer = layer,
                      .rows = std::move(rows),
                      .dtype = dtype,
                      .shape = Shape(extents)};
  Tensor data(kept.shape, dtype);
  std::mt19937 random(seed);
  for (int64_t i = 0; i < data.view().bytes(); ++i)
    data.as<uint8_t>()[i] = static_cast<uint8_t>(random());
  kept.row_hashes = row_hashes_of(data);
  kept.digest =
      point.is_cache() ? digest_of_rows(kept.row_hashes, data.view().count()) : digest_of(data);
  if (with_data) kept.data = data;
  return kept;
}

// `with_data`: of attn.v only the digest is kept all the same.
inline Pass test_pass(int number, bool with_data = true) {
  Pass pass{.info = test_info(number)};
  std::vector<Row> rows, last, none;
  for (const PassRow& row : pass.info.rows) rows.push_back(row.row);
  for (int32_t i : pass.info.logit_rows) last.push_back(rows[static_cast<size_t>(i)]);
  unsigned seed = static_cast<unsigned>(number) * 100;
  const auto add = [&](const Point& p, int layer, const std::vector<Row>& of, DType dtype,
                       const std::vector<int64_t>& extents, bool data) {
    pass.tensors.push_back(test_tensor(p, layer, of, dtype, extents, seed++, data && with_data));
  };
  add(point("embed"), -1, rows, DType::bf16, {16}, true);
  for (int layer = 0; layer < 2; ++layer) {
    add(point("attn.q"), layer, rows, DType::f16, {2, 8}, true);
    add(point("attn.v"), layer, rows, DType::bf16, {1, 8}, false);
    for (int r = 0; r < 3; ++r) {
      std::vector<Row> cached;
      for (int p = 0; p < kPrompts[r] + number; ++p) cached.push_back({r, p});
      add(point("attn.kv"), layer, cached, DType::bf16, {2, 1, 8}, true);
    }
    add(point("mlp.gate"), layer, none, DType::f32, {3}, true);
  }
  add(point("final.norm"), -1, rows, DType::f64, {4}, true);
  add(point("logits"), -1, last, DType::f32, {11}, true);
  add(point("token"), -1, last, DType::i32, {}, true);
  for (const Row& row : last)
    pass.logits.push_back({row, {3, 1}, {2.5 + row.request, -0.0}, row.position});
  return pass;
}

inline void expect_equal(const Digest& a, const Digest& b) {
  EXPECT_EQ(a.hash, b.hash);
  EXPECT_EQ(a.count, b.count);
  EXPECT_EQ(a.nan, b.nan);
  EXPECT_EQ(a.pos_inf, b.pos_inf);
  EXPECT_EQ(a.neg_inf, b.neg_inf);
  EXPECT_EQ(a.zeros, b.zeros);
  EXPECT_EQ(a.subnormals, b.subnormals);
  EXPECT_EQ(a.absmax_index, b.absmax_index);
  EXPECT_EQ(a.exponents, b.exponents);
  const auto numbers = [](const Digest& d) {
    return std::array{d.min, d.max, d.absmax, d.mean, d.m2, d.sum_abs, d.sum_squares};
  };
  const auto x = numbers(a), y = numbers(b);
  for (size_t i = 0; i < x.size(); ++i)
    EXPECT_TRUE(x[i] == y[i] || (std::isnan(x[i]) && std::isnan(y[i]))) << x[i] << " " << y[i];
}

inline void expect_equal(const RecordedTensor& got, const RecordedTensor& want, bool data) {
  SCOPED_TRACE(std::string(want.point->name) + " of layer " + std::to_string(want.layer));
  EXPECT_EQ(got.point, want.point);
  EXPECT_EQ(got.layer, want.layer);
  EXPECT_EQ(got.rows, want.rows);
  EXPECT_EQ(got.dtype, want.dtype);
  EXPECT_EQ(got.shape, want.shape);
  EXPECT_EQ(got.row_hashes, want.row_hashes);
  expect_equal(got.digest, want.digest);
  ASSERT_EQ(got.data.view().empty(), !data || want.data.view().empty());
  if (got.data.view().empty()) return;
  EXPECT_EQ(got.data.view().dtype, want.dtype);
  EXPECT_EQ(std::memcmp(got.data.view().data, want.data.view().data,
                        static_cast<size_t>(want.data.view().bytes())),
            0);
}

inline void expect_equal(const PassInfo& got, const PassInfo& want) {
  EXPECT_EQ(got.pass, want.pass);
  EXPECT_EQ(got.logit_rows, want.logit_rows);
  ASSERT_EQ(got.rows.size(), want.rows.size());
  for (size_t i = 0; i < want.rows.size(); ++i) {
    EXPECT_EQ(got.rows[i].row, want.rows[i].row);
    EXPECT_EQ(got.rows[i].token, want.rows[i].token);
    EXPECT_EQ(got.rows[i].slot, want.rows[i].slot);
    EXPECT_EQ(got.rows[i].phase, want.rows[i].phase);
  }
  ASSERT_EQ(got.pages.size(), want.pages.size());
  for (size_t i = 0; i < want.pages.size(); ++i) {
    EXPECT_EQ(got.pages[i].request, want.pages[i].request);
    EXPECT_EQ(got.pages[i].pages, want.pages[i].pages);
  }
  EXPECT_EQ(got.inherited_known, want.inherited_known);
  ASSERT_EQ(got.inherited.size(), want.inherited.size());
  for (size_t i = 0; i < want.inherited.size(); ++i) {
    EXPECT_EQ(got.inherited[i].request, want.inherited[i].request);
    EXPECT_EQ(got.inherited[i].tokens, want.inherited[i].tokens);
  }
}

// `data`: whether `got` was read with its tensors.
inline void expect_equal(const Pass& got, const Pass& want, bool data) {
  SCOPED_TRACE("pass " + std::to_string(want.info.pass));
  expect_equal(got.info, want.info);
  ASSERT_EQ(got.tensors.size(), want.tensors.size());
  for (size_t i = 0; i < want.tensors.size(); ++i)
    expect_equal(got.tensors[i], want.tensors[i], data);
  ASSERT_EQ(got.logits.size(), want.logits.size());
  for (size_t i = 0; i < want.logits.size(); ++i) {
    EXPECT_EQ(got.logits[i].row, want.logits[i].row);
    EXPECT_EQ(got.logits[i].ids, want.logits[i].ids);
    EXPECT_EQ(got.logits[i].values, want.logits[i].values);
    EXPECT_EQ(got.logits[i].chosen, want.logits[i].chosen);
  }
}

inline void expect_equal(const std::vector<RequestInfo>& got,
                         const std::vector<RequestInfo>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(got[i].id, want[i].id);
    EXPECT_EQ(got[i].name, want[i].name);
    EXPECT_EQ(got[i].prompt, want[i].prompt);
    EXPECT_EQ(got[i].forced, want[i].forced);
    EXPECT_EQ(got[i].tokens, want[i].tokens);
    EXPECT_EQ(got[i].argmax, want[i].argmax);
    EXPECT_EQ(got[i].sampled, want[i].sampled);
    EXPECT_EQ(got[i].draw, want[i].draw);
    EXPECT_EQ(got[i].max_new, want[i].max_new);
    EXPECT_EQ(got[i].stopped, want[i].stopped);
  }
}

inline void write_test_trace(const std::string& path, int passes,
                             TraceLevel level = TraceLevel::full) {
  const auto writer = create_trace(path, test_manifest(level));
  for (int i = 0; i < passes; ++i) writer->write(test_pass(i, level == TraceLevel::full));
  writer->finish(ended_requests());
}

// What opening `path` complains of; "" when it opens.
inline std::string open_error(const std::string& path) {
  try {
    open_trace(path);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace lockstep
