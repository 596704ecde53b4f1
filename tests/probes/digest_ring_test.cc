// What comes from a device that is played, through the ring to who takes it.
#include "probes/digest_ring.h"

#include <chrono>
#include <semaphore>
#include <thread>

#include "kernels/base/digest.h"
#include "tests/helpers.h"
#include "tests/host_device.h"

namespace lockstep {
namespace {

// Takes a pass each time that it may.
class SlowTaker final : public DigestSink {
 public:
  bool keeps(const Point&, int) const override { return true; }
  void take(Pass&& pass) override {
    ++begun;
    may.acquire();
    taken.push_back(std::move(pass));
  }

  std::atomic<int> begun = 0;
  std::counting_semaphore<> may{0};
  std::vector<Pass> taken;
};

class Ring : public HostDevice {
 protected:
  static constexpr int64_t kRows = 2, kColumns = 100;

  void SetUp() override {
    HostDevice::SetUp();
    static const DigestMaker played = {
        .digest = [](auto, void*, CUstream_st*) {},
        .stream_wait = [](CUstream_st*, CUstream_st*) {},
        .record_event = [](CUstream_st*) -> void* { return nullptr; },
        .wait_event = [](void*) {}};
    DeviceRuntime runtime = runtime_of(Device::cuda);
    runtime.digests = played;
    register_runtime(runtime);
  }

  // A pass whose attn.q is full of `value`: 800 bytes, unless it is wider, and its digest.
  static DigestedPass pass_of(float value, int64_t columns = kColumns) {
    constexpr int64_t kDigest = sizeof(Digest), kHashes = kRows * int64_t{sizeof(uint64_t)};
    const auto digests =
        std::make_shared<Tensor>(Shape{kDigest + kHashes}, DType::u8, Device::cuda);
    *digests->as<Digest>() = {.count = kRows * columns};
    const auto q = std::make_shared<Tensor>(Shape{kRows, 1, columns}, DType::f32, Device::cuda);
    std::fill_n(q->as<float>(), kRows * columns, value);
    const auto layout = std::make_shared<DigestLayout>();
    layout->taps = {{.point = &point("attn.q"),
                     .layer = 0,
                     .tensor = q->view(),
                     .hashes = kDigest,
                     .keeps = true}};
    layout->cache_hashes = kDigest + kHashes;
    DigestedPass pass{.layout = layout, .digests = digests, .tensors = {q}};
    pass.info.rows = {{.row = {0, 0}}, {.row = {0, 1}}};
    return pass;
  }
  // Whether it still goes on after a while.
  static bool waits(const std::atomic<bool>& done) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return !done;
  }

