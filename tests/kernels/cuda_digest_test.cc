// Digests made on a device are those of the CPU: hashes, counts, extremes and exponents to the bit,
// sums to a rounding or two of fp64, and the same bits each time.
#include <dlfcn.h>

#include <cstring>
#include <random>
#include <thread>

#include "kernels/base/device_graph.h"
#include "probes/digest.h"
#include "tests/helpers.h"
#include "tests/kernels/cuda_samples.h"

namespace lockstep {
namespace {

struct Made {
  Digest digest;
  std::vector<uint64_t> row_hashes;
};

class CudaDigest : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (!IsSkipped()) maker_ = memory_.digests;
  }

  Tensor scratch_for(std::span<const DigestJob> jobs) const {
    return Tensor({maker_.scratch_bytes(jobs)}, DType::u8, cuda_device());
  }
  // The output of jobs whose `out` and `row_hashes` count from a null pointer.
  std::vector<char> run(std::vector<DigestJob> jobs, int64_t digests, int64_t hashes,
                        int times = 1) const {
    const int64_t head = digests * int64_t{sizeof(Digest)};
    Tensor out({head + hashes * 8}, DType::u8);
    std::fill_n(out.as<char>(), out.view().bytes(), char{0x5a});
    const Tensor far = copy_on(cuda_device(), out);
    for (DigestJob& job : jobs) {
      job.out = far.as<Digest>() + reinterpret_cast<intptr_t>(job.out);
      job.row_hashes = reinterpret_cast<uint64_t*>(far.as<char>() + head) +
                       reinterpret_cast<intptr_t>(job.row_hashes);
    }
    const Tensor scratch = scratch_for(jobs);
    for (int i = 0; i < times; ++i) maker_.digest(jobs, scratch.view().data, memory_.stream);
    copy(out, far);
    return {out.as<char>(), out.as<char>() + out.view().bytes()};
  }

  // All tensors in one launch, padded by a row of what must not count.
  std::vector<Made> digests(const std::vector<Tensor>& tensors, int times = 1) const {
    std::vector<Tensor> far;
    std::vector<DigestJob> jobs;
    int64_t hashes = 0;
    for (const Tensor& tensor : tensors) {
      const int64_t row_bytes = tensor.view().bytes() / std::max<int64_t>(1, tensor.view().rows());
      const int64_t rows = tensor.view().rows();
      Tensor padded({(rows + 1) * row_bytes}, DType::u8);
      std::memset(padded.as<char>(), 0x7f, static_cast<size_t>(padded.view().bytes()));
      std::memcpy(padded.as<char>(), tensor.as<char>(), static_cast<size_t>(tensor.view().bytes()));
      const auto count = static_cast<int32_t>(rows);
      far.push_back(copy_on(cuda_device(), padded));
      far.push_back(
          copy_on(cuda_device(), tensor_of<int32_t>(std::vector<int32_t>{count}, {1}, DType::i32)));
      jobs.push_back({.dtype = tensor.view().dtype,
                      .data = far[far.size() - 2].view().data,
                      .row_bytes = row_bytes,
                      .rows = far.back().as<int32_t>(),
                      .most_rows = rows + 1,
                      .out = reinterpret_cast<Digest*>(jobs.size()),
                      .row_hashes = reinterpret_cast<uint64_t*>(hashes)});
      hashes += rows + 1;
    }
    const std::vector<char> bytes = run(jobs, std::ssize(jobs), hashes, times);
    std::vector<Made> made(tensors.size());
    const char* row = bytes.data() + tensors.size() * sizeof(Digest);
    for (size_t i = 0; i < made.size(); ++i) {
      std::memcpy(&made[i].digest, bytes.data() + i * sizeof(Digest), sizeof(Digest));
      made[i].row_hashes.resize(static_cast<size_t>(tensors[i].view().rows()));
      std::memcpy(made[i].row_hashes.data(), row, made[i].row_hashes.size() * 8);
      row += (made[i].row_hashes.size() + 1) * 8;
    }
    return made;
  }

