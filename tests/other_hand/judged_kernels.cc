#include "tests/other_hand/judged_kernels.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <sstream>

#include "kernels/plugin/user_ops.h"
#include "src/judge/ledger.h"
#include "tests/judged.h"
#include "tests/whole.h"
#include "traces/manifest.h"

namespace lockstep {
namespace {

using other_hand::OtherKernel;

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ',');) parts.push_back(part);
  return parts;
}

// The kind of op that a symbol of the C interface stands for.
OpKind kind_of(const OtherKernel& kernel) {
  static const std::map<std::string, OpKind> kKinds = {
      {"lockstep_gather_rows", OpKind::gather},
      {"lockstep_rms_norm", OpKind::norm},
      {"lockstep_matmul", OpKind::linear},
      {"lockstep_rope", OpKind::rope},
      {"lockstep_kv_write", OpKind::cache},
      {"lockstep_kv_gather", OpKind::cache},
      {"lockstep_paged_attention", OpKind::attention},
      {"lockstep_silu_mul", OpKind::silu_mul},
      {"lockstep_add", OpKind::add},
      {"lockstep_argmax", OpKind::argmax},
      {"lockstep_top_k", OpKind::top_k},
      {"lockstep_softmax_of", OpKind::softmax},
      {"lockstep_expert_matmul", OpKind::expert_linear},
      {"lockstep_weighted_sum", OpKind::weighted_sum}};
  return kKinds.at(kernel.symbol);
}

bool applies(const OtherKernel& kernel, std::string_view point) {
  const Point* known = find_point(point);
  if (known == nullptr || known->op != kind_of(kernel)) return false;
  return Selection(kernel.points, "", "", "").has(*known, known->per_layer ? 0 : -1);
}

// What a kernel made, beside what the engine's own op makes of the same inputs.
struct Difference {
  int64_t elements = 0, different = 0;
  double largest_ulp = 0;

  void add(const TensorView& got, const TensorView& own) {
    const int64_t width = got.row_size();
    std::vector<double> a(static_cast<size_t>(width)), b(a.size());
    for (int64_t row = 0; row < got.rows(); ++row) {
      widen(got, row * width, a);
      widen(own, row * width, b);
      double power = 0;
      for (const double x : b) power += x * x;
      const double size = std::sqrt(power / static_cast<double>(width));
      for (size_t i = 0; i < a.size(); ++i) {
        ++elements;
        if (a[i] == b[i] && std::signbit(a[i]) == std::signbit(b[i])) continue;
        if (std::isnan(a[i]) && std::isnan(b[i])) continue;  // a slot that nobody has written
        ++different;
        const double unit =
            is_float(got.dtype) ? ulp(std::max(std::fabs(b[i]), size), got.dtype) : 1;
        const double off = std::fabs(a[i] - b[i]) / unit;
        largest_ulp = std::max(largest_ulp, std::isfinite(off) ? off : 1e9);
      }
    }
  }
};

// `own` with the op of `user` in its place, at the kernel's points and the run's layers.
template <typename... In>
void put(std::function<void(const OpContext&, TensorView, In...)>& own,
         const std::function<void(const OpContext&, TensorView, In...)>& user, const KernelRun& run,
         Difference& difference) {
  own = [own, user, run, &difference](const OpContext& context, TensorView out, In... in) {
    const bool here = run.layer < 0 || context.layer < 0 || context.layer == run.layer;
    own(context, out, in...);
    if (!here || !applies(*run.kernel, context.point) || out.count() == 0) return;
    const Tensor right(out.shape, out.dtype);
    std::memcpy(right.as<char>(), out.data, static_cast<size_t>(out.bytes()));
    user(context, out, in...);
    difference.add(out, right);
  };
}

