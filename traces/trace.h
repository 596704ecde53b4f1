// A trace, whatever its format on disk. README.md in this folder is the layout.
//
// A trace is what a run showed, kept so that it can be judged, compared or looked at later, by
// another program or on another machine. Three layers, each of which can be read alone:
//
//     TraceWriter, TraceReader   passes in, passes out: all that the rest of the program knows
//     formats.cc                 the extension of a path picks one: X.trace, X.h5, X.journal
//     columns, segment, hdf5_*   passes as columns, columns as HDF5 datasets, HDF5's C API
//
// A pass holds tensors in full or as digests. A writer never leaves a trace that looks whole and is
// not: a segment is published under its name when it is closed, and `complete` is written last. A
// reader trusts no byte: sizes, edges and hashes are checked before anything is indexed by them,
// and trouble is an Error that names the file.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/base/names.h"
#include "probes/graph.h"
#include "probes/recorder.h"

namespace lockstep {

// Where an op rounds to the dtype of the run before it stores its result. Each names a chain of
// roundings that src/judge/contracts.h spells out by kind of op.
enum class RoundingContract : uint8_t {
  fused,                // nowhere: once, at the store
  hf,                   // as Hugging Face's modules do
  eager,                // hf, and attention's scores and probabilities as Hugging Face's eager one
  unrounded_sum,        // a norm reads the residual sum before it is rounded
  hf_unrounded_sum,     // the same, and rounds as hf
  bias_after_store,     // a linear op stores its product, then adds the bias
  scores_rounded,       // attention stores its scores
  query_rounded,        // hf, and attention scales its query first, and stores that
  eager_query_rounded,  // eager, and attention scales its query first, and stores that
  products_rounded,     // a weighted sum stores its products
  tables_rounded,       // RoPE reads cosines and sines of the run's dtype
  tf32,                 // linear ops of fp32 round their operands to 11 bits
  operands_bf16,        // linear ops of fp32 round their input to bf16
  operands_fp16,        // and to fp16; attention its query, K, V and weights
  cache_fp16,           // attention of fp32 reads a cache of fp16
  flash_fp16,           // the same, and may add up in fp16
  angles_iterated,      // RoPE of fp32 makes each angle of the one before
};
inline constexpr int kRoundingContracts = 17;
template <>
inline constexpr auto kNamesOf<RoundingContract> = std::to_array<const char*>(
    {"fused", "hf", "eager", "unrounded_sum", "hf_unrounded_sum", "bias_after_store",
     "scores_rounded", "query_rounded", "eager_query_rounded", "products_rounded", "tables_rounded",
     "tf32", "operands_bf16", "operands_fp16", "cache_fp16", "flash_fp16", "angles_iterated"});

// Whether a norm reads the sum before it is rounded.
constexpr bool is_of_sum(RoundingContract contract) {
  return contract == RoundingContract::unrounded_sum ||
         contract == RoundingContract::hf_unrounded_sum;
}

// Whether attention rounds the weights of the keys, each by itself.
constexpr bool rounds_weights(RoundingContract contract) {
  return contract == RoundingContract::hf || contract == RoundingContract::query_rounded;
}

// The contract that a kernel has where its library picks another one by the shape of a call: a node
// that is right under it is right. The same as `contract` where there is no other.
constexpr RoundingContract stricter_of(RoundingContract contract) {
  if (contract == RoundingContract::tf32) return RoundingContract::fused;
  return contract == RoundingContract::flash_fp16 ? RoundingContract::cache_fp16 : contract;
}

// Positions from here on, and pages of more of them, are taken for damage: what is made of
// positions is as long as they are far.
inline constexpr int32_t kMostPositions = 1 << 24;

enum class TraceLevel : uint8_t { off, digest, flagged, full };
TraceLevel trace_level_from(const std::string& name);  // throws Error on another name
template <>
inline constexpr auto kNamesOf<TraceLevel> = std::to_array<const char*>({"off", "digest", "flagged",
                                                                         "full"});

// How a request's tokens are drawn, so that a draw can be made again: the filters are those of
// Hugging Face's logits processors, in the order of the fields, and the number is of Philox4x32-10.
struct DrawInfo {
  double repetition_penalty = 1;
  double temperature = 0;  // 0: the most likely token
  int64_t top_k = 0;       // 0: all
  double top_p = 1;
  double min_p = 0;
  uint64_t seed = 0;    // the key
  uint32_t sample = 0;  // of several texts of one prompt; the counter is (choice, sample, 0)
  bool operator==(const DrawInfo&) const = default;
};

// One request: what it asked for and what became of it.
struct RequestInfo {
  int32_t id = 0;                // of its rows
  std::string name;              // the user's, e.g. the "id" of --requests; may be empty
  std::vector<int32_t> prompt;   // token ids
  std::vector<int32_t> forced;   // ids that were fed instead of the engine's choices; may be empty
  std::vector<int32_t> tokens;   // what was fed back and, last, what was chosen at the end
  std::vector<int32_t> argmax;   // the most likely token at each step, as the engine has it
  bool sampled = false;          // what it chose was drawn, and need not be the most likely
  std::optional<DrawInfo> draw;  // then: how; nothing: not known
  // The run's own orders: tokens to choose, -1 where it is not known; and whether an end token
  // or a stop text ended it before.
  int64_t max_new = -1;
  bool stopped = false;
};

// Everything about a trace that is not a tensor.
struct Manifest {
  // The attributes of /provenance by name (README.md, HDF5 layout): "model", "model_xxh3", ...
  std::map<std::string, std::string> provenance;
  Graph graph;
  bool graph_known = true;    // false: it is made of the points that are shown (bare_file.h)
  DType dtype = DType::bf16;  // of weights and activations
  TraceLevel level = TraceLevel::digest;
  std::string selection;                              // Selection::text()
  std::map<std::string, RoundingContract> contracts;  // by point name; a missing one is undeclared
  std::vector<RequestInfo> requests;                  // known in full only when the run has ended
};

// Writes one trace. Not thread-safe. What was written before a kill stays readable.
class TraceWriter {
 public:
  virtual ~TraceWriter() = default;
  // Tensors whose `data` is empty are kept as digests. The memory of large ones is shared, and
  // nobody may write to it any more. What goes wrong with them may be told by a later call.
  virtual void write(const Pass& pass) = 0;
  // A fact for the provenance that is known only now.
  virtual void note(const std::string& name, const std::string& value) = 0;
  // Ends the trace: `requests` as they ended. A trace that is not finished is incomplete.
  virtual void finish(const std::vector<RequestInfo>& requests) = 0;
};

// Not thread-safe. What read() returns is the caller's and stays whole when the reader is gone.
class TraceReader {
 public:
  virtual ~TraceReader() = default;
  virtual const Manifest& manifest() const = 0;
  virtual int passes() const = 0;
  // Pass i. `data`: load the tensors that were kept, else their digests only. Throws Error with the
  // file and what is wrong with it, hashes that do not match included.
  virtual Pass read(int i, bool data) = 0;
  // False when the run did not end or a part is missing or damaged; `problems` says so in
  // sentences, and what else is to be known of the file.
  virtual bool complete() const = 0;
  virtual const std::vector<std::string>& problems() const = 0;
};

// Opens a new trace at `path`, whose extension picks the format (formats.cc). Throws Error when it
// exists already, cannot be written, or no format has that extension.
std::unique_ptr<TraceWriter> create_trace(const std::string& path, const Manifest& manifest);
// Opens a trace of any known format. Throws Error when it is none.
std::unique_ptr<TraceReader> open_trace(const std::string& path);

}  // namespace lockstep