  // How many rows each cache has of each request, and the hashes of all.
  std::vector<uint64_t> hashes_of(std::vector<CacheJob> jobs, int64_t requests,
                                  int64_t hashes) const {
    const int64_t counts = std::ssize(jobs) * requests;
    const Tensor far({counts + hashes}, DType::i64, cuda_device());
    for (size_t i = 0; i < jobs.size(); ++i) {
      jobs[i].hashed = far.as<int64_t>() + static_cast<int64_t>(i) * requests;
      jobs[i].row_hashes = reinterpret_cast<uint64_t*>(far.as<int64_t>() + counts);
    }
    maker_.hash_caches(jobs, memory_.stream);
    const Tensor out = copy_on(Device::cpu, far);
    const auto* begin = reinterpret_cast<const uint64_t*>(out.as<int64_t>());
    return {begin, begin + counts + hashes};
  }

  DigestMaker maker_;
};

// A cache in the device's memory, at choice 8 bytes behind what is aligned to 16.
class CacheOnDevice {
 public:
  CacheOnDevice(const Tensor& k, const Tensor& v, const std::vector<int32_t>& lengths,
                const std::vector<int32_t>& table, bool aligned)
      : pool_(k.view().shape),
        row_bytes_(k.view().bytes() / (pool_[0] * pool_[1])),
        requests_(std::ssize(lengths)),
        offset_(aligned ? 0 : 8),
        k_(copied(k)),
        v_(copied(v)),
        lengths_(numbers(lengths)),
        table_(numbers(table)) {}

  CacheJob job() const {
    const int64_t width = table_.view().count() / requests_;
    return {.k = k_.as<char>() + offset_,
            .v = v_.as<char>() + offset_,
            .row_bytes = row_bytes_,
            .rows = lengths_.as<int32_t>(),
            .requests = requests_,
            .most_rows = width * pool_[1],
            .table = table_.as<int32_t>(),
            .width = width,
            .page_size = pool_[1],
            .pages = pool_[0]};
  }

 private:
  Tensor copied(const Tensor& from) const {
    Tensor bytes({from.view().bytes() + offset_}, DType::u8);
    std::memcpy(bytes.as<char>() + offset_, from.as<char>(),
                static_cast<size_t>(from.view().bytes()));
    return copy_on(cuda_device(), bytes);
  }
  static Tensor numbers(const std::vector<int32_t>& values) {
    return copy_on(cuda_device(), tensor_of<int32_t>(values, {std::ssize(values)}, DType::i32));
  }

  Shape pool_;
  int64_t row_bytes_, requests_, offset_;
  Tensor k_, v_, lengths_, table_;
};

// 1e-12 of the largest that could have been added up.
void expect_close(double got, double want, double of, const std::string& what) {
  EXPECT_LE(std::fabs(got - want), 1e-12 * of) << what << " " << got << " for " << want;
}

void expect_same(const Digest& got, const Digest& want, const std::string& what) {
  SCOPED_TRACE(what);
  EXPECT_EQ(got.hash, want.hash);
  EXPECT_EQ(got.count, want.count);
  EXPECT_EQ(got.nan, want.nan);
  EXPECT_EQ(got.pos_inf, want.pos_inf);
  EXPECT_EQ(got.neg_inf, want.neg_inf);
  EXPECT_EQ(got.zeros, want.zeros);
  EXPECT_EQ(got.subnormals, want.subnormals);
  EXPECT_EQ(got.min, want.min);
  EXPECT_EQ(got.max, want.max);
  EXPECT_EQ(got.absmax, want.absmax);
  EXPECT_EQ(got.absmax_index, want.absmax_index);
  EXPECT_EQ(got.exponents, want.exponents);
  const double n = std::max(1.0, static_cast<double>(want.finite()));
  expect_close(got.mean, want.mean, want.sum_abs / n, "mean");
  expect_close(got.m2, want.m2, want.m2, "m2");
  expect_close(got.sum_abs, want.sum_abs, want.sum_abs, "sum_abs");
  expect_close(got.sum_squares, want.sum_squares, want.sum_squares, "sum_squares");
}

