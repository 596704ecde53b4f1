#include "tests/kernels/attention_cases.h"
#include "tests/kernels/cuda_samples.h"

namespace lockstep {
namespace {

class CudaPagedAttention : public CudaTest {
 protected:
  void attend(const Dims& dims, const Pass& pass, int64_t window) const {
    run(ops_->paged_attention, *pass.out, *pass.q, pass.cache(), pass.batch(), dims.scale(),
        window);
  }

  void expect_attention(const Dims& dims, const std::vector<Part>& parts, Layout layout,
                        int64_t window = 0) const {
    SCOPED_TRACE(fmt::format("{} heads {}/{} dim {} page {} window {}", name_of(dims.dtype),
                             dims.heads, dims.kv_heads, dims.head_dim, layout.page_size, window));
    const Pass pass(dims, parts, layout);
    attend(dims, pass, window);
    const Expected want = attended(dims, parts, window);
    expect_rounded(*pass.out, want.values, want.arithmetic);
  }
};

std::string row_bits(const Pass& pass, int64_t first, int64_t rows) {
  const TensorView& out = pass.out->view();
  const auto row = static_cast<size_t>(out.row_size() * size_of(out.dtype));
  return pass.out->bits().substr(static_cast<size_t>(first) * row, static_cast<size_t>(rows) * row);
}

TEST_F(CudaPagedAttention, IsSoftmaxOverEveryKeyUpToTheQuery) {
  for (const DType dtype : kFloats) {
    for (const auto& [heads, kv, dim] : {std::array<int64_t, 3>{2, 2, 16},
                                         {4, 2, 64},
                                         {4, 1, 80},
                                         {6, 1, 128},
                                         {14, 2, 32},
                                         {8, 1, 128},
                                         {20, 1, 16},
                                         {7, 1, 24},
                                         {3, 3, 250}}) {
      const Dims dims = {dtype, heads, kv, dim};
      const Request a(dims, 301, 1), b(dims, 7, 20), c(dims, 600, 30), d(dims, 1, 40);
      // A few queries at the end of long contexts, a whole prompt, and one alone.
      expect_attention(dims, {{&a, 3, 301}, {&b, 7, 7}, {&c, 1, 513}, {&d, 1, 1}}, {16});
      // Many queries, from position 0 and later.
      expect_attention(dims, {{&a, 90, 90}, {&c, 71, 340}}, {16, 3});
    }
  }
}

TEST_F(CudaPagedAttention, WorksWithEveryPageSize) {
  for (const DType dtype : {DType::bf16, DType::f32}) {
    const Dims dims = {dtype, 4, 2, 32};
    const Request a(dims, 400, 1), b(dims, 365, 10), c(dims, 1, 20);
    for (const int64_t page_size : {1, 3, 16, 64, 256, 1000}) {
      expect_attention(dims, {{&a, 1, 400}, {&b, 2, 365}, {&c, 1, 1}}, {page_size, 7});
      expect_attention(dims, {{&b, 133, 365}, {&c, 1, 1}}, {page_size, 8});
    }
  }
}

TEST_F(CudaPagedAttention, SeesTheWindowAndNothingBeforeIt) {
  for (const DType dtype : kFloats) {
    const Dims dims = {dtype, 4, 2, 16};
    const Request a(dims, 390, 1), b(dims, 300, 10);
    for (const int64_t window : {1, 2, 31, 32, 33, 64, 255, 256, 257, 1000}) {
      expect_attention(dims, {{&a, 37, 390}, {&b, 2, 300}}, {4}, window);
      expect_attention(dims, {{&a, 111, 280}}, {4}, window);
    }
  }
}

// Prefill takes rows of queries and heads by the tile, and keys by the block: counts about both.
TEST_F(CudaPagedAttention, TakesAnyNumberOfRowsAndKeys) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const auto& [heads, kv, dim] :
         {std::array<int64_t, 3>{2, 1, 64}, {1, 1, 128}, {3, 1, 128}}) {
      const Dims dims = {dtype, heads, kv, dim};
      const Request a(dims, 330, 1), b(dims, 90, 10);
      for (const int64_t queries : {65, 86, 127, 128, 129, 193})
        expect_attention(dims, {{&b, 90, 90}, {&a, queries, queries + 63}}, {16}, 0);
      for (const int64_t window : {1, 33, 64, 127})
        expect_attention(dims, {{&a, 150, 330}, {&b, 3, 80}}, {5}, window);
    }
  }
}

