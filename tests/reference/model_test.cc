// The SDPA model against Hugging Face's activations, and against itself served in other ways.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "probes/layer_watch.h"
#include "src/weights/qwen_graph.h"
#include "tests/reference/passes.h"

namespace lockstep {
namespace {

struct Case {
  std::string model, file, prefix, prompt;
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const std::string model : {"bard-qwen3", "bard-qwen2.5"})
    for (const std::string prompt : {"o", "romeo", "tobe"})
      cases.push_back({model, model, "", prompt});
  for (const std::string tiny :
       {"qwen2-default", "qwen2-mha", "qwen2-sliding", "qwen3-bias-mqa", "qwen3-default",
        "qwen3-dynamic", "qwen3-linear", "qwen3-llama3", "qwen3-untied-sharded", "qwen3-yarn"})
    cases.push_back({"tiny/" + tiny, "tiny", tiny + "/", "p"});
  return cases;
}

class AgainstGolden : public testing::TestWithParam<Case> {
 protected:
  // Runs the prompt and the decode steps of the goldens, and compares all that is stored of them.
  void compare(const std::string& dtype, DType compute, double limit) {
    const Case& c = GetParam();
    const Golden golden(c.file, c.prefix + dtype + "/" + c.prompt);
    const std::vector<int32_t> greedy = golden.ids("greedy_ids");
    ASSERT_FALSE(greedy.empty());
    // The goldens' decode steps were fed what is greedy in fp64.
    std::vector<int32_t> forced =
        Golden(c.file, c.prefix + "float64/" + c.prompt).ids("greedy_ids");
    forced.resize(greedy.size() - 1);

    const Checkpoint checkpoint = Checkpoint::open(data_path(c.model));
    const auto model = open_reference().model(
        checkpoint, {.dtype = compute == DType::f64 ? DType::bf16 : compute}, compute);
    const std::vector<Pass> passes =
        run_passes(*model, prefill_and_decode(golden.ids("prompt_ids"), forced));
    ASSERT_EQ(passes.size(), greedy.size());
    for (size_t step = 0; step < passes.size(); ++step) {
      for (const RecordedTensor& tensor : passes[step].tensors)
        compare(golden, static_cast<int>(step), tensor, limit);
      const RecordedTensor* token = passes[step].find(point("token"), -1);
      ASSERT_NE(token, nullptr);
      EXPECT_EQ(value_at(token->data, 0), greedy[step]) << "step " << step;
    }
    EXPECT_GE(compared_, greedy.size()) << "not even all logits were found";
    if (c.prompt == "romeo") {
      EXPECT_GE(compared_, 60u) << "goldens were thinned to nothing";
    }
  }

  void compare(const Golden& golden, int step, const RecordedTensor& tensor, double limit) {
    const auto stored = golden.find(step, *tensor.point, tensor.layer);
    if (!stored) return;
    EXPECT_LE(worst_difference(values_of(tensor.data), values_of(*stored)), limit)
        << "step " << step << " layer " << tensor.layer << " " << tensor.point->name;
    ++compared_;
  }

