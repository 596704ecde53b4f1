// Schedules as files: what is written is read back, a list in another's style means the same, and
// what is no schedule is refused in a sentence that names the file and the field.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "src/schedule/schedule_json.h"
#include "tests/lockstep_binary.h"
#include "tests/schedule/against_checker.h"
#include "tests/schedule/made_schedules.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

std::string written(const std::string& text) {
  const std::string path = temp_path("step.json");
  std::ofstream(path, std::ios::binary) << text;
  return path;
}
Schedule read_text(const std::string& text) { return read_schedule(written(text)); }

auto uses_of(const std::vector<Instruction::CounterUse>& uses) {
  std::vector<std::pair<int, int64_t>> all;
  for (const Instruction::CounterUse& use : uses) all.emplace_back(use.counter, use.value);
  return all;
}

void expect_same(const Schedule& a, const Schedule& b) {
  EXPECT_EQ(a.queues, b.queues);
  EXPECT_EQ(a.kv_shares, b.kv_shares);
  EXPECT_EQ(a.down_shares, b.down_shares);
  EXPECT_EQ(a.model.qk_norm, b.model.qk_norm);
  EXPECT_EQ(std::tie(a.model.layers, a.model.hidden, a.model.heads, a.model.kv_heads,
                     a.model.head_dim, a.model.intermediate, a.model.vocab),
            std::tie(b.model.layers, b.model.hidden, b.model.heads, b.model.kv_heads,
                     b.model.head_dim, b.model.intermediate, b.model.vocab));
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (size_t i = 0; i < a.tensors.size(); ++i) {
    const ScheduledTensor &x = a.tensors[i], &y = b.tensors[i];
    EXPECT_EQ(std::tie(x.point, x.layer, x.width, x.shares, x.given, x.memory),
              std::tie(y.point, y.layer, y.width, y.shares, y.given, y.memory));
  }
  ASSERT_EQ(a.instructions.size(), b.instructions.size());
  for (size_t i = 0; i < a.instructions.size(); ++i) {
    const Instruction &x = a.instructions[i], &y = b.instructions[i];
    EXPECT_EQ(std::tie(x.id, x.queue, x.opcode, x.name, x.layer, x.begin, x.end, x.share),
              std::tie(y.id, y.queue, y.opcode, y.name, y.layer, y.begin, y.end, y.share));
    EXPECT_EQ(x.reads, y.reads);
    EXPECT_EQ(x.writes, y.writes);
    EXPECT_EQ(uses_of(x.waits), uses_of(y.waits));
    EXPECT_EQ(uses_of(x.raises), uses_of(y.raises));
  }
}

TEST(ScheduleJson, IsReadAsItWasWritten) {
  std::mt19937_64 random(11);
  for (int i = 0; i < 20; ++i) {
    const Schedule schedule =
        make_schedule(some_model(random, 3, 60), {.queues = static_cast<int>(1 + random() % 40),
                                                  .kv_shares = between(random, 1, 3),
                                                  .down_shares = between(random, 1, 3)});
    const std::string text = schedule_json(schedule);
    const Schedule again = read_text(text);
    expect_same(schedule, again);
    EXPECT_EQ(again.counters, schedule.counters);
    EXPECT_EQ(schedule_json(again), text);
  }
}

// The style of a list that another compiler writes: numbers for opcodes, blocks of 16 rows, columns
// in an order of its own, a count of counters, and nothing that follows from the rest.
Json foreign(const Schedule& schedule) {
  Json json = Json::parse(schedule_json(schedule));
  for (const char* key : {"tensors", "kv_shares", "down_shares"}) json.erase(key);
  json["counters"] = schedule.counters.size();
  json["columns"] = {"opcode", "layer", "begin", "waits", "queue", "raises", "end"};
  json["opcodes"] = Json::object();
  json["block"] = Json::object();
  json["instructions"] = Json::array();
  for (const Opcode opcode : values_of<Opcode>())
    if (opcode != Opcode::other)
      json["opcodes"][fmt::format("{}", static_cast<int>(opcode) + 1)] = name_of(opcode);
  const auto pairs = [](const std::vector<Instruction::CounterUse>& uses) {
    Json all = Json::array();
    for (const Instruction::CounterUse& use : uses) all.push_back({use.counter, use.value});
    return all;
  };
  for (const Instruction& in : schedule.instructions) {
    const bool is_of_heads =
        in.opcode == Opcode::partial_attention || in.opcode == Opcode::attention_reduction;
    const int64_t block = is_of_heads ? 1 : 16;
    if (!is_of_heads) json["block"][in.name] = block;
    Json row = {static_cast<int>(in.opcode) + 1,
                in.layer < 0 ? Json() : Json(in.layer),
                in.begin / block,
                pairs(in.waits),
                in.queue,
                pairs(in.raises),
                in.end / block};
    json["instructions"].push_back(std::move(row));
  }
  return json;
}

