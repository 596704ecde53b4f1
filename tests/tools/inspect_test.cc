// lockstep inspect on traces that the engine left, whole and damaged.
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "src/weights/qwen_graph.h"
#include "tests/lockstep_binary.h"
#include "tests/tools/written_trace.h"
#include "traces/kept_result.h"

namespace lockstep {
namespace {

using nlohmann::json;

class Inspect : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::remove_all(path_);
    const Checkpoint checkpoint = Checkpoint::open(data_path("bard-qwen3"));
    const std::vector<Request> requests = {{.name = "first", .prompt = {5, 6, 7}, .max_new = 2},
                                           {.name = "second", .prompt = {8}, .max_new = 3}};
    served_ = serve(checkpoint, {.dtype = DType::bf16}, requests);
  }
  void TearDown() override { std::filesystem::remove_all(path_); }

  void write(LeftOut left_out = {}) { write_trace(path_, served_, left_out); }

  json table(const std::string& arguments, int status = 0) {
    const Outcome outcome = call_lockstep("inspect " + path_ + " --format json " + arguments);
    EXPECT_EQ(outcome.status, status) << arguments << ": " << outcome.err;
    return json::parse(outcome.out);
  }
  const RecordedTensor& tensor(size_t pass, const Point& p, int layer) const {
    return *served_.passes[pass].find(p, layer);
  }

  const std::string path_ = temp_path("inspect.trace");
  Served served_;
};

TEST_F(Inspect, PrintsDigestsAsJsonLinesAsFarAsTheyAreWhole) {
  write();
  const Outcome whole = call_lockstep("inspect --journal " + path_);
  EXPECT_EQ(whole.status, 0) << whole.err;
  std::istringstream lines(whole.out);
  std::string line;
  std::map<std::string, size_t> kinds;
  for (; std::getline(lines, line); ++kinds[json::parse(line)["kind"]]) {
  }
  size_t tensors = 0;
  for (const Pass& pass : served_.passes) tensors += pass.tensors.size();
  const std::map<std::string, size_t> want = {
      {"manifest", 1}, {"pass", served_.passes.size()}, {"tensor", tensors}};
  EXPECT_EQ(kinds, want);
  EXPECT_NE(trouble_of("inspect --journal --points attn.q " + path_).find("leave selections"),
            std::string::npos);

  std::filesystem::remove(path_ + "/seg-000000.h5");
  const Outcome holed = call_lockstep("inspect --journal " + path_);
  EXPECT_EQ(holed.status, 2);
  EXPECT_NE(holed.err.find("warning: "), std::string::npos) << holed.err;
  EXPECT_EQ(holed.out.substr(holed.out.find('\n')), whole.out.substr(whole.out.find('\n')))
      << "the digests are in the journal";
}

TEST_F(Inspect, ListsEveryPlaceInGraphOrder) {
  write();
  const json places = table("");
  const std::vector<Place> expected =
      qwen_graph({.layers = 6, .qk_norm = true, .rope_tables = true}).places();
  ASSERT_EQ(places.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(places[i]["point"], expected[i].point->name);
    EXPECT_EQ(places[i]["layer"], expected[i].layer < 0 ? json("-") : json(expected[i].layer));
  }
  EXPECT_EQ(places[0]["tensors"], served_.passes.size());
  EXPECT_EQ(places[0]["dtype"], "bf16");
}

TEST_F(Inspect, TellsPeopleWhereATraceComesFrom) {
  write();
  const Outcome outcome = call_lockstep("inspect " + path_);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  for (const char* part :
       {"bard", "2 requests: 0 (first) 3+2  1 (second) 1+3", "bf16", "not judged", "rms nrm"})
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part << " in " << outcome.out;
  const std::string end = fmt::format("\ncomplete: {} passes\n", served_.passes.size());
  EXPECT_TRUE(outcome.out.ends_with(end)) << outcome.out;
}

TEST_F(Inspect, PrintsTheNumbersOfTheSelectedRow) {
  write();
  const json values = table("--point attn.q --layer 2 --request 0 --position 1 --values");
  const RecordedTensor& q = tensor(0, point("attn.q"), 2);
  const auto row = std::ranges::find(q.rows, Row{0, 1}) - q.rows.begin();
  const int64_t size = q.data.view().row_size();
  ASSERT_EQ(values.size(), static_cast<size_t>(size));
  for (int64_t i = 0; i < size; ++i) {
    const json& line = values[static_cast<size_t>(i)];
    EXPECT_EQ(line["value"], value_at(q.data, row * size + i)) << i;
    EXPECT_EQ(line["position"], 1);
  }
  EXPECT_EQ(values[65]["index"], "[1, 1]") << "head 1, number 1";
}

