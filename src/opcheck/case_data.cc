// Normal numbers are drawn once, into a table, and every tensor takes a stretch of it that begins
// elsewhere: filling a large one then costs a copy. The same case has the same numbers in every
// call and on every machine.
#include "src/opcheck/case_data.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <random>

#include "kernels/base/check.h"
#include "kernels/base/dtype.h"
#include "src/session/store.h"
#include "src/weights/rope_tables.h"

namespace lockstep {
namespace {

using Values = GridCase::Values;

constexpr int64_t kTable = 16411;  // a prime, so that rows of no width are equal
// Tensors take turns in how much of the table they repeat, primes all, so that elements of two
// inputs meet anew all along: one pair that lies by a border of rounding is counted once.
constexpr std::array<int64_t, 4> kPeriods = {kTable, 16381, 16369, 16363};

// The most that the normal numbers of a table may be scaled by where fp16 holds them all. 3.5 x
// 18000 is below fp16's largest number, 65504.
constexpr double kLarge = 18000;
// Beyond it 1 / (1 + e^-x) is subnormal in fp32, where no SiLU need be one rounding off.
constexpr double kLeastGate = -86;
// Small gates are of so many binades, each as often: a kernel may treat what is below some size
// otherwise, as it does where it flushes, or takes a sigmoid for 1/2.
constexpr int64_t kBinades = 41;
// Scores of such Q and K overflow fp16, and so do the exponentials of such gates.
constexpr double kLargeScore = 60, kLargeGate = 100, kLargeUp = 1000, kLargeLogit = 300;

// Normal numbers, of four uniform ones each: none is beyond 3.5. A sum of four uniform numbers has
// a variance of a third; the root of 3 makes it 1.
std::vector<double> normal_numbers() {
  std::mt19937_64 random(7);
  const auto uniform = [&] { return static_cast<double>(random() >> 11) * 0x1p-53; };
  std::vector<double> all(kTable);
  for (double& x : all)
    x = (uniform() + uniform() + uniform() + uniform() - 2) * std::numbers::sqrt3;
  return all;
}

// Two normal numbers of a table that is scaled so are finite, and their sum is not always.
double huge_scale(DType dtype) { return format_of(dtype).max / 3.5; }
// Gains that make results of a norm overflow in fp16; all are finite.
constexpr double kHugeGain = 30000;

// 32 times the least subnormal number of fp16 (2^-24), where it has few digits left, and 32 times
// the least normal one of fp32 and bf16 (2^-126), below which products fall.
double tiny_scale(DType dtype) { return dtype == DType::f16 ? 0x1p-19 : 0x1p-121; }

bool is_any(const Point& p, std::initializer_list<std::string_view> names) {
  return std::ranges::count(names, p.name) > 0;
}

// Under `tiny` Q and gates keep their size, for two tiny factors would make nothing but 0. Under
// `large` each point has the scale that makes its own op overflow fp16 on the way.
double scale_of(const Point& p, Values values, DType dtype) {
  if (values == Values::tiny)
    return is_any(p, {"attn.q_rope", "mlp.gate", "mlp.expert_gate"}) ? 1 : tiny_scale(dtype);
  if (values == Values::huge) return huge_scale(dtype);
  if (values != Values::large) return 1;
  if (is_any(p, {"attn.q_rope"})) return kLargeScore;
  if (is_any(p, {"mlp.gate", "mlp.expert_gate"})) return kLargeGate;
  if (is_any(p, {"mlp.up", "mlp.expert_up"})) return kLargeUp;
  if (is_any(p, {"mlp.router", "logits"})) return kLargeLogit;
  return kLarge;
}

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A NaN in each row, before the end or at it; where the first of several is promised, two.
void put_nan(const TensorView& logits, bool two) {
  const int64_t width = logits.row_size();
  for (int64_t row = 0; row < logits.rows(); ++row) {
    const bool last = row % 3 == 1;
    store(logits, row * width + (last ? width - 1 : width / 3), kNan);
    if (two && row % 3 == 2) store(logits, row * width + width / 2, kNan);
  }
}

// Whether a NaN of an input goes into many numbers of the result, so that a few rows have one and
// most results stay numbers.
bool mixes(OpKind op) {
  return op == OpKind::norm || op == OpKind::linear || op == OpKind::rope ||
         op == OpKind::attention;
}

// Every third row has one, each elsewhere.
void put_nan_into_rows(const TensorView& out) {
  for (int64_t row = 1; row < out.rows(); row += 3)
    store(out, row * out.row_size() + 7 * row % out.row_size(), kNan);
}

// Rows of logits below anything that a search for the largest may begin with, or -inf, as a mask
// makes them: all of a row, or all but one.
void make_low(const TensorView& logits) {
  const int64_t width = logits.row_size();
  for (int64_t i = 0; i < logits.count(); ++i) {
    const int64_t row = i / width;
    const double x = value_at(logits, i);  // within 3.5
    const double low = -30000 + 3000 * x, lowest = format_of(logits.dtype).max * (0.05 * x - 0.8);
    const bool masked = row % 4 == 2 || (row % 4 == 3 && i % width != width - 2);
    store(logits, i, masked ? -kInfinity : row % 4 == 1 ? lowest : low);
  }
}

// The first row's largest is larger than one before it by the last digit alone; the last row's is
// the last, behind all whole tiles.
void put_largest(const TensorView& logits) {
  const int64_t width = logits.row_size(), rows = logits.rows();
  const auto above = [&](int64_t row) {
    double most = -kInfinity;
    for (int64_t i = 0; i < width; ++i) most = std::max(most, value_at(logits, row * width + i));
    return most + std::fabs(most) / 4 + 1;
  };
  if (rows < 2) return;
  store(logits, width / 2, above(0));
  const double nearly = value_at(logits, width / 2);
  store(logits, width * 3 / 4, nearly + ulp(nearly, logits.dtype));
  store(logits, rows * width - 1, above(rows - 1));
}

class CaseMaker {
 public:
  CaseMaker(const GridCase& shape, const OpPlaces& places, DType dtype)
      : shape_(shape), places_(places), dtype_(dtype) {}