  size_t compared_ = 0;
};

TEST_P(AgainstGolden, Fp64) { compare("float64", DType::f64, 1e-11); }

TEST_P(AgainstGolden, Fp32) { compare("float32", DType::f32, 2e-5); }

INSTANTIATE_TEST_SUITE_P(Models, AgainstGolden, testing::ValuesIn(all_cases()),
                         [](const testing::TestParamInfo<Case>& info) {
                           std::string name = info.param.model + "_" + info.param.prompt;
                           std::ranges::replace_if(
                               name, [](char c) { return !std::isalnum(c); }, '_');
                           return name;
                         });

// A copy of a checkpoint whose config.json lacks a line.
Checkpoint without_line(const std::string& model, const std::string& begin, const TempFolder& to) {
  namespace fs = std::filesystem;
  for (const auto& entry : fs::directory_iterator(data_path(model)))
    if (entry.path().filename() != "config.json")
      fs::create_symlink(entry.path(), fs::path(to.path()) / entry.path().filename());
  std::ifstream from(fs::path(data_path(model)) / "config.json");
  std::ofstream config(fs::path(to.path()) / "config.json");
  bool found = false;
  for (std::string line; std::getline(from, line);) {
    const bool left_out = line.find('"' + begin + '"') != std::string::npos;
    found |= left_out;
    if (!left_out) config << line << '\n';
  }
  config.close();
  EXPECT_TRUE(found) << model << " has no " << begin;
  return Checkpoint::open(to.path());
}

TEST(ReferenceModel, TakesItsHeadsFromTheArchitectureWhereNothingElseSaysThem) {
  const std::string model = "tiny/qwen2-default";
  const TempFolder folder;
  const Checkpoint given = Checkpoint::open(data_path(model));
  const Checkpoint untyped = without_line(model, "model_type", folder);
  const std::vector<PassInfo> passes = {pass_over(0, {{0, 0, {3, 1, 4, 1, 5}}})};
  std::vector<std::vector<double>> logits;
  for (const Checkpoint* each : {&given, &untyped}) {
    const auto reference = open_reference().model(*each, {.dtype = DType::bf16}, DType::f64);
    logits.push_back(
        values_of(run_passes(*reference, passes).at(0).find(point("logits"), -1)->data));
  }
  EXPECT_EQ(logits[0], logits[1]);
}

// The tensors of one request, by place and position.
using Rows = std::map<std::pair<std::string, int>, std::vector<double>>;

Rows rows_of(const std::vector<Pass>& passes, int32_t request) {
  Rows rows;
  for (const Pass& pass : passes)
    for (const RecordedTensor& tensor : pass.tensors) {
      const int64_t width = tensor.data.view().row_size();
      for (size_t i = 0; i < tensor.rows.size(); ++i) {
        if (tensor.rows[i].request != request || tensor.point->op == OpKind::argmax) continue;
        std::vector<double> values(static_cast<size_t>(width));
        widen(tensor.data, static_cast<int64_t>(i) * width, values);
        const std::string place =
            std::to_string(tensor.layer) + " " + std::string(tensor.point->name);
        rows[{place, tensor.rows[i].position}] = values;
      }
    }
  return rows;
}

// What both have is the same; `least` rows at least.
void expect_same(const Rows& a, const Rows& b, size_t least) {
  size_t compared = 0;
  for (const auto& [key, values] : a) {
    const auto other = b.find(key);
    if (other == b.end()) continue;
    EXPECT_LE(worst_difference(values, other->second), 1e-12) << key.first << " at " << key.second;
    ++compared;
  }
  EXPECT_GE(compared, least);
}

class ServedOtherwise : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<ReferenceModel> model() const {
    return open_reference().model(checkpoint_, {.dtype = DType::bf16}, DType::f64);
  }
  std::vector<int32_t> tokens(int64_t count, uint64_t seed = 1) const {
    return some_tokens(count, checkpoint_.config().vocab, seed);
  }

  Checkpoint checkpoint_ = Checkpoint::open(data_path(GetParam()));
};

TEST_P(ServedOtherwise, ChunksAndDecodeEqualOnePass) {
  const std::vector<int32_t> t = tokens(23);
  const auto part = [&t](int from, int to) {
    return Chunk{0, from, {t.begin() + from, t.begin() + to}};
  };
  const auto whole = run_passes(*model(), {pass_over(0, {part(0, 23)})});
  const auto parts =
      run_passes(*model(), {pass_over(0, {part(0, 12)}), pass_over(1, {part(12, 20)}),
                            pass_over(2, {part(20, 21)}), pass_over(3, {part(21, 22)}),
                            pass_over(4, {part(22, 23)})});
  expect_same(rows_of(whole, 0), rows_of(parts, 0), 23 * 10 * 3);
}

