// Shares of an attention whose kernel rounds its weights to the dtype of the run before it
// multiplies V by them, as FlashAttention does: right where that is declared, or nothing is. One
// that rounds them worse, or reads other keys, stays wrong beside it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "src/faults/seeds.h"
#include "src/schedule/make_schedule.h"
#include "tests/judged.h"
#include "tests/whole.h"

namespace lockstep {
namespace {

constexpr int64_t kShares = 3;

const Checkpoint& bard() {
  static const Checkpoint open = Checkpoint::open(data_path("bard-qwen3"));
  return open;
}

// A kernel that attends to a share, beside its largest score.
struct Kernel {
  const char* name;
  double (*weight)(double p, DType dtype);  // as it multiplies V
  bool sums_rounded = false;                // divides by the sum of these, and shows its logarithm
  bool drops_last = false;                  // leaves out the last key of the share
  double scale = 1;                         // of scores
};

double to_fp32(double p, DType) { return static_cast<float>(p); }
double to_dtype(double p, DType dtype) { return round_to(p, dtype); }
double truncated(double p, DType dtype) {
  return p == 0 ? 0 : std::floor(p / ulp(p, dtype)) * ulp(p, dtype);
}
// Three bits fewer.
double coarse(double p, DType dtype) {
  return std::nearbyint(p / (8 * ulp(p, dtype))) * (8 * ulp(p, dtype));
}

const Kernel kRight[] = {
    {"in fp32", to_fp32}, {"rounded", to_dtype}, {"rounded, and summed so", to_dtype, true}};
const Kernel kWrong[] = {{"truncated", truncated},
                         {"truncated, and summed so", truncated, true},
                         {"rounded to fewer bits", coarse},
                         {"without a key", to_dtype, false, true},
                         {"by another scale", to_dtype, false, false, 1.003}};

// One query of a head over the keys [begin, end) of a request.
struct Query {
  const PassTensors::Layer& layer;
  const int32_t* table;
  int64_t at, kv_head, kv_heads, dim, begin, end;