  CaseData make();

 private:
  void fill(const TensorView& out, double scale, double base = 0);
  void fill_weight(const std::string& name, const TensorView& weight);
  Shape shape_of(const Point& p, int64_t rows) const;
  void give_pages();
  PassInfo info_of(size_t pass) const;
  RecordedTensor tensor_of(const Place& place, const Pass& pass);
  void fill_choices(const TensorView& out, const RecordedTensor* logits);
  void shape_logits(const TensorView& out) const;
  void add_tables(Pass& pass) const;
  RecordedTensor cache_of(const Place& place, int32_t request, int64_t length);

  const GridCase& shape_;
  const OpPlaces& places_;
  DType dtype_;
  int64_t next_ = 0;                                // number of the table
  size_t fills_ = 0;                                // tensors that were filled
  std::map<int32_t, std::vector<int32_t>> tables_;  // of pages, by request
  int64_t pages_ = 0;                               // in the pool
};

// The next numbers of the table. Numbers are rounded to the tensor's dtype as they are stored.
// Beyond a period they repeat.
void CaseMaker::fill(const TensorView& out, double scale, double base) {
  static const std::vector<double> normal = normal_numbers();
  const Tensor table({std::min(kPeriods[fills_++ % kPeriods.size()], out.count())}, out.dtype);
  for (int64_t i = 0; i < table.view().count(); ++i)
    store(table, i, base + scale * normal[static_cast<size_t>((next_ + i) % kTable)]);
  const int64_t bytes = table.view().bytes();
  for (int64_t at = 0; at < out.bytes(); at += bytes)
    std::memcpy(out.as<char>() + at, table.as<char>(),
                static_cast<size_t>(std::min(bytes, out.bytes() - at)));
  next_ = (next_ + 5 * out.count() + 101) % kTable;
}

// The op reads its own weights alone: all others stay 0.
void CaseMaker::fill_weight(const std::string& name, const TensorView& weight) {
  std::vector<Place> own = places_.outputs;
  own.insert(own.end(), places_.hidden.begin(), places_.hidden.end());
  const bool read = std::ranges::any_of(own, [&](const Place& place) {
    const std::string_view of = place.point->weight;
    return !of.empty() && name.find(of == "lm_head" ? "embed_tokens" : of) != name.npos;
  });
  if (!read) return;
  const bool norm = name.ends_with("norm.weight");
  const double gain = shape_.values == Values::large ? 4 : 1;
  const bool product = weight.shape.rank() == 2 && !name.ends_with("embed_tokens.weight");
  if (norm && shape_.values == Values::huge)
    fill(weight, 0.3 * kHugeGain, kHugeGain);
  else if (norm)
    fill(weight, 0.3, 1);
  else
    fill(weight, product ? gain / std::sqrt(weight.shape.last()) : 1);
}

// The table of points has the axes of each tensor by their names.
Shape CaseMaker::shape_of(const Point& p, int64_t rows) const {
  const SmallModel& m = shape_.model;
  const std::map<std::string_view, int64_t> extents = {
      {"hidden", m.hidden},  {"head", m.heads},   {"kv head", m.kv_heads},
      {"dim", m.head_dim},   {"vocab", m.vocab},  {"intermediate", m.intermediate},
      {"expert", m.experts}, {"choice", m.chosen}};
  std::vector<int64_t> axes = {rows};
  std::string_view rest = p.shape;
  for (size_t comma = rest.find(", "); comma != rest.npos; comma = rest.find(", ")) {
    rest.remove_prefix(comma + 2);
    axes.push_back(extents.at(rest.substr(0, rest.find(", "))));
  }
  return Shape(axes);
}

// A page table in order would hide an op that ignores it, so pages are dealt out at random, always
// the same. The first page of the pool is somebody's, as an op may take its number for none.
void CaseMaker::give_pages() {
  std::map<int32_t, int64_t> lengths;
  for (const auto& pass : shape_.passes)
    for (size_t r = 0; r < pass.size(); ++r)
      lengths[static_cast<int32_t>(r)] = pass[r].first + pass[r].count;
  int64_t needed = 3;  // that nobody has
  for (const auto& [request, length] : lengths)
    needed += (length + shape_.page_size - 1) / shape_.page_size;
  pages_ = needed;
  std::vector<int32_t> order(static_cast<size_t>(needed));
  std::iota(order.begin(), order.end(), 0);
  std::mt19937_64 random(11);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random() % i]);
  const size_t given = order.size() - 3;
  if (const auto at = std::ranges::find(order, 0) - order.begin(); at >= std::ssize(order) - 3)
    std::swap(order[static_cast<size_t>(at)], order[order.size() % given]);
  size_t next = 0;
  for (const auto& [request, length] : lengths)
    for (int64_t at = 0; at < length; at += shape_.page_size)
      tables_[request].push_back(order[next++]);
}