// The cache is its output, where the engine's own writes first.
void put_write(Ops& ops, const Ops& user, const KernelRun& run, Difference& difference) {
  ops.kv_write = [own = ops.kv_write, write = user.kv_write, run, &difference](
                     const OpContext& context, KvCache cache, TensorView k, TensorView v,
                     TensorView slots) {
    const bool here = run.layer < 0 || context.layer == run.layer;
    if (!here || !applies(*run.kernel, context.point)) return own(context, cache, k, v, slots);
    const auto copy_of = [](const TensorView& t) {
      Tensor copy(t.shape, t.dtype);
      std::memcpy(copy.as<char>(), t.data, static_cast<size_t>(t.bytes()));
      return copy;
    };
    const Tensor own_k = copy_of(cache.k), own_v = copy_of(cache.v);
    own(context, {own_k, own_v}, k, v, slots);
    write(context, cache, k, v, slots);
    difference.add(cache.k, own_k);
    difference.add(cache.v, own_v);
  };
}

Ops ops_with(const KernelRun& run, Difference& difference) {
  const OtherKernel& kernel = *run.kernel;
  const Ops user = with_user_functions(
      cpu_ops(),
      [&](const char* symbol) {
        return std::string_view(symbol) == kernel.symbol ? kernel.function : nullptr;
      },
      "the other hand");
  Ops ops = cpu_ops();
  ops.fused = {};
  const std::string symbol = kernel.symbol;
  const auto take = [&](const char* name, auto& op, const auto& of_user) {
    if (symbol == std::string("lockstep_") + name) put(op, of_user, run, difference);
  };
  take("gather_rows", ops.gather_rows, user.gather_rows);
  take("rms_norm", ops.rms_norm, user.rms_norm);
  take("matmul", ops.matmul, user.matmul);
  take("rope", ops.rope, user.rope);
  take("kv_gather", ops.kv_gather, user.kv_gather);
  take("paged_attention", ops.paged_attention, user.paged_attention);
  take("silu_mul", ops.silu_mul, user.silu_mul);
  take("add", ops.add, user.add);
  take("argmax", ops.argmax, user.argmax);
  take("top_k", ops.top_k, user.top_k);
  take("softmax_of", ops.routing_weights, user.routing_weights);
  take("expert_matmul", ops.expert_matmul, user.expert_matmul);
  take("weighted_sum", ops.weighted_sum, user.weighted_sum);
  if (symbol == "lockstep_kv_write") put_write(ops, user, run, difference);
  return ops;
}

// A prompt over several chunks, one that fills its last page while it decodes, and one of a single
// token; pages out of order. Kernels that need far positions get those.
std::vector<Request> requests_for(const OtherKernel& kernel, const ModelConfig& config) {
  const bool far = std::string_view(kernel.needs).find("positions over 25") != std::string::npos;
  const int64_t longest = std::min<int64_t>(config.max_positions - 12, far ? 300 : 90);
  return {{.prompt = some_tokens(longest, config.vocab, 1), .max_new = 6},
          {.prompt = some_tokens(43, config.vocab, 2), .max_new = 6},
          {.prompt = some_tokens(1, config.vocab, 3), .max_new = 6}};
}

// The kernel's contract for the points of its op, and fused for all others.
std::map<std::string, RoundingContract> declared_for(const OtherKernel& kernel) {
  std::map<std::string, RoundingContract> all;
  for (const Point& p : kPoints) {
    all[std::string(p.name)] = RoundingContract::fused;
    if (applies(kernel, p.name)) all[std::string(p.name)] = contract_from(kernel.rounding);
  }
  return all;
}

const Checkpoint& checkpoint_of(const std::string& model) {
  static std::map<std::string, Checkpoint> open;
  const auto found = open.find(model);
  if (found != open.end()) return found->second;
  return open.emplace(model, Checkpoint::open(data_path(model))).first->second;
}

std::string first_point(const OtherKernel& kernel, const ModelConfig& config) {
  const std::string point = kernel.first_point;
  return point == "mlp.act" && config.experts.count > 0 ? "mlp.expert_act" : point;
}

}  // namespace

const char* name_of(Seen seen) {
  static constexpr const char* kNames[] = {"right", "WRONG OP",     "missed",
                                           "ALARM", "inconclusive", "no effect"};
  return kNames[static_cast<size_t>(seen)];
}

