#include "probes/probe.h"

#include <gtest/gtest.h>

#include "kernels/check.h"
#include "kernels/memory.h"

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

TEST(Probe, WithoutASinkIsSilent) {
  Probe probe;
  show(probe);
  EXPECT_FALSE(probe.on());
  EXPECT_FALSE(probe.wants(point("attn.q"), 0));
}

}  // namespace
}  // namespace lockstep
