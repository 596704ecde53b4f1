#include "kernels/kv_cache.h"

#include "kernels/base/memory.h"
#include "kernels/base/thread_pool.h"
#include "kernels/paged_attention.h"
#include "tests/kernels/samples.h"

namespace lockstep {
namespace {

struct Pool {
  Pool(DType dtype, int64_t pages, int64_t page_size)
      : k({pages, page_size, 2, 5}, dtype), v({pages, page_size, 2, 5}, dtype) {}
  operator KvCache() const { return {k, v}; }
  Sample k, v;
};

TEST(KvCache, WhatIsWrittenBySlotIsGatheredByPage) {
  for (const DType dtype : kFloats) {
    for (const int64_t page_size : {1, 3, 16, 64, 256}) {
      const int64_t length = 70, used = (length + page_size - 1) / page_size, pages = used + 2;
      Pool pool(dtype, pages, page_size);
      Sample k({length, 2, 5}, dtype, 1), v({length, 2, 5}, dtype, 3);
      Sample slots({length}, DType::i64), table({used + 1}, DType::i32);
      k.fill_normal(1);
      v.fill_normal(2);
      for (int64_t p = 0; p < length; ++p) {  // pages from the last one down
        const int64_t page = pages - 1 - p / page_size;
        slots.set(p, static_cast<double>(page * page_size + p % page_size));
        table.set(p / page_size, static_cast<double>(page));
      }
      kv_write({}, pool, k, v, slots);
      ThreadPool threads(2);
      Sample seen({length, 2, 2, 5}, dtype);
      kv_gather({.threads = &threads}, seen, pool, table);
      const size_t row = k.bits().size() / 70;
      for (size_t p = 0; p < 70; ++p) {
        EXPECT_EQ(seen.bits().substr(2 * p * row, row), k.bits().substr(p * row, row));
        EXPECT_EQ(seen.bits().substr((2 * p + 1) * row, row), v.bits().substr(p * row, row));
      }
      // No other slot was touched: those of page 0 and 1 still hold the poison.
      EXPECT_EQ(pool.k.bits().substr(0, row), std::string(row, '\xff'));
    }
  }
}

// A pool whose element offsets pass 2^31: its memory is asked for and, but for a few pages, never
// touched. An offset in 32 bits would land elsewhere, or crash.
TEST(KvCache, OffsetsPast32BitsAreWhereTheyShouldBe) {
  const int64_t pages = (int64_t{1} << 19) + 3, page_size = 16, width = 256;
  const Tensor k({pages, page_size, 1, width}, DType::bf16), v(k.view().shape, DType::bf16);
  const KvCache cache{k, v};
  ASSERT_GT(k.view().count(), int64_t{1} << 31);
  Sample rows({2, 1, width}, DType::bf16), slots({2}, DType::i64), table({1}, DType::i32);
  rows.fill_normal(5);
  kv_write({}, cache, rows, rows,
           slots.fill({static_cast<double>((pages - 1) * page_size),
                       static_cast<double>((pages - 1) * page_size + 1)}));
  Tensor seen({2, 2, 1, width}, DType::bf16), out({2, 1, width}, DType::bf16);
  kv_gather({}, seen, cache, table.fill({static_cast<double>(pages - 1)}));
  const auto bytes = static_cast<size_t>(width * 2);
  EXPECT_EQ(std::string(seen.as<char>(), bytes), rows.bits().substr(0, bytes));
  EXPECT_EQ(std::string(seen.as<char>() + 2 * bytes, bytes), rows.bits().substr(bytes, bytes));
  // A query that sees one key alone gets its value back, bit for bit.
  Sample start({2}, DType::i32), length({1}, DType::i32), query({1, 1, width}, DType::bf16);
  query.fill_normal(6);
  paged_attention({}, out.view().slice(0, 1), query, cache,
                  {start.fill({0, 1}), length.fill({1}),
                   table.fill({static_cast<double>(pages - 1)}).view().reshaped({1, 1})},
                  1.0f, 0);
  EXPECT_EQ(std::string(out.as<char>(), bytes), rows.bits().substr(0, bytes));
}

TEST(KvCache, APaddedRowWritesNowhereAndTheLaterOfTwoRowsStays) {
  Pool pool(DType::f32, 2, 2);
  Sample k({3, 2, 5}, DType::f32), v({3, 2, 5}, DType::f32), slots({3}, DType::i64);
  k.fill_normal(1);
  v.fill_normal(2);
  kv_write({}, pool, k, v, slots.fill({-1, 3, 3}));
  EXPECT_EQ(pool.k.bits().substr(0, 120), std::string(120, '\xff'));
  EXPECT_EQ(pool.k.bits().substr(120), k.bits().substr(80));
  EXPECT_EQ(pool.v.bits().substr(120), v.bits().substr(80));
}

TEST(KvCache, RefusesWhatDoesNotFit) {
  Pool pool(DType::f32, 2, 2);
  Sample k({3, 2, 5}, DType::f32), slots({3}, DType::i64), half({3, 2, 5}, DType::bf16);
  Sample heads({3, 1, 5}, DType::f32), narrow({3}, DType::i32);
  k.fill_normal(1);
  slots.fill({0, 1, 4});
  expect_refused([&] { kv_write({}, pool, k, k, slots); }, {"below 4", "slot 4", "token 2"});
  EXPECT_EQ(pool.k.bits(), std::string(160, '\xff')) << "written although refused";
  slots.fill({0, 1, 2});
  expect_refused([&] { kv_write({}, pool, half, k, slots); }, {"k", "fp32", "bf16"});
  expect_refused([&] { kv_write({}, pool, k, heads, slots); }, {"v", "[3, 2, 5]", "[3, 1, 5]"});
  expect_refused([&] { kv_write({}, pool, k, k, narrow); }, {"slots", "int64", "int32"});
  expect_refused([&] { kv_write({}, {pool.k, k}, k, k, slots); }, {"V cache", "[2, 2, 2, 5]"});

  Sample out({3, 2, 2, 5}, DType::f32), table({2}, DType::i32), one({1}, DType::i32);
  expect_refused([&] { kv_gather({}, out, pool, table.fill({0, 2})); }, {"page 2", "entry 1"});
  expect_refused([&] { kv_gather({}, out, pool, table.fill({-1, 0})); }, {"page -1", "entry 0"});
  expect_refused([&] { kv_gather({}, out, pool, one.fill({0})); }, {"at least 2", "found 1"});
  expect_refused([&] { kv_gather({}, k, pool, table); }, {"out", "4 axes"});
}

}  // namespace
}  // namespace lockstep
