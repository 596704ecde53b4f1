// Passes are kept as they come, which costs no copy, and put together request by request at the
// end: a row that was computed again counts as it was last, and a position that a request inherited
// as the request stored it that computed it. What is lacking is counted, and said at the op that
// stands for it.
#include "src/judge/error_budget.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <set>

#include "src/judge/error_sharer.h"
#include "src/judge/ledger.h"

namespace lockstep {
namespace {

using TextKey = RecordedText::Key;

// The share of a point that the layers must have which are named for it, and how many of all layers
// may be, so that naming them says something.
constexpr double kMostOfPoint = 0.8, kFewLayers = 0.67;

TextKey text_key(const Place& place) { return {place.point->order(), place.layer}; }

const TextKey kLogitsKey = text_key({&point("logits"), -1});

bool can_be_shared_out(const RecordedTensor& tensor) {
  const bool indices = tensor.point->op == OpKind::argmax;
  return !tensor.point->is_cache() && !indices && !tensor.data.view().empty() &&
         tensor.shape.rank() > 0 && tensor.shape[0] == std::ssize(tensor.rows);
}

// Whether rows of the place are needed at positions with logits alone.
bool is_of_last(const Place& place) {
  return place.point->is_of_logits() || *place.point == point("final.norm");
}

}  // namespace

struct ErrorBudgetMaker::State {
  // Where a row of a place was stored.
  struct Spot {
    const RecordedTensor* tensor = nullptr;
    int64_t row = 0;
  };

  struct KnownText {
    std::map<int32_t, int32_t> tokens;   // by position
    std::map<int32_t, int64_t> lengths;  // of the request after the pass of the position
    std::set<int32_t> computed, logit_rows;
    std::map<TextKey, std::map<int32_t, Spot>> spots;

    bool is_whole() const {
      return !tokens.empty() && tokens.rbegin()->first + 1 == std::ssize(tokens);
    }
  };

  Graph graph;
  std::vector<Pass> passes = {};
  std::map<int32_t, KnownText> texts = {};
  std::set<TextKey> recorded = {};  // places of which a row is there

  // These are summed over requests.
  std::vector<const KnownText*> shared_out = {};
  std::vector<double> parts = {};
  double squares = 0;
  int64_t elements = 0;

