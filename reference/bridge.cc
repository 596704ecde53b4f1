// The only file where tensors of Lockstep become LibTorch's and back. to_torch() borrows: the
// view's memory must outlive the tensor. to_numbers() owns: Numbers hold the tensor that they look
// into, so that results travel to the judge without a copy.
//
// c10::Error is made a sentence here (in_torch), as nothing outside the reference knows that type.
#include "reference/bridge.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <fmt/format.h>
#include <torch/version.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "reference/widening.h"
#include "src/judge/no_memory.h"

// It is a template, which has one thread where whoever calls it is compiled for one.
#ifndef INTRA_OP_PARALLEL
#error "at::parallel_for would have one thread: compile with -fopenmp"
#endif

namespace lockstep {
namespace {

constexpr std::pair<DType, at::ScalarType> kTypes[] = {
    {DType::f64, at::kDouble},    {DType::f32, at::kFloat}, {DType::f16, at::kHalf},
    {DType::bf16, at::kBFloat16}, {DType::i64, at::kLong},  {DType::i32, at::kInt},
    {DType::u8, at::kByte},
};

// LibTorch's name of a dtype.
at::ScalarType scalar_type(DType dtype) {
  for (const auto& [ours, theirs] : kTypes)
    if (ours == dtype) return theirs;
  fail("LibTorch has no dtype for {}: use another one", name_of(dtype));
}

DType dtype_of(at::ScalarType type) {
  for (const auto& [ours, theirs] : kTypes)
    if (theirs == type) return ours;
  fail("a tensor of LibTorch's dtype {} cannot be shown: convert it first", at::toString(type));
}

// The amount that LibTorch could not get, of "... ried to allocate 3 GiB. GPU 0 has ..." or "...
// tried to allocate 12 bytes. Error code 12 ...", with its unit. CUDA's own libraries, which
// allocate for themselves, name none. Empty: it failed otherwise.
std::string lacking_of(std::string_view message) {
  constexpr std::string_view kSays = "ried to allocate ";
  const size_t at = message.find(kSays);
  if (at == message.npos) {
    const bool of_library = message.find("CUDA error: out of memory") != message.npos ||
                            message.find("CUBLAS_STATUS_ALLOC_FAILED") != message.npos;
    return of_library ? "some bytes" : "";
  }
  const std::string_view rest = message.substr(at + kSays.size());
  return std::string(rest.substr(0, std::min({rest.find(". "), rest.find('\n'), rest.size()})));
}

}  // namespace

at::Tensor to_torch(const TensorView& view) {
  check(view.device == Device::cpu,
        "the reference reads host memory, found a tensor {} on a device: copy it first",
        view.shape.text());
  const auto extents = view.shape.extents();
  return at::from_blob(view.data, at::IntArrayRef(extents.data(), extents.size()),
                       at::TensorOptions().dtype(scalar_type(view.dtype)));
}

at::Tensor to_torch_there(const TensorView& view) {
  const auto extents = view.shape.extents();
  const at::Device device(at::kCUDA, static_cast<at::DeviceIndex>(view.device.index));
  return at::from_blob(
      view.data, at::IntArrayRef(extents.data(), extents.size()), [](void*) {},
      at::TensorOptions().dtype(scalar_type(view.dtype)).device(device), device);
}

at::Tensor part_of(const at::Tensor& whole, const TensorView& view, int64_t first_byte) {
  const auto extents = view.shape.extents();
  const at::Tensor bytes = whole.view({-1}).view(at::kByte).narrow(0, first_byte, view.bytes());
  return bytes.view(scalar_type(view.dtype)).view(at::IntArrayRef(extents.data(), extents.size()));
}

// The driver copies what is pageable by one thread, at a tenth of what the way to the device takes.
// Some threads fill pinned memory instead, which LibTorch keeps for the next piece, and a piece is
// on its way while the next one is filled.
at::Tensor to_torch(const TensorView& view, const c10::Device& device) {
  constexpr int64_t kLarge = 1 << 20, kAtOnce = 16 << 20, kOfThread = 1 << 18;
  constexpr int kCopiers = 4;
  const at::Tensor here = to_torch(view);
  if (device.is_cpu()) return here;
  if (view.bytes() < kLarge) return here.to(device, /*non_blocking=*/true);
  const at::Tensor there = at::empty(here.sizes(), here.options().device(device));
  const at::Tensor bytes = there.view({-1}).view(at::kByte);
  const Threads threads(/*work=*/std::numeric_limits<double>::max(), kCopiers);
  for (int64_t first = 0; first < view.bytes(); first += kAtOnce) {
    const int64_t count = std::min(kAtOnce, view.bytes() - first);
    const at::Tensor pinned = at::empty({count}, at::TensorOptions(at::kByte).pinned_memory(true));
    const auto* const from = static_cast<const char*>(view.data) + first;
    auto* const to = static_cast<char*>(pinned.data_ptr());
    at::parallel_for(0, count, kOfThread, [&](int64_t begin, int64_t end) {
      std::memcpy(to + begin, from + begin, end - begin);
    });
    bytes.narrow(0, first, count).copy_(pinned, /*non_blocking=*/true);
  }
  return there;
}

TensorView to_view(const at::Tensor& tensor) {
  check(tensor.is_contiguous() && tensor.is_cpu(),
        "a contiguous tensor in host memory was wanted, found strides or another device: copy {} "
        "first",
        shape_of(tensor).text());
  return to_view_there(tensor);
}

TensorView to_view_there(const at::Tensor& tensor) {
  const Device device =
      tensor.is_cpu() ? Device::cpu : Device{DeviceKind::cuda, tensor.device().index()};
  return {tensor.data_ptr(), dtype_of(tensor.scalar_type()), device, shape_of(tensor)};
}

at::Tensor as_dtype(const at::Tensor& tensor, DType dtype) {
  const at::ScalarType to = scalar_type(dtype);
  if (tensor.is_cpu() && (dtype == DType::f32 || dtype == DType::f64)) {
    const bool is_bf16 = tensor.scalar_type() == at::kBFloat16;
    if (is_bf16 && tensor.is_contiguous()) return widened_bf16(tensor, dtype);
    // LibTorch widens to fp64 in one slow scalar step, and in two vectorised ones thrice as fast.
    if (is_bf16 || tensor.scalar_type() == at::kHalf) return tensor.to(at::kFloat).to(to);
  }
  return tensor.to(to);
}

at::Tensor on_host(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor.contiguous();
  const auto pinned = tensor.options().device(at::kCPU).pinned_memory(true);
  return at::empty(tensor.sizes(), pinned).copy_(tensor);
}

Numbers to_numbers(const at::Tensor& tensor) {
  const auto kept = std::make_shared<const at::Tensor>(on_host(tensor.to(at::kDouble)));
  return {std::span(kept->const_data_ptr<double>(), kept->numel()), kept};
}

Numbers held_numbers(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return to_numbers(tensor);
  const auto kept = std::make_shared<const at::Tensor>(tensor.to(at::kDouble));
  return Numbers::elsewhere(kept->numel(), kept);
}

void bring(Numbers& numbers) {
  if (!numbers.is_here()) numbers = to_numbers(tensor_of(numbers));
}

// The host waits for each copy, which takes longer than to copy few numbers once more there.
void bring(std::span<Numbers* const> all) {
  constexpr size_t kFew = 1 << 17;
  std::vector<at::Tensor> there;
  size_t count = 0;
  for (const Numbers* numbers : all) {
    if (numbers->is_here()) continue;
    there.push_back(tensor_of(*numbers).reshape({-1}));
    count += numbers->size();
  }
  if (there.size() < 2 || count > kFew) {
    for (Numbers* numbers : all) bring(*numbers);
    return;
  }
  const auto kept = std::make_shared<const at::Tensor>(on_host(at::cat(there)));
  const auto* from = kept->const_data_ptr<double>();
  for (Numbers* numbers : all) {
    if (numbers->is_here()) continue;
    const size_t size = numbers->size();
    *numbers = {std::span(from, size), kept};
    from += size;
  }
}

const at::Tensor& tensor_of(const Numbers& numbers) {
  return *static_cast<const at::Tensor*>(numbers.owner().get());
}

Shape shape_of(const at::Tensor& tensor) {
  return Shape(std::span<const int64_t>(tensor.sizes().data(), tensor.sizes().size()));
}

void free_unused(const c10::Device& device) {
#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 9
  if (!device.is_cpu()) in_torch([&] { c10::getDeviceAllocator(device.type())->emptyCache(); });
#else
  (void)device;  // an older one has no such door, and gives some of it back itself
#endif
}

// Under some milliseconds of work, threads that wait for each other cost more than they do. The
// system reads a file to say how many there are, which is asked once.
Threads::Threads(double work, int most) : before_(at::get_num_threads()) {
  static const int machine = static_cast<int>(std::thread::hardware_concurrency());
  const int all = most > 0 ? most : machine;
  at::set_num_threads(work < 2e7 ? 1 : std::max(1, all));
}

Threads::~Threads() { at::set_num_threads(before_); }

void in_torch(const std::function<void()>& body) {
  const Threads one(0, 1);
  try {
    body();
  } catch (const c10::Error& error) {
    const std::string lacks = lacking_of(error.what_without_backtrace());
    if (!lacks.empty()) fail_for_memory(lacks);
    fail(
        "LibTorch could not compute what the reference asked of it ({}): please report it, with "
        "the model's config.json",
        error.what_without_backtrace());
  }
}

}  // namespace lockstep
