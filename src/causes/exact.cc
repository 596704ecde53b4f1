// A cache row is explained by who wrote what was read instead: another layer, another request,
// pages in other places, the halves exchanged, or nobody. Each way in which page tables are misread
// is tried for all wrong rows of a node, and how many rows it explains is counted.
#include "src/causes/exact.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <span>

#include "src/causes/choices.h"
#include "src/judge/cache_read.h"
#include "src/judge/kv_history.h"
#include "src/judge/own_engine.h"
#include "src/judge/pass_view.h"
#include "traces/run_facts.h"

namespace lockstep {
namespace {

// A row of K and V that is not what was written for its position.
struct WrongRead {
  Row row;
  uint64_t hash = 0, expected = 0;
  const KvHistory::Writer* writer = nullptr;  // of what was read; null: nobody wrote it
  int64_t slot = -1;                          // where the row's own table puts it; -1: not known
  bool repeats = false;                       // the position before holds the same
  bool blank = false;                         // it holds no number, as slots that nobody wrote
  std::vector<char> k, v;                     // what was read, where it was kept
};

using Tally = std::map<std::string, int64_t>;

std::vector<char> half_of(const RecordedTensor& kv, int64_t row, int64_t half) {
  const TensorView data = kv.data;
  if (data.empty()) return {};
  const int64_t bytes = data.row_size() / 2 * size_of(data.dtype);
  const char* from = data.as<const char>() + (2 * row + half) * bytes;
  return {from, from + bytes};
}

bool same(const std::vector<char>& a, std::span<const char> b) {
  return !a.empty() && std::ranges::equal(a, b);
}

// Copied first, since bytes of a cache may lie anywhere.
std::vector<double> numbers_of(std::span<const char> bytes, DType dtype) {
  Tensor copy(Shape({static_cast<int64_t>(bytes.size()) / size_of(dtype)}), dtype);
  std::memcpy(copy.as<char>(), bytes.data(), bytes.size());
  std::vector<double> numbers;
  for (int64_t i = 0; i < copy.view().count(); ++i) numbers.push_back(value_at(copy, i));
  return numbers;
}
// The number of fp8 that is nearest: with 4 bits from 2^least on, and no larger one than `most`.
double through_fp8(double x, int bits, int least, double most) {
  if (x == 0 || std::isnan(x)) return x;
  int exponent = 0;
  std::frexp(x, &exponent);
  const double step = std::ldexp(1.0, std::max(exponent - 1, least) - bits);
  return std::clamp(std::nearbyint(x / step) * step, -most, most);
}
// Ways in which K or V of a row, [heads, dim], came to be `got` when `right` was to be written.
std::set<std::string> changes_between(std::span<const char> right_bytes,
                                      std::span<const char> got_bytes, DType dtype, int64_t heads) {
  const std::vector<double> right = numbers_of(right_bytes, dtype),
                            got = numbers_of(got_bytes, dtype);
  const int64_t count = std::ssize(right), dim = count / heads;
  std::set<std::string> all;
  // Bit by bit: a cache keeps what it is given.
  const auto each = [&](const char* says, auto of) {
    for (int64_t i = 0; i < count; ++i)
      if (round_to(of(i), dtype) != got[i]) return;
    all.insert(says);
  };
  const auto at = [&](int64_t head, int64_t d) { return right[head * dim + d]; };
  each("zeros", [](int64_t) { return 0.0; });
  each("negated", [&](int64_t i) { return -right[i]; });
  each("in fp8 (e4m3)", [&](int64_t i) { return through_fp8(right[i], 3, -6, 448); });
  each("rounded to 3 bits of mantissa", [&](int64_t i) {
    return through_fp8(right[i], 3, -1000, std::numeric_limits<double>::max());
  });
  each("in fp8 (e5m2)", [&](int64_t i) { return through_fp8(right[i], 2, -14, 57344); });
  each("rounded to bf16", [&](int64_t i) { return round_to(right[i], DType::bf16); });
  each("rounded to fp16", [&](int64_t i) { return round_to(right[i], DType::f16); });
  each("with its dims reversed", [&](int64_t i) { return at(i / dim, dim - 1 - i % dim); });
  each("as [dims, heads]", [&](int64_t i) { return at(i % heads, i / heads); });
  if (dim % 2 == 0) {
    each("with the halves of its dims exchanged",
         [&](int64_t i) { return at(i / dim, (i % dim + dim / 2) % dim); });
    each("with its halves laid beside each other",
         [&](int64_t i) { return at(i / dim, i % dim / 2 + i % 2 * (dim / 2)); });
    each("with its pairs taken apart",
         [&](int64_t i) { return at(i / dim, i % dim % (dim / 2) * 2 + i % dim / (dim / 2)); });
  }
  if (heads > 1) {
    each("with its heads in the opposite order",
         [&](int64_t i) { return at(heads - 1 - i / dim, i % dim); });
    each("of the head before",
         [&](int64_t i) { return at((i / dim + heads - 1) % heads, i % dim); });
    each("of the head after", [&](int64_t i) { return at((i / dim + 1) % heads, i % dim); });
    each("of head 0 in all heads", [&](int64_t i) { return at(0, i % dim); });
  }
  return all;
}

// Whether K or V of a row holds no number, as slots do that nobody wrote.
bool is_blank(const std::vector<char>& half, DType dtype) {
  if (half.empty() || dtype == DType::i32) return false;
  return std::ranges::all_of(numbers_of(half, dtype), [](double x) { return std::isnan(x); });
}
// Numbers that are right but for those that are NaN.
std::set<std::string> part_never_cached(std::span<const char> right_bytes,
                                        const std::vector<char>& bytes, DType dtype) {
  const std::vector<double> right = numbers_of(right_bytes, dtype), got = numbers_of(bytes, dtype);
  int64_t blank = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(got[i]) && !std::isnan(right[i]))
      ++blank;
    else if (got[i] != right[i] && !std::isnan(got[i]))
      return {};
  }
  if (blank == 0) return {};
  return {fmt::format("cached in part: {} of {} numbers are what nobody wrote", blank, got.size())};
}

