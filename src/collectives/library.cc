// The door of the shared library, and c10d's Gloo behind the interface of the ranks. Ranks find
// each other through a TCPStore of rank 0, on this machine's own address. A call waits for its
// peers as long as they live: how long is too long is the watch's to say (src/ranks/launch.h).
#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <torch/version.h>

#include <chrono>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "kernels/base/check.h"
#include "kernels/base/printable.h"
#include "src/ranks/collectives.h"

namespace lockstep {
namespace {

constexpr std::chrono::hours kPatience{24};
constexpr const char* kHere = "127.0.0.1";

at::ScalarType scalar_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return at::kFloat;
    case DType::f16:
      return at::kHalf;
    case DType::bf16:
      return at::kBFloat16;
    default:
      fail("ranks add tensors of fp32, fp16 or bf16, found {}: this is a bug", name_of(dtype));
  }
}

// The memory of a tensor as LibTorch sees it, to be written too.
at::Tensor to_torch(const TensorView& view) {
  return at::from_blob(view.data, {view.count()}, scalar_type(view.dtype));
}

at::Tensor bytes_of(void* data, int64_t bytes) { return at::from_blob(data, {bytes}, at::kByte); }

// Calls `body` and turns what LibTorch and Gloo throw into an Error.
void in_c10d(const char* doing, const auto& body) {
  try {
    body();
  } catch (const c10::Error& error) {
    fail("{} failed ({}): a rank is gone", doing, error.what_without_backtrace());
  } catch (const std::exception& error) {
    fail("{} failed ({}): a rank is gone", doing, error.what());
  }
}

class Gloo final : public Collectives {
 public:
  Gloo(const Meeting& meeting, c10::intrusive_ptr<c10d::Store> store)
      : rank_(meeting.rank), ranks_(meeting.ranks) {
    auto options = c10d::ProcessGroupGloo::Options::create(kPatience);
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(kHere));
    options->threads = 1;  // calls follow each other
    group_ = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank_, ranks_, options);
  }

  int rank() const override { return rank_; }
  int ranks() const override { return ranks_; }

  void all_reduce(const TensorView& tensor) override {
    in_c10d("an all-reduce", [&] {
      std::vector<at::Tensor> tensors = {to_torch(tensor)};
      group_->allreduce(tensors)->wait();
    });
  }

  void all_gather(const TensorView& parts, const TensorView& part) override {
    check(parts.bytes() == ranks_ * part.bytes(),
          "an all-gather of {} ranks makes {} bytes of {}, found room for {}: this is a bug",
          ranks_, ranks_ * part.bytes(), part.bytes(), parts.bytes());
    in_c10d("an all-gather", [&] {
      at::Tensor to = bytes_of(parts.data, parts.bytes());
      at::Tensor from = bytes_of(part.data, part.bytes());
      group_->_allgather_base(to, from)->wait();
    });
  }

  void send(const std::vector<std::byte>& bytes, int to) override {
    in_c10d("a message to another rank", [&] {
      auto size = static_cast<int64_t>(bytes.size());
      std::vector<at::Tensor> header = {bytes_of(&size, sizeof size)};
      group_->send(header, to, 0)->wait();
      std::vector<std::byte> copied = bytes;  // c10d may only be given what it may write to
      std::vector<at::Tensor> body = {bytes_of(copied.data(), size)};
      if (size > 0) group_->send(body, to, 0)->wait();
    });
  }

  std::vector<std::byte> receive(int from) override {
    std::vector<std::byte> bytes;
    in_c10d("a message of another rank", [&] {
      int64_t size = 0;
      std::vector<at::Tensor> header = {bytes_of(&size, sizeof size)};
      group_->recv(header, from, 0)->wait();
      bytes.resize(static_cast<size_t>(size));
      std::vector<at::Tensor> body = {bytes_of(bytes.data(), size)};
      if (size > 0) group_->recv(body, from, 0)->wait();
    });
    return bytes;
  }

 private:
  int rank_, ranks_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
};

class Library final : public CollectivesLibrary {
 public:
  std::string name() const override { return "Gloo of LibTorch " TORCH_VERSION; }

  std::unique_ptr<Collectives> meet(const Meeting& meeting) override {
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(meeting.port);
    options.isServer = meeting.rank == 0;
    options.numWorkers = meeting.ranks;
    options.waitWorkers = false;
    c10::intrusive_ptr<c10d::TCPStore> store;
    try {
      store = c10::make_intrusive<c10d::TCPStore>(kHere, options);
    } catch (const std::exception& error) {
      check(meeting.rank != 0,
            "the ranks cannot meet at a port of this machine ({}): see that {} is up and has a "
            "free one",
            shown(error.what()), kHere);
      fail("rank {} found nobody at port {} of this machine ({}): is rank 0 gone?", meeting.rank,
           meeting.port, shown(error.what()));
    }
    if (meeting.opened) meeting.opened(store->getPort());
    std::unique_ptr<Collectives> group;
    in_c10d("the meeting of the ranks", [&] { group = std::make_unique<Gloo>(meeting, store); });
    return group;
  }
};

}  // namespace

extern "C" CollectivesLibrary* lockstep_collectives() {
  static Library library;
  return &library;
}

}  // namespace lockstep