  int64_t row_of(int64_t key) const {
    const int64_t page = layer.cache.page_size();
    return ((table[key / page] * page + key % page) * kv_heads + kv_head) * dim;
  }
};

// Puts what the kernel makes of a share in the place of what was computed.
void attend(const Kernel& kernel, const Query& query, int64_t place) {
  std::vector<double> scores;
  const int64_t end = kernel.drops_last && query.end - query.begin > 1 ? query.end - 1 : query.end;
  for (int64_t key = query.begin; key < end; ++key) {
    double dot = 0;
    for (int64_t d = 0; d < query.dim; ++d)
      dot += value_at(query.layer.q_rope, query.at + d) *
             value_at(query.layer.cache.k, query.row_of(key) + d);
    scores.push_back(kernel.scale * dot / std::sqrt(static_cast<double>(query.dim)));
  }
  if (scores.empty()) return;
  const double most = *std::ranges::max_element(scores);
  std::vector<double> sums(static_cast<size_t>(query.dim));
  double weight = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    const double p = std::exp(scores[i] - most);
    const double rounded = kernel.weight(p, query.layer.q_rope.dtype);
    weight += kernel.sums_rounded ? rounded : p;
    for (int64_t d = 0; d < query.dim; ++d)
      sums[d] += rounded * value_at(query.layer.cache.v,
                                    query.row_of(query.begin + static_cast<int64_t>(i)) + d);
  }
  for (int64_t d = 0; d < query.dim; ++d)
    put(query.layer.partial, place * query.dim + d, static_cast<float>(sums[d] / weight));
  put(query.layer.lse, place, static_cast<float>(most + std::log(weight)));
}

void attend(const Kernel& kernel, const StepCall& call) {
  const ModelConfig& c = call.pass.model.config();
  const PassTensors::Layer& layer = call.tensors.layers[call.in.layer];
  const AttentionBatch batch = call.pass.batch.attention();
  const auto* start = batch.query_start.as<int32_t>();
  const int64_t group = c.heads / c.kv_heads, page = layer.cache.page_size();
  for (int64_t r = 0; r < batch.context_length.rows(); ++r) {
    const int64_t length = batch.context_length.as<int32_t>()[r];
    const int64_t pages = (length + page - 1) / page;
    const int64_t begin = pages * call.in.share / kShares * page;
    const int64_t end = pages * (call.in.share + 1) / kShares * page;
    for (int64_t token = start[r]; token < start[r + 1]; ++token)
      for (int64_t head = call.in.begin * group; head < call.in.end * group; ++head) {
        const int64_t seen = length - (start[r + 1] - token) + 1;
        attend(kernel,
               {layer, batch.page_table.as<int32_t>() + r * batch.page_table.shape[1],
                (token * c.heads + head) * c.head_dim, head / group, c.kv_heads, c.head_dim, begin,
                std::min(end, seen)},
               (token * kShares + call.in.share) * c.heads + head);
      }
  }
}

// rounding: the contract that is declared of attention and its shares; "": none is.
Result judged_by(const Kernel& kernel, DType dtype, const std::string& rounding) {
  std::vector<Request> requests = {
      {.prompt = some_tokens(50, bard().config().vocab, 1), .max_new = 3},
      {.prompt = some_tokens(75, bard().config().vocab, 2), .max_new = 3}};
  EngineOptions engine{.dtype = dtype, .page_size = 8, .page_order_seed = 3, .chunk = 64};
  engine.pages = pages_for(requests, engine.page_size);
  InterpreterOptions step{make_schedule(scheduled_model(bard().config()),
                                        {.queues = 2, .kv_shares = static_cast<int>(kShares)})};
  step.around = [&kernel](const StepCall& call) {
    call.compute();
    if (call.in.opcode == Opcode::partial_attention) attend(kernel, call);
  };
  // Each layer has the kernel, and the same of it: some stand for all.
  const char* const layers = whole() ? "" : "0,3,5";
  JudgeOptions judge{.selection = Selection("attn.lse,attn.partial,attn.out", layers, "", "")};
  if (rounding.empty())
    judge.contracts.emplace();
  else
    judge.rounding = {rounding_from("attn.lse,attn.partial,attn.out=" + rounding)};
  return judge_run({.checkpoint = bard(),
                    .reference = open_reference(),
                    .engine = engine,
                    .step = step,
                    .requests = requests,
                    .judge = std::move(judge),
                    .audit = false,
                    .causes = false});
}

using Points = std::set<std::string_view>;
Points wrong_points(const Result& result) {
  Points wrong;
  for (const Finding& finding : result.findings) wrong.insert(finding.node.place.point->name);
  return wrong;
}

class RoundedShares : public testing::TestWithParam<DType> {
 protected:
  // Every kernel has its turn in one of the two dtypes.
  static bool has_turn(size_t i) { return whole() || (i % 2 == 0) == (GetParam() == DType::bf16); }
};

TEST_P(RoundedShares, AreRightAsTheyAreDeclared) {
  for (size_t i = 0; i < std::size(kRight); ++i) {
    if (!has_turn(i)) continue;
    SCOPED_TRACE(kRight[i].name);
    const Result result = judged_by(kRight[i], GetParam(), "hf");
    EXPECT_EQ(wrong_points(result), Points{}) << result.story;
    EXPECT_EQ(result.judged, result.expected);
  }
  const Result in_fp32 = judged_by(kRight[0], GetParam(), "fused");
  EXPECT_EQ(wrong_points(in_fp32), Points{}) << in_fp32.story;
}

TEST_P(RoundedShares, AreFoundOutWhereNothingIsDeclared) {
  const char* const contracts[] = {"fused", "hf", "hf"};
  for (size_t i = 0; i < std::size(kRight); ++i) {
    if (!has_turn(i)) continue;
    SCOPED_TRACE(kRight[i].name);
    const Result result = judged_by(kRight[i], GetParam(), "");
    EXPECT_EQ(wrong_points(result), Points{}) << result.story;
    EXPECT_EQ(result.scope.contracts.at("attn.partial"), contracts[i]);
    EXPECT_EQ(result.scope.contracts.at("attn.lse"), kRight[i].sums_rounded ? "hf" : "fused");
  }
}

TEST_P(RoundedShares, AreWrongWhereOneRoundingIsDeclared) {
  const Result result = judged_by(kRight[1], GetParam(), "fused");
  EXPECT_TRUE(wrong_points(result).contains("attn.partial")) << result.story;
  ASSERT_TRUE(result.first);
  EXPECT_NE(result.story.find("would pass if it rounded as hf"), std::string::npos) << result.story;
}

TEST_P(RoundedShares, AreSeenWhereTheyAreRoundedWorseOrOfOtherKeys) {
  for (size_t i = 0; i < std::size(kWrong); ++i) {
    if (!has_turn(i)) continue;
    const Kernel& kernel = kWrong[i];
    SCOPED_TRACE(kernel.name);
    const Result result = judged_by(kernel, GetParam(), "hf");
    const Points wrong = wrong_points(result);
    EXPECT_TRUE(wrong.contains("attn.partial")) << result.story;
    if (kernel.drops_last || kernel.scale != 1) {
      EXPECT_TRUE(wrong.contains("attn.lse")) << result.story;
    }
  }
  // No other contract fits the one that is nearest to right.
  const Result truncated = judged_by(kWrong[0], GetParam(), "");
  EXPECT_TRUE(wrong_points(truncated).contains("attn.partial")) << truncated.story;
}

INSTANTIATE_TEST_SUITE_P(Dtypes, RoundedShares, testing::Values(DType::bf16, DType::f16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace lockstep