// Any bits, among them NaNs, infinities and subnormals; `mask` keeps most of them small.
template <typename Bits>
Tensor random_bits(const Shape& shape, DType dtype, Bits mask, uint64_t seed) {
  std::mt19937_64 random(seed);
  Tensor tensor(shape, dtype);
  for (int64_t i = 0; i < shape.count(); ++i)
    tensor.as<Bits>()[i] = static_cast<Bits>(random()) & (i % 5 ? mask : static_cast<Bits>(~0ull));
  return tensor;
}

Tensor random_of(const Shape& shape, DType dtype, uint64_t seed) {
  switch (size_of(dtype)) {
    case 1:
      return random_bits<uint8_t>(shape, dtype, 0xff, seed);
    case 2:
      return random_bits<uint16_t>(shape, dtype, dtype == DType::bf16 ? 0xbfff : 0xb3ff, seed);
    case 4:
      return random_bits<uint32_t>(shape, dtype, 0xbfffffff, seed);
    default:
      break;
  }
  if (dtype == DType::i64) return random_bits<uint64_t>(shape, dtype, 0xffffffff, seed);
  // Squares that fp64 can hold, and some numbers that are none.
  Tensor tensor(shape, dtype);
  std::mt19937_64 random(seed);
  const double odd[] = {NAN, INFINITY, -INFINITY, 0, -0.0, 0x1p-1030};
  for (int64_t i = 0; i < shape.count(); ++i)
    tensor.as<double>()[i] = random() % 9 == 0 ? odd[random() % 6]
                                               : std::ldexp(static_cast<double>(random()) - 0x1p63,
                                                            static_cast<int>(random() % 200) - 150);
  return tensor;
}

constexpr DType kDTypes[] = {DType::f64, DType::f32, DType::f16, DType::bf16,
                             DType::i64, DType::i32, DType::u8};

TEST_F(CudaDigest, IsTheCpusForEveryDtypeAndSize) {
  // Bytes about every border of XXH3: 3, 8, 16, 128, 240, a stripe, a block, and a part of ours.
  for (DType dtype : kDTypes) {
    std::vector<Tensor> all;
    for (int64_t columns :
         {0,   1,   2,   3,   4,   5,    7,    8,    9,    15,   16,   17,   31,   32,  33,
          63,  64,  65,  96,  97,  119,  120,  121,  127,  128,  129,  239,  240,  241, 255,
          256, 257, 511, 512, 513, 1024, 1025, 4095, 4096, 4097, 8192, 8193, 12345})
      for (int64_t rows : {1, 3})
        all.push_back(random_of({rows, columns}, dtype, static_cast<uint64_t>(columns * 7 + rows)));
    all.push_back(random_of({1, 151936}, dtype, 5));
    all.push_back(random_of({0, 64}, dtype, 5));
    for (size_t first = 0; first < all.size(); first += DigestMaker::kMostJobs) {
      std::vector<Tensor> some;
      for (size_t i = first; i < std::min(all.size(), first + DigestMaker::kMostJobs); ++i)
        some.push_back(std::move(all[i]));
      const std::vector<Made> made = digests(some);
      for (size_t i = 0; i < some.size(); ++i) {
        const std::string what = fmt::format("{} {}", some[i].view().shape.text(), name_of(dtype));
        expect_same(made[i].digest, digest_of(some[i]), what);
        EXPECT_EQ(made[i].row_hashes, row_hashes_of(some[i])) << what;
      }
    }
  }
}

