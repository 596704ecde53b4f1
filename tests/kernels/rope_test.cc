#include "kernels/rope.h"

#include "kernels/base/thread_pool.h"
#include "tests/kernels/expected.h"

namespace lockstep {
namespace {

// Angles are not the op's business: any table will do, so that a swapped sign or row is seen.
struct Tables {
  Tables(int64_t entries, int64_t half)
      : cos({entries, half}, DType::f32), sin({entries, half}, DType::f32) {
    cos.fill_normal(50);
    sin.fill_normal(51);
  }
  Sample cos, sin;
};

TEST(Rope, RotatesTheHalvesAndRoundsOnce) {
  on_every_isa([] {
    for (const DType dtype : kFloats) {
      for (const int64_t dim : {2, 16, 24, 64, 128}) {
        for (const int64_t tokens : {1, 2, 7, 33}) {
          const int64_t heads = 3;
          Tables tables(40, dim / 2);
          Sample x({tokens, heads, dim}, dtype, 1), out({tokens, heads, dim}, dtype, 3);
          Sample positions({tokens}, DType::i32);
          x.fill_normal(static_cast<unsigned>(dim));
          for (int64_t t = 0; t < tokens; ++t) positions.set(t, static_cast<double>(t * 17 % 40));
          rope({}, out, x, tables.cos, tables.sin, positions);
          const Expected want = rotated(x, tables.cos, tables.sin, positions);
          expect_rounded(out, want.values, want.arithmetic);
        }
      }
    }
  });
}

TEST(Rope, ARowDependsOnItselfAloneAndMayBeWrittenInPlace) {
  on_every_isa([] {
    for (const DType dtype : kFloats) {
      Tables tables(100, 20);
      Sample x({100, 9, 40}, dtype), all({100, 9, 40}, dtype), positions({100}, DType::i32);
      x.fill_normal(1);
      for (int64_t t = 0; t < 100; ++t) positions.set(t, static_cast<double>(99 - t));
      rope({}, all, x, tables.cos, tables.sin, positions);
      for (const int threads : {1, 2, 3}) {
        ThreadPool pool(threads);
        Sample out({100, 9, 40}, dtype);
        rope({.threads = &pool}, out, x, tables.cos, tables.sin, positions);
        EXPECT_EQ(out.bits(), all.bits());
      }
      Sample one({1, 9, 40}, dtype);
      rope({}, one, x.view().slice(60, 1), tables.cos, tables.sin, positions.view().slice(60, 1));
      EXPECT_EQ(one.bits(), all.bits().substr(60 * one.bits().size(), one.bits().size()));
      rope({}, x, x, tables.cos, tables.sin, positions);
      EXPECT_EQ(x.bits(), all.bits());
    }
  });
}

TEST(Rope, RefusesWhatDoesNotFit) {
  Tables tables(10, 4);
  Sample x({2, 1, 8}, DType::f32), out({2, 1, 8}, DType::f32), positions({2}, DType::i32);
  Sample odd({2, 1, 7}, DType::f32), wide({2, 1, 16}, DType::f32), one({1}, DType::i32);
  positions.fill({0, 10});
  const auto call = [&](const Sample& to, const Sample& from, const Sample& at) {
    return [&, sin = tables.sin.view()] { rope({}, to, from, tables.cos, sin, at); };
  };
  expect_refused(call(out, x, positions), {"10 rows", "position 10", "token 1"});
  positions.fill({-1, 0});
  expect_refused(call(out, x, positions), {"position -1", "token 0"});
  positions.fill({0, 9});
  expect_refused(call(odd, odd, positions), {"even head_dim", "7"});
  expect_refused(call(wide, wide, positions), {"cos", "[10, 8]", "[10, 4]"});
  expect_refused(call(odd, x, positions), {"out", "[2, 1, 8]"});
  expect_refused(call(out, x, one), {"positions", "[2]", "[1]"});
  call(out, x, positions)();
}

}  // namespace
}  // namespace lockstep
