// Passes that are computed instruction by instruction: judged, and held to the model's own
// executor.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/lockstep_binary.h"
#include "tests/whole.h"

namespace lockstep {
namespace {

using Json = nlohmann::json;

constexpr const char* kPrompts =
    " --prompt 'To be, or not to be' --prompt KING --executor instructions ";

std::string model(const std::string& name) { return " --model " + data_path(name); }

class Interpreter : public testing::Test {
 protected:
  static void TearDownTestSuite() { std::remove(path_.c_str()); }

  // The schedule of bard-qwen3 for four queues, of which `edit` changes an instruction: by its
  // opcode, layer and number among those.
  static void write(const std::string& opcode, int layer, int number,
                    const std::function<void(Json&)>& edit) {
    const std::string made = "schedule --kv-shares 2 --queues 4 --json " + path_;
    ASSERT_EQ(call_lockstep(made + model("bard-qwen3")).status, 0);
    Json schedule = Json::parse(text_of(path_));
    ASSERT_EQ(schedule["columns"][2], "opcode");
    for (Json& in : schedule["instructions"])
      if (in[2] == opcode && in[3] == layer && number-- == 0) {
        in[9] = in[10] = Json();  // its reads and writes follow from its rows
        edit(in);
      }
    ASSERT_LT(number, 0);
    std::ofstream(path_) << schedule;
  }
  static Outcome run(const std::string& more) {
    return call_lockstep("run --max-new 4 --step " + path_ + model("bard-qwen3") + kPrompts + more);
  }

  // The places of attn.partial and attn.lse that a result has, all of whose nodes were judged.
  static int64_t shares_in(const Json& result) {
    return std::ranges::count_if(result.at("points"), [](const Json& place) {
      const std::string point = place.at("point");
      return (point == "attn.partial" || point == "attn.lse") && place.at("judged") > 0 &&
             place.at("judged") == place.at("expected");
    });
  }
  static std::string some_token_text(int64_t count) {
    std::string text;
    for (const int32_t token : some_tokens(count, 300, 1))
      text += (text.empty() ? "" : ",") + std::to_string(token);
    return text;
  }