TEST_F(CudaDigest, OfWhatIsNotFiniteAndOfTinyNumbers) {
  const float inf = INFINITY, nan = NAN;
  std::vector<Tensor> tensors;
  for (const std::vector<float>& values : {std::vector<float>{nan, inf, -inf, -inf},
                                           {0x1p-126f, 0x1p-127f, -0x1p-149f, -0.f, 0.f, 3.f},
                                           {nan, 2, -2, 2},
                                           {-7},
                                           {nan},
                                           {1e38f, -1e38f, 1e-38f}})
    tensors.push_back(tensor_of<float>(values, {std::ssize(values)}, DType::f32));
  const std::vector<Made> made = digests(tensors);
  for (size_t i = 0; i < tensors.size(); ++i)
    expect_same(made[i].digest, digest_of(tensors[i]), fmt::format("tensor {}", i));
}

// A variance that a sum of squares would lose.
TEST_F(CudaDigest, KeepsASmallSpreadAroundALargeMean) {
  std::mt19937 random(3);
  std::vector<double> values(100003);
  for (double& x : values) x = std::normal_distribution<double>(1e5, 1)(random);
  std::vector<Tensor> tensors;
  tensors.push_back(tensor_of<double>(values, {1, std::ssize(values)}, DType::f64));
  const Digest want = digest_of(tensors[0]), got = digests(tensors)[0].digest;
  expect_close(got.mean, want.mean, want.mean, "mean");
  EXPECT_NEAR(got.m2 / want.m2, 1, 1e-12);
}

template <typename T>
Tensor remainders_of_8(DType dtype) {
  std::vector<T> values(2000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<T>(i % 8);
  return tensor_of<T>(values, {2, 1000}, dtype);
}

TEST_F(CudaDigest, OfWholeNumbersCountsTheirZeros) {
  std::vector<Tensor> tensors;
  tensors.push_back(remainders_of_8<int32_t>(DType::i32));
  tensors.push_back(remainders_of_8<int64_t>(DType::i64));
  tensors.push_back(remainders_of_8<uint8_t>(DType::u8));
  const std::vector<Made> made = digests(tensors);
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(made[i].digest.zeros, 250) << i;
    expect_same(made[i].digest, digest_of(tensors[i]), std::to_string(i));
  }
}

TEST_F(CudaDigest, IsTheSameToTheBitEachTime) {
  std::vector<Tensor> tensors;
  tensors.push_back(random_of({5, 4096}, DType::bf16, 1));
  tensors.push_back(random_of({2, 151936}, DType::f32, 2));
  const auto first = digests(tensors), second = digests(tensors, 3);
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(std::memcmp(&first[i].digest, &second[i].digest, sizeof(Digest)), 0);
    EXPECT_EQ(first[i].row_hashes, second[i].row_hashes);
  }
}

// Page tables of requests with so many positions, of pages that follow each other in no order.
std::vector<int32_t> table_of(std::span<const int32_t> lengths, int64_t width, int64_t page_size) {
  std::vector<int32_t> table(lengths.size() * static_cast<size_t>(width), -1);
  int32_t pages = 0;
  for (size_t r = 0; r < lengths.size(); ++r)
    for (int32_t p = 0; p * page_size < lengths[r]; ++p, ++pages)
      table[r * static_cast<size_t>(width) + static_cast<size_t>(p)] = pages ^ 1;
  return table;
}

struct CacheCase {
  DType dtype;
  int64_t kv_heads, dim, page_size;
  bool aligned;  // to 16 bytes
};

