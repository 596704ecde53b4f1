// A tensor is copied part by part: all that lies before the axis of the part, one stretch each.
#include "src/ranks/judge/join.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <tuple>

#include "probes/digest.h"
#include "src/judge/ledger.h"

namespace lockstep {
namespace {

Shape with_extent(const Shape& shape, int axis, int64_t extent) {
  std::vector<int64_t> extents(shape.extents().begin(), shape.extents().end());
  extents[axis] = extent;
  return Shape(extents);
}

// The tensors of one place in every rank.
class Join {
 public:
  Join(const std::vector<RankPass>& passes, size_t number, JoinedPass& joined)
      : first_(passes[0].tensors[number]), joined_(joined) {
    for (const RankPass& pass : passes) parts_.push_back(&pass.tensors[number]);
  }

  void run() {
    for (size_t rank = 1; rank < parts_.size(); ++rank)
      if (const std::string trouble = trouble_of(*parts_[rank]); !trouble.empty())
        return leave(rank, first_.rows.empty() ? Row{} : first_.rows.front(), trouble);
    joined_.by_rows |= first_.shard && first_.shard->axis == 0;
    first_.shard ? join_parts() : compare_copies();
  }

 private:
  std::string trouble_of(const RankTensor& other) const {
    if (other.data.view().dtype != first_.data.view().dtype)
      return fmt::format("it has {} where rank 0 has {}", name_of(other.data.view().dtype),
                         name_of(first_.data.view().dtype));
    if (other.rows != first_.rows) return "it has other rows";
    const Shape &a = first_.data.view().shape, &b = other.data.view().shape;
    const bool alike = first_.shard ? a.rank() == b.rank() : a == b;
    return alike ? "" : fmt::format("it has the shape {} where rank 0 has {}", b.text(), a.text());
  }

  // own, first: the bytes that are not alike, of that rank and of the earlier one; none: it is not
  // they that differ.
  void leave(size_t rank, const Row& row, const std::string& how, std::string_view own = {},
             std::string_view first = {}) {
    Finding finding{.node = {.place = {first_.point, first_.layer},
                             .pass = joined_.info.pass,
                             .request = row.request},
                    .position = row.position,
                    .verdict = Verdict::structural,
                    .rule = fmt::format("rank {} leaves rank 0 at {}: {}", rank,
                                        text_of(Place{first_.point, first_.layer}), how)};
    joined_.apart.push_back({std::move(finding), static_cast<int>(rank),
                             hash_of(own.data(), own.size()), hash_of(first.data(), first.size())});
  }

  void add_whole(Tensor data) {
    joined_.tensors.push_back({first_.point, first_.layer, first_.rows, {}, std::move(data)});
  }

  void compare_copies() {
    bool alike = true;
    for (size_t rank = 1; rank < parts_.size(); ++rank) alike &= compare(rank);
    if (!alike)
      for (const RankTensor* part : parts_)
        joined_.versions[{first_.point->order(), first_.layer}].push_back(part->data);
    add_whole(first_.data);
  }

  // By bits, row by row; the first row that is other is said.
  bool compare(size_t rank) {
    const TensorView &mine = first_.data, &other = parts_[rank]->data;
    const int64_t bytes = mine.row_size() * size_of(mine.dtype);
    for (int64_t row = 0; row < mine.rows(); ++row) {
      if (bytes == 0) break;
      const char *a = mine.as<char>() + row * bytes, *b = other.as<char>() + row * bytes;
      if (std::memcmp(a, b, bytes) == 0) continue;
      const auto size = static_cast<size_t>(bytes);
      leave(rank, first_.rows[row], how(mine, other, row), {b, size}, {a, size});
      return false;
    }
    return true;
  }

  static std::string how(const TensorView& mine, const TensorView& other, int64_t row) {
    const int64_t size = mine.row_size();
    int64_t unlike = 0, worst = row * size;
    for (int64_t i = row * size; i < (row + 1) * size; ++i) {
      const int64_t at = i * size_of(mine.dtype);
      if (std::memcmp(mine.as<char>() + at, other.as<char>() + at, size_of(mine.dtype)) == 0)
        continue;
      if (unlike++ == 0) worst = i;
    }
    return fmt::format(
        "{} of {} values of the row have other bits, the first is {:.6g} where rank "
        "0 has {:.6g}",
        unlike, size, value_at(other, worst), value_at(mine, worst));
  }