// A step shows its layer and no further, and all steps what the whole pass shows, bit for bit.
TEST_P(ServedOtherwise, StepByStepEqualsOnePass) {
  const std::vector<PassInfo> passes = {pass_over(0, {{0, 0, tokens(9)}}),
                                        pass_over(1, {{0, 9, tokens(1)}})};
  const std::vector<Pass> whole = run_passes(*model(), passes);
  const auto layers = static_cast<int>(checkpoint_.config().layers);
  const auto stepped = model();
  for (size_t i = 0; i < passes.size(); ++i) {
    Pass seen;
    int last = -1;
    Recorder recorder({}, false, [&](Pass pass) { seen = std::move(pass); });
    LayerWatch watched(recorder, [&](int32_t, int64_t, int layer) { last = layer; });
    Probe probe(&watched);
    stepped->begin(passes[i], probe);
    for (int through = -1; through <= layers; ++through) {
      stepped->advance(through);
      EXPECT_EQ(last, std::min(through, layers - 1));
    }
    ASSERT_EQ(probe.failure(), "");
    ASSERT_EQ(seen.tensors.size(), whole[i].tensors.size());
    for (size_t t = 0; t < seen.tensors.size(); ++t)
      EXPECT_EQ(values_of(seen.tensors[t].data), values_of(whole[i].tensors[t].data));
  }
}

TEST_P(ServedOtherwise, StrangersInTheBatchChangeNothing) {
  const std::vector<int32_t> a = tokens(14, 1), b = tokens(9, 2);
  const auto a_first = std::vector<int32_t>(a.begin(), a.end() - 1);
  const auto alone =
      run_passes(*model(), {pass_over(0, {{4, 0, a_first}}), pass_over(1, {{4, 13, {a.back()}}})});
  // Request 4 decodes while 7 prefills.
  const auto together =
      run_passes(*model(), {pass_over(0, {{2, 0, b}, {4, 0, a_first}}),
                            pass_over(1, {{7, 0, b}, {4, 13, {a.back()}}, {2, 9, {a[0]}}})});
  expect_same(rows_of(alone, 4), rows_of(together, 4), 14 * 10 * 3);
  expect_same(rows_of(together, 2), rows_of(together, 7), 9 * 10 * 3);
}

TEST_P(ServedOtherwise, StartingAgainForgetsWhatCameAfter) {
  const std::vector<int32_t> t = tokens(12), other = tokens(12, 2);
  const auto part = [&t](int from, int to) {
    return Chunk{0, from, {t.begin() + from, t.begin() + to}};
  };
  const auto once = run_passes(*model(), {pass_over(0, {part(0, 12)})});
  const auto twice = model();
  run_passes(*twice, {pass_over(0, {part(0, 5), {1, 0, other}}),
                      pass_over(1, {{0, 5, {other.begin(), other.begin() + 4}}})});
  const auto again = run_passes(*twice, {pass_over(2, {part(3, 12)})});
  const auto middle =
      run_passes(*model(), {pass_over(0, {part(0, 3)}), pass_over(1, {part(3, 12)})});
  expect_same(rows_of({middle[1]}, 0), rows_of(again, 0), 9 * 10 * 3);
  expect_same(rows_of(once, 0), rows_of(middle, 0), 12 * 10 * 3);
}

TEST_P(ServedOtherwise, InheritedTokensAreComputedUnseen) {
  const std::vector<int32_t> t = tokens(12);
  const auto part = [&t](int from, int to) {
    return Chunk{3, from, {t.begin() + from, t.begin() + to}};
  };
  const auto own = run_passes(*model(), {pass_over(0, {part(0, 8)}), pass_over(1, {part(8, 12)})});
  PassInfo pass = pass_over(0, {part(8, 12)});
  pass.inherited = {{3, {t.begin(), t.begin() + 8}}};
  const auto inherits = run_passes(*model(), {pass});
  ASSERT_EQ(inherits.size(), 1u);
  expect_same(rows_of({own[1]}, 3), rows_of(inherits, 3), 4 * 10 * 3);
}

TEST_P(ServedOtherwise, WhatAnEndedRequestHadIsComputedAgainForWhoInheritsIt) {
  const std::vector<int32_t> t = tokens(12);
  const auto part = [&t](int32_t request, int from, int to) {
    return Chunk{request, from, {t.begin() + from, t.begin() + to}};
  };
  const auto own = model(), ended = model();
  run_passes(*own, {pass_over(0, {part(0, 0, 8)})});
  run_passes(*ended, {pass_over(0, {part(0, 0, 8)})});
  ended->end(0);
  PassInfo pass = pass_over(1, {part(3, 8, 12)});
  pass.inherited = {{3, {t.begin(), t.begin() + 8}}};
  const auto with = run_passes(*own, {pass}), without = run_passes(*ended, {pass});
  expect_same(rows_of(with, 3), rows_of(without, 3), 4 * 10 * 3);
}