TEST_F(Inspect, ShowsTheLargestFirst) {
  write();
  const std::string out =
      call_lockstep("inspect " + path_ + " --point mlp.act --layer 5 --position 0").out;
  double largest = 0;
  for (const Pass& pass : served_.passes) {
    const RecordedTensor& t = *pass.find(point("mlp.act"), 5);
    for (size_t r = 0; r < t.rows.size(); ++r)
      for (int64_t i = 0; t.rows[r].position == 0 && i < t.data.view().row_size(); ++i) {
        const double x = value_at(t.data, static_cast<int64_t>(r) * t.data.view().row_size() + i);
        if (std::abs(x) > std::abs(largest)) largest = x;
      }
  }
  const size_t title = out.find("the 10 largest numbers");
  ASSERT_NE(title, std::string::npos) << out;
  const size_t first = out.find('\n', out.find('\n', title) + 1) + 1;  // below the columns' names
  const std::string line = out.substr(first, out.find('\n', first) - first);
  EXPECT_TRUE(line.ends_with(fmt::format(" {:.9g}", largest))) << line;
  EXPECT_NE(out.find("2^"), std::string::npos) << "the histogram is missing";
}

TEST_F(Inspect, SaysThatItHasDigestsOnly) {
  write({.numbers_of = &point("attn.k")});
  const std::string selected = "inspect " + path_ + " --point attn.k --layer 0";
  EXPECT_NE(call_lockstep(selected).out.find("digests of these tensors, no numbers"),
            std::string::npos);
  EXPECT_NE(trouble_of(selected + " --values").find("record it with --keep full"),
            std::string::npos);
  std::filesystem::remove_all(path_);
  write({.numbers_of = &point("attn.kv")});
  EXPECT_NE(trouble_of("inspect " + path_ + " --point attn.kv --layer 0 --values")
                .find("keeps the cache as hashes of its rows"),
            std::string::npos);
}

TEST_F(Inspect, ShowsNoNumbersWhereADigestHasNone) {
  write();
  for (const char* selection : {"", "--point attn.kv,attn.q"}) {
    for (const json& line : table(selection)) {
      const bool none = line["point"] == "attn.kv";
      for (const char* column : {"rms", "min", "max", "nan", "inf", "zeros"})
        EXPECT_EQ(line[column] == "-", none) << line["point"] << " " << column;
    }
  }
  const std::string caches = call_lockstep("inspect " + path_ + " --point attn.kv --layer 0").out;
  EXPECT_NE(caches.find("the digests are hashes alone"), std::string::npos) << caches;
  EXPECT_NE(caches.find("magnitudes"), std::string::npos) << "this trace keeps their numbers";
  const std::string both =
      call_lockstep("inspect " + path_ + " --point attn.kv,attn.q --layer 0").out;
  EXPECT_NE(both.find("the digests are hashes alone"), std::string::npos) << both;
  EXPECT_NE(both.find("magnitudes"), std::string::npos) << both;
}

TEST_F(Inspect, RefusesASelectionOfNothing) {
  write();
  EXPECT_NE(trouble_of("inspect " + path_ + " --request 77").find("nothing in"), std::string::npos);
  EXPECT_NE(trouble_of("inspect " + path_ + " --layer 77").find("names layer 77"),
            std::string::npos);
  EXPECT_NE(trouble_of("inspect " + path_ + " --point attn.qq").find("attn.q"), std::string::npos);
}

