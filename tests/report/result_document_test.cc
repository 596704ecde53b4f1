// The screen of a verdict, of results made by hand.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "src/judge/story.h"
#include "src/report/render.h"
#include "src/report/report.h"
#include "src/report/result_entries.h"
#include "src/report/untested.h"
#include "src/screen/wrap.h"

namespace lockstep {
namespace {

constexpr const char* kDense[] = {
    "attn.norm",   "attn.q",      "attn.k",  "attn.v",   "attn.q_norm", "attn.k_norm",
    "attn.q_rope", "attn.k_rope", "attn.kv", "attn.out", "attn.o",      "attn.residual",
    "mlp.norm",    "mlp.gate",    "mlp.up",  "mlp.act",  "mlp.down",    "mlp.residual"};
constexpr const char* kExperts[] = {
    "attn.norm",   "attn.q",          "attn.k",        "attn.v",         "attn.q_norm",
    "attn.k_norm", "attn.q_rope",     "attn.k_rope",   "attn.kv",        "attn.out",
    "attn.o",      "attn.residual",   "mlp.norm",      "mlp.router",     "mlp.experts",
    "mlp.weights", "mlp.expert_gate", "mlp.expert_up", "mlp.expert_act", "mlp.expert_down",
    "mlp.combine", "mlp.residual"};

// Two requests of 5 and 3 tokens, 4 and 3 chosen: 2 prefills and 5 decodes, 7 nodes a place.
Result result_of(int layers, std::span<const char* const> points) {
  Result r;
  r.provenance = {{"engine", "lockstep"},   {"engine_version", "0.1.0"},
                  {"model", "models/tiny"}, {"compute_dtype", "bf16"},
                  {"device", "cpu"},        {"matmul", "built-in (no bf16 products)"},
                  {"limits", "theory"}};
  r.requests = {{.id = 0, .name = "romeo", .prompt = {1, 2, 3, 4, 5}, .tokens = {6, 7, 8, 9}},
                {.id = 1, .prompt = {1, 2, 3}, .tokens = {4, 5, 6}}};
  const auto place = [&](const Point* point, int layer) {
    r.places.push_back({.place = {point, layer}, .expected = 7, .judged = 7});
  };
  place(&point("embed"), -1);
  for (int layer = 0; layer < layers; ++layer)
    for (const char* name : points) place(find_point(name), layer);
  place(&point("logits"), -1);
  r.expected = r.judged = r.counts[Verdict::bitwise] = 7 * std::ssize(r.places);
  r.scope = {.layers = layers, .positions = 8, .requests = 2};
  r.logits = LogitsSummary{.kl_mean = 0.00098,
                           .kl_reference = 0.00011,
                           .compared = 7,
                           .argmax_equal = 7,
                           .least_margin_ulp = 1.5};
  return r;
}

PlaceSummary& place_of(Result& r, const char* name, int layer) {
  return *std::ranges::find(r.places, Place{find_point(name), layer}, &PlaceSummary::place);
}

// All places after that one in the order of the places.
void pass_on_after(Result& r, const char* name, int layer) {
  bool after = false;
  for (PlaceSummary& p : r.places) {
    if (after && p.verdict == Verdict::bitwise && !p.place.point->is_cache())
      p.verdict = Verdict::propagated;
    after = after || p.place == Place{find_point(name), layer};
  }
}

Finding finding_of(const char* name, int layer, int32_t pass, int32_t request, int32_t position) {
  return {.node = {{find_point(name), layer}, pass, request},
          .position = position,
          .statistic = StatisticKind::max_error,
          .value = 1.2e5,
          .limit = 1,
          .index = {position, 1, 0},
          .want = 0.00259248,
          .got = 1.05469,
          .budgets = 1.2e5,
          .of_row = 0.94,
          .rule = "177 of 384 elements over their budget",
          .shape = ShapeRule{"in decode", 0.465, 1}};
}

// RoPE is wrong in every decode pass of layer 3, for q and k.
Result rope_bug() {
  Result r = result_of(6, kDense);
  for (int32_t pass = 1; pass <= 3; ++pass)
    for (const char* name : {"attn.q_rope", "attn.k_rope"}) {
      r.findings.push_back(finding_of(name, 3, pass, 0, 4 + pass));
      if (pass <= 2) r.findings.push_back(finding_of(name, 3, pass, 1, 2 + pass));
    }
  r.findings[0].budgets = 3e5;  // of request 0, position 5
  for (const char* name : {"attn.q_rope", "attn.k_rope"})
    place_of(r, name, 3).verdict = Verdict::introduced;
  pass_on_after(r, "attn.k_rope", 3);
  r.counts = {500, 60, 206, 0, 10, 0, 0, 0};
  r.requests[1].flips = {{.position = 4,
                          .engine = 11,
                          .reference = 12,
                          .ancestor = "layer 3 attn.q_rope",
                          .engine_text = " the\033[2J",
                          .reference_text = " my"}};
  r.blind = {"masks of chunks (no pass has several queries): --chunk 4", "preemption (none)"};
  r.first = r.findings.front();
  summarise(r);
  return r;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::string screen(const Result& r, int width = 80, bool colour = false) {
  return render_text(document_of(r, {.serves = true}), {.width = width, .colour = colour});
}

void expect_line(const std::string& screen, const std::string& line) {
  EXPECT_EQ(std::ranges::count(lines_of(screen), line), 1) << "'" << line << "' in\n" << screen;
}

TEST(ResultScreen, ShowsABugInItsPlaceAndSaysWhatItDid) {
  const std::string text = screen(rope_bug());
  expect_line(text, "lockstep 0.1.0  tiny  bf16 on cpu, built-in matmul");
  expect_line(text, "  2 requests, 8 tokens in, 7 out");
  expect_line(text,
              "layer nrm   q   k   v  qn  kn  qr  kr  kv att   o res nrm gat  up act dwn res");
  expect_line(text,
              "    2   =   =   =   =   =   =   =   =   =   =   =   =   =   =   =   =   =   =");
  expect_line(text,
              "    3   =   =   =   =   =   =   X   X   =   ~   ~   ~   ~   ~   ~   ~   ~   ~");
  expect_line(text,
              "    4   ~   ~   ~   ~   ~   ~   ~   ~   =   ~   ~   ~   ~   ~   ~   ~   ~   ~");
  expect_line(text, "      embed =   logits ~");
  expect_line(text, "      = exact bits   X wrong here   ~ wrong only by what it read");
  expect_line(text, "2 ops are wrong, in the order of the computation");
  expect_line(text, "  1. layer 3 attn.q_rope    5 of 7 nodes: every decode pass, no prefill");
  expect_line(text, "     worst   want 0.00259248, got 1.05469");
  expect_line(text, "             3e+05 x its budget, 0.94 x the size of its row");
  expect_line(text, "             request 0 (romeo), position 5, head 1, dim 0");
  expect_line(text, "     where   in decode (46 % of the elements there)");
  expect_line(text, "     what    in that node 177 of 384 elements over their budget");
  expect_line(text,
              "effect   1 of 7 tokens differs by it: request 1, position 4, "
              "\" the\\x1b[2J\" for");
  expect_line(text, "         \" my\"");
  expect_line(text, "         mean KL 0.00098 (the reference in bf16: 0.00011)");
  expect_line(text, "untested 2: masks of chunks; preemption   (--explain untested)");
  expect_line(text, "next     lockstep run ... --confirm   proves it by putting the op right");
  EXPECT_NE(text.find("  2. layer 3 attn.k_rope    5 of 7 nodes, the same: 1.2e+05 x its budget"),
            std::string::npos)
      << text;
  EXPECT_EQ(lines_of(text).back(),
            "diverged: layer 3 attn.q_rope introduces the first error (2 ops wrong of 110)");
}

TEST(ResultScreen, SaysOfNoTokenThatABugChangedItWhereRoundingMayHave) {
  Result r = rope_bug();
  r.requests[1].flips[0].explained = true;
  expect_line(screen(r), "effect   none of 7 tokens differs by it; 1 differs as rounding allows");
  // Rows of the prompt whose logits were compared are counted with those that chose a token.
  r.logits->compared = 15;
  expect_line(screen(r), "effect   none of 15 choices differs by it; 1 differs as rounding allows");
}

// What was not compared is not said to be the same.
TEST(ResultScreen, SaysHowManyTokensItsEffectIsOf) {
  Result r = rope_bug();
  r.logits->compared = 3;
  EXPECT_NE(screen(r).find("effect   1 of 3 tokens (of 7 that were made) differs by it: "),
            std::string::npos)
      << screen(r);
  r.logits->compared = 7;
  r.requests[0].argmax = r.requests[0].tokens;
  r.requests[0].argmax[0] += 1;
  const std::string drawn = screen(r, 300);
  EXPECT_NE(drawn.find("effect   1 of 7 choices differs by it: "), std::string::npos) << drawn;
  EXPECT_NE(drawn.find("; the texts have other tokens, which were drawn or forced"),
            std::string::npos)
      << drawn;
  r.requests[1].flips[0].ancestor = "";
  EXPECT_NE(screen(r, 300).find("none of 7 choices differs by it; 1 differs by what no finding "
                                "explains; "),
            std::string::npos)
      << screen(r, 300);
  r.findings.push_back(finding_of("token", -1, 1, 0, 5));
  EXPECT_NE(screen(r, 300).find("; 1 is another one by it, and the fp64 model's by chance"),
            std::string::npos)
      << screen(r, 300);
  r.logits.reset();
  expect_line(screen(r, 120),
              "effect   not known: no logits were compared with those of the fp64 model");
}

// Nobody is said to have made an error that another op of its region may have made, nor a NaN that
// was handed to it.
TEST(ResultScreen, BlamesARegionWhereItsEndAloneWasRecorded) {
  Result r = rope_bug();
  r.findings.front().region = {{&point("attn.norm"), 3}, {&point("attn.q_norm"), 3}};
  r.first = r.findings.front();
  r.counts[Verdict::propagated] = r.counts[Verdict::confounded] = 1;
  summarise(r);
  EXPECT_TRUE(
      r.story.ends_with("; 1 node after it only passes an error on; 1 is wrong by it or by "
                        "itself, which cannot be told"))
      << r.story;
  EXPECT_TRUE(
      r.story.starts_with("layer 3 attn.norm .. attn.q_rope introduces the first error: "
                          "it or what it is judged with"))
      << r.story;
  expect_line(screen(r, 120),
              "     region  layer 3 attn.norm .. attn.q_rope: any of the ops that "
              "no verdict clears, or attn.q_rope itself");
  EXPECT_EQ(lines_of(screen(r)).back(),
            "diverged: layer 3 attn.norm .. attn.q_rope introduces the first error (2 ops wrong of "
            "110; judged by attn.q_rope alone)");
  r.first->region = {{&point("embed"), -1}};
  r.first->verdict = Verdict::nonfinite;
  r.first->want = r.first->got = std::nan("");
  r.first->rule = "propagated: an input of the op is not finite";
  EXPECT_TRUE(lines_of(screen(r)).back().starts_with(
      "diverged: embed .. layer 3 attn.q_rope is the first to read NaN or Inf, and nobody judged "
      "who made it"))
      << screen(r);
}

TEST(ResultScreen, OfAModelOverRanksProposesNothingThatThoseRefuse) {
  const std::string text =
      render_text(document_of(rope_bug(), {.serves = true, .over_ranks = true}), {.width = 80});
  EXPECT_EQ(text.find("--confirm"), std::string::npos) << text;
  EXPECT_NE(text.find("lockstep run ... --trace X.trace"), std::string::npos) << text;
}

TEST(ResultScreen, OfAnExecutorOfWholePassesProposesNoModes) {
  Result r = rope_bug();
  r.first->verdict = Verdict::nonfinite;
  const auto proposes = [&] {
    const std::string text = render_text(document_of(r, {.serves = true}), {.width = 80});
    return text.find("lockstep run ... --modes poison") != std::string::npos;
  };
  EXPECT_TRUE(proposes());
  r.provenance["executor"] = "instructions";
  EXPECT_FALSE(proposes());
}

TEST(ResultScreen, FitsWhateverTheTerminalIs) {
  for (const int width : {20, 60, 80, 120, 160}) {
    const std::string text = screen(rope_bug(), width);
    std::vector<std::string> lines = lines_of(text);
    lines.pop_back();  // scripts read it: it is never broken for them
    for (const std::string& line : lines)
      EXPECT_LE(columns_of(line), static_cast<size_t>(width)) << line;
    EXPECT_NE(text.find("layer 3"), std::string::npos) << width;
    EXPECT_EQ(text.find("\033"), std::string::npos) << "a name moves the cursor";
  }
  // What does not fit beside the first column stands below it, with the layers again.
  const std::string narrow = screen(rope_bug(), 60);
  expect_line(narrow, "layer nrm   q   k   v  qn  kn  qr  kr  kv att   o res nrm");
  expect_line(narrow, "layer gat  up act dwn res");
  const Document document = document_of(rope_bug());
  for (const std::string& line : lines_of(render_text(document, {.width = 40, .terminal = true})))
    EXPECT_LE(columns_of(line), 40u) << line;
}

TEST(ResultScreen, ColoursNothingThatIsNotSaidWithoutThem) {
  const std::string plain = screen(rope_bug()), coloured = screen(rope_bug(), 80, true);
  EXPECT_NE(coloured.find("\033[1;31mX\033[0m"), std::string::npos);
  EXPECT_EQ(std::regex_replace(coloured, std::regex("\033\\[[0-9;]*m"), ""), plain);
}

TEST(ResultScreen, SaysWhereNothingTellsWhetherAnOpIsWrongByItself) {
  Result r = rope_bug();
  place_of(r, "mlp.down", 3).verdict = Verdict::confounded;
  r.counts[Verdict::propagated] -= 4, r.counts[Verdict::confounded] = 4;
  const std::string text = screen(r, 200);
  expect_line(text,
              "    3   =   =   =   =   =   =   X   X   =   ~   ~   ~   ~   ~   ~   ~   ?   ~");
  EXPECT_NE(text.find("~ wrong only by what it read   ? wrong by what it read or by itself"),
            std::string::npos);
  EXPECT_NE(text.find("202 wrong only by what they read, 4 wrong by what they read or by "
                      "themselves, 10 wrong"),
            std::string::npos)
      << text;
  const Result back = result_from_json(report_json(r), "r.json");
  EXPECT_EQ(place_of(const_cast<Result&>(back), "mlp.down", 3).verdict, Verdict::confounded);
  EXPECT_EQ(back.counts[Verdict::confounded], 4);
}

TEST(ResultScreen, HasTheNumbersOfTheJson) {
  const Result r = rope_bug();
  const auto json = nlohmann::json::parse(report_json(r));
  const std::string text = screen(r, 200);
  const auto has = [&](const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
  };
  const auto& first = json["first"];
  has(fmt::format("want {:.6g}, got {:.6g}", first["want"].get<double>(),
                  first["got"].get<double>()));
  has(fmt::format("{:.3g} x its budget", first["budgets"].get<double>()));
  has(fmt::format("{:.2g} x the size of its row", first["of_row"].get<double>()));
  has(fmt::format("position {}, head {}, dim {}", first["index"][0].get<int>(),
                  first["index"][1].get<int>(), first["index"][2].get<int>()));
  has(
      fmt::format("{} of {}: {} exact bits, {} within rounding, {} wrong only by what they read, "
                  "{} wrong",
                  json["nodes"]["judged"].get<int>(), json["nodes"]["expected"].get<int>(),
                  json["nodes"]["bitwise"].get<int>(), json["nodes"]["rounding"].get<int>(),
                  json["nodes"]["propagated"].get<int>(), json["nodes"]["introduced"].get<int>()));
  has(fmt::format("mean KL {:.3g}", json["logits"]["kl_mean"].get<double>()));
  EXPECT_EQ(json["requests"][1]["flips"][0]["reference_text"], " my");
}

TEST(ResultScreen, OfACleanRunIsAFewLines) {
  Result r = result_of(6, kDense);
  r.counts = {760, 10, 0, 0, 0, 0, 0, 0};
  PlaceSummary& nearest = place_of(r, "attn.k_rope", 2);
  nearest.verdict = Verdict::rounding;
  nearest.worst_t1 = 0.913;
  nearest.worst_request = 1;
  nearest.worst_position = 5;
  r.cache = "8 rows of K and V written, 40 read back, 0 findings";
  r.blind = {"preemption (none): --pages N"};
  summarise(r);
  const std::vector<std::string> lines = lines_of(screen(r, 160));
  ASSERT_EQ(lines.size(), 7u) << screen(r, 160);
  EXPECT_EQ(lines[0],
            "lockstep 0.1.0  tiny  bf16 on cpu, built-in matmul  2 requests, 8 tokens in, 7 out");
  EXPECT_EQ(lines[1], "nodes    770 of 770: 760 exact bits, 10 within rounding, 0 wrong");
  EXPECT_EQ(lines[2],
            "nearest  layer 2 attn.k_rope, request 1, position 5: 0.913 of an element's budget "
            "(T1); a right engine comes this near, for a limit is what rounding may do");
  EXPECT_EQ(lines[3].substr(0, 42), "tokens   7 of 7 as the fp64 model chooses;");
  EXPECT_EQ(lines[5], "untested 1: preemption   (--explain untested)") << screen(r, 160);
}

// A contract that was found by trying may excuse a wrong layer: that is no clean run.
TEST(ResultScreen, OfAPointThatRoundsInTwoWaysIsNotClean) {
  Result r = result_of(4, kDense);
  summarise(r, {.divided = "attn.out"});
  EXPECT_EQ(r.verdict, RunVerdict::inconclusive);
  EXPECT_NE(r.story.find("attn.out rounds in two ways"), std::string::npos) << r.story;
  summarise(r, {});
  EXPECT_EQ(r.verdict, RunVerdict::clean);
}

// A decode pass reads the positions of the prompt, too.
TEST(ResultScreen, OfACacheDoesNotSayThatPromptsAloneAreWrong) {
  Result r = result_of(4, kDense);
  r.findings = {{.node = {{&point("attn.kv"), 2}, 1, 0},
                 .position = 1,
                 .verdict = Verdict::structural,
                 .rule = "reads another row"}};
  r.first = r.findings.front();
  place_of(r, "attn.kv", 2).verdict = Verdict::structural;
  summarise(r);
  expect_line(screen(r), "  1. layer 2 attn.kv        1 of 7 nodes: request 0 alone");
}

TEST(ResultScreen, OfNaNShowsTheOriginAndWhatCarriesIt) {
  Result r = result_of(4, kDense);
  Finding nan{.node = {{&point("attn.out"), 2}, 0, 0},
              .verdict = Verdict::nonfinite,
              .index = {0, 0, 0},
              .want = 0.5,
              .got = std::nan(""),
              .budgets = std::numeric_limits<double>::infinity(),
              .rule = "introduced: the exact result is a finite number (384 of 384 elements)"};
  r.findings = {nan};
  r.first = nan;
  PlaceSummary& origin = place_of(r, "attn.out", 2);
  origin.verdict = Verdict::nonfinite;
  origin.measured = origin.compared = false;
  pass_on_after(r, "attn.out", 2);
  r.counts = {400, 0, 100, 0, 0, 1, 0, 0};
  r.logits->kl_mean = std::nan("");
  summarise(r);
  const std::string text = screen(r);
  expect_line(text,
              "    2   =   =   =   =   =   =   =   =   =   N   ~   ~   ~   ~   ~   ~   ~   ~");
  expect_line(text, "  1. layer 2 attn.out       1 of 7 nodes: prompts only, request 0 alone");
  for (RequestResult& request : r.requests) request.tokens.resize(1);
  expect_line(screen(r), "  1. layer 2 attn.out       1 of 7 nodes: request 0 alone");
  expect_line(text, "     worst   want 0.5, got NaN");
  EXPECT_NE(text.find("N NaN or Inf first here"), std::string::npos) << text;
  EXPECT_NE(text.find("the logits' divergence is not measured"), std::string::npos) << text;
  EXPECT_NE(text.find("--modes poison"), std::string::npos) << text;
  EXPECT_EQ(lines_of(text).back(),
            "diverged: layer 2 attn.out is the first to make NaN or Inf (1 op wrong of 74)");
  // What was not measured is null for programs, and empty in a table.
  const auto json = nlohmann::json::parse(report_json(r));
  for (const auto& p : json["points"]) {
    const bool none = p["layer"] == 2 && p["point"] == "attn.out";
    EXPECT_EQ(p["worst"]["t1"].is_null(), none) << p;
    EXPECT_EQ(p["total_rms"].is_null(), none) << p;
  }
  EXPECT_FALSE(result_from_json(report_json(r), "r.json").places[46].measured);
  EXPECT_NE(render_csv(document_of(r)).find("2,attn.out,nonfinite,7,7,,,,0,0,0,,,,"),
            std::string::npos);
}

TEST(ResultScreen, OfManyLayersShowsThoseThatMatter) {
  Result r = result_of(36, kExperts);
  Finding f = finding_of("mlp.weights", 7, 0, 0, 3);
  f.index = {3, 1};
  r.findings = {f};
  r.first = f;
  place_of(r, "mlp.weights", 7).verdict = Verdict::introduced;
  place_of(r, "attn.q", 3).verdict = Verdict::rounding;
  pass_on_after(r, "mlp.weights", 7);
  summarise(r);
  const std::string text = screen(r);
  expect_line(text,
              "layer nrm q k v qn kn qr kr kv att o res nrm rtr exp wts egt eup eac edn cmb res");
  expect_line(text,
              "    7   = = = =  =  =  =  =  =   = =   =   =   =   =   X   ~   ~   ~   ~   ~   ~");
  expect_line(text,
              " 8-35   ~ ~ ~ ~  ~  ~  ~  ~  =   ~ ~   ~   ~   ~   ~   ~   ~   ~   ~   ~   ~   ~");
  expect_line(text, "      layers not shown: 7 all = or .");
  EXPECT_NE(text.find("position 3, choice 1"), std::string::npos) << text;
}

TEST(ResultScreen, OfABugInEveryLayerNamesItOnce) {
  Result r = result_of(36, kDense);
  for (int layer = 0; layer < 36; ++layer) {
    r.findings.push_back(finding_of("attn.norm", layer, 0, 0, 2));
    place_of(r, "attn.norm", layer).verdict = Verdict::introduced;
  }
  r.first = r.findings.front();
  summarise(r);
  const std::string text = screen(r);
  expect_line(text, "36 ops are wrong, in the order of the computation");
  expect_line(text, "     also    in layers 1-35: 35 nodes, worst 1.2e+05 x its budget");
  EXPECT_EQ(text.find("  2. "), std::string::npos) << text;
  EXPECT_LT(lines_of(text).size(), 40u) << text;
}

TEST(ResultScreen, OfMissingTensorsNamesNoSizeAndNoStepThatCannotWork) {
  Result r = result_of(6, kDense);
  for (const char* name : {"attn.k", "attn.v", "attn.norm", "attn.q", "attn.o"})
    for (const int layer : {2, 3})
      r.findings.push_back({.node = {.place = {find_point(name), layer}},
                            .verdict = Verdict::structural,
                            .rule = "the tensor is missing"});
  r.first = r.findings.front();
  r.verdict = RunVerdict::diverged;
  const std::string many = render_text(document_of(r, {.trace = "a.h5"}), {.width = 80});
  EXPECT_NE(many.find("     also    in layer 3: 1 node\n"), std::string::npos) << many;
  expect_line(many, "next     lockstep inspect a.h5   what the trace has");
  expect_line(many, "the tensors of 10 ops are missing, in the order of the computation");
  EXPECT_EQ(
      lines_of(many).back(),
      "diverged: layer 2 attn.k is the first whose tensor is missing (10 ops missing of 110)");
  std::erase_if(r.findings, [](const Finding& f) { return f.node.place.layer > 2; });
  const std::string few = screen(r);
  expect_line(few, "  2. layer 2 attn.v         1 of 7 nodes, the same");
}

TEST(ResultScreen, CountsWhatIsMissingBesideWhatIsWrong) {
  Result r = rope_bug();
  r.findings.push_back({.node = {.place = {find_point("attn.v"), 5}},
                        .verdict = Verdict::structural,
                        .rule = "the tensor is missing"});
  std::string text = screen(r);
  expect_line(text,
              "2 ops are wrong, and the tensor of 1 is missing, in the order of the computation");
  EXPECT_EQ(lines_of(text).back(),
            "diverged: layer 3 attn.q_rope introduces the first error (2 ops wrong, 1 missing of "
            "110)");
  EXPECT_NE(page_of(r).find("The 3 ops that are wrong or missing"), std::string::npos);
  // Of another shape it is there, and wrong.
  r.findings.back().rule = "shape [1, 2] was wanted, found [2, 1]";
  expect_line(screen(r), "3 ops are wrong, in the order of the computation");
}

TEST(ResultScreen, SaysWhatTheAxesAre) {
  Finding f{.node = {{&point("attn.kv"), 1}}, .position = 9, .index = {9, 1, 2, 7}};
  EXPECT_EQ(element_text(f), "position 9, V, kv head 2, dim 7");
  f = {.node = {{&point("logits"), -1}}, .index = {4, 300}};
  EXPECT_EQ(element_text(f), "position 4, vocab 300");
}

TEST(Untested, IsNameReasonAndRemedy) {
  const Untested all = untested_from("masks (no pass (of 3) has it): --chunk 4");
  EXPECT_EQ(all.name, "masks");
  EXPECT_EQ(all.why, "no pass (of 3) has it");
  EXPECT_EQ(all.remedy, "--chunk 4");
  EXPECT_EQ(untested_from("decoding (prefill only)").why, "prefill only");
  EXPECT_EQ(untested_from("plain").name, "plain");
  Result r;
  r.blind = {"masks (why): --chunk 4"};
  expect_line(render_text(untested_document(r)), "    try   --chunk 4");
}

}  // namespace
}  // namespace lockstep