TEST_F(CudaPagedAttention, ServesManyRequests) {
  const Dims dims = {DType::bf16, 4, 2, 64};
  const Request a(dims, 520, 1);
  std::vector<Part> parts;
  for (int64_t r = 0; r < 70; ++r) parts.push_back({&a, r % 5 == 3 ? 0 : 1 + r % 3, 3 + r * 7});
  expect_attention(dims, parts, {16});
}

// In 16 bits a probability is a sum of several numbers, of which those of fp16 must not be too
// small for it: beside one key that has nearly all of the weight, the others decide what is left.
TEST_F(CudaPagedAttention, SmallProbabilitiesCountInFull) {
  for (const DType dtype : kFloats) {
    const Dims dims = {dtype, 2, 1, 16};
    Request a(dims, 150, 1);
    for (int64_t i = 0; i < a.q.view().count(); ++i) a.q.set(i, 1);
    a.k.fill_normal(2, 0.1);
    for (int64_t i = 0; i < 16; ++i) a.k.set(i, 2.5), a.v.set(i, 0);  // a score of 10
    expect_attention(dims, {{&a, 1, 7}}, {16});
    expect_attention(dims, {{&a, 1, 40}}, {16});
    expect_attention(dims, {{&a, 150, 150}}, {16});
  }
}

// The promise the metamorphic checks stand on: a query's bits depend on its own request alone.
TEST_F(CudaPagedAttention, ARowHasTheSameBitsHoweverItIsServed) {
  for (const DType dtype : kFloats) {
    for (const auto& [heads, kv, dim] :
         {std::array<int64_t, 3>{14, 2, 40}, {14, 2, 64}, {16, 8, 128}, {4, 4, 16}}) {
      const Dims dims = {dtype, heads, kv, dim};
      const Request a(dims, 700, 1), b(dims, 50, 10), c(dims, 9, 20);
      for (const int64_t window : {0, 20, 300}) {
        SCOPED_TRACE(
            fmt::format("{} {} of {} dim {} window {}", name_of(dtype), heads, kv, dim, window));
        const Pass whole(dims, {{&a, 700, 700}}, {16});
        attend(dims, whole, window);
        for (const int64_t page_size : {3, 64, 256}) {
          const Pass mixed(dims, {{&b, 3, 50}, {&a, 10, 610}, {&c, 9, 9}}, {page_size, 5});
          attend(dims, mixed, window);
          EXPECT_EQ(row_bits(mixed, 3, 10), row_bits(whole, 600, 10)) << "few, " << page_size;
          const Pass chunk(dims, {{&c, 1, 9}, {&a, 333, 650}}, {page_size, 6});
          attend(dims, chunk, window);
          EXPECT_EQ(row_bits(chunk, 1, 333), row_bits(whole, 317, 333)) << "many, " << page_size;
          const Pass decode(dims, {{&a, 1, 264}}, {page_size, 7});
          attend(dims, decode, window);
          EXPECT_EQ(row_bits(decode, 0, 1), row_bits(whole, 263, 1)) << "one, " << page_size;
        }
      }
    }
  }
}

// One query alone and short, whose chunks are joined on the spot; alone and long; and among many.
TEST_F(CudaPagedAttention, AQueryHasTheSameBitsHoweverItsChunksAreShared) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const auto& [heads, kv, dim] :
         {std::array<int64_t, 3>{16, 8, 128}, {14, 2, 64}, {32, 2, 32}}) {
      SCOPED_TRACE(fmt::format("{} {} of {} dim {}", name_of(dtype), heads, kv, dim));
      const Dims dims = {dtype, heads, kv, dim};
      const Request a(dims, 2300, 1);
      const Pass whole(dims, {{&a, 2300, 2300}}, {16});
      attend(dims, whole, 0);
      for (const int64_t context : {100, 1500, 2300}) {
        const Pass alone(dims, {{&a, 1, context}}, {16, 5});
        attend(dims, alone, 0);
        EXPECT_EQ(row_bits(alone, 0, 1), row_bits(whole, context - 1, 1)) << context;
      }
      const Pass crowd(dims, std::vector<Part>(80, {&a, 1, 1500}), {16, 6});
      attend(dims, crowd, 0);
      for (const int64_t row : {0, 79})
        EXPECT_EQ(row_bits(crowd, row, 1), row_bits(whole, 1499, 1)) << row;
    }
  }
}

