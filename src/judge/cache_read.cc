// A read of the cache is right when each row's hash is one that was written for its layer and
// tokens. When a row is not, this says whether K, V or both are other bytes, and who wrote those:
// that names a wrong page table, a wrong layer or a row that was never written.
#include "src/judge/cache_read.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>

#include "probes/digest.h"

namespace lockstep {
namespace {

// A row of attn.kv that is not what was written there, K and V apart.
struct WrongKv {
  size_t row = 0;
  uint64_t hash = 0;   // of what was read
  bool blank = false;  // it begins with NaN, as slots do that nobody wrote
  // Bytes of K and of V; empty where they are not known.
  std::array<std::span<const char>, 2> want, got;

  bool known() const { return !want[0].empty() && want[0].size() == got[0].size(); }
  // Whether K (0) or V (1) has other bits. Of a row whose halves are known.
  bool differs(size_t half) const { return !std::ranges::equal(want[half], got[half]); }
};

// A row of [K, V] that is not what was written last: both contents, as far as they were kept. A
// hash that history does not know leaves its side empty, and known() false.
WrongKv wrong_kv(const RecordedTensor& kv, size_t i, uint64_t hash, int layer,
                 const KvHistory& history) {
  WrongKv wrong{.row = i, .hash = hash};
  const uint64_t written = history.latest(layer, kv.rows[i]);
  wrong.want = {history.k(written), history.v(written)};
  wrong.got = {history.k(hash), history.v(hash)};
  if (const TensorView data = kv.data; !data.empty()) {
    const size_t half = (data.row_size() * size_of(data.dtype)) / 2;
    wrong.blank = is_float(data.dtype) && std::isnan(value_at(data, i * data.row_size()));
    const char* row = data.as<const char>() + 2 * i * half;
    wrong.got = {std::span(row, half), std::span(row + half, half)};
  }
  return wrong;
}

std::string written_by(const KvHistory::Writer& writer, int layer) {
  const std::string where = writer.layer == layer ? "" : fmt::format(" in layer {}", writer.layer);
  return fmt::format("request {} position {} wrote{}", writer.row.request, writer.row.position,
                     where);
}

// The writer of the numbers that stand there instead: they are looked up by their hash among all
// that was ever written.
std::string origin_of(const WrongKv& wrong, size_t half, int layer, const KvHistory& history) {
  const auto of = history.written_as(wrong.got[half], half == 1);
  if (!of || wrong.blank) return "nobody wrote";
  const bool other = of->of_v != (half == 1);
  return written_by(of->writer, layer) + (other ? of->of_v ? " as V" : " as K" : "");
}

// Says what was read there instead, and who wrote it.
std::string provenance(const WrongKv& wrong, const Row& row, int layer, const KvHistory& history) {
  const std::string reads =
      fmt::format("position {} of request {} reads ", row.position, row.request);
  // Rows that hold no number are alike, whoever wrote one of them.
  const KvHistory::Writer* writer = wrong.blank ? nullptr : history.writer_of(wrong.hash);
  // By one hash of both, which of them is wrong cannot be told.
  const bool there = writer && writer->layer == layer && writer->row.position == row.position;
  const std::string wrote = !writer ? "nobody wrote" : written_by(*writer, layer);
  const std::string whole = wrote + (there ? " for other tokens" : "");
  if (!wrong.known()) return reads + "K or V that " + whole;
  const bool k = wrong.differs(0), v = wrong.differs(1);
  if (k && v && writer) return reads + "K and V that " + whole;
  const std::string of_k = origin_of(wrong, 0, layer, history);
  const std::string of_v = origin_of(wrong, 1, layer, history);
  if (k && v && of_k == of_v) return reads + "K and V that " + of_k;
  if (k && v) return fmt::format("{}K that {} and V that {}", reads, of_k, of_v);
  return reads + (k ? "K that " + of_k : "V that " + of_v);
}

// At how many positions K, V, or both are wrong.
std::string counts_of(const std::vector<WrongKv>& wrong, size_t positions) {
  static constexpr const char* kWhat[] = {"K or V", "K alone", "V alone", "K and V"};
  std::array<size_t, 4> counts{};
  for (const WrongKv& row : wrong)
    ++counts[row.known() ? (row.differs(0) ? 1 : 0) + (row.differs(1) ? 2 : 0) : 0];
  std::vector<std::string> parts;
  for (size_t i = counts.size(); i-- > 0;)
    if (counts[i] > 0) parts.push_back(fmt::format("{} of {}", kWhat[i], counts[i]));
  return fmt::format("{} of {} positions are not what was written", fmt::join(parts, ", "),
                     positions);
}

// Which elements of a row have other bits: [2, kv_heads, head_dim], where that is known.
std::vector<bool> wrong_elements(const WrongKv& wrong, DType dtype) {
  if (!wrong.known()) return {true};
  const size_t bytes = size_of(dtype);
  std::vector<bool> elements;
  for (size_t half = 0; half < 2; ++half)
    for (size_t at = 0; at < wrong.got[half].size(); at += bytes)
      elements.push_back(!std::ranges::equal(wrong.want[half].subspan(at, bytes),
                                             wrong.got[half].subspan(at, bytes)));
  return elements;
}

// The element that is furthest from what was written: before all others one that is no number on
// one side, or has other bits and the same value.
void show_element(Finding& finding, const WrongKv& wrong, const RecordedTensor& kv) {
  const std::vector<bool> elements = wrong_elements(wrong, kv.dtype);
  const int64_t count = std::ssize(elements) / 2, dim = kv.shape.last();
  double furthest = -1;
  for (int64_t i = 0; i < 2 * count; ++i) {
    if (!elements[i]) continue;
    const auto value_in = [&](const std::array<std::span<const char>, 2>& row) {
      const std::span<const char> bytes = row[i / count];
      return value_at({const_cast<char*>(bytes.data()), kv.dtype, Device::cpu, {count}}, i % count);
    };
    const double want = value_in(wrong.want), got = value_in(wrong.got);
    const double apart = std::fabs(got - want);
    const double distance = apart > 0 ? apart : std::numeric_limits<double>::infinity();
    if (!(distance > furthest)) continue;
    furthest = distance;
    finding.index = {kv.rows[wrong.row].position, i / count, i % count / dim, i % dim};
    finding.want = want;
    finding.got = got;
  }
}

// Why nothing is known to have been written for the first of the rows of which that is so.
std::string why_unknown(int layer, std::span<const Row> rows, std::span<const uint64_t> hashes,
                        int64_t first, const KvHistory& history) {
  const bool untold = first >= 0 && history.prefix(rows[first]) == 0;
  if (first >= 0 && !untold && history.may_be_copy(layer, rows[first], hashes[first]))
    return "K or V of inherited tokens have other bits than the trace has for them, and nobody "
           "in it wrote these: an older copy of a page has, and so has a wrong one";
  if (!untold) return "what was written to the K/V cache was not captured";
  const auto [request, position] = rows[first];
  return fmt::format(
      "what was in the K/V cache from position {} of request {} on is of tokens that the trace "
      "does not tell: have them as `inherited` in the pass that the request enters by",
      position, request);
}

}  // namespace

Shape cache_shape(const RecordedTensor& kv, const RecordedTensor* k) {
  const bool says = k && k->shape.rank() == 3 && kv.shape.rank() > 0;
  return says ? Shape{kv.shape[0], 2, k->shape[1], k->shape[2]} : kv.shape;
}

std::vector<uint64_t> hashes_of(const RecordedTensor& kv) {
  if (kv.row_hashes.size() == kv.rows.size() || kv.data.view().empty()) return kv.row_hashes;
  return row_hashes_of(kv.data);
}

// Reads of the cache are exact or wrong: one bit of another row is a wrong page or slot, so hashes
// of rows decide.
NodeOutcome compare_cache(const RecordedTensor& kv, int layer, const KvHistory& history) {
  NodeOutcome outcome;
  const std::vector<uint64_t> hashes = hashes_of(kv);
  const WrongRows found = hashes.size() == kv.rows.size()
                              ? history.compare(layer, kv.rows, hashes)
                              : WrongRows{.unknown = std::ssize(kv.rows)};
  if (!found.wrong.empty()) {
    std::vector<WrongKv> wrong;
    for (const int64_t row : found.wrong) {
      const size_t i = row;
      wrong.push_back(wrong_kv(kv, i, hashes[i], layer, history));
      outcome.wrong.push_back({row, wrong_elements(wrong.back(), kv.dtype)});
    }
    const WrongKv& first = wrong.front();
    const Row& row = kv.rows[first.row];
    Finding& finding = outcome.finding;
    outcome.verdict = Verdict::introduced;
    outcome.position = finding.position = row.position;
    finding.statistic = StatisticKind::bits;
    finding.value = static_cast<double>(found.wrong.size());
    finding.budgets = std::numeric_limits<double>::infinity();
    finding.rule = fmt::format("{} ({})", provenance(first, row, layer, history),
                               counts_of(wrong, kv.rows.size()));
    if (first.known()) show_element(finding, first, kv);
  } else if (found.unknown > 0) {
    return inconclusive(why_unknown(layer, kv.rows, hashes, found.first_unknown, history));
  }
  return outcome;
}

// K and V that attention reads, from the trace's numbers, or put together from what was written
// where the trace has hashes alone.
CacheRead::CacheRead(const RecordedTensor* kv, const KvHistory& history) {
  if (!kv || kv->shape.rank() != 4 || kv->shape[1] != 2) {
    trouble_ = "attn.kv, which the op reads, was not captured, or not as the model has it";
    return;
  }
  const Shape one{kv->shape[0], kv->shape[2], kv->shape[3]};
  k_ = Tensor(one, kv->dtype);
  v_ = Tensor(one, kv->dtype);
  const size_t bytes = one[1] * one[2] * size_of(kv->dtype);
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