// Tokens only matter to the embedding; elsewhere each position has one of its own, so that no two
// requests are taken for one text by the judge.
PassInfo CaseMaker::info_of(size_t number) const {
  PassInfo info{.pass = static_cast<int32_t>(number)};
  const auto token_at = [&](int32_t request, int32_t position) {
    const bool is_id = places_.outputs.front().point->op == OpKind::gather;
    const int64_t unlike = int64_t{request} * 65537 + position;
    // Both ends of a table are among its rows that are read: of the first, or of the first two.
    return static_cast<int32_t>(is_id ? (shape_.model.vocab - 1) * unlike % shape_.model.vocab
                                      : unlike + 1);
  };
  const auto& pass = shape_.passes[number];
  for (size_t r = 0; r < pass.size(); ++r) {
    const auto request = static_cast<int32_t>(r);
    const auto& [first, count] = pass[r];
    std::vector<int32_t> pages = tables_.at(request);
    pages.resize(static_cast<size_t>((first + count - 1) / shape_.page_size + 1));
    for (int32_t p = first; p < first + count; ++p) {
      const auto page = static_cast<size_t>(p / shape_.page_size);
      if (places_.outputs.front().point->is_of_logits())
        info.logit_rows.push_back(static_cast<int32_t>(info.rows.size()));
      info.rows.push_back({.row = {request, p},
                           .token = token_at(request, p),
                           .slot = pages[page] * shape_.page_size + p % shape_.page_size,
                           .phase = first > 0 && count == 1 ? Phase::decode : Phase::prefill});
    }
    info.pages.push_back({request, std::move(pages)});
    if (number > 0 || first == 0) continue;
    Inherited& inherited = info.inherited.emplace_back(Inherited{request, {}});
    for (int32_t p = 0; p < first; ++p) inherited.tokens.push_back(token_at(request, p));
  }
  return info;
}