TEST(ScheduleJson, OfAnotherStyleMeansTheSame) {
  const Schedule schedule = make_schedule(two_layers(), {.queues = 3});
  const Json json = foreign(schedule);
  const Schedule again = read_text(json.dump());
  expect_same(schedule, again);
  EXPECT_TRUE(check_schedule(again).findings.empty());
}

// As objects, with ids of its own, and without the ends of what are single blocks.
TEST(ScheduleJson, OfObjectsMeansTheSame) {
  const Schedule schedule = make_schedule(two_layers(), {.queues = 99});
  Json json = foreign(schedule);
  json.erase("columns");
  for (size_t i = 0; i < json["instructions"].size(); ++i) {
    const Json row = json["instructions"][i];
    json["instructions"][i] = {{"id", 1000 + i},   {"opcode", row[0]}, {"layer", row[1]},
                               {"begin", row[2]},  {"waits", row[3]},  {"queue", row[4]},
                               {"raises", row[5]}, {"theirs", "x"}};
  }
  Schedule again = read_text(json.dump());
  for (size_t i = 0; i < again.instructions.size(); ++i) {
    EXPECT_EQ(again.instructions[i].id, 1000 + static_cast<int>(i));
    again.instructions[i].id = static_cast<int>(i);
  }
  expect_same(schedule, again);
}

TEST(ScheduleJson, KeepsOpcodesOfTheirOwn) {
  Schedule schedule = make_schedule(two_layers(), {.queues = 3});
  Instruction& in = schedule.instructions[4];
  in.opcode = Opcode::other;
  in.name = "theirs";
  const std::string text = schedule_json(schedule);
  expect_same(schedule, read_text(text));
  EXPECT_EQ(Json::parse(text)["opcodes"], Json({{"theirs", "other"}}));
}

TEST(ScheduleJson, IsCheckedByTheCommand) {
  const Schedule schedule = make_schedule(two_layers(), {.queues = 3});
  const Outcome clean = call_lockstep("schedule --check " + written(foreign(schedule).dump()));
  EXPECT_EQ(clean.status, 0) << clean.err;
  EXPECT_NE(clean.out.find("clean"), std::string::npos) << clean.out;
  Json json = foreign(schedule);
  json["instructions"].back()[3] = Json::array();  // the last block of the head waits for nothing
  const Outcome broken = call_lockstep("schedule --check --format json " + written(json.dump()));
  EXPECT_EQ(broken.status, 1) << broken.err;
  const Json report = Json::parse(broken.out);
  EXPECT_EQ(report["verdict"], "broken");
  const auto last = static_cast<int>(schedule.instructions.size()) - 1;
  int64_t early = 0;
  for (const Json& finding : report["findings"]) {
    EXPECT_EQ(finding["fault"], "early read");
    EXPECT_EQ(finding["second"], last);
    EXPECT_EQ(finding["numbers"]["point"], "mlp.residual");
    EXPECT_EQ(finding["order"].back(), last);
    ++early;
  }
  EXPECT_GT(early, 0);
}

struct Bad {
  const char* what;
  std::string text;
  std::string phrase;  // of the sentence, beside the file
};

template <typename Edit>
std::string spoiled(Edit edit) {
  Json json = foreign(make_schedule(two_layers(), {.queues = 3}));
  edit(json);
  return json.dump();
}

std::string with_row(int column, const Json& value) {
  return spoiled([&](Json& j) { j["instructions"][4][column] = value; });
}
std::string with(const char* key, const Json& value) {
  return spoiled([&](Json& j) { j[key] = value; });
}
std::string with_experts(const char* key, const Json& value) {
  return spoiled([&](Json& j) {
    j["model"].update({{"experts", 4}, {"chosen", 2}, {"expert_intermediate", 16}});
    j["model"]["expert_layers"] = Json::array();
    j["model"][key] = value;
  });
}
std::string with_tensors(const char* tensors) { return with("tensors", Json::parse(tensors)); }

