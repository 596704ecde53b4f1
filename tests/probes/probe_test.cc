#include "probes/probe.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/base/check.h"
#include "tests/host_device.h"

namespace lockstep {
namespace {

// Notes what it is shown and throws at the call that it is told to.
struct Notes final : Sink {
  bool wants(const Point& p, int) const override { return !(p == point("attn.k")); }
  void begin(const PassInfo& pass) override { note("begin " + std::to_string(pass.pass)); }
  void record(const Record& r) override {
    note(std::string(r.point->name) + " " + std::to_string(r.rows.size()));
    last.assign(r.rows.begin(), r.rows.end());
  }
  void end() override { note("end"); }
  void note(const std::string& what) {
    if (what == throw_at) fail("the disk is full");
    seen.push_back(what);
  }

  std::string throw_at;
  std::vector<std::string> seen;
  std::vector<Row> last;
};

const PassInfo kPass{
    .pass = 4, .rows = {{{0, 5}, 11}, {{1, 0}, 12}, {{1, 1}, 13}}, .logit_rows = {0, 2}};

// What a model does in a pass.
void show(Probe& probe) {
  const Tensor three({3, 2}, DType::f32), two({2, 2}, DType::f32);
  const std::vector<Row> cached = {{1, 0}};
  probe.begin(kPass);
  probe(point("attn.q"), 0, three);
  probe(point("attn.k"), 0, three);
  probe(point("attn.kv"), 0, cached, Tensor({1, 2}, DType::f32));
  probe.logits(point("logits"), two);
  probe.end();
}

TEST(Probe, ShowsWhatIsWantedWithItsRows) {
  Notes notes;
  Probe probe(&notes);
  EXPECT_FALSE(probe.wants(point("attn.k"), 0));
  show(probe);
  EXPECT_EQ(notes.seen,
            (std::vector<std::string>{"begin 4", "attn.q 3", "attn.kv 1", "logits 2", "end"}));
  EXPECT_EQ(notes.last, (std::vector<Row>{{0, 5}, {1, 1}}));
  EXPECT_EQ(probe.failure(), "");
}

TEST(Probe, ASinkThatFailsIsSwitchedOffAndTheModelGoesOn) {
  for (const char* at : {"begin 4", "attn.q 3", "attn.kv 1", "logits 2", "end"}) {
    Notes notes;
    notes.throw_at = at;
    Probe probe(&notes);
    EXPECT_NO_THROW(show(probe)) << at;
    EXPECT_FALSE(probe.on());
    EXPECT_FALSE(probe.wants(point("attn.q"), 0));
    EXPECT_EQ(probe.failure(), "the disk is full");
    const size_t before = notes.seen.size();
    notes.throw_at.clear();
    show(probe);
    EXPECT_EQ(notes.seen.size(), before) << "a sink that is off saw something at " << at;
  }
}

class ProbeOfADevice : public HostDevice {
 protected:
  static Tensor tensor(const std::vector<int32_t>& values) {
    return copy_on(Device::cuda, tensor_of<int32_t>(values, {std::ssize(values)}, DType::i32));
  }
  static std::vector<int32_t> values_of(const TensorView& view) {
    return {view.as<int32_t>(), view.as<int32_t>() + view.count()};
  }

  // Adds 1 to all that it sees.
  struct Adds final : Sink {
    explicit Adds(bool says_) : says(says_) {}
    bool writes() const override { return says; }
    bool wants(const Point&, int) const override { return true; }
    void begin(const PassInfo&) override {}
    void record(const Record& r) override {
      seen.push_back(values_of(r.tensor));
      for (int64_t i = 0; i < r.tensor.count(); ++i) ++r.tensor.as<int32_t>()[i];
    }
    void end() override {}
    bool says;
    std::vector<std::vector<int32_t>> seen;
  };
};

TEST_F(ProbeOfADevice, ShowsTensorsOfAnySizeInHostMemory) {
  Adds sink(false);
  Probe probe(&sink);
  probe.begin({.rows = {{{0, 0}, 7}, {{0, 1}, 7}, {{0, 2}, 7}, {{0, 3}, 7}}});
  // The smallest first; the last has a row more than the pass, which is padding.
  const std::vector<std::vector<int32_t>> all = {{},  {5},          {1, 2},
                                                 {3}, {1, 2, 3, 4}, {6, 7, 8, 9, 0}};
  for (const std::vector<int32_t>& values : all) probe(point("token"), -1, tensor(values));
  EXPECT_EQ(probe.failure(), "");
  const std::vector<std::vector<int32_t>> want = {{}, {5}, {1, 2}, {3}, {1, 2, 3, 4}, {6, 7, 8, 9}};
  EXPECT_EQ(sink.seen, want);
}

TEST_F(ProbeOfADevice, TakesBackWhatASinkWritesThatSaysSo) {
  for (const bool says : {true, false}) {
    Adds sink(says);
    Probe probe(&sink);
    probe.begin({.rows = {{{0, 0}, 7}, {{0, 1}, 7}}});
    const Tensor shown = tensor({3, 4});
    probe(point("token"), -1, shown);
    EXPECT_EQ(values_of(shown), says ? std::vector({4, 5}) : std::vector({3, 4}));
  }
}

TEST(Probe, SaysOfWhichShardATensorIs) {
  struct Shards final : Sink {
    bool wants(const Point&, int) const override { return true; }
    void begin(const PassInfo&) override {}
    void record(const Record& r) override { seen.push_back(r.shard); }
    void end() override {}
    std::vector<std::optional<Shard>> seen;
  } sink;
  Probe probe(&sink);
  probe.begin({.rows = {{{0, 0}, 7}}});
  const Tensor q({1, 2, 4}, DType::f32);
  const Shard half{.axis = 1, .offset = 2, .extent = 4};
  probe(point("attn.q"), 0, q);
  probe.shard(point("attn.q"), 0, q, half);
  EXPECT_EQ(probe.failure(), "");
  EXPECT_EQ(sink.seen, (std::vector<std::optional<Shard>>{std::nullopt, half}));
}

TEST(Probe, WithoutASinkIsSilent) {
  Probe probe;
  show(probe);
  EXPECT_FALSE(probe.on());
  EXPECT_FALSE(probe.wants(point("attn.q"), 0));
}

}  // namespace
}  // namespace lockstep