// Each row gets as many experts as it has choices, none twice; where there are logits, their
// largest.
void CaseMaker::fill_choices(const TensorView& out, const RecordedTensor* logits) {
  std::mt19937_64 random(static_cast<uint64_t>(13 + next_));
  std::vector<int32_t> all(static_cast<size_t>(shape_.model.experts));
  std::iota(all.begin(), all.end(), 0);
  const int64_t chosen = out.row_size();
  for (int64_t row = 0; row < out.rows(); ++row) {
    for (size_t i = all.size(); i > 1; --i) std::swap(all[i - 1], all[random() % i]);
    if (logits != nullptr)
      std::ranges::sort(all, std::greater(), [&](int32_t expert) {
        return value_at(logits->data, row * std::ssize(all) + expert);
      });
    std::copy_n(all.begin(), chosen, out.as<int32_t>() + row * chosen);
  }
}

// An op that chooses is tried where it may overlook the largest. A choice of several puts them in
// an order, which is promised of numbers.
void CaseMaker::shape_logits(const TensorView& out) const {
  const OpKind op = places_.outputs.front().point->op;
  const bool one = op == OpKind::argmax;
  if (!one && op != OpKind::top_k) return;
  if (shape_.values == Values::nan) put_nan(out, one);
  if (shape_.values == Values::low) make_low(out);
  if (one && (shape_.values == Values::usual || shape_.values == Values::large)) put_largest(out);
}

// The rows of cosines and sines that RoPE reads: it is judged on them, and not on their rounding.
void CaseMaker::add_tables(Pass& pass) const {
  ModelConfig config;
  config.head_dim = shape_.model.head_dim;
  const RopeFrequencies frequencies = rope_frequencies(config, 1);
  for (const char* name : {"rope.cos", "rope.sin"}) {
    RecordedTensor& table = pass.tensors.emplace_back(RecordedTensor{.point = find_point(name)});
    table.dtype = DType::f32;
    const int64_t half = config.head_dim / 2;
    table.shape = {std::ssize(pass.info.rows), half};
    table.data = Tensor(table.shape, table.dtype);
    std::vector<float> cos(static_cast<size_t>(half)), sin = cos;
    for (size_t i = 0; i < pass.info.rows.size(); ++i) {
      table.rows.push_back(pass.info.rows[i].row);
      frequencies.put_row(table.rows.back().position, cos, sin);
      std::ranges::copy(std::string_view(name) == "rope.cos" ? cos : sin,
                        table.data.as<float>() + static_cast<int64_t>(i) * half);
    }
  }
}