// The cache that each request reads, through its page table: rows that are too short for a
// stripe, that are whole stripes, blocks of XXH3 and more, and rows that are none of these.
TEST_F(CudaDigest, OfACacheIsOfWhatItsPagesHold) {
  for (const CacheCase& c : {CacheCase{DType::bf16, 8, 128, 4, true},
                             {DType::bf16, 8, 128, 16, false},
                             {DType::bf16, 2, 64, 4, true},
                             {DType::bf16, 1, 64, 4, true},
                             {DType::f32, 1, 32, 1, true},
                             {DType::f16, 3, 96, 4, true},
                             {DType::f32, 17, 64, 4, true},
                             {DType::f32, 2, 6, 4, true},
                             {DType::f16, 5, 52, 4, true},
                             {DType::f16, 1, 6, 4, true}}) {
    SCOPED_TRACE(fmt::format("{} {} x {}", name_of(c.dtype), c.kv_heads, c.dim));
    const std::vector<int32_t> lengths = {33, 0, 1, 100, 7};
    const int64_t width = (100 + c.page_size - 1) / c.page_size, pages = 160;
    const auto requests = std::ssize(lengths);
    const Shape pool = {pages, c.page_size, c.kv_heads, c.dim};
    const Tensor k = random_of(pool, c.dtype, 1), v = random_of(pool, c.dtype, 2);
    const std::vector<int32_t> table = table_of(lengths, width, c.page_size);
    const CacheOnDevice far(k, v, lengths, table, c.aligned);
    const CacheJob job = far.job();
    // Twice, the second one's rows behind the first one's.
    std::vector<CacheJob> jobs = {job, job};
    jobs[1].cache_index = 1;
    const std::vector<uint64_t> got = hashes_of(jobs, requests, 282);
    std::vector<uint64_t> want;
    for (int32_t length : lengths) want.push_back(static_cast<uint64_t>(length));
    want.insert(want.end(), want.begin(), want.begin() + requests);
    for (int time : {0, 1}) {
      (void)time;
      for (size_t r = 0; r < lengths.size(); ++r) {
        Tensor seen({lengths[r], 2, c.kv_heads, c.dim}, c.dtype);
        const auto row = static_cast<size_t>(job.row_bytes);
        for (int32_t p = 0; p < lengths[r]; ++p)
          for (int side : {0, 1}) {
            const int32_t page =
                table[r * static_cast<size_t>(width) + static_cast<size_t>(p / c.page_size)];
            const int64_t slot = page * c.page_size + p % c.page_size;
            std::memcpy(seen.as<char>() + static_cast<size_t>(2 * p + side) * row,
                        (side ? v : k).as<char>() + static_cast<size_t>(slot) * row, row);
          }
        const std::vector<uint64_t> rows = row_hashes_of(seen);
        want.insert(want.end(), rows.begin(), rows.end());
      }
    }
    EXPECT_EQ(got, want);
  }
}

TEST_F(CudaDigest, OfAPageThatIsNotThereReadsAsBytesOf255) {
  const Tensor pool = random_of({2, 4, 2, 64}, DType::bf16, 1);
  // One page that the pool has, others that it lacks, and positions beyond the table.
  const CacheOnDevice far(pool, pool, {20}, {1, 2, -1}, true);
  CacheJob job = far.job();
  job.most_rows = 20;
  const std::vector<uint64_t> got = hashes_of({job}, 1, 20);
  Tensor seen({20, 2, 2, 64}, DType::bf16);
  std::memset(seen.as<char>(), 0xff, static_cast<size_t>(seen.view().bytes()));
  for (int64_t p = 0; p < 4; ++p)
    for (int64_t side : {0, 1})
      std::memcpy(seen.as<char>() + (2 * p + side) * job.row_bytes,
                  pool.as<char>() + (4 + p) * job.row_bytes, static_cast<size_t>(job.row_bytes));
  std::vector<uint64_t> want = {20};
  const std::vector<uint64_t> rows = row_hashes_of(seen);
  want.insert(want.end(), rows.begin(), rows.end());
  EXPECT_EQ(got, want);
}

