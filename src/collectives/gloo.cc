// c10d's Gloo behind the interface of the ranks. Ranks find each other through a TCPStore of rank
// 0, at the address of the meeting.
#include "src/collectives/gloo.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Logging.h>
#include <fmt/format.h>
#include <torch/version.h>

#include <chrono>
#include <cstdlib>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "kernels/base/check.h"
#include "kernels/base/printable.h"

namespace lockstep {
namespace {

static_assert(std::is_same_v<std::underlying_type_t<at::ScalarType>, int8_t>);

at::ScalarType torch_type(DType dtype) {
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
  return at::from_blob(view.data, {view.count()}, torch_type(view.dtype));
}

at::Tensor bytes_of(void* data, int64_t bytes) { return at::from_blob(data, {bytes}, at::kByte); }

// The first line of what LibTorch threw: the others say where.
std::string first_line(const std::string& text) { return shown(text.substr(0, text.find('\n'))); }

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

bool is_here(const std::string& host) { return host.starts_with("127.") || host == "localhost"; }

class Gloo final : public Collectives {
 public:
  // gpus: null where all tensors are in host memory.
  Gloo(const Meeting& meeting, c10::intrusive_ptr<c10d::Store> store,
       std::unique_ptr<GpuCollectives> gpus)
      : rank_(meeting.rank), ranks_(meeting.ranks), gpus_(std::move(gpus)) {
    auto options = c10d::ProcessGroupGloo::Options::create(kCallPatience);
    // Between machines, that of this one's own name.
    options->devices.push_back(is_here(meeting.host)
                                   ? c10d::ProcessGroupGloo::createDeviceForHostname(meeting.host)
                                   : c10d::ProcessGroupGloo::createDefaultDevice());
    options->threads = 1;  // calls follow each other
    group_ = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank_, ranks_, options);
  }

  int rank() const override { return rank_; }
  int ranks() const override { return ranks_; }

  void all_reduce(const TensorView& tensor) override {
    if (gpus_ && tensor.device != Device::cpu) return gpus_->all_reduce(tensor);
    in_c10d("an all-reduce", [&] {
      std::vector<at::Tensor> tensors = {to_torch(tensor)};
      group_->allreduce(tensors)->wait();
    });
  }

  void all_gather(const TensorView& parts, const TensorView& part) override {
    check(parts.bytes() == ranks_ * part.bytes(),
          "an all-gather of {} ranks makes {} bytes of {}, found room for {}: this is a bug",
          ranks_, ranks_ * part.bytes(), part.bytes(), parts.bytes());
    if (gpus_ && part.device != Device::cpu) return gpus_->all_gather(parts, part);
    in_c10d("an all-gather", [&] {
      at::Tensor to = bytes_of(parts.data, parts.bytes());
      at::Tensor from = bytes_of(part.data, part.bytes());
      group_->_allgather_base(to, from)->wait();
    });
  }

  void reduce_scatter(const TensorView& parts, const TensorView& part) override {
    if (gpus_ && part.device != Device::cpu) return gpus_->reduce_scatter(parts, part);
    in_c10d("a reduce-scatter", [&] {
      at::Tensor from = to_torch(parts), to = to_torch(part);
      group_->_reduce_scatter_base(to, from)->wait();
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
  std::unique_ptr<GpuCollectives> gpus_;
};

std::string at(const Meeting& meeting) {
  return meeting.port == 0 ? meeting.host : fmt::format("{}:{}", meeting.host, meeting.port);
}

double seconds_of(const Meeting& meeting) {
  return static_cast<double>(meeting.patience.count()) / 1000;
}

c10::intrusive_ptr<c10d::TCPStore> open_store(const Meeting& meeting) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(meeting.port);
  options.isServer = meeting.rank == 0 && !meeting.hosted;
  options.numWorkers = meeting.ranks;
  options.waitWorkers = false;
  options.timeout = meeting.patience;
  try {
    return c10::make_intrusive<c10d::TCPStore>(meeting.host, options);
  } catch (const std::exception& error) {
    check(!options.isServer,
          "the ranks cannot meet at {} ({}): see that this address is up and the port is nobody "
          "else's",
          at(meeting), first_line(error.what()));
    fail("rank {} found nobody at {} within {} s: start rank 0 with the same --rendezvous",
         meeting.rank, at(meeting), seconds_of(meeting));
  }
}

// The facts of each rank, as a text.
std::vector<std::string> exchanged(const Meeting& meeting, c10d::Store& store) {
  const auto key = [](int rank) { return fmt::format("facts/{}", rank); };
  const auto has_read = [](int rank) { return fmt::format("has_read/{}", rank); };
  const std::string own = text_of_facts(meeting.facts);
  std::vector<std::string> texts;
  int rank = meeting.rank;
  try {
    store.set(key(meeting.rank), std::vector<uint8_t>(own.begin(), own.end()));
    for (rank = 0; rank < meeting.ranks; ++rank) {
      const std::vector<uint8_t> text = store.get(key(rank));
      texts.emplace_back(text.begin(), text.end());
    }
    // Rank 0 goes last, should it go: the others read in its store.
    store.set(has_read(meeting.rank), std::vector<uint8_t>(1));
    for (rank = 1; meeting.rank == 0 && rank < meeting.ranks; ++rank) store.get(has_read(rank));
  } catch (const std::exception& error) {
    fail("rank {} of {} did not come to {} within {} s ({}): start all of them", rank,
         meeting.ranks, at(meeting), seconds_of(meeting), first_line(error.what()));
  }
  return texts;
}

class Library final : public CollectivesLibrary {
 public:
  // A rank says one sentence in the end, and c10d none of each try to connect.
  Library(std::string name, JoinGpus join) : name_(std::move(name)), join_(std::move(join)) {
    setenv("TORCH_CPP_LOG_LEVEL", "FATAL", /*overwrite=*/0);
    c10::initLogging();
  }

  std::string name() const override { return name_ + " of LibTorch " TORCH_VERSION; }

  std::unique_ptr<Collectives> meet(const Meeting& meeting) override {
    const auto store = open_store(meeting);
    if (meeting.opened) meeting.opened(store->getPort());
    const auto named = c10::make_intrusive<c10d::PrefixStore>(meeting.name, store);
    check_alike(exchanged(meeting, *named));
    store->setTimeout(kCallPatience);
    std::unique_ptr<Collectives> group;
    in_c10d("the meeting of the ranks", [&] {
      auto gpus = join_ ? join_(meeting, store->getPort()) : nullptr;
      group = std::make_unique<Gloo>(meeting, named, std::move(gpus));
    });
    return group;
  }

 private:
  std::string name_;
  JoinGpus join_;
};

}  // namespace

int8_t scalar_type_of(DType dtype) { return static_cast<int8_t>(torch_type(dtype)); }

CollectivesLibrary& library_of(std::string name, JoinGpus join) {
  static Library library(std::move(name), std::move(join));
  return library;
}

}  // namespace lockstep
