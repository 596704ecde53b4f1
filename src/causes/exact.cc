// A cache row is explained by who wrote what was read instead: another layer, another request,
// pages in other places, the halves exchanged, or nobody. Each way in which page tables are misread
// is tried for all wrong rows of a node, and how many rows it explains is counted. A choice is
// explained by the ranks of what was chosen among the values: 0, 1, .. k - 1 would be right.
#include "src/causes/exact.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <span>

#include "src/judge/kv_history.h"
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
  bool blank = false;                         // it holds no number
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

class CacheNode {
 public:
  CacheNode(const Pass& pass, const RecordedTensor& kv, int32_t request, int64_t page_size,
            const KvHistory& history)
      : pass_(pass), layer_(kv.layer), page_size_(page_size), history_(history) {
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
      read.blank = is_blank(kv, i);
      if (read.blank) read.writer = nullptr;
      read.k = half_of(kv, i, 0);
      read.v = half_of(kv, i, 1);
      wrong_.push_back(std::move(read));
    }
  }

  // Whether a row holds no number, as slots do that nobody wrote: rows of NaN are alike.
  static bool is_blank(const RecordedTensor& kv, int64_t row) {
    const TensorView data = kv.data;
    return !data.empty() && std::isnan(value_at(data, row * data.row_size()));
  }

  int64_t slot_in(const std::vector<int32_t>& pages, int64_t position) const {
    const size_t page = page_size_ > 0 ? position / page_size_ : 0;
    if (page_size_ <= 0 || page >= pages.size() || pages[page] < 0) return -1;
    return pages[page] * page_size_ + position % page_size_;
  }

  ExactNode explained() const {
    ExactNode node{.wrong = std::ssize(wrong_)};
    Tally tally;
    for (const WrongRead& read : wrong_) explain(read, tally);
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

  void explain(const WrongRead& read, Tally& tally) const {
    if (is_exchanged(read)) {
      ++tally["K and V exchanged"];
      return;
    }
    // The pair is nobody's, but each half may be one that was written.
    if (read.writer == nullptr) {
      const std::span<const char> k = history_.k(read.expected), v = history_.v(read.expected);
      if (same(read.k, k) && same(read.v, k)) {
        ++tally["K in the place of V"];
      } else if (same(read.k, v) && same(read.v, v)) {
        ++tally["V in the place of K"];
      } else if (read.blank || read.k.empty()) {
        ++tally["never cached: the slots hold what nobody wrote"];
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
  std::vector<WrongRead> wrong_;
};

// Where an index stands among the values that it is chosen from, the largest first: 0. Of equal
// values the first one ranks higher, as in kernels/argmax.h and routing.h.
int64_t rank_of(const TensorView& values, int64_t row, int64_t index) {
  const int64_t width = values.row_size();
  if (index < 0 || index >= width) return -1;
  const double own = value_at(values, row * width + index);
  int64_t rank = 0;
  for (int64_t i = 0; i < width; ++i) {
    const double other = value_at(values, row * width + i);
    if (other > own || (other == own && i < index)) ++rank;
  }
  return rank;
}

ExactNode choice_node(const RecordedTensor& got, const TensorView& values, int32_t request) {
  ExactNode node;
  Tally tally;
  const TensorView chosen = got.data;
  const int64_t k = chosen.row_size(), width = values.row_size();
  for (size_t r = 0; r < got.rows.size(); ++r) {
    if (got.rows[r].request != request) continue;
    const int64_t row = r;
    std::vector<int64_t> ranks;
    for (int64_t c = 0; c < k; ++c)
      ranks.push_back(rank_of(values, row, chosen.as<const int32_t>()[row * k + c]));
    bool right = true;
    for (int64_t c = 0; c < k; ++c) right = right && ranks[c] == c;
    if (right) continue;
    ++node.wrong;
    const auto each = [&](auto of) {
      for (int64_t c = 0; c < k; ++c)
        if (ranks[c] != of(c)) return false;
      return true;
    };
    if (each([](int64_t c) { return c + 1; }))
      ++tally[k == 1 ? "the runner-up chosen for the largest" : "the largest left out"];
    if (each([&](int64_t c) { return width - 1 - c; })) ++tally["the smallest chosen"];
    if (k > 1 && each([&](int64_t c) { return k - 1 - c; })) ++tally["choices in opposite order"];
  }
  for (const auto& [says, rows] : tally) node.causes.push_back({says, rows});
  return node;
}

}  // namespace

std::vector<ExactNode> exact_nodes(const Pass& pass, const Place& place,
                                   const std::set<int32_t>& requests, const Manifest& manifest,
                                   const Judge& judge) {
  std::vector<ExactNode> nodes;
  const int64_t page_size = run_facts_of(manifest).page_size;
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
    if (!picked.view().empty()) nodes.push_back(choice_node(*got, picked.view(), request));
  }
  return nodes;
}

}  // namespace lockstep
