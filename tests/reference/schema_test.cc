// Hugging Face's own activations in bf16, read as a trace: its chains of ops are clean under their
// own schema and under none declared, and one rounding too many under `fused`.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "src/judge/judge.h"
#include "src/judge/ledger.h"
#include "tests/reference/passes.h"

namespace lockstep {
namespace {

class HuggingFace : public testing::TestWithParam<std::string> {
 protected:
  // The prompt and the first decode step, as far as they are stored.
  std::vector<Pass> passes() {
    std::vector<Pass> passes;
    Recorder recorder({}, false, [&](Pass pass) { passes.push_back(std::move(pass)); });
    Probe probe(&recorder);
    const std::vector<int32_t> prompt = golden_.ids("prompt_ids"),
                               chosen = golden_.ids("greedy_ids");
    const auto infos = prefill_and_decode(prompt, {chosen.at(0)});
    for (const PassInfo& info : infos) {
      probe.begin(info);
      for (const Place& place : places_of(graph_)) show(place, info.pass, probe);
      probe.end();
    }
    EXPECT_EQ(probe.failure(), "");
    return passes;
  }

  void show(const Place& place, int step, Probe& probe) {
    const Point& p = *place.point;
    if (p.op == OpKind::cache) return show_cache(place, step, probe);
    const auto found = golden_.find(step, p, place.layer);
    if (!found) return;
    const bool heads = p.name.starts_with("attn.") &&
                       (p.op == OpKind::linear || p.op == OpKind::attention) &&
                       p != point("attn.o");
    const int64_t rows = found->shape[0];
    const Tensor tensor = with_shape(
        *found,
        heads ? Shape{rows, found->row_size() / config_.head_dim, config_.head_dim} : found->shape);
    if (p == point("logits"))
      probe.logits(p, tensor);
    else
      probe(p, place.layer, tensor);
  }

  // What the golden's attention read: all that was written so far.
  void show_cache(const Place& place, int step, Probe& probe) {
    std::vector<Row> rows;
    const int64_t row = config_.kv_heads * config_.head_dim;
    std::vector<char> bytes;
    for (int s = 0; s <= step; ++s) {
      const auto k = golden_.find(s, point("attn.k_rope"), place.layer);
      const auto v = golden_.find(s, point("attn.v"), place.layer);
      if (!k || !v) return;
      const auto size = static_cast<size_t>(row * size_of(k->dtype));
      for (int64_t i = 0; i < k->shape[0]; ++i) {
        for (const TensorView& half : {*k, *v}) {
          const auto* from = half.slice(i, 1).as<const char>();
          bytes.insert(bytes.end(), from, from + size);
        }
        rows.push_back({0, static_cast<int32_t>(rows.size())});
      }
    }
    Tensor tensor({std::ssize(rows), 2, config_.kv_heads, config_.head_dim}, DType::bf16);
    std::memcpy(tensor.as<char>(), bytes.data(), bytes.size());
    probe(*place.point, place.layer, rows, tensor);
  }

  static Tensor with_shape(const TensorView& from, const Shape& shape) {
    Tensor tensor(shape, from.dtype);
    std::memcpy(tensor.as<char>(), from.data, static_cast<size_t>(from.bytes()));
    return tensor;
  }

  Result judged(const std::map<std::string, Schema>& declared, JudgeOptions options = {}) {
    Manifest manifest{
        .graph = graph_, .dtype = DType::bf16, .selection = "what is stored", .schema = declared};
    Judge judge(manifest, *oracle_, nullptr, nullptr, std::move(options));
    for (const Pass& pass : passes()) judge.judge(pass);
    return judge.finish({}, true);
  }
  static std::map<std::string, Schema> every(Schema schema) {
    std::map<std::string, Schema> all;
    for (const Point& p : kPoints) all[std::string(p.name)] = schema;
    return all;
  }

  Checkpoint checkpoint_ = Checkpoint::open(data_path(GetParam()));
  const ModelConfig& config_ = checkpoint_.config();
  Graph graph_{static_cast<int>(config_.layers), config_.qk_norm, {}};
  Golden golden_{GetParam(), "bfloat16/romeo"};
  std::unique_ptr<Oracle> oracle_ = open_reference().oracle(checkpoint_, {.dtype = DType::bf16});
};

void expect_no_finding(const Result& result) {
  for (const Finding& f : result.findings)
    ADD_FAILURE() << text_of(f.place) << " pass " << f.pass << ": " << name_of(f.verdict) << ' '
                  << f.statistic << ' ' << f.value << " over " << f.limit << "; " << f.rule;
  EXPECT_GE(result.judged, 48);
}

TEST_P(HuggingFace, IsCleanUnderItsOwnSchema) { expect_no_finding(judged(every(Schema::hf))); }

TEST_P(HuggingFace, IsCleanWithoutADeclaredSchemaAndTheNotesSayWhichWasFound) {
  const Result result = judged({});
  expect_no_finding(result);
  for (const char* name : {"attn.norm", "mlp.norm", "attn.q_rope", "mlp.act"}) {
    const std::string wanted = std::string(name) + " is judged as hf, which it was found to be";
    EXPECT_EQ(std::ranges::count(result.notes, wanted), 1) << wanted;
  }
}

TEST_P(HuggingFace, IsCleanUnderTheSchemaThatIsAskedForWhateverTheTraceDeclares) {
  expect_no_finding(judged(every(Schema::fused), {.schema = every(Schema::hf)}));
  expect_no_finding(judged(every(Schema::fused), {.schema = every(Schema::eager)}));
  const Result found = judged(every(Schema::fused), {.schema = std::map<std::string, Schema>()});
  expect_no_finding(found);
  EXPECT_EQ(std::ranges::count(found.notes, "attn.norm is judged as hf, which it was found to be"),
            1);
  EXPECT_EQ(judged(every(Schema::hf), {.schema = every(Schema::fused)}).verdict, "diverged");
  for (const Result& asked : {found, judged({}, {.schema = every(Schema::hf)})})
    EXPECT_EQ(std::ranges::count_if(asked.notes,
                                    [](const std::string& note) {
                                      return note.find("asked for") != std::string::npos;
                                    }),
              1);
}

TEST_P(HuggingFace, IsABugUnderTheSchemaOfOneRounding) {
  const Result result = judged(every(Schema::fused));
  EXPECT_EQ(result.verdict, "diverged");
  std::set<std::string> places;
  for (const Finding& f : result.findings) places.insert(text_of(f.place));
  for (const char* name : {"layer 0 attn.norm", "layer 3 mlp.norm", "layer 5 mlp.act",
                           "layer 0 attn.q_rope", "layer 3 attn.k_rope", "final.norm"})
    EXPECT_TRUE(places.contains(name)) << name;
  for (const Finding& f : result.findings)
    EXPECT_TRUE(f.place.point->op == OpKind::norm || f.place.point->op == OpKind::rope ||
                f.place.point->op == OpKind::silu_mul || f.place.point->op == OpKind::attention)
        << text_of(f.place) << ' ' << f.rule;
}

INSTANTIATE_TEST_SUITE_P(Goldens, HuggingFace, testing::Values("bard-qwen3", "bard-qwen2.5"),
                         [](const auto& info) {
                           return std::string(info.param == "bard-qwen3" ? "qwen3" : "qwen2");
                         });

}  // namespace
}  // namespace lockstep
