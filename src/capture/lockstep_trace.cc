// The library behind traces/lockstep_trace.h.
//
// A call of the C interface goes through guarded(): exceptions become the trace's error and -1, and
// a trace that failed once takes nothing more, so that an engine may check once, at the end.
//
//   begin_pass(rows)           the pass before is written, a new one begins
//   show(point, layer, ..)     copied, hashed and digested at once
//   logits(..)                 the same, of the point "logits"
//   close()                    the last pass is written, then the manifest that seals the file
//
// A trace belongs to the thread that calls; several traces may be written by several threads.
#pragma GCC visibility push(default)
#include "traces/lockstep_trace.h"
#pragma GCC visibility pop

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/nearest.h"
#include "src/capture/dense.h"
#include "src/weights/config.h"
#include "src/weights/qwen_graph.h"
#include "traces/bare_file.h"
#include "traces/bare_rows.h"
#include "traces/manifest.h"
#include "traces/trace.h"

using namespace lockstep;

namespace {

const Point& point_named(const char* name) {
  check(name != nullptr, "the name of a point was wanted, found NULL");
  const Point* point = find_point(name);
  std::vector<std::string_view> names;
  if (point == nullptr)
    for (const Point& p : kPoints) names.push_back(p.name);
  check(point != nullptr, "'{}' is no point{} (`lockstep points` lists them)", name,
        did_you_mean(name, names));
  return *point;
}

// The manifest of a run that was told what the options say: all points that every engine of this
// model has, without those that an engine need not show.
Manifest manifest_of(const LockstepTraceOptions& options, const ModelConfig& config) {
  const Graph graph =
      qwen_graph_of(config).restricted([](const Place& place) { return !place.point->optional; });
  Manifest manifest{.graph = graph, .dtype = dtype_from(options.dtype), .level = TraceLevel::full};
  check(is_float(manifest.dtype) && manifest.dtype != DType::f64,
        "the dtype of a run was wanted to be bf16, fp16 or fp32, found {}", options.dtype);
  if (options.engine != nullptr) manifest.provenance["engine"] = options.engine;
  manifest.provenance["model"] = options.model;
  const std::string schema = options.schema == nullptr ? "" : options.schema;
  if (schema.starts_with("{"))
    manifest.contracts = contracts_from_json(schema, "the options");
  else if (!schema.empty())
    manifest.provenance[kSchema] = schema;
  return manifest;
}

// The model's configuration, after the options that must be there were found to be.
ModelConfig config_of(const LockstepTraceOptions& options) {
  for (const auto& [name, text] :
       {std::pair("path", options.path), {"model", options.model}, {"dtype", options.dtype}})
    check(text != nullptr, "the option {} of lockstep_trace_open was wanted, found NULL", name);
  return read_config(options.model);
}

}  // namespace

// One trace that an engine writes: the model's graph and config, the writer, and the pass that is
// being shown. Tensors are held until the pass ends and are checked against the graph as they come,
// so that a wrong name or shape is an error of the call that made it.
struct LockstepTrace {
  explicit LockstepTrace(const LockstepTraceOptions& options)
      : config(config_of(options)),
        manifest(manifest_of(options, config)),
        writer(create_trace(options.path, manifest)) {}

  void begin_pass(const LockstepRow* rows, int64_t count) {
    end_pass();
    check(rows != nullptr && count > 0, "a pass has one row or more, found {}", count);
    Pass next{.info = {.pass = number++, .inherited_known = false}};
    for (int64_t i = 0; i < count; ++i)
      next.info.rows.push_back(
          {.row = {rows[i].request, rows[i].position}, .token = rows[i].token});
    check_rows(next.info, "lockstep_trace_begin_pass");
    put_phases(next.info);
    pass = std::move(next);
  }

  void show(const Point& point, int layer, const DLTensor* tensor, const int32_t* rows,
            int64_t count, void* stream) {
    const Place place{&point, layer};
    const std::string what = point.per_layer ? fmt::format("{} of layer {}", point.name, layer)
                                             : std::string(point.name);
    check(pass.has_value(), "{} was shown before the first lockstep_trace_begin_pass", what);
    check(tensor != nullptr, "{} was shown as NULL", what);
    check(!point.is_cache(), "{} is not shown here: attention is judged on attn.k_rope and attn.v",
          what);
    check(manifest.graph.has(place) || point.optional, "the model has no {}", what);
    check(pass->find(point, layer) == nullptr, "{} was shown twice in pass {}", what,
          pass->info.pass);
    RecordedTensor shown{.point = &point, .layer = layer};
    shown.data = in_heads(dense_copy(*tensor, stream, what), point);
    shown.dtype = shown.data.view().dtype;
    shown.shape = shown.data.view().shape;
    const std::vector<int32_t> of = rows_of(shown.data.view().rows(), rows, count, what);
    for (const int32_t i : of) shown.rows.push_back(pass->info.rows[i].row);
    if (point.rows == RowDomain::logit) put_logit_rows(of, what);
    shown.row_hashes = row_hashes_of(shown.data);
    shown.digest = digest_of(shown.data);
    pass->tensors.push_back(std::move(shown));
  }