// So many that a block of threads takes several chunks, one after the other: of up to eight heads
// of a query, and of more.
TEST_F(CudaPagedAttention, AQueryHasTheSameBitsAmongSoManyThatBlocksTakeSeveralChunks) {
  for (const int64_t heads : {16, 72}) {
    const Dims dims = {DType::bf16, heads, 8, 16};
    const Request a(dims, 1500, 1);
    const Pass alone(dims, {{&a, 1, 1500}}, {16});
    attend(dims, alone, 0);
    const Pass crowd(dims, std::vector<Part>(180, {&a, 1, 1500}), {16, 6});
    attend(dims, crowd, 0);
    for (const int64_t row : {0, 101, 179})
      EXPECT_EQ(row_bits(crowd, row, 1), row_bits(alone, 0, 1)) << heads << " heads, row " << row;
  }
}

TEST_F(CudaPagedAttention, AQueryThatSeesNoKeyGivesZeros) {
  for (const DType dtype : {DType::bf16, DType::f32})
    for (const int64_t dim : {16, 64}) {
      const Dims dims = {dtype, 2, 1, dim};
      const Request a(dims, 8, 1);
      Pass pass(dims, {{&a, 8, 8}}, {4});
      pass.length->set(0, 5);  // the first three queries then stand before position 0
      attend(dims, pass, 0);
      const std::vector<double> got = pass.out->values();
      for (size_t i = 0; i < got.size(); ++i)
        EXPECT_EQ(got[i] == 0, i < static_cast<size_t>(3 * 2 * dim))
            << "element " << i << " is " << got[i];
      pass.length->set(0, 0);
      attend(dims, pass, 0);
      for (const double value : pass.out->values()) EXPECT_EQ(value, 0);
      pass.table = std::make_unique<Sample>(Shape{1, 0}, DType::i32);
      pass.out->fill_normal(3);
      attend(dims, pass, 0);
      for (const double value : pass.out->values()) EXPECT_EQ(value, 0) << "without any page";
    }
  const Dims dims = {DType::bf16, 2, 1, 128};
  const Request a(dims, 100, 1);
  const Pass pass(dims, {{&a, 100, 100}}, {4});
  pass.length->set(0, 30);  // in a prefill, 70 queries of 100
  attend(dims, pass, 0);
  const std::vector<double> got = pass.out->values();
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_EQ(got[i] == 0, i < 70 * 2 * 128) << "element " << i << " is " << got[i];
}

TEST_F(CudaPagedAttention, ANanStaysWithTheQueriesThatSeeIt) {
  const auto expect_at = [&](const Dims& dims, int64_t length, bool in_v, double bad) {
    SCOPED_TRACE(fmt::format("{} dim {} in {} of {}", name_of(dims.dtype), dims.head_dim,
                             in_v ? "v" : "k", length));
    Request a(dims, length, 1);
    (in_v ? a.v : a.k).set(18 * dims.head_dim, in_v ? bad : std::nan(""));  // position 18
    const Pass pass(dims, {{&a, length, length}}, {16});
    attend(dims, pass, 10);
    const std::vector<double> got = pass.out->values();
    const auto row = static_cast<size_t>(2 * dims.head_dim);
    for (size_t p = 0; p < static_cast<size_t>(length); ++p)
      ASSERT_EQ(!std::isfinite(got[p * row]), p >= 18 && p < 28) << "position " << p;
    EXPECT_TRUE(!in_v || std::isfinite(got[18 * row + 1])) << "the next element";
  };
  for (const DType dtype : kFloats)
    for (const int64_t dim : {16, 64, 128})
      for (const int64_t length : {40, 400})
        for (const bool in_v : {false, true})
          for (const double bad : {std::nan(""), static_cast<double>(INFINITY)})
            expect_at({dtype, 2, 1, dim}, length, in_v, bad);
}