  // Copies every part to its place. Where two ranks hold the same one, as K/V heads may be, their
  // bits are held against each other, if they come of products of one shape.
  void join_parts() {
    const Shard& shard = *first_.shard;
    Tensor whole(with_extent(first_.data.view().shape, shard.axis, shard.extent),
                 first_.data.view().dtype);
    std::vector<int> holders(shard.extent, -1);
    for (size_t rank = 0; rank < parts_.size(); ++rank) place_part(rank, whole, holders);
    if (std::ranges::count(holders, -1) > 0)
      return leave(parts_.size() - 1, first_.rows.empty() ? Row{} : first_.rows.front(),
                   "parts of it are in no rank");
    if (!alike_ && first_.point->is_cache()) {
      std::vector<RankTensor>& all = joined_.caches.emplace_back();
      for (const RankTensor* part : parts_) all.push_back(*part);
    }
    add_whole(std::move(whole));
  }

  // holders: by number along the axis, the first rank that has it; -1: none so far.
  void place_part(size_t rank, const Tensor& whole, std::vector<int>& holders) {
    const Shard& shard = *parts_[rank]->shard;
    const TensorView& part = parts_[rank]->data;
    int64_t before = 1, after = size_of(part.dtype);
    for (int axis = 0; axis < part.shape.rank(); ++axis) {
      if (axis < shard.axis) before *= part.shape[axis];
      if (axis > shard.axis) after *= part.shape[axis];
    }
    const int64_t count = part.shape[shard.axis];
    bool alike = true, own = false;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at = shard.offset + i;
      const bool placed = holders[at] >= 0;
      const bool same_shape = placed && parts_[holders[at]]->data.view().shape == part.shape;
      for (int64_t b = 0; b < before; ++b) {
        char* to = whole.as<char>() + (b * shard.extent + at) * after;
        const char* from = part.as<char>() + (b * count + i) * after;
        if (!placed)
          std::memcpy(to, from, after);
        else if (std::memcmp(to, from, after) == 0)
          continue;
        else if (!same_shape)
          own = true, alike_ = false;
        else if (alike) {
          alike = alike_ = false;
          const int64_t row = b / std::max<int64_t>(1, before / part.rows());
          leave(rank, first_.rows[row],
                fmt::format("its copy of head {} has other bits than an earlier rank's", at),
                {from, static_cast<size_t>(after)}, {to, static_cast<size_t>(after)});
        }
      }
      if (!placed) holders[at] = static_cast<int>(rank);
    }
    if (own) joined_.copies.push_back({static_cast<int>(rank), *parts_[rank]});
  }

  const RankTensor& first_;
  std::vector<const RankTensor*> parts_;
  JoinedPass& joined_;
  bool alike_ = true;  // copies of parts are, in all ranks that have them
};

Apart of_pass(const PassInfo& info, const char* point, const PassRow& row, size_t rank,
              std::string rule) {
  Finding finding = {
      .node = {.place = {find_point(point), std::string_view(point) == "attn.kv" ? 0 : -1},
               .pass = info.pass,
               .request = row.row.request},
      .position = row.row.position,
      .verdict = Verdict::structural,
      .rule = std::move(rule)};
  return {.finding = std::move(finding), .rank = static_cast<int>(rank)};
}

// Whether the ranks compute the same tokens for the same slots.
void compare_infos(const std::vector<RankPass>& passes, JoinedPass& joined) {
  const PassInfo& mine = passes[0].info;
  for (size_t rank = 1; rank < passes.size(); ++rank) {
    const PassInfo& other = passes[rank].info;
    const size_t rows = std::min(mine.rows.size(), other.rows.size());
    for (size_t i = 0; i < rows; ++i) {
      const PassRow &a = mine.rows[i], &b = other.rows[i];
      if (a.row == b.row && a.token == b.token && a.slot == b.slot) continue;
      const bool of_slot = a.row == b.row && a.token == b.token;
      joined.apart.push_back(of_pass(
          mine, of_slot ? "attn.kv" : "embed.partial", a, rank,
          of_slot ? fmt::format("rank {} leaves rank 0 in its slots: K and V go to slot {} where "
                                "rank 0's go to {}",
                                rank, b.slot, a.slot)
                  : fmt::format("rank {} leaves rank 0 in what it is fed: token {} of request {} "
                                "position {} where rank 0 has token {}",
                                rank, b.token, b.row.request, b.row.position, a.token)));
      break;
    }
    if (mine.rows.size() != other.rows.size())
      joined.apart.push_back(of_pass(mine, "embed.partial", mine.rows.at(0), rank,
                                     fmt::format("rank {} computes {} rows where rank 0 has {}",
                                                 rank, other.rows.size(), mine.rows.size())));
  }
}

}  // namespace