// Where the rows of a layer lie.
struct Cache {
  int layer;
  int64_t page_size;
  int64_t heads;
  DType dtype;
  const KvHistory& history;
};
// Whether the row whose K and V are read was written in one pass with this one, and holds its own.
bool is_exchanged_in_pass(const WrongRead& read, const Pass& pass, const Cache& cache) {
  const KvHistory::Writer* own = cache.history.writer_of(read.expected);
  if (read.writer == nullptr || own == nullptr || own->pass != read.writer->pass) return false;
  const Row& other = read.writer->row;
  const RecordedTensor* kv = pass.find(point("attn.kv"), cache.layer, other.request);
  if (kv == nullptr || read.writer->layer != cache.layer) return false;
  const auto at = std::ranges::find(kv->rows, other) - kv->rows.begin();
  const std::vector<uint64_t> hashes = hashes_of(*kv);
  return at < std::ssize(hashes) && hashes[at] == read.expected;
}
// Whether each head has what a page of [heads, positions] has there: all positions of head 0 come
// first. A place that nobody wrote holds no number.
bool is_turned_in_page(const WrongRead& read, const Cache& cache) {
  const int64_t size = cache.page_size;
  if (read.slot < 0 || cache.heads < 2 || size < 2 || read.k.empty()) return false;
  const int64_t bytes = std::ssize(read.k) / cache.heads;
  for (int64_t h = 0; h < cache.heads; ++h) {
    const int64_t at = read.slot % size * cache.heads + h, head = at / size;
    const uint64_t hash = cache.history.in_slot(cache.layer, read.slot / size * size + at % size);
    for (const bool of_v : {false, true}) {
      const std::span<const char> written = of_v ? cache.history.v(hash) : cache.history.k(hash);
      const char* from = (of_v ? read.v : read.k).data() + h * bytes;
      const std::vector<char> got(from, from + bytes);
      if (written.empty() ? !is_blank(got, cache.dtype)
                          : !same(got, written.subspan(head * bytes, bytes)))
        return false;
    }
  }
  return true;
}

// Rows that lie elsewhere than the pass says. Whether they were written there or are read from
// there makes no difference to what is read.
void add_moved(std::span<const WrongRead> wrong, const Pass& pass, const Cache& cache,
               Tally& tally) {
  int64_t turned = 0;
  bool has_numbers = false;
  for (const WrongRead& read : wrong) {
    if (is_exchanged_in_pass(read, pass, cache))
      ++tally["two rows of a pass in each other's slots: written there, or read from there"];
    if (!is_turned_in_page(read, cache)) continue;
    ++turned;
    has_numbers = has_numbers || !read.blank;
  }
  if (has_numbers)
    tally["pages of [heads, positions] (HND) where those of [positions, heads] are meant"] = turned;
}

class CacheNode {
 public:
  CacheNode(const Pass& pass, const RecordedTensor& kv, int32_t request, int64_t page_size,
            const KvHistory& history)
      : pass_(pass), layer_(kv.layer), page_size_(page_size), history_(history), dtype_(kv.dtype) {
    if (kv.shape.extents().size() == 4) heads_ = kv.shape.extents()[2];
    std::vector<uint64_t> hashes = kv.row_hashes;
    if (hashes.size() != kv.rows.size()) return;
    const auto pages = std::ranges::find(pass.info.pages, request, &RequestPages::request);
    for (const int64_t i : history.compare(layer_, kv.rows, hashes).wrong) {
      WrongRead read;
      read.row = kv.rows[i];
      read.hash = hashes[i];
      read.expected = history.latest(layer_, read.row);
      read.writer = history.writer_of(read.hash);
      read.repeats = i > 0 && hashes[i - 1] == read.hash;
      if (pages != pass.info.pages.end()) read.slot = slot_in(pages->pages, read.row.position);
      read.k = half_of(kv, i, 0);
      read.v = half_of(kv, i, 1);
      read.blank = is_blank(read.k, dtype_) && is_blank(read.v, dtype_);
      if (read.blank) read.writer = nullptr;
      wrong_.push_back(std::move(read));
    }
  }