std::string model_for(const OtherKernel& kernel) {
  const std::string symbol = kernel.symbol, needs = kernel.needs, points = kernel.points;
  const bool experts = symbol == "lockstep_top_k" || symbol == "lockstep_softmax_of" ||
                       symbol == "lockstep_expert_matmul" || symbol == "lockstep_weighted_sum" ||
                       points.find("router") != points.npos || needs.find("expert") != needs.npos;
  if (experts) return "tiny/qwen3-moe";
  if (needs.find("window") != needs.npos) return "tiny/qwen2-sliding";
  if (needs.find("bias") != needs.npos || std::string(kernel.rounding) == "bias_after_store")
    return "bard-qwen2.5";
  return "bard-qwen3";
}

std::vector<KernelRun> runs_of(const OtherKernel& kernel) {
  const std::string rounding = kernel.rounding;
  // Nobody but who declares them may take fewer bits than the run has.
  const bool found = rounding == "fused" || rounding == "hf" || rounding == "eager" ||
                     rounding == "bias_after_store";
  std::vector<KernelRun> runs;
  for (const DType dtype : dtypes_of(kernel)) {
    const std::string model = model_for(kernel);
    runs.push_back({&kernel, model, dtype, -1, true});
    if (found) runs.push_back({&kernel, model, dtype, -1, false});
    // One layer that rounds otherwise than the others is a finding of its own.
    if (rounding != "fused" && dtype != DType::f32) continue;
    if (!found) continue;
    runs.push_back({&kernel, model, dtype, 1, true});
    runs.push_back({&kernel, model, dtype, 1, false});
  }
  return runs;
}

std::vector<DType> dtypes_of(const OtherKernel& kernel) {
  std::vector<DType> dtypes;
  for (const std::string& name : split(kernel.dtypes)) dtypes.push_back(dtype_from(name));
  return dtypes;
}

std::string text_of(const KernelRun& run) {
  return fmt::format("{} {} {} {} {}", run.kernel->name, run.model, name_of(run.dtype),
                     run.layer < 0 ? "all layers" : fmt::format("layer {}", run.layer),
                     run.declared ? "declared" : "undeclared");
}

KernelOutcome judge_kernel(const KernelRun& run) {
  const Checkpoint& checkpoint = checkpoint_of(run.model);
  const OtherKernel& kernel = *run.kernel;
  Difference difference;
  const Ops ops = ops_with(run, difference);
  JudgedRun judged_run{.checkpoint = checkpoint,
                       .reference = open_reference(),
                       .requests = requests_for(kernel, checkpoint.config())};
  judged_run.engine = {.dtype = run.dtype, .page_size = 16, .page_order_seed = 3, .chunk = 48};
  judged_run.engine.threads = 1;
  judged_run.ops = ops;
  judged_run.audit = false;
  judged_run.causes = whole();  // which op is named is asked, not what it is like
  judged_run.judge.contracts =
      run.declared ? declared_for(kernel) : std::map<std::string, RoundingContract>();
  const Result result = judged(judged_run);
  KernelOutcome outcome{.story = result.story,
                        .elements = difference.elements,
                        .different = difference.different,
                        .largest_ulp = difference.largest_ulp};
  if (result.first) outcome.named = text_of(result.first->node.place);
  // Of the places where it runs the first may be one whose numbers hide it, as those of large rows
  // hide an eps.
  const std::string wanted = first_point(kernel, checkpoint.config());
  const bool right_place = result.first &&
                           (result.first->node.place.point->name == wanted ||
                            applies(kernel, result.first->node.place.point->name)) &&
                           (run.layer < 0 || result.first->node.place.layer < 0 ||
                            result.first->node.place.layer == run.layer);
  if (kernel.right)
    outcome.seen = result.verdict == RunVerdict::clean ? Seen::right
                   : result.first                      ? Seen::alarm
                                                       : Seen::inconclusive;
  else if (result.first)
    outcome.seen = right_place ? Seen::right : Seen::wrong_op;
  else
    outcome.seen = difference.different == 0 ? Seen::no_effect : Seen::missed;
  return outcome;
}

}  // namespace lockstep
