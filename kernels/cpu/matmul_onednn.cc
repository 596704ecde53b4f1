// Products of several tokens on the CPU, by oneDNN. A product is cut into parts by columns, and
// each thread of the engine's pool computes whole parts with OpenMP told to be one thread: the
// engine's threads are the only ones. A long sum is cut as oneDNN likes best for the columns of a
// part, so that its bits may depend on how many parts there are.
//
// Primitives are kept by shape, up to a bound, because making one takes longer than a small
// product; their scratchpads belong to the calling thread.
#include "kernels/cpu/matmul_onednn.h"

#include <omp.h>

#include <compare>
#include <map>
#include <memory>
#include <mutex>
#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/thread_pool.h"

namespace lockstep {
namespace {

constexpr int64_t kColumns = 64;  // a part is a multiple of this, so that tiles stay whole
constexpr size_t kMostPrimitives = 256;

struct Key {
  DType dtype;
  int64_t m, n, k, out_stride;
  bool bias;
  auto operator<=>(const Key&) const = default;
};

struct Primitive {
  dnnl::memory::desc out, x, weight, bias, scratchpad;
  dnnl::matmul matmul;
};

const dnnl::engine& engine() {
  static const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

// oneDNN 3 takes the operands themselves, oneDNN 2 a description that is made of them.
template <typename Matmul, typename... Operands>
typename Matmul::primitive_desc described(const dnnl::primitive_attr& attributes,
                                          const Operands&... operands) {
  if constexpr (requires { typename Matmul::desc; })
    return {typename Matmul::desc(operands...), attributes, engine()};
  else
    return {engine(), operands..., attributes};
}

// The weight is [n, k] in memory and read as [k, n] by its strides: nothing is copied.
Primitive make(const Key& key) {
  const auto type =
      key.dtype == DType::bf16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
  using Dims = dnnl::memory::dims;
  Primitive p;
  p.x = {{key.m, key.k}, type, Dims{key.k, 1}};
  p.weight = {{key.k, key.n}, type, Dims{1, key.k}};
  p.out = {{key.m, key.n}, type, Dims{key.out_stride, 1}};
  if (key.bias) p.bias = {{1, key.n}, type, Dims{key.n, 1}};
  dnnl::primitive_attr attributes;
  // A scratchpad of the library belongs to the thread that made the primitive; ours goes along.
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  const auto chosen = key.bias ? described<dnnl::matmul>(attributes, p.x, p.weight, p.bias, p.out)
                               : described<dnnl::matmul>(attributes, p.x, p.weight, p.out);
  p.scratchpad = chosen.scratchpad_desc();
  p.matmul = dnnl::matmul(chosen);
  return p;
}

// Made once a shape, because making one takes longer than a small product.
std::shared_ptr<const Primitive> primitive_for(const Key& key) {
  static std::mutex mutex;
  static std::map<Key, std::shared_ptr<const Primitive>> made;
  const std::scoped_lock lock(mutex);
  // Prompts come in every length, and each primitive holds code of its own.
  if (made.size() >= kMostPrimitives && !made.contains(key)) made.clear();
  std::shared_ptr<const Primitive>& primitive = made[key];
  if (primitive == nullptr) primitive = std::make_shared<const Primitive>(make(key));
  return primitive;
}

// oneDNN asks OpenMP how many threads it may use; that is a setting of the calling thread.
class OneOpenMpThread {
 public:
  OneOpenMpThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneOpenMpThread() { omp_set_num_threads(before_); }
  OneOpenMpThread(const OneOpenMpThread&) = delete;
  OneOpenMpThread& operator=(const OneOpenMpThread&) = delete;

 private:
  int before_;
};

// Columns [begin, end) of out.
void multiply(const TensorView& out, const TensorView& x, const TensorView& weight,
              const TensorView& bias, int64_t begin, int64_t end) {
  const OneOpenMpThread alone;
  const int64_t k = weight.shape[1], n = weight.shape[0], size = size_of(x.dtype);
  const std::shared_ptr<const Primitive> p =
      primitive_for({x.dtype, x.rows(), end - begin, k, n, !bias.empty()});
  thread_local std::vector<char> scratchpad;
  scratchpad.resize(p->scratchpad.get_size() + 64);
  std::unordered_map<int, dnnl::memory> arguments = {
      {DNNL_ARG_SRC, {p->x, engine(), x.data}},
      {DNNL_ARG_WEIGHTS, {p->weight, engine(), weight.as<char>() + begin * k * size}},
      {DNNL_ARG_DST, {p->out, engine(), out.as<char>() + begin * size}},
      {DNNL_ARG_SCRATCHPAD, {p->scratchpad, engine(), scratchpad.data()}},
  };
  if (!bias.empty()) arguments[DNNL_ARG_BIAS] = {p->bias, engine(), bias.as<char>() + begin * size};
  dnnl::stream stream(engine());
  p->matmul.execute(stream, arguments);
  stream.wait();
}

}  // namespace

bool onednn_has(DType dtype) {
  if (dtype == DType::f32) return true;
  static const bool bf16 = dnnl::get_effective_cpu_isa() >= dnnl::cpu_isa::avx512_core_bf16;
  return dtype == DType::bf16 && bf16;
}

std::string version_of_onednn() {
  const dnnl_version_t* version = dnnl_version();
  return std::to_string(version->major) + "." + std::to_string(version->minor) + "." +
         std::to_string(version->patch);
}

// Our own threads share the columns: a second pool of threads would fight with them for the cores.
void matmul_onednn(const OpContext& context, TensorView out, TensorView x, TensorView weight,
                   TensorView bias) {
  parallel_for(context.threads, weight.rows(), kColumns, [&](int64_t begin, int64_t end) {
    try {
      multiply(out, x, weight, bias, begin, end);
    } catch (const dnnl::error& error) {
      fail(
          "matmul wants oneDNN to multiply {} by {}, but it failed ({}): use --dtype fp32, or "
          "report this CPU",
          x.shape.text(), weight.shape.text(), error.what());
    }
  });
}

}  // namespace lockstep