std::vector<Bad> bad_heads() {
  return {
      {"no JSON", "opcode queue begin\n1 0 0\n", ""},
      {"nothing", "", ""},
      {"half a file", spoiled([](Json&) {}).substr(0, 700), ""},
      {"a list", "[1, 2]", "an object was wanted"},
      {"NaN", R"({"format": NaN})", ""},
      {"nested deep", std::string(100000, '[') + std::string(100000, ']'), "deep"},
      {"another format", with("format", "lockstep-result"), "format"},
      {"a later version", with("format_version", "2.0"), "format_version"},
      {"no instructions", with("instructions", Json::array()), "instructions"},
      {"instructions left out", spoiled([](Json& j) { j.erase("instructions"); }), "instructions"},
      {"no model", spoiled([](Json& j) { j.erase("model"); }), "model"},
      {"no heads", spoiled([](Json& j) { j["model"]["heads"] = 0; }), "model.heads"},
      {"KV heads that do not divide", spoiled([](Json& j) { j["model"]["kv_heads"] = 3; }),
       "model.kv_heads"},
      {"a huge model", spoiled([](Json& j) { j["model"]["vocab"] = int64_t{1} << 40; }),
       "model.vocab"},
      {"no queue", with("queues", 0), "queues"},
      {"huge queues", with("queues", int64_t{1} << 40), "queues"},
      {"no counter, and waits", with("counters", 0), "counters"},
      {"more heads than any model",
       spoiled([](Json& j) { j["model"]["heads"] = j["model"]["kv_heads"] = 1 << 26; }),
       "model.heads"},
      {"huge counters", with("counters", int64_t{1} << 40), "counters"},
      {"huge shares", with("kv_shares", int64_t{1} << 30), "kv_shares"},
  };
}

std::vector<Bad> bad_instructions() {
  return {
      {"an opcode of a number that is none", with_row(0, 1.5), "instructions"},
      {"an opcode of its own without writes", with_row(0, 77), "instructions"},
      {"a queue that is not there", with_row(4, 3), "instructions"},
      {"a negative queue", with_row(4, -1), "instructions"},
      {"a counter that is not there", with_row(3, Json::parse("[[999, 1]]")), "counters"},
      {"a wait without its value", with_row(3, Json::parse("[[0]]")), "instructions"},
      {"a wait that is a number", with_row(3, 4), "instructions"},
      {"a negative raise", with_row(5, Json::parse("[[0, -1]]")), "instructions"},
      {"a layer that is not there", with_row(1, 2), "instructions"},
      {"no layer", with_row(1, nullptr), "layer"},
      {"a block that ends before it begins", with_row(6, 0), "instruction"},
      {"rows past the end", with_row(6, 4000), "instruction"},
      {"a row as text", with_row(2, "1"), "instructions"},
      {"an instruction that is text", spoiled([](Json& j) { j["instructions"][4] = "load"; }),
       "instructions"},
      {"an id twice", spoiled([](Json& j) {
         j["columns"].push_back("id");
         int id = 0;
         for (Json& row : j["instructions"]) row.push_back(id++);
         j["instructions"][4].back() = 2;
       }),
       "instructions[4]: its id is 2, which another instruction before it has"},
      {"a misspelt opcode that says what it writes", spoiled([](Json& j) {
         j["columns"].push_back("writes");
         for (Json& row : j["instructions"]) row.push_back(Json::array());
         j["instructions"][4][0] = "o_residul";
       }),
       "instructions[4]: its opcode \"o_residul\" is none of Lockstep's, and \"opcodes\" does not "
       "say "
       "what it is (\"other\": one of your own); did you mean \"o_residual\"?"},
      {"a misspelt meaning", spoiled([](Json& j) { j["opcodes"]["4"] = "o_residul"; }),
       "opcodes.4"},
      {"a row that lacks its last value", spoiled([](Json& j) { j["instructions"][4].erase(6); }),
       "instructions[4] is a list of 6, a value for each of the 7 columns, also for \"end\","},
      {"waits that are null", with_row(3, nullptr), "instructions[4]: its waits is null"},
      {"raises that are null", with_row(5, nullptr), "instructions[4]: its raises is null"},
      {"an end that is null", with_row(6, nullptr), "instructions[4]: its end is null"},
      {"no column of waits", spoiled([](Json& j) { j["columns"][3] = "wait"; }), "waits among"},
      {"an object without waits", spoiled([](Json& j) {
         const Json row = j["instructions"][4];
         j["instructions"][4] = {{"opcode", row[0]}, {"layer", row[1]}, {"begin", row[2]},
                                 {"wait", row[3]},   {"queue", row[4]}, {"raises", row[5]}};
       }),
       "instructions[4]: its waits is missing"},
      {"a short row", spoiled([](Json& j) {
         j["instructions"][4] = Json::array({1, 0});
       }),
       "instructions"},
      {"no column of queues", spoiled([](Json& j) { j["columns"][4] = "engine"; }), "columns"},
      {"a list without columns", spoiled([](Json& j) { j.erase("columns"); }), "instructions"},
      {"a column twice", spoiled([](Json& j) { j["columns"][6] = "queue"; }), "columns"},
      {"blocks of no rows", spoiled([](Json& j) { j["block"]["o_residual"] = 0; }), "block"},
  };
}