// Three numbers of layer 2's attention in the first pass, and all of what it is projected to.
TEST_F(Inspect, NamesWhereNaNBegins) {
  for (const char* name : {"attn.out", "attn.o"}) {
    for (RecordedTensor& t : served_.passes[0].tensors) {
      if (t.layer != 2 || t.point->name != name) continue;
      const int64_t count = name == std::string("attn.o") ? t.shape.count() : 3;
      for (int64_t i = 0; i < count; ++i) t.data.as<uint16_t>()[i] = 0x7fc0;
      t.digest = digest_of(t.data.view());
      t.row_hashes = row_hashes_of(t.data.view());
    }
  }
  write();
  const std::string whole = call_lockstep("inspect " + path_).out;
  const int64_t all = tensor(0, point("attn.out"), 2).shape.count();
  for (const std::string& part :
       {fmt::format("NOT FINITE: first in pass 0, layer 2 attn.out: 3 of {} NaN, 0 Inf", all),
        std::string("finite (attn.q_rope, attn.k_rope, attn.v)"), std::string(" NaN NaN")})
    EXPECT_NE(whole.find(part), std::string::npos) << part << " in " << whole;
  // Sizes of what has no finite number are none, and NaN is no power of two.
  const std::string o = call_lockstep("inspect " + path_ + " --point attn.o --layer 2").out;
  EXPECT_NE(o.find("  nan  "), std::string::npos) << o;
  EXPECT_EQ(o.find("2^128"), std::string::npos) << o;
  const json values = table("--point attn.o --layer 2");
  EXPECT_EQ(values[0]["rms"], "-");
  EXPECT_GT(values[1]["rms"], 0.0) << "the other passes are finite";
}

TEST_F(Inspect, ShowsHeadsByPositionsAndSavesASlice) {
  write();
  const std::string npy = temp_path("inspect.npy");
  const std::string out =
      call_lockstep("inspect " + path_ + " --point attn.q --layer 2 --request 0 --npy " + npy +
                    " --slice '[1:3, 0:2, :8]'")
          .out;
  EXPECT_NE(out.find("request 0: rms by head and position, from 1 on, 1 a column"),
            std::string::npos)
      << out;
  EXPECT_NE(out.find("float32 [2, 2, 8] written"), std::string::npos) << out;
  const RecordedTensor& q = tensor(0, point("attn.q"), 2);
  const auto row = std::ranges::find(q.rows, Row{0, 1}) - q.rows.begin();
  const std::string bytes = text_of(npy);
  float first = 0;
  ASSERT_GT(bytes.size(), 2 * 2 * 8 * sizeof first);
  std::memcpy(&first, bytes.data() + bytes.size() - 2 * 2 * 8 * sizeof first, sizeof first);
  EXPECT_EQ(first, value_at(q.data, row * q.data.view().row_size()));
  std::filesystem::remove(npy);
  const json head = table("--point attn.q --layer 2 --request 0 --position 1 --head 1 --values");
  ASSERT_EQ(head.size(), 64u);
  EXPECT_EQ(head[3]["index"], "[1, 3]");
  EXPECT_NE(trouble_of("inspect " + path_ + " --point 'attn.*' --npy " + npy).find("of one place"),
            std::string::npos);
}

TEST_F(Inspect, ComparesWithAnotherTraceAndShowsPasses) {
  write();
  const std::string other = temp_path("inspect-other.trace");
  std::filesystem::remove_all(other);
  Served changed = serve(Checkpoint::open(data_path("bard-qwen3")), {.dtype = DType::bf16},
                         {{.name = "first", .prompt = {5, 6, 7}, .max_new = 2},
                          {.name = "second", .prompt = {8}, .max_new = 3}});
  for (RecordedTensor& t : changed.passes[0].tensors) {
    if (t.layer != 2 || t.point->name != "attn.o") continue;
    t.data.as<uint16_t>()[5] ^= 0x40;
    t.digest = digest_of(t.data.view());
    t.row_hashes = row_hashes_of(t.data.view());
  }
  write_trace(other, changed);
  const json places = table("--point 'attn.o,attn.q' --layer 2 --against " + other, 1);
  ASSERT_EQ(places.size(), 2u);
  EXPECT_EQ(places[0]["point"], "attn.q");
  EXPECT_EQ(places[0]["rows"], places[0]["equal bits"]);
  EXPECT_EQ(places[1]["equal bits"], places[1]["rows"].get<int>() - 1);
  EXPECT_GT(places[1]["max |a-b|"], 0.0);
  table("--against " + other, 1);
  table("--against " + path_, 0);
  table("--point attn.q --layer 2 --against " + other, 0);
  std::filesystem::remove_all(other);
  const json passes = table("--passes");
  EXPECT_EQ(passes[0]["positions"], "0-2");
  EXPECT_EQ(passes[0]["phase"], "prefill");
  EXPECT_EQ(passes[1]["cu_seqlens"], "3..4") << "request 1, behind the three rows of request 0";
  EXPECT_EQ(passes[2]["context"], 4);
}

