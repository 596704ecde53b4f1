// What a chain makes of few rows is what it makes of all, and no more of them are computed than
// these are made of.
#include "src/causes/chain.h"

#include "tests/judge/judge_fixture.h"

namespace lockstep {
namespace {

using ChainTest = JudgeTest;

TEST_F(ChainTest, OfFewRowsMakesWhatTheWholeOneMakesOfThem) {
  const FakeRun run = clean();
  const Pass& pass = run.passes[0];
  Judge judge(run.manifest, oracle_, nullptr, nullptr, {});
  judge.judge(pass);
  std::vector<Row> rows;
  for (const PassRow& fed : pass.info.rows) rows.push_back(fed.row);
  ASSERT_GT(rows.size(), 2u);
  OpChain chain(pass, run.manifest, judge, oracle_, DType::bf16);
  for (const Place& place : run.manifest.graph.places())
    if (place.layer == 0 && !place.point->is_cache()) {
      ASSERT_TRUE(chain.add(place, rows));
    }
  const size_t count = chain.ops().size();
  ASSERT_EQ(chain.ops().back().place, (Place{&point("mlp.residual"), 0}));
  const std::vector<bool> all(count, true), none(count);
  OpChain::Values whole(count);
  OpChain::Answer made;
  ASSERT_TRUE(chain.run(0, all, none, whole, OpChain::rounded, &made));
  const size_t size = made.want.size() / rows.size();
  for (size_t r = 0; r < rows.size(); ++r) {
    OpChain few = chain.with_few({&rows[r], 1});
    for (const OpChain::Op& op : few.ops()) {
      // Of the norm before them too, as keys and values are made of it.
      const bool of_cache = op.place.point->name == "attn.norm" ||
                            op.place.point->name.starts_with("attn.k") ||
                            op.place.point->name == "attn.v";
      EXPECT_EQ(op.rows.size(), of_cache ? rows.size() : 1u) << op.place.point->name;
      EXPECT_EQ(op.tokens.size(), op.rows.size());
      EXPECT_EQ(op.lengths.size(), op.rows.size());
      EXPECT_EQ(op.pass_rows.size(), op.rows.size());
    }
    // From its beginning on, and from each op on what the whole one made of those before.
    for (size_t first = 0; first < count; ++first) {
      OpChain::Values values = first == 0 ? OpChain::Values(count) : whole;
      std::vector<bool> changed = first == 0 ? all : none;
      changed[first] = true;
      OpChain::Answer of_row;
      ASSERT_TRUE(few.run(first, changed, none, values, OpChain::rounded, &of_row));
      ASSERT_EQ(of_row.want.size(), size);
      for (size_t i = 0; i < size; ++i) EXPECT_EQ(of_row.want[i], made.want[r * size + i]);
    }
  }
}

}  // namespace
}  // namespace lockstep