  int64_t slot_in(const std::vector<int32_t>& pages, int64_t position) const {
    const size_t page = page_size_ > 0 ? position / page_size_ : 0;
    if (page_size_ <= 0 || page >= pages.size() || pages[page] < 0) return -1;
    return pages[page] * page_size_ + position % page_size_;
  }

  ExactNode explained() const {
    ExactNode node{.wrong = std::ssize(wrong_)};
    Tally tally;
    const Cache cache{layer_, page_size_, heads_, dtype_, history_};
    for (const WrongRead& read : wrong_) explain(read, tally);
    add_moved(wrong_, pass_, cache, tally);
    add_tables(tally);
    const auto all = [&](const auto& cause) { return cause.second == node.wrong; };
    // The weakest explanation is tried last, since distances with a power of two in common also
    // come by chance.
    if (std::ranges::none_of(tally, all)) add_shared_slots(tally);
    for (const auto& [says, rows] : tally) node.causes.push_back({says, rows});
    return node;
  }

 private:
  bool is_exchanged(const WrongRead& read) const {
    return same(read.k, history_.v(read.expected)) && same(read.v, history_.k(read.expected));
  }
  // The position of another request's or its own row that is read, in the page that is the row's.
  bool is_in_own_slot(const WrongRead& read) const {
    return read.writer != nullptr && read.slot >= 0 && read.writer->slot == read.slot;
  }

  // Tells what one half of a row is, of the numbers that were written for it, or whose it is.
  std::set<std::string> half_is(const WrongRead& read, bool of_v) const {
    const std::vector<char>& bytes = of_v ? read.v : read.k;
    const std::span<const char> right =
        of_v ? history_.v(read.expected) : history_.k(read.expected);
    if (bytes.empty() || right.empty() || dtype_ == DType::i32) return {};
    if (same(bytes, right)) return {""};
    if (is_blank(bytes, dtype_)) return {"never cached: its slots hold what nobody wrote"};
    if (const auto part = part_never_cached(right, bytes, dtype_); !part.empty()) return part;
    // Its own numbers, changed; or others that were written as they are.
    std::set<std::string> all = changes_between(right, bytes, dtype_, heads_);
    if (const auto by = history_.written_as(bytes, of_v); by && by->of_v == of_v) {
      const Row& row = by->writer.row;
      if (by->writer.layer != layer_)
        all.insert(fmt::format("of layer {}", by->writer.layer));
      else if (row.request == read.row.request)
        all.insert(fmt::format("of the position {:+d}", row.position - read.row.position));
      else
        all.insert(fmt::format("of request {}", row.request));
    }
    return all;
  }
  // One cause for both where one explains both, else that of the half that is wrong.
  void explain_halves(const WrongRead& read, Tally& tally) const {
    const std::set<std::string> k = half_is(read, false), v = half_is(read, true);
    for (const std::string& change : k)
      if (!change.empty() && v.contains(change)) ++tally["K and V " + change];
    if (v.contains(""))
      for (const std::string& change : k) ++tally["K " + change];
    if (k.contains(""))
      for (const std::string& change : v) ++tally["V " + change];
  }

  void explain(const WrongRead& read, Tally& tally) const {
    if (is_exchanged(read)) {
      ++tally["K and V exchanged"];
      return;
    }
    // The pair is nobody's, but each half may be one that was written.
    if (read.writer == nullptr) {
      const std::span<const char> k = history_.k(read.expected), v = history_.v(read.expected);
      // First, as what was to be written may have been NaN too, which equals it.
      if (read.blank || read.k.empty()) {
        ++tally["never cached: the slots hold what nobody wrote"];
      } else if (same(read.k, k) && same(read.v, k)) {
        ++tally["K in the place of V"];
      } else if (same(read.k, v) && same(read.v, v)) {
        ++tally["V in the place of K"];
      } else {
        explain_halves(read, tally);
      }
      return;
    }
    const KvHistory::Writer& by = *read.writer;
    if (by.layer != layer_) {
      ++tally[fmt::format("the cache of layer {} read", by.layer)];
    } else if (by.row.request == read.row.request) {
      const int32_t apart = by.row.position - read.row.position;
      if (read.repeats) ++tally["the token before cached again in the place of a new one"];
      if (page_size_ > 0 && apart % page_size_ == 0)
        ++tally[fmt::format("its pages {:+d} further on read in their places", apart / page_size_)];
      // A slot that is off by some within its page, around the end of it.
      const int64_t within = page_size_ > 0 ? (apart % page_size_ + page_size_) % page_size_ : 0;
      if (within != 0)
        ++tally[fmt::format("the slot {:+d} of each page, around its end",
                            within > page_size_ / 2 ? within - page_size_ : within)];
    } else if (is_in_own_slot(read)) {
      ++tally[fmt::format("its page holds what request {} wrote", by.row.request)];
    }
  }