std::vector<Bad> bad_tensors() {
  return {
      {"a tensor of no width", with_tensors(R"([{"point": "x", "width": 0}])"), "tensors"},
      {"a tensor twice",
       with_tensors(R"([{"point": "x", "width": 1}, {"point": "x", "width": 2}])"), "tensors"},
      {"a tensor that is given where another is before it",
       with_tensors(R"([{"point": "x", "width": 1, "memory": "m"},
                        {"point": "y", "width": 1, "memory": "m", "given": true}])"),
       "tensors[1].given"},
      {"tensors that the opcodes lack", with_tensors(R"([{"point": "x", "width": 1}])"), "embed"},
      {"a span of no tensor", spoiled([](Json& j) {
         j["columns"].push_back("reads");
         for (Json& row : j["instructions"]) row.push_back(Json::array());
         j["instructions"][4].back() = Json::parse(R"([["nowhere", 0, 0, 1]])");
       }),
       "\"nowhere\", a tensor of the schedule"},
      {"an opcode of one's own that says not what it reads", spoiled([](Json& j) {
         j["columns"].push_back("writes");
         for (Json& row : j["instructions"]) row.push_back(Json::array());
         j["instructions"][4][0] = "mine";
         j["opcodes"]["mine"] = "other";
       }),
       "what it reads, [] for nothing,"},
      {"experts more of which are chosen than there are", with_experts("chosen", 5), "chosen"},
      {"experts of a layer that is not there", with_experts("expert_layers", Json::parse("[2]")),
       "expert_layers"},
      {"an MLP in a layer of experts", with_experts("expert_layers", Json::parse("[0, 1]")),
       "experts in place of an MLP"},
      {"a span of nothing", spoiled([](Json& j) {
         j["columns"].push_back("writes");
         j["instructions"][4].push_back(Json::parse(R"([["logits", null, 4, 4]])"));
       }),
       "instructions"},
  };
}

TEST(ScheduleJson, ThatIsNoScheduleIsRefusedInASentence) {
  std::vector<Bad> all = bad_heads();
  for (const std::vector<Bad>& more : {bad_instructions(), bad_tensors()})
    all.insert(all.end(), more.begin(), more.end());
  for (size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(all[i].what);
    const std::string path = written(all[i].text);
    const std::string trouble = error_of([&] { read_schedule(path); });
    EXPECT_NE(trouble.find("step.json"), std::string::npos) << trouble;
    EXPECT_NE(trouble.find(all[i].phrase), std::string::npos) << trouble;
    EXPECT_LT(trouble.size(), 400);
    if (i % 4 != 0) continue;
    EXPECT_EQ(trouble_of("schedule --check " + path), trouble + "\n");
  }
  EXPECT_NE(trouble_of("schedule " + temp_path("none.json")).find("none.json"), std::string::npos);
  EXPECT_NE(trouble_of("schedule").find("FILE"), std::string::npos);
}

}  // namespace
}  // namespace lockstep