  std::string share_out(const KnownText& text, ErrorSharer& sharer, ErrorBudget& budget);
  void share_out_all(ErrorSharer& sharer, ErrorBudget& budget);
  void add_alone(size_t count, ErrorSharer& sharer, ErrorBudget& budget);
  void index(const Pass& pass);
  void inherit(KnownText& text) const;
  RecordedText gather(const KnownText& text) const;
  void count(const KnownText& text, ErrorBudget& budget) const;
  void find_hidden(const Place& place, std::vector<Place>& hidden) const;
};

void ErrorBudgetMaker::State::index(const Pass& pass) {
  std::map<int32_t, int64_t> lengths;
  for (const Inherited& inherited : pass.info.inherited) {
    KnownText& text = texts[inherited.request];
    for (size_t i = 0; i < inherited.tokens.size(); ++i) {
      text.tokens[static_cast<int32_t>(i)] = inherited.tokens[i];
      text.lengths.try_emplace(static_cast<int32_t>(i), std::ssize(inherited.tokens));
    }
  }
  for (const PassRow& row : pass.info.rows)
    lengths[row.row.request] = std::max<int64_t>(lengths[row.row.request], row.row.position + 1);
  for (const PassRow& row : pass.info.rows) {
    KnownText& text = texts[row.row.request];
    text.tokens[row.row.position] = row.token;
    text.computed.insert(row.row.position);
    text.lengths[row.row.position] = lengths[row.row.request];
  }
  for (const int32_t i : pass.info.logit_rows) {
    const Row row = pass.info.rows[i].row;
    texts[row.request].logit_rows.insert(row.position);
  }
  // A row that a later pass computed again overwrites the earlier spot.
  for (const RecordedTensor& tensor : pass.tensors)
    for (size_t i = 0; i < tensor.rows.size(); ++i)
      texts[tensor.rows[i].request]
          .spots[{tensor.point->order(), tensor.layer}][tensor.rows[i].position] = {
          &tensor, static_cast<int64_t>(i)};
}

// Positions that the text did not compute are those of another with the same tokens.
void ErrorBudgetMaker::State::inherit(KnownText& text) const {
  if (text.computed.size() == text.tokens.size()) return;
  for (const auto& [id, other] : texts) {
    if (&other == &text) continue;
    const auto [mine, theirs] = std::ranges::mismatch(text.tokens, other.tokens);
    const int32_t same =
        mine == text.tokens.end() ? static_cast<int32_t>(text.tokens.size()) : mine->first;
    for (const auto& [key, spots] : other.spots) {
      if (key == kLogitsKey) continue;
      for (const auto& [position, spot] : spots)
        if (position < same) text.spots[key].try_emplace(position, spot);
    }
  }
}

RecordedText ErrorBudgetMaker::State::gather(const KnownText& text) const {
  RecordedText all;
  for (const auto& [position, token] : text.tokens) {
    all.tokens.push_back(token);
    all.lengths.push_back(text.lengths.at(position));
  }
  for (const auto& [key, spots] : text.spots) {
    const RecordedTensor& first = *spots.begin()->second.tensor;
    // Logits exist for some positions alone and are packed; all else has row i for position i, with
    // `there` for what was not recorded.
    const bool packed = key == kLogitsKey;
    std::vector<int64_t> extents(first.shape.extents().begin(), first.shape.extents().end());
    extents[0] = packed ? std::ssize(spots) : std::ssize(text.tokens);
    RecordedRows rows{Tensor(Shape(extents), first.dtype), std::vector<uint8_t>(extents[0])};
    const int64_t bytes = rows.data.view().bytes() / std::max<int64_t>(1, extents[0]);
    std::memset(rows.data.as<char>(), 0, rows.data.view().bytes());
    int64_t next = 0;
    for (const auto& [position, spot] : spots) {
      const TensorView& from = spot.tensor->data.view();
      const int64_t to = packed ? next++ : position;
      if (packed) all.logit_rows.push_back(position);
      if (from.dtype != first.dtype || from.bytes() != bytes * from.shape[0]) continue;
      std::memcpy(rows.data.as<char>() + to * bytes, from.as<char>() + spot.row * bytes, bytes);
      rows.there[to] = 1;
    }
    all.rows.emplace(key, std::move(rows));
  }
  return all;
}

void ErrorBudgetMaker::State::count(const KnownText& text, ErrorBudget& budget) const {
  for (const Place& place : graph.places()) {
    if (place.point->is_cache() || row_of(place.point->op).makes_indices || place.point->optional)
      continue;
    const auto spots = text.spots.find(text_key(place));
    const bool last = is_of_last(place);
    budget.expected += last ? std::ssize(text.logit_rows) : std::ssize(text.tokens);
    if (spots == text.spots.end()) continue;
    budget.recorded += std::ranges::count_if(spots->second, [&](const auto& spot) {
      return last ? text.logit_rows.contains(spot.first) : text.tokens.contains(spot.first);
    });
  }
}

// The ops that were not recorded and whose results the op reads, directly or through others.
void ErrorBudgetMaker::State::find_hidden(const Place& place, std::vector<Place>& hidden) const {
  for (const Place& input : graph.inputs_of(place)) {
    const bool transparent = input.point->is_cache() || row_of(input.point->op).makes_indices;
    if (!transparent && recorded.contains(text_key(input))) continue;
    if (std::ranges::count(hidden, input) > 0) continue;
    find_hidden(input, hidden);
    if (!transparent && !input.point->optional) hidden.push_back(input);
  }
}

ErrorBudgetMaker::ErrorBudgetMaker(const Graph& graph)
    : state_(std::make_unique<State>(State{.graph = graph})) {}
ErrorBudgetMaker::ErrorBudgetMaker(ErrorBudgetMaker&&) noexcept = default;
ErrorBudgetMaker::~ErrorBudgetMaker() = default;

void ErrorBudgetMaker::add(const Pass& pass) {
  Pass& kept = state_->passes.emplace_back(pass);
  std::erase_if(kept.tensors,
                [](const RecordedTensor& tensor) { return !can_be_shared_out(tensor); });
}

// Shares out the error of one request; why there is none, or "".
std::string ErrorBudgetMaker::State::share_out(const KnownText& text, ErrorSharer& sharer,
                                               ErrorBudget& budget) {
  if (!text.spots.contains(kLogitsKey)) return "the numbers of the logits were not kept";
  if (!text.is_whole()) return "tokens before the first pass are not known";
  const RecordedText recorded = gather(text);
  const SharedError shared = sharer.share_out(recorded);
  if (!shared.trouble.empty()) return shared.trouble;
  shared_out.push_back(&text);
  ++budget.requests;
  budget.rows += std::ssize(recorded.logit_rows);
  budget.steps = std::max(budget.steps, shared.steps);
  squares += shared.squares;
  elements += shared.elements;
  for (size_t i = 0; i < parts.size(); ++i) parts[i] += shared.parts[i];
  return "";
}

void ErrorBudgetMaker::State::share_out_all(ErrorSharer& sharer, ErrorBudget& budget) {
  int64_t left_out = 0, tried = 0;
  std::string trouble;
  for (const auto& [id, text] : texts) {
    if (text.logit_rows.empty()) continue;
    count(text, budget);
    ++tried;
    const std::string why = share_out(text, sharer, budget);
    if (why.empty()) continue;
    if (left_out++ == 0) trouble = fmt::format("of request {}, {}", id, why);
  }
  const auto is_op = [](const TextKey& key) { return key != kLogitsKey; };
  if (left_out > 0)
    budget.left_out = fmt::format("{} of {} requests: {}", left_out, tried, trouble);
  if (shared_out.empty())
    budget.none = trouble.empty() ? "no row of logits was computed" : trouble;
  else if (std::ranges::none_of(recorded, is_op))
    budget.none =
        "the logits alone were kept, and with the tensors of the ops (--keep full) their "
        "error could be told apart";
  else if (squares == 0)
    budget.none = "the logits are exact";
}

// The shares of the largest when each is alone.
void ErrorBudgetMaker::State::add_alone(size_t count, ErrorSharer& sharer, ErrorBudget& budget) {
  std::vector<ErrorShare*> largest;
  for (ErrorShare& share : budget.shares) largest.push_back(&share);
  std::ranges::sort(largest, std::greater<>(),
                    [](const ErrorShare* share) { return std::fabs(share->share); });
  largest.resize(std::min(largest.size(), count));
  std::vector<Place> ops;
  for (ErrorShare* share : largest) {
    share->alone = 0;
    ops.push_back(share->place);
  }
  if (ops.empty()) return;
  for (const KnownText* text : shared_out) {
    const std::vector<double> each = sharer.alone(gather(*text), ops);
    for (size_t i = 0; i < ops.size(); ++i) *largest[i]->alone += each[i] / squares;
  }
}

ErrorBudget ErrorBudgetMaker::make(ErrorSharer& sharer, size_t alone) {
  ErrorBudget budget;
  for (const Pass& pass : state_->passes) state_->index(pass);
  for (auto& [id, text] : state_->texts) state_->inherit(text);
  for (const auto& [id, text] : state_->texts)
    for (const auto& [key, spots] : text.spots) state_->recorded.insert(key);
  const std::vector<Place>& places = sharer.places();
  state_->parts.resize(places.size());
  state_->share_out_all(sharer, budget);
  if (!budget.none.empty()) return budget;
  budget.rms = std::sqrt(state_->squares / static_cast<double>(state_->elements));
  budget.rest = 1;
  for (size_t i = 0; i < places.size(); ++i) {
    if (!state_->recorded.contains(text_key(places[i]))) continue;
    ErrorShare& share =
        budget.shares.emplace_back(ErrorShare{places[i], state_->parts[i] / state_->squares});
    state_->find_hidden(places[i], share.with);
    budget.rest -= share.share;
  }
  state_->add_alone(alone, sharer, budget);
  return budget;
}

std::vector<PointShare> by_point(const ErrorBudget& budget) {
  std::vector<PointShare> points;
  for (const Point& p : kPoints) {
    std::vector<const ErrorShare*> of;
    for (const ErrorShare& share : budget.shares)
      if (*share.place.point == p) of.push_back(&share);
    if (of.empty()) continue;
    PointShare& all = points.emplace_back(PointShare{.point = &p});
    for (const ErrorShare* share : of) all.share += share->share;
    // The fewest layers next to each other that have most of it. A point that needs two thirds of
    // its layers is spread over all of them, and no layers are named.
    const auto few = static_cast<size_t>(kFewLayers * static_cast<double>(of.size()));
    for (size_t count = 1; p.per_layer && all.first < 0 && count <= few; ++count)
      for (size_t i = 0; i + count <= of.size(); ++i) {
        double within = 0;
        for (size_t j = i; j < i + count; ++j) within += of[j]->share;
        if (within < kMostOfPoint * all.share || within <= all.within) continue;
        all.first = of[i]->place.layer;
        all.last = of[i + count - 1]->place.layer;
        all.within = within;
      }
  }
  std::ranges::stable_sort(points, std::greater<>(), &PointShare::share);
  return points;
}

}  // namespace lockstep