  void close() {
    end_pass();
    writer->finish({});
  }

  ModelConfig config;
  Manifest manifest;
  std::unique_ptr<TraceWriter> writer;
  std::optional<Pass> pass;
  int32_t number = 0;  // of the next pass
  std::string error;

 private:
  void end_pass() {
    if (!pass) return;
    put_top_logits(*pass);
    writer->write(*pass);
    pass.reset();
  }

  // Heads in one axis with their dims, as the point has them. The memory is the same: only the
  // shape differs.
  Tensor in_heads(const Tensor& tensor, const Point& point) const {
    const TensorView& view = tensor.view();
    const int64_t dim = config.head_dim;
    if (point.head_axis != 1 || view.shape.rank() != 2 || view.shape.last() % dim != 0)
      return tensor;
    return tensor.part(0, {view.rows(), view.shape.last() / dim, dim}, view.dtype);
  }

  // The rows of the pass that a tensor has, by their numbers: those that were named, or what their
  // count allows.
  std::vector<int32_t> rows_of(int64_t has, const int32_t* rows, int64_t count,
                               const std::string& what) const {
    if (rows == nullptr) {
      const auto of = rows_by_count(has, pass->info);
      check(of.has_value(),
            "{} has {} rows, and pass {} has {}: as many, or one of each request, were wanted",
            what, has, pass->info.pass, pass->info.rows.size());
      return *of;
    }
    check(has == count, "{} has {} rows, and was said to have {}", what, has, count);
    std::vector<int32_t> of(rows, rows + count);
    int32_t least = 0;
    for (const int32_t i : of) {
      check(i >= least && i < std::ssize(pass->info.rows),
            "{} was shown with row {}: ascending rows of the {} of pass {} were wanted", what, i,
            pass->info.rows.size(), pass->info.pass);
      least = i + 1;
    }
    return of;
  }

  // Tensors of logits of one pass all have the same rows, or the pass would have two truths about
  // who chooses.
  void put_logit_rows(const std::vector<int32_t>& of, const std::string& what) {
    check(pass->info.logit_rows.empty() || pass->info.logit_rows == of,
          "{} has other rows than the logits of the pass", what);
    pass->info.logit_rows = of;
  }
};

namespace {

thread_local std::string last_error;

// Makes of every exception a sentence and -1. A trace that failed once takes nothing more.
template <typename Call>
int guarded(LockstepTrace* trace, Call call) {
  if (trace == nullptr || !trace->error.empty()) return -1;
  try {
    call();
    return 0;
  } catch (const std::exception& error) {
    trace->error = error.what();
    return -1;
  }
}

}  // namespace

extern "C" {

int32_t lockstep_trace_abi(void) { return LOCKSTEP_TRACE_ABI; }

LockstepTrace* lockstep_trace_open(const LockstepTraceOptions* options) {
  try {
    check(options != nullptr, "the options of lockstep_trace_open were wanted, found NULL");
    return std::make_unique<LockstepTrace>(*options).release();
  } catch (const std::exception& error) {
    last_error = error.what();
    return nullptr;
  }
}

int lockstep_trace_begin_pass(LockstepTrace* trace, const LockstepRow* rows, int64_t count) {
  return guarded(trace, [&] { trace->begin_pass(rows, count); });
}

int lockstep_trace_show(LockstepTrace* trace, const char* point, int32_t layer,
                        const DLTensor* tensor, void* stream) {
  return lockstep_trace_show_rows(trace, point, layer, tensor, nullptr, 0, stream);
}

int lockstep_trace_show_rows(LockstepTrace* trace, const char* point, int32_t layer,
                             const DLTensor* tensor, const int32_t* rows, int64_t count,
                             void* stream) {
  return guarded(trace,
                 [&] { trace->show(point_named(point), layer, tensor, rows, count, stream); });
}

int lockstep_trace_logits(LockstepTrace* trace, const DLTensor* logits, void* stream) {
  return lockstep_trace_show(trace, "logits", -1, logits, stream);
}

// The trace is freed even where it failed; the sentence goes on to lockstep_trace_error(NULL) of
// this thread.
int lockstep_trace_close(LockstepTrace* trace) {
  if (trace == nullptr) return 0;
  const std::unique_ptr<LockstepTrace> owned(trace);
  guarded(trace, [&] { trace->close(); });
  if (trace->error.empty()) return 0;
  last_error = trace->error;
  return -1;
}

const char* lockstep_trace_error(const LockstepTrace* trace) {
  return trace == nullptr ? last_error.c_str() : trace->error.c_str();
}

}  // extern "C"