  static inline const std::string path_ = temp_path("step.json");
};

// Every dtype and number of queues: clean_test.cc.
TEST_F(Interpreter, IsCleanByTheCommand) {
  for (const auto& [name, how] : {std::pair{"bard-qwen3", " --queues 132 --dtype fp16"},
                                  std::pair{"bard-qwen2.5", " --queues 1 --dtype bf16"}}) {
    const std::string more =
        std::string(how) + " --page-size 4 --page-order 3 --chunk 3 --max-new 5";
    const Outcome outcome = call_lockstep("run" + model(name) + kPrompts + more + " -q");
    EXPECT_EQ(outcome.status, 0) << name << more << outcome.out << outcome.err;
    EXPECT_TRUE(outcome.out.starts_with("clean: ")) << outcome.out;
  }
}

TEST_F(Interpreter, HasTheTokensOfTheModelsOwnExecutorInFp32) {
  const std::string generate =
      "generate --dtype fp32 --max-new 30 --prompt KING" + model("bard-qwen3");
  const Outcome own = call_lockstep(generate);
  ASSERT_GT(own.out.size(), 20U) << own.err;
  EXPECT_EQ(call_lockstep(generate + " --executor instructions --queues 8").out, own.out);
}

TEST_F(Interpreter, HasEqualBitsInEveryOrderThatTheCountersAllow) {
  const std::string first = temp_path("0.trace"), other = temp_path("1.trace");
  const auto generate = [&](const std::string& path, const std::string& more) {
    std::filesystem::remove_all(path);
    return call_lockstep("generate --max-new 3 --format json --trace " + path +
                         model("bard-qwen3") + kPrompts + more);
  };
  ASSERT_EQ(generate(first, "").status, 0);
  for (const char* seed : {"1", "2", "3"}) {
    ASSERT_EQ(generate(other, std::string("--interleave ") + seed).status, 0);
    const Outcome compared = call_lockstep("diff " + first + " " + other);
    EXPECT_EQ(compared.status, 0) << compared.out;
    EXPECT_NE(compared.out.find("identical: "), std::string::npos) << compared.out;
  }
  for (const std::string& path : {first, other}) std::filesystem::remove_all(path);
}

TEST_F(Interpreter, NamesTheInstructionThatReadTooEarly) {
  write("o_residual", 1, 0, [](Json& in) { in[7][0][1] = 1; });  // of two KV heads
  const Outcome early = run("--interleave adversarial");
  EXPECT_EQ(early.status, 1) << early.err;
  EXPECT_NE(early.out.find("layer 1 attn.o"), std::string::npos) << early.out;
  EXPECT_NE(early.out.find("instruction 44 (o_residual, layer 1"), std::string::npos) << early.out;
  const Outcome checked = call_lockstep("schedule --check " + path_);
  EXPECT_EQ(checked.status, 1);
  EXPECT_NE(checked.out.find("early read"), std::string::npos) << checked.out;
  EXPECT_NE(early.out.find("is broken, whatever this execution"), std::string::npos) << early.out;
  const Outcome other = call_lockstep("schedule --queues 3 --check " + path_);
  EXPECT_EQ(other.status, 2) << other.out;
  EXPECT_NE(other.err.find("--queues is for a schedule that is made, and "), std::string::npos)
      << other.err;
}

// An expert computed before the choice among them was made is nobody's: NaN, and named.
TEST_F(Interpreter, NamesTheInstructionOfAnExpertThatDoesNotWaitForTheChoice) {
  const std::string moe = model("tiny/qwen3-moe");
  ASSERT_EQ(call_lockstep("schedule --queues 4 --json " + path_ + moe).status, 0);
  Json schedule = Json::parse(text_of(path_));
  int number = 1;  // the second one, as the first stands behind the choice in its queue
  for (Json& in : schedule["instructions"])
    if (in[2] == "expert_gate_up_silu" && in[3] == 1 && number-- == 0) in[7] = Json::array();
  ASSERT_LT(number, 0);
  std::ofstream(path_) << schedule;
  const Outcome early = call_lockstep(
      "run --tokens 1,2,3,4,5 --max-new 3 --executor instructions --interleave "
      "adversarial --step " +
      path_ + moe);
  EXPECT_EQ(early.status, 1) << early.err << early.out;
  EXPECT_NE(early.out.find("layer 1 mlp.expert_gate"), std::string::npos) << early.out;
  EXPECT_NE(early.out.find(" (expert_gate_up_silu, layer 1, rows "), std::string::npos)
      << early.out;
  EXPECT_EQ(call_lockstep("schedule --check " + path_).status, 1);
}

TEST_F(Interpreter, SaysWhereNoPairIsLeftUnordered) {
  const Outcome clean = call_lockstep("run --max-new 2" + model("bard-qwen3") + kPrompts +
                                      "--interleave adversarial");
  EXPECT_EQ(clean.status, 0) << clean.err;
  EXPECT_NE(clean.out.find("--interleave adversarial had no pair to play"), std::string::npos)
      << clean.out;
  EXPECT_NE(clean.out.find("clean: "), std::string::npos) << clean.out;
}

TEST_F(Interpreter, ShowsRowsThatNobodyComputes) {
  write("down_residual", 2, 1, [](Json& in) { in[4] = in[4].get<int>() + 16; });
  const Outcome missing = run("-q");
  EXPECT_EQ(missing.status, 1) << missing.err;
  EXPECT_NE(missing.out.find("layer 2 mlp.down"), std::string::npos) << missing.out;
}

TEST_F(Interpreter, ShowsAPartialResultThatIsLeftOut) {
  write("partial_attention", 2, 1, [](Json& in) { in[6] = 0; });
  const Outcome left_out = run("");
  EXPECT_EQ(left_out.status, 1) << left_out.err;
  EXPECT_NE(left_out.out.find("no instruction of the schedule writes the worst element of layer 2"),
            std::string::npos)
      << left_out.out;
  EXPECT_NE(left_out.out.find("layer 2 attn.partial is the first to make NaN"), std::string::npos)
      << left_out.out;
  // Which this executor refuses.
  for (const char* refused : {"--modes", "--confirm"})
    EXPECT_EQ(left_out.out.find(refused), std::string::npos) << left_out.out;
}

// Requests of unlike lengths in permuted pages, of which the first tokens of a prompt see none of
// the later shares.
TEST_F(Interpreter, ShowsTheSharesThatAttentionIsMergedOf) {
  const struct {
    const char *dtype, *queues, *shares;
  } cuts[] = {{"fp32", "1", "3"}, {"bf16", "4", "2"}, {"fp16", "132", "5"}};
  const std::pair<const char*, int> models[] = {
      {"bard-qwen3", 6}, {"bard-qwen2.5", 6}, {"tiny/qwen2-sliding", 3}};
  for (size_t cut = 0; cut < std::size(cuts); ++cut)
    for (size_t model_number = 0; model_number < std::size(models); ++model_number) {
      if (!whole() && model_number != cut) continue;
      const auto& [dtype, queues, shares] = cuts[cut];
      const auto& [name, layers] = models[model_number];
      SCOPED_TRACE(std::string(name) + " " + dtype);
      ASSERT_EQ(call_lockstep(std::string("schedule --queues ") + queues + " --kv-shares " +
                              shares + " --json " + path_ + model(name))
                    .status,
                0);
      const Outcome outcome = call_lockstep(
          "run --max-new 2 --tokens " + some_token_text(70) + " --tokens 7 --tokens " +
          some_token_text(11) + model(name) + " --executor instructions --step " + path_ +
          " --page-size 4 --page-order 3 --chunk 40 --format json --dtype " + dtype);
      ASSERT_EQ(outcome.status, 0) << outcome.out << outcome.err;
      EXPECT_EQ(shares_in(Json::parse(outcome.out)), 2 * layers);
    }
}

TEST_F(Interpreter, HasNoSharesWhereNothingIsCut) {
  const std::string of_model = "run --max-new 2 --format json --prompt KING" + model("bard-qwen3");
  for (const char* more : {"", " --executor instructions"}) {
    const Outcome outcome = call_lockstep(of_model + more);
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    for (const char* point : {"attn.partial", "attn.lse"})
      EXPECT_EQ(outcome.out.find(point), std::string::npos) << more << outcome.out;
  }
}

TEST_F(Interpreter, SharesAreInItsTraces) {
  ASSERT_EQ(call_lockstep("schedule --kv-shares 2 --json " + path_ + model("bard-qwen3")).status,
            0);
  const std::string right = temp_path("right.trace"), wrong = temp_path("wrong.h5");
  for (const std::string& path : {right, wrong}) std::filesystem::remove_all(path);
  EXPECT_EQ(run("-q --page-size 4 --keep full --trace " + right).status, 0);
  const Outcome seeded =
      run("--page-size 4 --fault step-lse-without-most@layer=2 --keep full --trace " + wrong);
  EXPECT_EQ(seeded.status, 1) << seeded.err;
  EXPECT_NE(seeded.out.find("(partial_attention, layer 2, KV head"), std::string::npos)
      << seeded.out;

  const Outcome clean = call_lockstep("judge --format json " + right + model("bard-qwen3"));
  EXPECT_EQ(clean.status, 0) << clean.err;
  EXPECT_EQ(shares_in(Json::parse(clean.out)), 12);
  const Outcome judged = call_lockstep("judge -q " + wrong + model("bard-qwen3"));
  EXPECT_EQ(judged.status, 1) << judged.err;
  EXPECT_NE(judged.out.find("layer 2 attn.lse introduces the first error (1 op wrong"),
            std::string::npos)
      << judged.out;

  EXPECT_NE(trouble_of("replay --point attn.lse --layer 2 " + wrong + model("bard-qwen3"))
                .find("replay attn.out"),
            std::string::npos);
  EXPECT_EQ(
      call_lockstep("replay --point attn.out --layer 2 " + right + model("bard-qwen3")).status, 0);

  const Outcome inspected = call_lockstep("inspect " + right);
  EXPECT_EQ(inspected.out.find("NOT FINITE"), std::string::npos) << inspected.out;
  const Outcome of_lse = call_lockstep("inspect --layers 2 --points attn.lse " + right);
  EXPECT_NE(of_lse.out.find("[2, 2, 6]"), std::string::npos) << of_lse.out;
  const Outcome compared = call_lockstep("diff " + right + " " + wrong);
  EXPECT_EQ(compared.status, 1) << compared.err;
  EXPECT_NE(compared.out.find("different: layer 2 attn.lse"), std::string::npos) << compared.out;

  // A trace of other points is judged without them.
  std::filesystem::remove_all(right);
  EXPECT_EQ(run("-q --page-size 4 --points attn.q --keep full --trace " + right).status, 0);
  const Outcome of_q = call_lockstep("judge --format json " + right + model("bard-qwen3"));
  EXPECT_EQ(of_q.status, 0) << of_q.out << of_q.err;
  EXPECT_EQ(of_q.out.find("attn.lse"), std::string::npos) << of_q.out;
  for (const std::string& path : {right, wrong}) std::filesystem::remove_all(path);
}

// The trace of a step has each instruction as a slice of its queue's row, in the order of the
// queue, and what it waited within.
TEST_F(Interpreter, WritesWhenEachInstructionRan) {
  const std::string trace = temp_path("step.trace.json");
  const std::string generate = "generate --max-new 2 --prompt KING" + model("bard-qwen3");
  for (const char* more : {"", " --interleave 3"}) {
    const Outcome made =
        call_lockstep(generate + " --executor instructions --queues 3 --timeline " + trace + more);
    ASSERT_EQ(made.status, 0) << made.err;
    ASSERT_EQ(call_lockstep("schedule --queues 3 --json " + path_ + model("bard-qwen3")).status, 0);
    const Json schedule = Json::parse(text_of(path_));
    std::map<int, std::vector<Json>> rows;
    const Json written = Json::parse(text_of(trace));
    for (const Json& event : written.at("traceEvents"))
      if (event.at("ph") == "X") rows[event.at("tid")].push_back(event);
    ASSERT_EQ(rows.size(), 3U);
    size_t seen = 0;
    for (const auto& [queue, events] : rows) {
      double end = 0;
      for (const Json& event : events) {
        const double begin = event.at("ts"), length = event.at("dur");
        if (event.at("name") == "wait") {
          EXPECT_LE(begin + length, end + 1e-9) << event;
          continue;
        }
        const Json& in = schedule["instructions"][event.at("args").at("instruction").get<int>()];
        EXPECT_EQ(in[1], queue);
        EXPECT_EQ(event.at("name"), in[2]);
        EXPECT_GE(begin, end - 1e-9) << event;
        end = begin + length;
        ++seen;
      }
    }
    EXPECT_EQ(seen, schedule["instructions"].size());
  }
  std::remove(trace.c_str());
  EXPECT_NE(trouble_of(generate + " --timeline " + trace).find("--executor instructions"),
            std::string::npos);
}

TEST_F(Interpreter, RefusesWhatItCannotCompute) {
  const std::string of_model = "run --max-new 2" + model("bard-qwen3") + kPrompts;
  EXPECT_NE(trouble_of(of_model + "--modes all").find("an --executor that"), std::string::npos);
  EXPECT_NE(trouble_of(of_model + "--confirm").find("an --executor that"), std::string::npos);
  EXPECT_NE(trouble_of(of_model + "--fault rope-interleaved").find("whole ops"), std::string::npos);
  EXPECT_NE(trouble_of(of_model + "--interleave 1x").find("1x"), std::string::npos);
  EXPECT_NE(trouble_of("run --max-new 2 --tokens 1,2 --queues 3" + model("bard-qwen3"))
                .find("--executor instructions"),
            std::string::npos);
  write("o_residual", 1, 0, [](Json& in) { in[7][0][1] = 3; });
  EXPECT_NE(trouble_of("run --max-new 2 --step " + path_ + model("bard-qwen3") + kPrompts)
                .find("never run"),
            std::string::npos);
  write("norm_qkv_rope_append", 1, 0, [](Json& in) { in[5] = in[5].get<int>() - 16; });
  EXPECT_NE(trouble_of("run --max-new 2 --step " + path_ + model("bard-qwen3") + kPrompts)
                .find("whole heads"),
            std::string::npos);
  EXPECT_NE(trouble_of("run --max-new 2 --step " + path_ + model("bard-qwen2.5") + kPrompts)
                .find("the checkpoint's is"),
            std::string::npos);
}

}  // namespace
}  // namespace lockstep