  // Counts the rows whose slot another way to read the tables explains: what is there, or that
  // nobody wrote it.
  void add_table(const std::string& says, const std::function<int64_t(int64_t)>& slot_of,
                 Tally& tally) const {
    int64_t rows = 0, written = 0;
    for (const WrongRead& read : wrong_) {
      const int64_t slot = slot_of(read.row.position);
      // A table that leads to the row's own slot explains nothing.
      if (slot < 0 || slot == read.slot) continue;
      if (read.writer != nullptr && read.writer->slot != slot) continue;
      ++rows;
      written += read.writer != nullptr ? 1 : 0;
    }
    if (written > 0) tally[says] = rows;
  }

  void add_tables(Tally& tally) const {
    if (wrong_.empty() || page_size_ <= 0) return;
    const std::vector<RequestPages>& tables = pass_.info.pages;
    size_t width = 0, own = tables.size();
    for (size_t r = 0; r < tables.size(); ++r) {
      width = std::max(width, tables[r].pages.size());
      if (tables[r].request == wrong_.front().row.request) own = r;
    }
    if (own == tables.size()) return;
    for (size_t r = 0; r < tables.size(); ++r)
      if (r != own)
        add_table(
            fmt::format("read through the page table of request {}", tables[r].request),
            [&](int64_t position) { return slot_in(tables[r].pages, position); }, tally);
    // Entry i of the table, rows after each other, padded to its width by page 0.
    const auto page_at = [&](size_t i) -> int64_t {
      if (i / width >= tables.size()) return -1;
      const std::vector<int32_t>& pages = tables[i / width].pages;
      return i % width < pages.size() ? std::max(pages[i % width], 0) : 0;
    };
    const auto narrower = [&](int64_t position) {
      const size_t page = position / page_size_;
      const int64_t at = width < 1 ? -1 : page_at(own * (width - 1) + page);
      return at < 0 ? -1 : at * page_size_ + position % page_size_;
    };
    add_table("rows of the page table taken to be one page narrower than they are", narrower,
              tally);
  }

  // Slots that are so far apart that their numbers end in the same bits.
  void add_shared_slots(Tally& tally) const {
    int64_t apart = 0, rows = 0;
    for (const WrongRead& read : wrong_) {
      if (read.writer == nullptr) {
        ++rows;  // what it was written over is elsewhere
        continue;
      }
      if (read.slot < 0 || read.writer->slot < 0 || read.writer->slot == read.slot) return;
      apart = std::gcd(apart, read.writer->slot - read.slot);
      ++rows;
    }
    if (apart >= 8 && (apart & (apart - 1)) == 0)
      tally[fmt::format("written to the low bits of their slots: slots {} apart share memory",
                        apart)] = rows;
  }

  const Pass& pass_;
  int layer_;
  int64_t page_size_;
  const KvHistory& history_;
  DType dtype_;
  int64_t heads_ = 1;
  std::vector<WrongRead> wrong_;
};

}  // namespace

std::vector<ExactNode> exact_nodes(const Pass& pass, const Place& place,
                                   const std::set<int32_t>& requests, const Manifest& manifest,
                                   const Judge& judge) {
  std::vector<ExactNode> nodes;
  const int64_t page_size = run_facts_of(manifest).page_size;
  const Ties ties = is_own_engine(manifest) ? Ties::first : Ties::any;
  for (const int32_t request : requests) {
    const RecordedTensor* got = pass.find(*place.point, place.layer, request);
    if (got == nullptr) continue;
    if (place.point->is_cache()) {
      nodes.push_back(CacheNode(pass, *got, request, page_size, judge.history()).explained());
      continue;
    }
    const std::vector<Place> inputs = manifest.graph.inputs_of(place);
    const RecordedTensor* values =
        inputs.empty() ? nullptr : pass.find(*inputs[0].point, inputs[0].layer);
    if (values == nullptr || values->data.view().empty() || got->data.view().empty() ||
        got->dtype != DType::i32)
      continue;
    const SelectedRows picked(values, got->rows);
    if (!picked.view().empty())
      nodes.push_back(choices_explained(*got, picked.view(), request, ties));
  }
  return nodes;
}

}  // namespace lockstep