// Rows that one trace has alone make the two different, and those without numbers leave it open.
TEST_F(Inspect, CallsNothingAlikeThatItDidNotCompare) {
  write();
  const std::string other = temp_path("inspect-less.trace");
  const auto against = [&](const Served& served, LeftOut left_out = {}) {
    std::filesystem::remove_all(other);
    write_trace(other, served, left_out);
    return call_lockstep("inspect " + path_ + " --points 'attn.q,attn.o' --against " + other);
  };
  Served fewer = served_;
  fewer.passes.pop_back();
  EXPECT_EQ(against(fewer).status, 1);
  Served hashes = served_;
  for (RecordedTensor& t : hashes.passes.back().tensors)
    if (t.point->name == "attn.o") t.data = {};
  const Outcome open = against(hashes);
  EXPECT_EQ(open.status, 2) << open.out;
  EXPECT_NE(open.out.find("not compared: 6 selected rows of the two"), std::string::npos)
      << open.out;
  EXPECT_NE(call_lockstep("inspect " + path_ + " --positions 5000 --against " + other)
                .err.find("in what is selected: select rows that both have"),
            std::string::npos);
  std::filesystem::remove_all(other);
}

// Elements that lie at the same place are not the same ones where pairs lie otherwise.
TEST_F(Inspect, ComparesPairsThatTheOtherTraceHasInterleaved) {
  write();
  const std::string other = temp_path("inspect-pairs.trace");
  std::filesystem::remove_all(other);
  const auto halves = open_trace(path_);
  Manifest manifest = halves->manifest();
  manifest.provenance["rope_pairs"] = "interleaved";
  const auto writer = create_trace(other, manifest);
  for (int i = 0; i < halves->passes(); ++i) {
    Pass pass = halves->read(i, true);
    for (RecordedTensor& t : pass.tensors) {
      if (t.point->name != "attn.q") continue;
      const Tensor from = t.data;
      t.data = Tensor(t.shape, t.dtype);
      for (int64_t e = 0; e < t.shape.count(); ++e) {
        const int64_t d = e % 64, to = d < 32 ? 2 * d : 2 * (d - 32) + 1;
        t.data.as<uint16_t>()[e - d + to] = from.as<uint16_t>()[e];
      }
      t.digest = digest_of(t.data);
      t.row_hashes = row_hashes_of(t.data);
    }
    writer->write(pass);
  }
  writer->finish(manifest.requests);
  const json places = table("--point attn.q --layer 2 --against " + other);
  ASSERT_EQ(places.size(), 1u);
  EXPECT_EQ(places[0]["equal bits"], places[0]["rows"]);
  EXPECT_NE(call_lockstep("inspect " + path_ + " --point attn.q --against " + other)
                .out.find("pairs of Q and K are interleaved in the second trace"),
            std::string::npos);
  std::filesystem::remove_all(other);
}

TEST_F(Inspect, ShowsTheVerdictThatTheTraceKeeps) {
  write();
  const auto shown = [this] { return call_lockstep("inspect " + path_).out; };
  EXPECT_NE(shown().find("not judged"), std::string::npos);
  write_kept_result(path_, R"({"verdict": "diverged", "story": "layer 2 attn.out: it is wrong"})");
  EXPECT_NE(shown().find("judged: diverged (layer 2 attn.out)"), std::string::npos) << shown();
  const std::string part = path_ + "/seg-000000.h5";
  std::filesystem::resize_file(part, std::filesystem::file_size(part) / 2);
  EXPECT_NE(shown().find("judged when it was whole: diverged (layer 2 attn.out)"),
            std::string::npos)
      << shown();
  write_kept_result(path_, "{");
  EXPECT_NE(trouble_of("inspect " + path_).find(path_ + " keeps: is no JSON from byte 2"),
            std::string::npos);
}

TEST_F(Inspect, ShowsWhatIsLeftOfATraceThatWasCut) {
  write({.passes = 1});
  const Outcome outcome = call_lockstep("inspect " + path_);
  EXPECT_EQ(outcome.status, 2);
  EXPECT_NE(outcome.out.find("\nincomplete: "), std::string::npos) << outcome.out;
}

TEST_F(Inspect, RefusesWhatIsNoTrace) {
  EXPECT_NE(trouble_of("inspect nowhere.trace").find("nowhere.trace"), std::string::npos);
  EXPECT_NE(trouble_of("inspect " + data_path("README.md")).find("README.md"), std::string::npos);
}

}  // namespace
}  // namespace lockstep
