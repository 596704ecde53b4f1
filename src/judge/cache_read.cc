#include "src/judge/cache_read.h"

#include <fmt/format.h>

#include <cstring>
#include <limits>

#include "probes/digest.h"

namespace lockstep {
namespace {

std::vector<uint64_t> hashes_of(const KeptTensor& kv) {
  if (kv.row_hashes.size() == kv.rows.size() || kv.data.view().empty()) return kv.row_hashes;
  return row_hashes_of(kv.data);
}

std::string provenance(const KeptTensor& kv, size_t i, uint64_t hash, int layer,
                       const KvHistory& history) {
  const Row& row = kv.rows[i];
  const std::string reads =
      fmt::format("position {} of request {} reads", row.position, row.request);
  const KvHistory::Writer* writer = history.writer_of(hash);
  if (!writer) return fmt::format("{} what nobody wrote", reads);
  const std::string where =
      writer->layer == layer ? "" : fmt::format(" in layer {}", writer->layer);
  return fmt::format("{} what request {} position {} wrote{}", reads, writer->row.request,
                     writer->row.position, where);
}

// The first element in which a row differs from what was written, where both are known.
void show_element(Finding& finding, const KeptTensor& kv, size_t i, int layer,
                  const KvHistory& history) {
  const TensorView& data = kv.data;
  const uint64_t wanted = history.latest(layer, kv.rows[i]);
  const std::span<const char> parts[] = {history.k(wanted), history.v(wanted)};
  if (data.empty()) return;
  const int64_t half = data.row_size() / 2;
  for (int64_t part = 0; part < 2; ++part) {
    const std::span<const char> bytes = parts[part];
    if (static_cast<int64_t>(bytes.size()) != half * size_of(data.dtype)) return;
    const TensorView written{const_cast<char*>(bytes.data()), data.dtype, Device::cpu, {half}};
    for (int64_t j = 0; j < half; ++j) {
      const double want = value_at(written, j);
      const double got = value_at(data, (static_cast<int64_t>(i) * 2 + part) * half + j);
      if (want == got) continue;
      const int64_t dim = data.shape.last();
      finding.index = {kv.rows[i].position, part, j / dim, j % dim};
      finding.want = want;
      finding.got = got;
      return;
    }
  }
}

}  // namespace

NodeOutcome compare_cache(const KeptTensor& kv, int layer, const KvHistory& history) {
  NodeOutcome outcome;
  const std::vector<uint64_t> hashes = hashes_of(kv);
  const WrongRows found = hashes.size() == kv.rows.size()
                              ? history.compare(layer, kv.rows, hashes)
                              : WrongRows{.unknown = std::ssize(kv.rows)};
  if (!found.wrong.empty()) {
    const auto i = static_cast<size_t>(found.wrong[0]);
    for (const int64_t row : found.wrong) outcome.wrong.push_back({row, {true}});
    outcome.verdict = Verdict::introduced;
    outcome.position = outcome.finding.position = kv.rows[i].position;
    outcome.finding.index = {kv.rows[i].position};
    outcome.finding.statistic = "T0";
    outcome.finding.value = static_cast<double>(found.wrong.size());
    outcome.finding.budgets = std::numeric_limits<double>::infinity();
    outcome.finding.rule = fmt::format("{} ({} of {} positions are not what was written)",
                                       provenance(kv, i, hashes[i], layer, history),
                                       found.wrong.size(), kv.rows.size());
    show_element(outcome.finding, kv, i, layer, history);
  } else if (found.unknown > 0) {
    outcome.verdict = Verdict::inconclusive;
    outcome.reason = "what was written to the K/V cache was not captured";
  }
  return outcome;
}

CacheRead::CacheRead(const KeptTensor* kv, const KvHistory& history) {
  if (!kv || kv->shape.rank() != 4 || kv->shape[1] != 2) {
    trouble_ = "attn.kv, which the op reads, was not captured, or not as the model has it";
    return;
  }
  const Shape one{kv->shape[0], kv->shape[2], kv->shape[3]};
  k_ = Tensor(one, kv->dtype);
  v_ = Tensor(one, kv->dtype);
  const auto bytes = static_cast<size_t>(one[1] * one[2] * size_of(kv->dtype));
  const auto put = [bytes](const Tensor& to, size_t i, const char* from) {
    std::memcpy(to.as<char>() + i * bytes, from, bytes);
  };
  for (size_t i = 0; i < kv->rows.size(); ++i) {
    if (const TensorView& data = kv->data; !data.empty()) {
      put(k_, i, data.as<const char>() + 2 * i * bytes);
      put(v_, i, data.as<const char>() + (2 * i + 1) * bytes);
      continue;
    }
    const auto hash = i < kv->row_hashes.size() ? kv->row_hashes[i] : 0;
    if (!history.writer_of(hash)) {
      trouble_ = "K and V that the op reads were kept as hashes that nothing known has";
      return;
    }
    const auto k = history.k(hash), v = history.v(hash);
    if (k.size() != bytes || v.size() != bytes) {
      trouble_ = "attn.kv, which the op reads, is not of the shape that was written";
      return;
    }
    put(k_, i, k.data());
    put(v_, i, v.data());
  }
}

}  // namespace lockstep
