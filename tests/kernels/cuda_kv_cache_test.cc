#include "tests/kernels/cuda_samples.h"

namespace lockstep {
namespace {

using CudaKvCache = CudaTest;

struct Pool {
  Pool(DType dtype, int64_t pages, int64_t page_size, int64_t heads, int64_t dim)
      : k({pages, page_size, heads, dim}, dtype), v({pages, page_size, heads, dim}, dtype) {}
  operator KvCache() const { return {k, v}; }
  Sample k, v;
};

TEST_F(CudaKvCache, WhatIsWrittenBySlotIsGatheredByPage) {
  for (const DType dtype : kFloats) {
    for (const int64_t page_size : {1, 3, 16, 64, 256}) {
      for (const int64_t dim : {5, 64}) {
        const int64_t length = 70, used = (length + page_size - 1) / page_size, pages = used + 2;
        Pool pool(dtype, pages, page_size, 2, dim);
        Sample k({length, 2, dim}, dtype, 1), v({length, 2, dim}, dtype, 3);
        Sample slots({length}, DType::i64), table({used + 1}, DType::i32);
        k.fill_normal(1);
        v.fill_normal(2);
        for (int64_t p = 0; p < length; ++p) {  // pages from the last one down
          const int64_t page = pages - 1 - p / page_size;
          slots.set(p, static_cast<double>(page * page_size + p % page_size));
          table.set(p / page_size, static_cast<double>(page));
        }
        run(ops_->kv_write, KvCache(pool), k, v, slots);
        Sample seen({length, 2, 2, dim}, dtype);
        run(ops_->kv_gather, seen, KvCache(pool), table);
        const size_t row = k.bits().size() / 70;
        for (size_t p = 0; p < 70; ++p) {
          ASSERT_EQ(seen.bits().substr(2 * p * row, row), k.bits().substr(p * row, row)) << p;
          ASSERT_EQ(seen.bits().substr((2 * p + 1) * row, row), v.bits().substr(p * row, row)) << p;
        }
        // No other slot was touched: those of page 0 and 1 still hold the poison.
        EXPECT_EQ(pool.k.bits().substr(0, row), std::string(row, '\xff'));
      }
    }
  }
}

TEST_F(CudaKvCache, APaddedRowWritesNowhere) {
  Pool pool(DType::f32, 2, 2, 2, 5);
  Sample k({3, 2, 5}, DType::f32), v({3, 2, 5}, DType::f32), slots({3}, DType::i64);
  k.fill_normal(1);
  v.fill_normal(2);
  run(ops_->kv_write, KvCache(pool), k, v, slots.fill({-1, 3, -7}));
  EXPECT_EQ(pool.k.bits().substr(0, 120), std::string(120, '\xff'));
  EXPECT_EQ(pool.k.bits().substr(120), k.bits().substr(40, 40));
  EXPECT_EQ(pool.v.bits().substr(120), v.bits().substr(40, 40));
}

TEST_F(CudaKvCache, ReportsSlotsAndPagesOutsideThePool) {
  Pool pool(DType::f32, 2, 2, 2, 5);
  Sample k({3, 2, 5}, DType::f32), slots({3}, DType::i64);
  k.fill_normal(1);
  expect_refused(
      [&] {
        run(ops_->kv_write, KvCache(pool), k, k, slots.fill({0, 1, 4}));
      },
      {"kv_write", "below 4", "slot 4 of token 2"});
  EXPECT_EQ(pool.k.bits().substr(0, 80), k.bits().substr(0, 80));
  EXPECT_EQ(pool.k.bits().substr(80), std::string(80, '\xff')) << "written although outside";
  Sample out({3, 2, 2, 5}, DType::f32), table({2}, DType::i32);
  for (const int32_t bad : {2, -1}) {
    table.fill({0, static_cast<double>(bad)});
    expect_refused([&] { run(ops_->kv_gather, out, KvCache(pool), table); },
                   {"kv_gather", "below the 2", fmt::format("page {} at entry 1", bad)});
    EXPECT_TRUE(std::isnan(out.values()[40])) << "position 2 has no page";
  }
}

TEST_F(CudaKvCache, RefusesWhatDoesNotFit) {
  Pool pool(DType::f32, 2, 2, 2, 5);
  Sample k({3, 2, 5}, DType::f32), half({3, 2, 5}, DType::bf16), slots({3}, DType::i64);
  Sample narrow({3}, DType::i32), out({3, 2, 2, 5}, DType::f32), one({1}, DType::i32);
  const KvCache cache = pool;
  expect_refused([&] { run(ops_->kv_write, cache, half, k, slots); }, {"k", "fp32", "bf16"});
  expect_refused([&] { run(ops_->kv_write, cache, k, k, narrow); }, {"slots", "int64", "int32"});
  expect_refused([&] { ops_->kv_write({}, cache, k, k, slots); }, {"K cache", "CUDA device"});
  expect_refused([&] { run(ops_->kv_gather, out, cache, one); }, {"at least 2", "found 1"});
}

TEST_F(CudaKvCache, OfNoTokensIsNothing) {
  Pool pool(DType::f32, 1, 1, 2, 5);
  Sample k({0, 2, 5}, DType::f32), slots({0}, DType::i64), out({0, 2, 2, 5}, DType::f32);
  Sample table({0}, DType::i32);
  run(ops_->kv_write, KvCache(pool), k, k, slots);
  run(ops_->kv_gather, out, KvCache(pool), table);
}

// A pool whose element offsets pass 2^31: an offset in 32 bits would land elsewhere.
TEST_F(CudaKvCache, OffsetsPast32BitsAreWhereTheyShouldBe) {
  const int64_t pages = (int64_t{1} << 19) + 3, page_size = 16, width = 256;
  const Tensor k({pages, page_size, 1, width}, DType::bf16, cuda_device());
  const Tensor v(k.view().shape, DType::bf16, cuda_device());
  const KvCache cache{k, v};
  Sample rows({2, 1, width}, DType::bf16), slots({2}, DType::i64), table({1}, DType::i32);
  Sample seen({2, 2, 1, width}, DType::bf16);
  rows.fill_normal(5);
  const auto last = static_cast<double>(pages - 1);
  slots.fill({last * page_size, last * page_size + 1});
  Away away(memory_);
  ops_->kv_write({}, cache, away(rows), away(rows), away(slots));
  ops_->kv_gather({}, away(seen), cache, away(table.fill({last})));
  memory_.wait(nullptr);
  away.return_home();
  const size_t bytes = width * 2;
  EXPECT_EQ(seen.bits().substr(0, bytes), rows.bits().substr(0, bytes));
  EXPECT_EQ(seen.bits().substr(3 * bytes, bytes), rows.bits().substr(bytes, bytes));
}

}  // namespace
}  // namespace lockstep