// Rows beside one that holds a NaN have the bits that they have without it.
TEST_F(CudaPagedAttention, ANanDoesNotChangeOtherRows) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const int64_t dim : {64, 80, 128}) {
      const Dims dims = {dtype, 4, 2, dim};
      Request a(dims, 300, 1);
      const Pass clean(dims, {{&a, 300, 300}}, {16});
      attend(dims, clean, 0);
      for (const int64_t at : {256, 200}) {  // the first key of a block, and one within a block
        a.v.set(at * 2 * dim + 5, NAN);
        const Pass spoilt(dims, {{&a, 300, 300}}, {16});
        attend(dims, spoilt, 0);
        EXPECT_EQ(row_bits(spoilt, 0, at), row_bits(clean, 0, at)) << dim << " " << at;
        EXPECT_NE(row_bits(spoilt, at, 1), row_bits(clean, at, 1)) << dim << " " << at;
      }
    }
  }
}

TEST_F(CudaPagedAttention, KeepsScoresOfAnySizeInRange) {
  const Dims dims = {DType::f32, 1, 1, 16};
  Request a(dims, 70, 1);
  for (int64_t p = 0; p < 70; ++p)  // growing scores up to some hundreds: exp alone would overflow
    for (int64_t i = 0; i < 16; ++i) a.k.set(p * 16 + i, static_cast<double>(p) * 5);
  for (int64_t i = 0; i < 70 * 16; ++i) a.q.set(i, i / 16 % 2 ? 0.5 : -0.5);
  expect_attention(dims, {{&a, 70, 70}}, {16});
}

TEST_F(CudaPagedAttention, ScoresOfMinusInfinityWeighNothing) {
  for (const DType dtype : kFloats) {
    const Dims dims = {dtype, 1, 1, 16};
    Request a(dims, 40, 1);
    a.q.fill(std::vector<double>(40 * 16, 1));
    for (int64_t p = 0; p < 35; ++p) a.k.set(p * 16, -INFINITY);  // more than the first block
    const Pass pass(dims, {{&a, 40, 40}}, {16});
    attend(dims, pass, 0);
    const std::vector<double> got = pass.out->values(), v = a.v.values();
    EXPECT_TRUE(std::isnan(got[34 * 16])) << "no score is finite: 0 / 0";
    for (size_t i = 0; i < 16; ++i) EXPECT_EQ(got[35 * 16 + i], v[35 * 16 + i]);
    for (size_t i = 36 * 16; i < got.size(); ++i) EXPECT_TRUE(std::isfinite(got[i]));
  }
}

// Probabilities of a thousand keys that differ in their last bits only, and values that cancel: a
// kernel that rounds probabilities to the dtype is off by much more than the dtype's last bit.
TEST_F(CudaPagedAttention, DoesNotRoundProbabilities) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const Dims dims = {dtype, 1, 1, 64};
    Request a(dims, 1000, 5);
    for (int64_t p = 0; p < 1000; ++p)
      for (int64_t i = 0; i < 64; ++i)
        a.v.set(p * 64 + i, static_cast<double>((p % 2 ? 1 : -1) * (8 + i)));
    expect_attention(dims, {{&a, 2, 1000}}, {16});
    expect_attention(dims, {{&a, 200, 1000}}, {16});
  }
}

TEST_F(CudaPagedAttention, ReportsABatchThatDoesNotFit) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Dims dims = {dtype, 4, 2, 16};
    const Request a(dims, 20, 1);
    const auto reported = [&](auto change, std::initializer_list<std::string> words) {
      const Pass pass(dims, {{&a, 2, 20}}, {8});  // 3 pages, and an entry of -1
      change(pass);
      expect_refused([&] { attend(dims, pass, 0); }, words);
    };
    reported([](const Pass& p) { p.table->set(1, 6); }, {"paged_attention", "page 6", "entry 1"});
    reported([](const Pass& p) { p.table->set(2, -1); }, {"page -1", "entry 2"});
    reported([](const Pass& p) { p.table->set(3, 0), p.length->set(0, 33); },
             {"at least 5 pages", "found 4"});
    reported([](const Pass& p) { p.length->set(0, -1); }, {"context", "-1"});
    reported([](const Pass& p) { p.start->set(0, 1); }, {"query_start", "1 to 2"});
    reported([](const Pass& p) { p.start->set(1, 3); }, {"query_start", "0 to 3"});
    reported([](const Pass& p) { p.start->set(1, -5); }, {"query_start"});
  }
}

