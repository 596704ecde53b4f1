// The second computation against the oracle, neither of which knows the other: all ops, contracts,
// families and dtypes.
#include "src/opinion/second_opinion.h"

#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <set>

#include "src/judge/cache_read.h"
#include "src/judge/contracts.h"
#include "src/judge/ledger.h"
#include "src/judge/pass_view.h"
#include "tests/judged.h"

namespace lockstep {
namespace {

// What an engine that is right shows in a pass or two.
std::vector<Pass> passes_of(const Checkpoint& checkpoint, DType dtype, Graph& graph) {
  const int64_t vocab = checkpoint.config().vocab;
  JudgedRun run{.checkpoint = checkpoint,
                .reference = open_reference(),
                .engine = {.dtype = dtype, .page_size = 4},
                .requests = {{.prompt = some_tokens(13, vocab, 1), .max_new = 2},
                             {.prompt = some_tokens(7, vocab, 2), .max_new = 2}}};
  std::vector<Pass> passes;
  run.seen = [&](const Pass& pass, const std::vector<NodeId>&) { passes.push_back(pass); };
  graph = open_reference().oracle(checkpoint, {.dtype = dtype})->graph();
  judged(run);
  return passes;
}

// The oracle's result of the last row of a request, from the inputs that the pass shows.
Exact exact_of(Oracle& oracle, const Graph& graph, const Place& place, RoundingContract contract,
               DType dtype, const PassView& seen, const Pass& pass, const Row& row) {
  const std::vector<Row> rows = {row};
  const std::vector<int64_t> lengths = {seen.length_of(row.request)};
  std::vector<int32_t> tokens;
  for (const PassRow& r : pass.info.rows)
    if (r.row == row) tokens = {r.token};
  OracleCall call{.place = place, .dtype = dtype, .contract = contract, .rows = rows};
  call.tokens = tokens, call.lengths = lengths;
  std::vector<Place> inputs = graph.inputs_of(place);
  const bool of_sum =
      contract == RoundingContract::unrounded_sum || contract == RoundingContract::hf_unrounded_sum;
  if (of_sum && inputs.at(0).point->op == OpKind::add) inputs = graph.inputs_of(inputs[0]);
  std::deque<SelectedRows> picked;
  CacheRead cache;
  const KvHistory nothing{/*keep_bytes=*/false};
  for (const Place& input : inputs) {
    const RecordedTensor* tensor = seen.tensor(input, row.request);
    if (input.point->is_cache())
      cache = CacheRead(tensor, nothing);
    else
      call.inputs.push_back(picked.emplace_back(tensor, rows).view());
  }
  call.keys_values = cache.keys_values();
  return oracle.evaluate(call);
}

class SecondOpinionTest : public testing::TestWithParam<const char*> {
 protected:
  // Names of the ops that were compared.
  std::set<OpKind> compare(DType dtype) {
    Graph graph;
    const std::vector<Pass> passes = passes_of(checkpoint_, dtype, graph);
    const auto oracle = open_reference().oracle(checkpoint_, {.dtype = dtype});
    const SecondOpinion second(checkpoint_, graph, dtype);
    std::set<OpKind> compared;
    for (const Pass* pass : {&passes.front(), &passes.back()}) {
      const Selection all;
      const PassView seen(*pass, all);
      for (const Place& place : graph.places()) {
        const OpKind op = place.point->op;
        if (op == OpKind::cache || op == OpKind::angles || row_of(op).makes_indices) continue;
        const bool bias = op == OpKind::linear && oracle->has_bias(place);
        for (const RoundingContract contract : contracts_of(op, {dtype, bias})) {
          if (contract == RoundingContract::tf32) continue;
          const Row row = seen.nodes_of(place).back().rows.back();
          const Exact exact = exact_of(*oracle, graph, place, contract, dtype, seen, *pass, row);
          compare(second, place, contract, *pass, row, exact, dtype);
          compared.insert(op);
        }
      }
    }
    return compared;
  }
  static void compare(const SecondOpinion& second, const Place& place, RoundingContract contract,
                      const Pass& pass, const Row& row, const Exact& exact, DType dtype) {
    const auto n = std::ssize(exact.want);
    for (int64_t at = 0; at < n; at += std::max<int64_t>(1, n / 7)) {
      std::vector<int64_t> index;
      int64_t rest = at;
      for (int axis = exact.shape.rank() - 1; axis > 0; --axis) {
        index.insert(index.begin(), rest % exact.shape[axis]);
        rest /= exact.shape[axis];
      }
      const SecondOpinion::Opinion opinion = second.of(place, contract, pass, row, index);
      ASSERT_EQ(opinion.lacking, "") << text_of(place);
      const double want = exact.want[static_cast<size_t>(at)];
      EXPECT_NEAR(static_cast<double>(opinion.exact), want, ulp(want, dtype) * 1e-3)
          << text_of(place) << " contract " << static_cast<int>(contract) << " element " << at;
    }
  }

  Checkpoint checkpoint_ = Checkpoint::open(data_path(GetParam()));
};

TEST_P(SecondOpinionTest, AgreesWithTheOracleOfEveryOpUnderEveryContract) {
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    const std::set<OpKind> compared = compare(dtype);
    EXPECT_GE(compared.size(), checkpoint_.config().experts.count > 0 ? 9u : 7u);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, SecondOpinionTest,
                         testing::Values("bard-qwen3", "tiny/qwen2-default", "tiny/qwen2-sliding",
                                         "tiny/qwen3-moe", "tiny/qwen3-bias-mqa"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name)
                             if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
                           return name;
                         });

TEST(SecondOpinion, SaysWhatItLacks) {
  const Checkpoint checkpoint = Checkpoint::open(data_path("tiny/qwen3-default"));
  Graph graph;
  std::vector<Pass> passes = passes_of(checkpoint, DType::bf16, graph);
  const SecondOpinion second(checkpoint, graph, DType::bf16);
  const Row row = passes[0].info.rows[0].row;
  const std::vector<int64_t> one = {0}, two = {0, 0}, outside = {1 << 20};
  const auto lacking = [&](const char* name, int layer, const std::vector<int64_t>& index,
                           RoundingContract contract = RoundingContract::fused) {
    return second.of({find_point(name), layer}, contract, passes[0], row, index).lacking;
  };
  EXPECT_EQ(lacking("mlp.down", 0, one), "");
  EXPECT_NE(lacking("mlp.down", 0, one, RoundingContract::tf32).find("tf32"), std::string::npos);
  EXPECT_NE(lacking("mlp.down", 0, outside).find("no element"), std::string::npos);
  EXPECT_NE(lacking("rope.cos", -1, one).find("rope.cos is not among the ops"), std::string::npos);
  std::erase_if(passes[0].tensors,
                [](const RecordedTensor& t) { return *t.point == point("mlp.act"); });
  EXPECT_EQ(lacking("mlp.down", 0, one), "mlp.act was not kept");
  EXPECT_EQ(lacking("attn.q", 0, two), "");
}

}  // namespace
}  // namespace lockstep
