#include "kernels/gather_rows.h"

#include "kernels/base/thread_pool.h"
#include "tests/kernels/samples.h"

namespace lockstep {
namespace {

TEST(GatherRows, CopiesTheBitsOfTheRowsNamed) {
  for (const DType dtype : kFloats) {
    for (const int64_t width : {1, 7, 300}) {
      Sample table({11, width}, dtype, 1), index({300}, DType::i32);
      table.fill_normal(1);
      table.set(0, NAN);
      table.set(width, -0.0);
      for (int64_t i = 0; i < 300; ++i) index.set(i, static_cast<double>(i * 7 % 11));
      for (const int threads : {1, 2, 3}) {
        ThreadPool pool(threads);
        Sample out({300, width}, dtype, 3);
        gather_rows({.threads = &pool}, out, index, table);
        const size_t bytes = table.bits().size() / 11;
        for (size_t i = 0; i < 300; ++i)
          EXPECT_EQ(out.bits().substr(i * bytes, bytes),
                    table.bits().substr(i * 7 % 11 * bytes, bytes));
      }
    }
  }
}

TEST(GatherRows, RefusesWhatDoesNotFit) {
  Sample table({4, 3}, DType::f32), out({2, 3}, DType::f32), index({2}, DType::i32);
  Sample half({2, 3}, DType::bf16), wide({2}, DType::i64), narrow({2, 2}, DType::f32);
  table.fill_normal(1);
  expect_refused([&] { gather_rows({}, out, index.fill({3, 4}), table); }, {"index 4 at 1"});
  expect_refused([&] { gather_rows({}, out, index.fill({-1, 0}), table); }, {"index -1 at 0"});
  EXPECT_EQ(out.bits(), std::string(24, '\xff')) << "written although refused";
  index.fill({0, 3});
  expect_refused([&] { gather_rows({}, half, index, table); }, {"out", "fp32", "bf16"});
  expect_refused([&] { gather_rows({}, narrow, index, table); }, {"out", "[2, 3]", "[2, 2]"});
  expect_refused([&] { gather_rows({}, out, wide, table); }, {"index", "int64"});
  expect_refused([&] { gather_rows({}, wide, index, table); }, {"out"});
}

}  // namespace
}  // namespace lockstep