  SlowTaker taker_;
};

TEST_F(Ring, HandsOverWhatWasPushedInItsOrder) {
  DigestRing ring(taker_);
  taker_.may.release(20);
  for (int i = 0; i < 20; ++i) ring.push(pass_of(static_cast<float>(i)));
  ring.flush();
  ASSERT_EQ(ring.failure(), "");
  ASSERT_EQ(taker_.taken.size(), 20u);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(value_at(taker_.taken[i].tensors[0].data, 199), i);
}

// A taker that leaves the pass where it is: the next one has its memory and nothing else of it.
class Reader final : public DigestSink {
 public:
  bool keeps(const Point&, int) const override { return true; }
  void take(Pass&& pass) override {
    seen.push_back({pass.tensors.size(), pass.tensors[0].rows.size(), pass.tensors[0].shape.text(),
                    value_at(pass.tensors[0].data, 0), pass.logits.size()});
    tensors.push_back(pass.tensors.data());
  }
  struct Seen {
    size_t tensors, rows;
    std::string shape;
    double first;
    size_t logits;
    bool operator==(const Seen&) const = default;
  };
  std::vector<Seen> seen;
  std::vector<const void*> tensors;
};

TEST_F(Ring, FillsWhatIsLeftOfAPassWithALaterOne) {
  Reader reader;
  DigestRing ring(reader);
  for (int i = 0; i < 3; ++i) {
    DigestedPass pass = pass_of(static_cast<float>(i), i == 1 ? 300 : kColumns);
    auto layout = std::make_shared<DigestLayout>(*pass.layout);
    if (i == 0) layout->taps.push_back(layout->taps[0]);
    pass.layout = layout;
    ring.push(std::move(pass));
    ring.flush();
  }
  ASSERT_EQ(ring.failure(), "");
  EXPECT_EQ(reader.seen, (std::vector<Reader::Seen>{{2, 2, "[2, 1, 100]", 0, 0},
                                                    {1, 2, "[2, 1, 300]", 1, 0},
                                                    {1, 2, "[2, 1, 100]", 2, 0}}));
  EXPECT_EQ(reader.tensors[0], reader.tensors[2]);
}

TEST_F(Ring, WaitsWhenSoManyBytesAreOnTheirWayAndSaysSo) {
  DigestRing ring(taker_, 2000);
  ring.push(pass_of(0));
  while (taker_.begun == 0) std::this_thread::yield();  // of which nothing is on its way any more
  ring.push(pass_of(1));
  std::atomic<bool> pushed = false;
  std::jthread engine([&] {
    ring.reserve(800);
    ring.push(pass_of(2));
    pushed = true;
  });
  EXPECT_TRUE(waits(pushed));
  taker_.may.release(3);
  engine.join();
  ring.flush();
  EXPECT_EQ(taker_.taken.size(), 3u) << "nothing is dropped";
  EXPECT_EQ(ring.waits().passes, 3);
  EXPECT_EQ(ring.waits().waited, 1);
  EXPECT_GT(ring.waits().seconds, 0.04);
}

TEST_F(Ring, LetsAPassThroughThatIsLargerAlone) {
  DigestRing ring(taker_, 100);
  taker_.may.release(4);
  for (int i = 0; i < 4; ++i) {
    ring.reserve(500), ring.reserve(300);
    ring.push(pass_of(1));
  }
  ring.flush();
  EXPECT_EQ(taker_.taken.size(), 4u);
}

// Two tensors of 100 and 1 MB that no later pass writes over, each number another one.
DigestedPass owned_pass() {
  DigestedPass pass;
  pass.owns_kept = true;
  const auto layout = std::make_shared<DigestLayout>();
  const std::vector<int64_t> columns = {12'500'003, 125'001};
  const int64_t heads = std::ssize(columns) * int64_t{sizeof(Digest)};
  layout->cache_hashes = heads + std::ssize(columns) * 2 * int64_t{sizeof(uint64_t)};
  const auto digests =
      std::make_shared<Tensor>(Shape{layout->cache_hashes}, DType::u8, Device::cuda);
  uint32_t number = 0;
  for (int layer = 0; layer < 2; ++layer) {
    const auto q = std::make_shared<Tensor>(Shape{2, 1, columns[static_cast<size_t>(layer)]},
                                            DType::f32, Device::cuda);
    for (int64_t i = 0; i < q->view().count(); ++i) q->as<uint32_t>()[i] = ++number;
    digests->as<Digest>()[layer] = {.count = q->view().count()};
    layout->taps.push_back({.point = &point("attn.q"),
                            .layer = layer,
                            .tensor = q->view(),
                            .digest = layer * int64_t{sizeof(Digest)},
                            .hashes = heads + layer * 2 * int64_t{sizeof(uint64_t)},
                            .keeps = true});
    pass.tensors.push_back(q);
  }
  pass.layout = layout;
  pass.digests = digests;
  pass.info.rows = {{.row = {0, 0}}, {.row = {0, 1}}};
  return pass;
}

TEST_F(Ring, FetchesLargeTensorsThatAPassOwnsThroughALittlePinnedMemory) {
  static int64_t pinned = 0;
  pinned = 0;
  DeviceRuntime device = runtime_of(Device::cuda);
  device.pin = [](int64_t bytes) {
    pinned += bytes;
    return std::malloc(static_cast<size_t>(bytes));
  };
  register_runtime(device);
  DigestRing ring(taker_);
  taker_.may.release(2);
  const DigestedPass shown = owned_pass();
  for (int i = 0; i < 2; ++i) ring.push(shown);
  ring.flush();
  ASSERT_EQ(ring.failure(), "");
  ASSERT_EQ(taker_.taken.size(), 2u);
  for (const Pass& got : taker_.taken)
    for (size_t i = 0; i < 2; ++i) {
      const TensorView want = shown.layout->taps[i].tensor, data = got.tensors[i].data;
      ASSERT_EQ(data.shape, want.shape);
      EXPECT_EQ(std::memcmp(data.data, want.data, static_cast<size_t>(want.bytes())), 0);
    }
  EXPECT_LT(pinned, int64_t{70} << 20) << "as much was pinned as was brought";
}

TEST_F(Ring, TakesLittleOfTheDeviceForSmallPassesAfterALargeOne) {
  static int64_t most = 0;
  DeviceRuntime device = runtime_of(Device::cuda);
  device.allocate = [](int64_t bytes) {
    most = std::max(most, bytes);
    return std::malloc(static_cast<size_t>(bytes));
  };
  register_runtime(device);
  DigestRing ring(taker_);
  taker_.may.release(3);
  ring.push(pass_of(1, 10'000'000));
  ring.flush();
  most = 0;
  for (int i = 0; i < 2; ++i) {
    ring.push(pass_of(2));
    ring.flush();
  }
  EXPECT_LT(most, 5000);
  ASSERT_EQ(taker_.taken.size(), 3u);
  EXPECT_EQ(value_at(taker_.taken[2].tensors[0].data, 199), 2);
}

TEST_F(Ring, GoesOnWhenThereIsNoMemoryForAPass) {
  DeviceRuntime device = runtime_of(Device::cuda);
  device.pin = [](int64_t) -> void* { throw Error("no memory can be pinned"); };
  register_runtime(device);
  DigestRing ring(taker_, 100);
  for (int i = 0; i < 10; ++i)
    EXPECT_EQ(error_of([&] { ring.push(pass_of(1)); }), "no memory can be pinned");
  ring.flush();
}

}  // namespace
}  // namespace lockstep