TEST_P(ServedOtherwise, ShowsEveryPlaceInOrderWithItsRows) {
  const auto passes = run_passes(*model(), {pass_over(0, {{0, 0, tokens(5)}, {1, 0, tokens(3)}}),
                                            pass_over(1, {{1, 3, {9}}})});
  const ModelConfig& config = checkpoint_.config();
  std::vector<std::string> expected;
  for (const Place& place : qwen_graph_of(config).places())
    for (int times = place.point->is_cache() ? 2 : 1; times > 0; --times)
      expected.push_back(std::to_string(place.layer) + " " + std::string(place.point->name));
  std::vector<std::string> shown;
  for (const RecordedTensor& t : passes[0].tensors)
    shown.push_back(std::to_string(t.layer) + " " + std::string(t.point->name));
  EXPECT_EQ(shown, expected);

  const RecordedTensor* cached = passes[1].find(point("attn.kv"), 1, 1);
  ASSERT_NE(cached, nullptr);
  EXPECT_EQ(cached->shape, (Shape{4, 2, config.kv_heads, config.head_dim}));
  EXPECT_EQ(cached->rows, (std::vector<Row>{{1, 0}, {1, 1}, {1, 2}, {1, 3}}));
  const RecordedTensor* logits = passes[0].find(point("logits"), -1);
  ASSERT_NE(logits, nullptr);
  EXPECT_EQ(logits->rows, (std::vector<Row>{{0, 4}, {1, 2}}));
  EXPECT_EQ(logits->shape, (Shape{2, config.vocab}));
  EXPECT_EQ(passes[0].find(point("attn.q"), 0)->shape, (Shape{8, config.heads, config.head_dim}));
  EXPECT_EQ(passes[0].find(point("token"), -1)->dtype, DType::i32);
}

INSTANTIATE_TEST_SUITE_P(Models, ServedOtherwise,
                         testing::Values("tiny/qwen2-mha", "tiny/qwen2-sliding",
                                         "tiny/qwen3-bias-mqa", "tiny/qwen3-default",
                                         "tiny/qwen3-moe"),
                         [](const testing::TestParamInfo<std::string>& info) {
                           std::string name = info.param;
                           std::ranges::replace_if(
                               name, [](char c) { return !std::isalnum(c); }, '_');
                           return name;
                         });

TEST(BadPass, IsOneSentenceAndLeavesTheCacheAlone) {
  const Checkpoint checkpoint = Checkpoint::open(data_path("tiny/qwen3-default"));
  const auto model = open_reference().model(checkpoint, {.dtype = DType::bf16}, DType::f64);
  const auto error = [&](const PassInfo& pass) {
    Probe off;
    return error_of([&] { model->run(pass, off); });
  };
  EXPECT_NE(error(PassInfo{}).find("no token"), std::string::npos);
  EXPECT_NE(error(pass_over(0, {{0, 1, {5}}})).find("go on at position 0"), std::string::npos);
  EXPECT_NE(error(pass_over(0, {{0, 0, {320}}})).find("found 320"), std::string::npos);
  EXPECT_NE(error(pass_over(0, {{0, 0, {-1}}})).find("found -1"), std::string::npos);
  EXPECT_NE(error(pass_over(0, {{0, 0, {5}}, {1, 0, {5}}, {0, 1, {5}}})).find("consecutive"),
            std::string::npos);
  PassInfo far = pass_over(0, {{0, 0, {5}}});
  far.logit_rows = {1};
  EXPECT_NE(error(far).find("logits of row 1"), std::string::npos);
  EXPECT_EQ(run_passes(*model, {pass_over(0, {{0, 0, {5, 6}}})}).size(), 1u);
  EXPECT_NE(error(pass_over(1, {{0, 3, {5}}})).find("go on at position 2"), std::string::npos);
}

}  // namespace
}  // namespace lockstep