JoinedPass join(std::vector<RankPass> passes) {
  JoinedPass joined;
  joined.info = std::move(passes[0].info);
  passes[0].info = {.pass = joined.info.pass, .rows = joined.info.rows};
  compare_infos(passes, joined);
  const std::vector<RankTensor>& mine = passes[0].tensors;
  for (size_t rank = 1; rank < passes.size(); ++rank) {
    const auto same = [](const RankTensor& a, const RankTensor& b) {
      return *a.point == *b.point && a.layer == b.layer;
    };
    check(std::ranges::equal(mine, passes[rank].tensors, same),
          "rank {} shows other tensors than rank 0 in pass {}: are they of one version?", rank,
          joined.info.pass);
  }
  for (size_t i = 0; i < mine.size(); ++i) Join(passes, i, joined).run();
  return joined;
}

namespace {

// The rank that computed the finding's row, of those that share the rows of the pass.
std::string rank_of_row(const Finding& finding, const std::vector<PassRow>& rows, int ranks) {
  const Row row{finding.node.request, finding.position};
  const auto found = std::ranges::find(rows, row, &PassRow::row);
  const int64_t at = found - rows.begin();
  for (int rank = 0; rank < ranks && found != rows.end(); ++rank)
    if (const Part own = RankPlan{.rank = rank, .ranks = ranks}.rows_of(std::ssize(rows));
        at >= own.first && at < own.first + own.count)
      return fmt::format("rank {}", rank);
  return "";
}

}  // namespace

std::string rank_text(const Finding& finding, const ModelConfig& whole, int ranks,
                      const std::vector<PassRow>& rows) {
  const Point& p = *finding.node.place.point;
  if (!rows.empty() && (is_of_stream(p) || is_gathered(p)))
    return rank_of_row(finding, rows, ranks);
  if (finding.index.empty()) return "";
  for (int rank = 0; rank < ranks; ++rank) {
    const RankPlan plan = plan_of(whole, rank, ranks);
    std::optional<Shard> shard = plan.shard_of(p);
    int64_t count = 1;
    if (p == point("logits")) {
      shard = Shard{.axis = 1, .offset = plan.vocab.first, .extent = whole.vocab};
      count = plan.vocab.count;
    } else if (shard && !is_partial(p)) {
      const bool of_head = p.head_axis >= 0;
      const bool of_q = shard->extent == whole.heads && shard->offset == plan.heads.first;
      count = of_head ? (of_q ? plan.heads.count : plan.kv_heads.count)
              : p.name.find("expert") != std::string_view::npos ? plan.expert_inner.count
                                                                : plan.inner.count;
    }
    if (!shard || shard->axis >= std::ssize(finding.index)) continue;
    const int64_t at = finding.index[shard->axis];
    if (at >= shard->offset && at < shard->offset + count) return fmt::format("rank {}", rank);
  }
  return "";
}

void name_rank(Finding& finding, const ModelConfig& whole, int ranks, const RowsOfPasses& rows) {
  const auto of_pass = rows.find(finding.node.pass);
  const std::string rank = rank_text(
      finding, whole, ranks, of_pass == rows.end() ? std::vector<PassRow>() : of_pass->second);
  if (!rank.empty()) finding.rule = rank + (finding.rule.empty() ? "" : "; " + finding.rule);
}

void add_apart(Result& result, const std::vector<Apart>& apart, const Graph& graph) {
  if (apart.empty()) return;
  const auto order = [&](const Finding& f) {
    return std::tuple(f.node.pass, graph.index_of(f.node.place), f.node.request);
  };
  const auto of_finding = [&](const Apart& a) { return order(a.finding); };
  const Finding earliest = std::ranges::min_element(apart, {}, of_finding)->finding;
  for (const Apart& a : apart) result.findings.push_back(a.finding);
  std::ranges::stable_sort(result.findings, {}, order);
  if (!result.first || order(earliest) <= order(*result.first)) {
    result.first = earliest;
    result.story = "The ranks are not alike: " + earliest.rule;
  }
  result.verdict = RunVerdict::diverged;
}

}  // namespace lockstep