// Chunks that end where the table does have all of their pages: those after them are missing.
TEST_F(CudaPagedAttention, ReportsAContextOfMoreChunksThanTheTableHas) {
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const int64_t dim : {16, 64})
      for (const int64_t queries : {1, 2}) {
        const Dims dims = {dtype, 4, 2, dim};
        const Request a(dims, 256, 1);
        for (const int64_t pages : {8, 16}) {  // of one chunk of 128, and of two
          const Pass pass(dims, {{&a, queries, pages * 16 - 16}}, {16});
          pass.table->set(pages - 1, 3);
          pass.length->set(0, 1000);
          expect_refused([&] { attend(dims, pass, 0); },
                         {"at least 63 pages", fmt::format("found {}", pages)});
          for (const double value : pass.out->values()) EXPECT_TRUE(std::isnan(value));
        }
      }
}

TEST_F(CudaPagedAttention, AQueryWithoutAPageIsNan) {
  const auto expect_nan = [&](const Dims& dims, int64_t length) {
    const Request a(dims, length, 1);
    const Pass pass(dims, {{&a, length, length}}, {8});
    pass.table->set(1, 1000000);
    expect_refused([&] { attend(dims, pass, 0); }, {"page 1000000", "entry 1"});
    const std::vector<double> got = pass.out->values();
    const auto row = static_cast<size_t>(2 * dims.head_dim);
    for (size_t p = 0; p < static_cast<size_t>(length); ++p)
      EXPECT_EQ(std::isnan(got[p * row]), p >= 8) << p << " of " << length;
  };
  for (const DType dtype : kFloats) {
    expect_nan({dtype, 2, 1, 16}, 20);
    expect_nan({dtype, 2, 1, 64}, 20);
    expect_nan({dtype, 2, 1, 16}, 100);
    expect_nan({dtype, 2, 1, 64}, 100);
    expect_nan({dtype, 2, 1, 128}, 100);
  }
}

// A window frees the pages before it: they need not be there.
TEST_F(CudaPagedAttention, AsksForThePagesOfTheWindowOnly) {
  for (const DType dtype : {DType::f32, DType::f16})
    for (const int64_t dim : {16, 64})
      for (const int64_t context : {20, 300}) {  // of one chunk, and of three
        const Dims dims = {dtype, 1, 1, dim};
        const Request a(dims, context, 1);
        const Pass pass(dims, {{&a, 1, context}}, {4});
        for (int64_t page = 0; page < context / 4 - 4; ++page) pass.table->set(page, -1);
        attend(dims, pass, 8);
        for (const double value : pass.out->values()) EXPECT_TRUE(std::isfinite(value));
        EXPECT_THROW(attend(dims, pass, 17), Error);
      }
}

TEST_F(CudaPagedAttention, OfNoQueriesIsNothing) {
  const Dims dims = {DType::bf16, 2, 1, 16};
  const Request a(dims, 8, 1);
  attend(dims, Pass(dims, {{&a, 0, 8}}, {4}), 0);
}

TEST_F(CudaPagedAttention, RefusesWhatDoesNotFit) {
  const Dims dims = {DType::f32, 4, 2, 16}, wide = {DType::f32, 1, 1, 264};
  const Request a(dims, 20, 1), w(wide, 4, 1);
  const auto refused = [&](auto change, std::initializer_list<std::string> words,
                           int64_t window = 0) {
    Pass pass(dims, {{&a, 2, 20}}, {8});
    change(pass);
    expect_refused([&] { attend(dims, pass, window); }, words);
  };
  refused([](Pass&) {}, {"window", "-1"}, -1);
  refused(
      [](Pass& p) {
        p.q = std::make_unique<Sample>(Shape{2, 3, 16}, DType::f32);
      },
      {"heads", "3"});
  refused(
      [](Pass& p) {
        p.q = std::make_unique<Sample>(Shape{2, 4, 16}, DType::bf16);
      },
      {"q", "fp32", "bf16"});
  refused([](Pass& p) { p.length = std::make_unique<Sample>(Shape{1}, DType::i64); },
          {"context_length", "int32", "int64"});
  expect_refused(
      [&] {
        attend(wide, Pass(wide, {{&w, 1, 4}}, {8}), 0);
      },
      {"at most 256 elements", "found 264"});
}

}  // namespace
}  // namespace lockstep
