// An op alone, in the place where it stands: the model runs one pass with a table of ops in which
// every other op is a stand-in that copies its recorded output, so that the op gets its arguments
// as the engine passes them (shapes, pages, padding, taps) and not as a harness thinks they are.
//
// Which implementation computes is switched between passes; the first call of a place can be
// captured with all its arguments, for repro.
#include "src/replay/op_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <map>
#include <thread>

#include "kernels/base/check.h"
#include "kernels/plugin/user_ops.h"
#include "probes/only.h"
#include "src/judge/ledger.h"
#include "src/model/device_batch.h"
#include "src/model/op_names.h"

namespace lockstep {
namespace {

// Calls of an op that are timed, at most, and the time that they may take together.
constexpr int kTimed = 20;
constexpr double kTimedSeconds = 0.02;
// A table of cosines or sines that is made of a pass, at most.
constexpr size_t kMostTableBytes = size_t{256} << 20;

int threads_of(int asked) {
  return asked > 0 ? asked : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

// 0, 1, .. as a tensor of indices.
Tensor int32_counting(size_t count) {
  Tensor numbers({static_cast<int64_t>(count)}, DType::i32);
  for (size_t i = 0; i < count; ++i) numbers.as<int32_t>()[i] = static_cast<int32_t>(i);
  return numbers;
}

const char* row_at(const TensorView& table, int64_t row, size_t bytes) {
  return table.as<const char>() + static_cast<size_t>(row) * bytes;
}

size_t row_bytes(const TensorView& table) {
  return static_cast<size_t>(table.row_size()) * size_of(table.dtype);
}

// Whether the rows that were kept of the pass's tokens make one table by position: the model's own
// goes by position and is not too large, and tokens of one position have the same rows.
bool by_position(const Batch& batch, const TensorView& cos, const TensorView& sin) {
  std::map<int32_t, int64_t> first;  // row of each position
  for (int64_t i = 0; i < std::ssize(batch.info.rows); ++i) {
    const int32_t position = batch.info.rows[static_cast<size_t>(i)].row.position;
    if (batch.positions.as<int32_t>()[i] != position) return false;
    const int64_t same = first.try_emplace(position, i).first->second;
    for (const TensorView* rows : {&cos, &sin})
      if (const size_t bytes = row_bytes(*rows);
          std::memcmp(row_at(*rows, i, bytes), row_at(*rows, same, bytes), bytes) != 0)
        return false;
  }
  const auto entries = static_cast<size_t>(first.rbegin()->first) + 1;
  return cos.dtype == batch.cos.dtype && row_bytes(cos) == row_bytes(batch.cos) &&
         row_bytes(sin) == row_bytes(batch.sin) && entries * row_bytes(cos) <= kMostTableBytes;
}

// The model's table up to the last position, with the kept rows at the positions of their tokens.
Tensor table_by_position(const Batch& batch, const TensorView& own, const TensorView& kept) {
  int32_t last = 0;
  for (const PassRow& row : batch.info.rows) last = std::max(last, row.row.position);
  const size_t bytes = row_bytes(own);
  Tensor table({last + 1, own.row_size()}, own.dtype);
  std::memcpy(table.as<char>(), own.as<const char>(), static_cast<size_t>(last + 1) * bytes);
  for (size_t i = 0; i < batch.info.rows.size(); ++i)
    std::memcpy(table.as<char>() + static_cast<size_t>(batch.info.rows[i].row.position) * bytes,
                row_at(kept, static_cast<int64_t>(i), bytes), bytes);
  return table;
}

}  // namespace

OpRunner::OpRunner(const Checkpoint& checkpoint, const Place& place,
                   std::vector<Implementation> implementations, const OpRunner::Options& options)
    : place_(place),
      implementations_(std::move(implementations)),
      options_(options),
      layers_(static_cast<int>(checkpoint.config().layers)),
      threads_(threads_of(options.threads)),
      rope_(checkpoint.config(), options.device) {
  Ops ops;
  for_each_op([&](const auto& row) { stand_in(ops, row); });
  if (options_.shown.empty()) options_.shown = {place_};
  if (!options_.fused.empty()) stand_in_fused(ops.fused);
  model_ = std::make_unique<Model>(checkpoint, options.dtype, std::move(ops),
                                   Placement{&threads_, stream_of(options.device), options.device});
}

template <typename Out, typename... In>
void OpRunner::stand_in(Ops& ops, const OpRow<void(const OpContext&, Out, In...)>& row) {
  // An op of another place hands on what was kept of it; one that nothing was kept of stays as its
  // buffer is, since nobody at the place reads it.
  ops.*row.entry = [this, row](const OpContext& context, Out out, In... in) {
    // The rows that get logits are gathered under the name of the logits, by no op of the place.
    const bool gathers = !makes(row.name, context.point);
    if (!is_place(context)) return gathers ? void() : supply(context, out);
    if (gathers) return (implementations_[0].ops.*row.entry)(context, out, in...);
    if (captured_ != nullptr && !*captured_) {
      CallCapture capture(row.name, row.inputs, context);
      capture.add_output(out);
      (capture.add(in), ...);
      *captured_ = capture.take();
    }
    compute(out,
            [&](const Out& to) { (implementations_[which_].ops.*row.entry)(context, to, in...); });
  };
}

// Calls of the op at other places hand on what was kept, of what they store.
void OpRunner::stand_in_fused(FusedOps& ops) {
  const std::string_view name = options_.fused;
  ops.of_user = {name};
  if (name == kAddRmsNorm.name) {
    ops.add_rms_norm = [this](const OpContext& context, const TensorView& out,
                              const AddNormInput& in) {
      is_place(context) ? run_fused(context, out, in) : supply(context, in.sum);
    };
  } else if (name == kQkvMatmul.name) {
    ops.qkv_matmul = [this](const OpContext& context, std::span<const Linear> all,
                            const TensorView& x, const AddNormInput*) {
      if (is_place(context)) run_fused(context, all, x);
    };
  } else if (name == kQkNormRopeKvWrite.name) {
    ops.qk_norm_rope_kv_write = [this](const OpContext& context, const QkNormRopeKvWrite& all) {
      if (is_place(context)) run_fused(context, all);
    };
  } else {
    check(name == kGateUpSilu.name, "there is no fused op {}", name);
    ops.gate_up_silu = [this](const OpContext& context, const TensorView& out, const TensorView& x,
                              const WeightView& gate, const WeightView& up, const TensorView&,
                              const TensorView&, const AddNormInput*) {
      is_place(context) ? run_fused(context, out, x, gate, up) : supply(context, out);
    };
  }
}

// It is timed on outputs of its own first, where one of them may be an input too.
void OpRunner::run_fused(const OpContext& context, const TensorView& out, const AddNormInput& in) {
  capture(kAddRmsNorm, context, [&](CallCapture& call) {
    call.add_output("out", out), call.add_output("sum", in.sum);
    call.add(in.a), call.add(in.b), call.add(in.weight), call.add(in.eps);
  });
  const Tensor sum(in.sum.shape, in.sum.dtype, in.sum.device);
  AddNormInput beside = in;
  beside.sum = sum;
  if (timed_) time([&] { fused().add_rms_norm(context, out, beside); });
  fused().add_rms_norm(context, out, in);
}

void OpRunner::run_fused(const OpContext& context, std::span<const Linear> all,
                         const TensorView& x) {
  capture(kQkvMatmul, context, [&](CallCapture& call) {
    static constexpr const char* kNames[] = {"q", "k", "v"};
    std::vector<TensorView> weights, biases;
    for (size_t i = 0; i < all.size(); ++i) {
      call.add_output(kNames[i], all[i].out);
      weights.push_back(all[i].weight.codes);
      biases.push_back(all[i].bias);
    }
    call.add(x), call.add_weights(weights), call.add_list(biases);
  });
  if (timed_) time([&] { fused().qkv_matmul(context, all, x, nullptr); });
  fused().qkv_matmul(context, all, x, nullptr);
}

void OpRunner::run_fused(const OpContext& context, const QkNormRopeKvWrite& a) {
  capture(kQkNormRopeKvWrite, context, [&](CallCapture& call) {
    call.add_output("q_rope", a.q_rope), call.add_output(a.cache);
    call.add(a.q), call.add(a.k), call.add(a.v);
    call.add(a.q_weight), call.add(a.k_weight), call.add(a.eps);
    call.add(a.cos), call.add(a.sin), call.add(a.positions), call.add(a.slots);
  });
  const Tensor q_rope(a.q_rope.shape, a.q_rope.dtype, a.q_rope.device);
  QkNormRopeKvWrite beside = a;
  beside.q_rope = q_rope;
  if (timed_) time([&] { fused().qk_norm_rope_kv_write(context, beside); });
  fused().qk_norm_rope_kv_write(context, a);
}

void OpRunner::run_fused(const OpContext& context, const TensorView& out, const TensorView& x,
                         const WeightView& gate, const WeightView& up) {
  capture(kGateUpSilu, context, [&](CallCapture& call) {
    call.add_output("out", out), call.add(x), call.add(gate), call.add(up);
  });
  const auto op = [&] { fused().gate_up_silu(context, out, x, gate, up, {}, {}, nullptr); };
  if (timed_) time(op);
  op();
}

void OpRunner::capture(const FusedRow& row, const OpContext& context,
                       const std::function<void(CallCapture&)>& take) {
  if (captured_ == nullptr || *captured_) return;
  static const std::map<std::string_view, std::vector<std::string_view>> inputs = {
      {kAddRmsNorm.name, {"a", "b", "weight"}},
      {kQkvMatmul.name, {"x", "weights", "biases"}},
      {kQkNormRopeKvWrite.name,
       {"q", "k", "v", "q_weight", "k_weight", "cos", "sin", "positions", "slots"}},
      {kGateUpSilu.name, {"x", "gate_weight", "up_weight"}}};
  CallCapture call(row.name, inputs.at(row.name), context);
  take(call);
  *captured_ = call.take();
}

bool OpRunner::is_place(const OpContext& context) const {
  return context.point == place_.point->name && context.layer == place_.layer;
}

// The least of some calls is taken, as all that disturbs a call makes it longer. Where a user's
// library measured its op alone, without copies to its side, that time counts.
void OpRunner::time(const std::function<void()>& op) {
  using Clock = std::chrono::steady_clock;
  double least = std::numeric_limits<double>::infinity(), all = 0;
  for (int i = 0; i < kTimed && all < kTimedSeconds; ++i) {
    const auto begin = Clock::now();
    forget_user_op_seconds();
    op();
    wait_for(options_.device);
    const double wall = std::chrono::duration<double>(Clock::now() - begin).count();
    const double alone = user_op_seconds();
    least = std::min(least, alone > 0 ? alone : wall);
    all += wall;
  }
  seconds_ += least;
}

// It is timed first, beside its output: one that is an input too is computed once.
void OpRunner::compute(const TensorView& out, const std::function<void(const TensorView&)>& op) {
  if (timed_) {
    const Tensor beside(out.shape, out.dtype, out.device);
    time([&] { op(beside); });
  }
  op(out);
}

// A write to the cache gives the same again, so that it may be timed in place.
void OpRunner::compute(const KvCache& cache, const std::function<void(const KvCache&)>& op) {
  if (timed_) return time([&] { op(cache); });
  op(cache);
}

void OpRunner::supply(const OpContext& context, const TensorView& out) const {
  const Point* p = find_point(context.point);
  if (p == nullptr) return;
  const TensorView kept = inputs_->at(*p, context.layer);
  if (kept.empty()) return;
  check(kept.bytes() == out.bytes() && kept.dtype == out.dtype,
        "{} is {} {} in the trace and {} {} in the model: give the --model that the trace was made "
        "with",
        text_of(Place{p, context.layer}), name_of(kept.dtype), kept.shape.text(),
        name_of(out.dtype), out.shape.text());
  copy(out, kept);
}

// Rows of a table at the positions of their tokens, as the engine's op had them, so that an op that
// is wrong by position is wrong here too. The rows that no token names are those of the model, in
// case it reads one of them. Where a token has rows of its own, by the length of its request, or
// the table would be too large, the pass's rows are the table.
Batch OpRunner::batch_of(const OpInputs& inputs) {
  Batch batch = make_batch(inputs.pass().info, rope_);
  const TensorView cos = inputs.at(point("rope.cos"), -1), sin = inputs.at(point("rope.sin"), -1);
  if (cos.empty() || sin.empty()) return batch;
  if (by_position(batch, cos, sin)) {
    cos_ = table_by_position(batch, batch.cos, cos);
    sin_ = table_by_position(batch, batch.sin, sin);
    batch.cos = cos_;
    batch.sin = sin_;
    return batch;
  }
  batch.cos = cos;
  batch.sin = sin;
  batch.positions = int32_counting(inputs.rows().size());
  return batch;
}

std::string OpRunner::unlike_run(const OpInputs& inputs) {
  const bool turns = place_.point->op == OpKind::rope || options_.fused == kQkNormRopeKvWrite.name;
  const std::string& pool = inputs.pass().unlike_run;
  if (!turns) return pool;
  // Where RoPE depends on lengths the engine itself numbers a pass's rows of its tables.
  const Tensor own = make_batch(inputs.pass().info, rope_).positions;
  const Tensor given = batch_of(inputs).positions;
  const auto bytes = static_cast<size_t>(own.view().bytes());
  if (std::memcmp(own.as<char>(), given.as<char>(), bytes) == 0) return pool;
  const char* text = "positions are numbered anew, one a row, as the tables have a row for each";
  return pool.empty() ? text : fmt::format("{}; {}", pool, text);
}

// No layer but the place's own is read or written. So all layers share that of the place. Each run
// has a copy of its own: what one implementation wrote would stand there for the next one, and a
// write that misses its slot would go for right.
std::vector<KvCache> OpRunner::caches_of(const OpInputs& inputs,
                                         std::vector<Tensor>& storage) const {
  KvCache cache;
  if (uses_cache(*place_.point)) {
    for (const Tensor* half : {&inputs.cache().k, &inputs.cache().v})
      storage.push_back(copy_on(options_.device, *half));
    cache = {storage[0], storage[1]};
  }
  return std::vector<KvCache>(static_cast<size_t>(layers_), cache);
}

CapturedCall OpRunner::call_on(const OpInputs& inputs) {
  std::optional<CapturedCall> call;
  captured_ = &call;
  run(0, inputs, /*timed=*/false);
  captured_ = nullptr;
  check(call.has_value(), "{} was not computed: no op of the model makes it", text_of(place_));
  return std::move(*call);
}

OpRunner::Made OpRunner::run(size_t which, const OpInputs& inputs, bool timed) {
  timed_ = timed;
  which_ = which;
  inputs_ = &inputs;
  seconds_ = 0;
  Pass made;
  Recorder recorder({}, /*digests=*/false, [&](Pass pass) { made = std::move(pass); });
  Only here(recorder, [&](const Point& p, int layer) {
    return std::ranges::count(options_.shown, Place{&p, layer}) > 0;
  });
  Probe probe(&here);
  std::vector<Tensor> storage;
  const std::vector<KvCache> caches = caches_of(inputs, storage);
  Batch batch = batch_of(inputs);
  if (options_.device == Device::cpu) {
    model_->forward(batch, caches, probe);
  } else {
    DeviceBatch on_device(DeviceBatch::room_of(batch), options_.device);
    on_device.fill(std::move(batch), rope_);
    model_->forward(on_device.batch(), caches, probe);
    wait_for(options_.device);
  }
  check(probe.failure().empty(), "{}", probe.failure());
  inputs_ = nullptr;
  for (RecordedTensor& tensor : made.tensors) {
    if (tensor.point->is_cache()) continue;  // its rows keep the request's number
    check(tensor.rows.size() == inputs.rows().size(), "{} was made of {} rows, {} were wanted",
          text_of(place_), tensor.rows.size(), inputs.rows().size());
    tensor.rows = inputs.rows();
  }
  return {std::move(made.tensors), seconds_};
}

}  // namespace lockstep