// On a stream aside, and within a graph, for as many rows as there are then.
TEST_F(CudaDigest, OfAGraphIsOfTheRowsOfTheReplay) {
  const Tensor home = random_of({8, 700}, DType::f32, 4), far = copy_on(cuda_device(), home);
  const Tensor doubled({8, 700}, DType::f32, cuda_device());
  Tensor rows({1}, DType::i32);
  const Tensor far_rows = copy_on(cuda_device(), rows);
  const Tensor out({int64_t{sizeof(Digest)} + 64}, DType::u8, cuda_device());
  const std::vector<DigestJob> jobs = {
      {.dtype = DType::f32,
       .data = doubled.view().data,
       .row_bytes = 2800,
       .rows = far_rows.as<int32_t>(),
       .most_rows = 8,
       .out = out.as<Digest>(),
       .row_hashes = reinterpret_cast<uint64_t*>(out.as<char>() + sizeof(Digest))}};
  const Tensor scratch = scratch_for(jobs);
  ops_->add({.stream = memory_.stream}, doubled, far, far);
  const DeviceGraph graph(cuda_device(), [&] {
    ops_->add({.stream = memory_.stream}, doubled, far, far);
    maker_.stream_wait(maker_.digest_stream, memory_.stream);
    maker_.digest(jobs, scratch.view().data, maker_.digest_stream);
    maker_.stream_wait(memory_.stream, maker_.digest_stream);
  });
  const Tensor sum = copy_on(Device::cpu, doubled);
  for (int32_t count : {8, 1, 3, 0, 5}) {
    *rows.as<int32_t>() = count;
    copy(far_rows, rows);
    graph.replay(memory_.stream);
    const Tensor back = copy_on(Device::cpu, out);
    const TensorView shown = sum.view().slice(0, count);
    Digest got;
    std::memcpy(&got, back.as<char>(), sizeof(Digest));
    expect_same(got, digest_of(shown), fmt::format("{} rows", count));
    const auto want = row_hashes_of(shown);
    EXPECT_EQ(std::memcmp(back.as<char>() + sizeof(Digest), want.data(), want.size() * 8), 0);
  }
}

TEST_F(CudaDigest, RefusesMoreJobsThanALaunchTakes) {
  const std::vector<DigestJob> jobs(DigestMaker::kMostJobs + 1);
  EXPECT_NE(error_of([&] { maker_.digest(jobs, nullptr, memory_.stream); }), "");
}

TEST_F(CudaDigest, RefusesMoreElementsThanItCounts) {
  std::vector<DigestJob> jobs = {{.dtype = DType::bf16, .row_bytes = 2 << 16, .most_rows = 65535}};
  EXPECT_GT(maker_.scratch_bytes(jobs), 0);
  ++jobs[0].most_rows;
  EXPECT_NE(error_of([&] { maker_.scratch_bytes(jobs); }).find("found 4294967296: use a smaller"),
            std::string::npos);
}

TEST_F(CudaDigest, MarksTellWhenWorkIsDone) {
  const Tensor far = copy_on(cuda_device(), random_of({1, 4096}, DType::u8, 9));
  // Reading it back waits until it is there, which the stream of digests does not.
  const Tensor want = copy_on(Device::cpu, far);
  const std::unique_ptr<void, std::function<void(void*)>> pinned(memory_.pin(4096), memory_.unpin);
  std::memset(pinned.get(), 0, 4096);
  memory_.copy(pinned.get(), far.view().data, 4096, maker_.digest_stream);
  maker_.wait_event(maker_.record_event(maker_.digest_stream));
  EXPECT_EQ(std::memcmp(pinned.get(), want.as<char>(), 4096), 0);
}

// Whether this process has had something to do with that device.
bool is_ready(int device) {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  const auto state = reinterpret_cast<int (*)(int, unsigned*, int*)>(
      driver == nullptr ? nullptr : dlsym(driver, "cuDevicePrimaryCtxGetState"));
  unsigned flags = 0;
  int active = -1;
  EXPECT_TRUE(state != nullptr && state(device, &flags, &active) == 0);
  return active != 0;
}

// The thread that keeps passes waits like this: the other devices may be somebody's, and full.
TEST_F(CudaDigest, WaitedForByAThreadLeavesOtherDevicesAlone) {
  if (memory_.index == 0) GTEST_SKIP() << "this machine has no second CUDA device";
  void* event = maker_.record_event(memory_.stream);
  std::thread([&] { maker_.wait_event(event); }).join();
  EXPECT_TRUE(is_ready(memory_.index));
  for (int other = 0; other < memory_.index; ++other) EXPECT_FALSE(is_ready(other)) << other;
}

}  // namespace
}  // namespace lockstep