RecordedTensor CaseMaker::tensor_of(const Place& place, const Pass& pass) {
  const Point& p = *place.point;
  RecordedTensor made{.point = place.point, .layer = place.layer};
  for (const PassRow& row : pass.info.rows) made.rows.push_back(row.row);
  made.dtype = p.dtype_in(dtype_);
  made.shape = shape_of(p, std::ssize(made.rows));
  made.data = Tensor(made.shape, made.dtype);
  const TensorView& out = made.data;
  if (made.dtype == DType::i32) {
    fill_choices(out, pass.find(point("mlp.router"), 0));
    return made;
  }
  // The size of a norm's input is nothing to its result.
  const bool normed = places_.outputs.front().point->op == OpKind::norm;
  const bool usual = normed && shape_.values == Values::huge;
  const bool mixed = mixes(places_.outputs.front().point->op);
  fill(out, usual ? 1 : scale_of(p, shape_.values, dtype_));
  for (int64_t i = 0; i < out.count(); ++i) {
    const double x = value_at(out, i);
    if (p.name == "mlp.weights") store(out, i, std::min(1.0, std::fabs(x) / 4));
    if (shape_.values == Values::large && is_any(p, {"mlp.gate", "mlp.expert_gate"}))
      store(out, i, std::max(kLeastGate, x));
    if (shape_.values == Values::small && is_any(p, {"mlp.gate", "mlp.expert_gate"}))
      store(out, i, std::ldexp(x, static_cast<int>(-(i % kBinades))));
    if (shape_.values == Values::ties) store(out, i, std::round(1.3 * x));
    if (shape_.values == Values::zeros && i / out.row_size() % 3 == 1) store(out, i, 0);
    // Two inputs of an op have theirs in other elements, and in some both.
    if (shape_.values == Values::nan && !mixed && !is_any(p, {"logits", "mlp.router"}) &&
        (i + std::ssize(pass.tensors)) % (fills_ % 2 == 0 ? 7 : 11) == 5)
      store(out, i, kNan);
  }
  if (shape_.values == Values::nan && mixed) put_nan_into_rows(out);
  if (is_any(p, {"logits", "mlp.router"})) shape_logits(out);
  return made;
}

// K and V of a request up to the end of the pass.
RecordedTensor CaseMaker::cache_of(const Place& place, int32_t request, int64_t length) {
  const SmallModel& m = shape_.model;
  RecordedTensor made{.point = place.point, .layer = place.layer, .dtype = dtype_};
  made.shape = {length, 2, m.kv_heads, m.head_dim};
  for (int64_t p = 0; p < length; ++p) made.rows.push_back({request, static_cast<int32_t>(p)});
  made.data = Tensor(made.shape, dtype_);
  fill(made.data, 1);
  if (shape_.values != Values::large && shape_.values != Values::tiny) return made;
  const int64_t half = m.kv_heads * m.head_dim;
  const bool large = shape_.values == Values::large;
  for (int64_t i = 0; i < made.data.view().count(); ++i) {
    const bool is_v = i / half % 2 == 1;
    const double of_k = large ? kLargeScore : 1, of_v = large ? kLarge : tiny_scale(dtype_);
    store(made.data, i, value_at(made.data, i) * (is_v ? of_v : of_k));
  }
  return made;
}

// The manifest selects the op's outputs alone: all other nodes of the model are neither computed
// nor expected.
CaseData CaseMaker::make() {
  give_pages();
  CaseData made{.checkpoint = checkpoint_of(shape_.model, dtype_,
                                            [&](const std::string& name, const TensorView& weight) {
                                              fill_weight(name, weight);
                                            }),
                .manifest = {.graph = graph_of(shape_.model), .dtype = dtype_},
                .passes = {}};
  std::vector<std::string_view> names;
  for (const Place& place : places_.outputs) names.push_back(place.point->name);
  made.manifest.selection = fmt::format("--points {}", fmt::join(names, ","));
  made.manifest.provenance["engine"] = "lockstep";  // whose headers a library's ops are held to
  made.manifest.provenance["page_size"] = fmt::format("{}", shape_.page_size);
  made.manifest.provenance["pages"] = fmt::format("{}", pages_);
  for (size_t i = 0; i < shape_.passes.size(); ++i) {
    Pass& pass = made.passes.emplace_back(Pass{.info = info_of(i)});
    for (const Place& place : places_.reads) {
      if (!place.point->is_cache()) {
        pass.tensors.push_back(tensor_of(place, pass));
        continue;
      }
      for (size_t r = 0; r < shape_.passes[i].size(); ++r) {
        const auto& [first, count] = shape_.passes[i][r];
        pass.tensors.push_back(cache_of(place, static_cast<int32_t>(r), first + count));
      }
    }
    if (places_.turns) add_tables(pass);
  }
  return made;
}

}  // namespace

CaseData data_of(const GridCase& shape, const OpPlaces& places, DType dtype) {
  return CaseMaker(shape, places, dtype).make();
}

}  // namespace lockstep
