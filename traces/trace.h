// What a trace is, whatever its format on disk. README.md in this folder is the layout.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "probes/graph.h"
#include "probes/recorder.h"

namespace lockstep {

// Where a point rounds inside: `fused` once at the end, `hf` as Hugging Face's chain of ops does,
// `eager` hf with scores and probabilities rounded too.
enum class Schema : uint8_t { fused, hf, eager };

enum class Keep : uint8_t { off, digest, flagged, full };
Keep keep_from(const std::string& name);  // throws Error on another name
const char* name_of(Keep keep);

// What one request was and became.
struct RequestInfo {
  int32_t id = 0;               // of its rows
  std::string name;             // the user's, e.g. the "id" of --requests; may be empty
  std::vector<int32_t> prompt;  // token ids
  std::vector<int32_t> forced;  // ids that were fed instead of the engine's choices; may be empty
  std::vector<int32_t> tokens;  // what was fed back and, last, what was chosen at the end
  std::vector<int32_t> argmax;  // the most likely token at each step, as the engine has it
  bool sampled = false;         // what it chose was drawn, and need not be the most likely
};

// Everything about a trace that is not a tensor.
struct Manifest {
  // The attributes of /provenance by name (6-traces lists them): "model", "model_xxh3", ...
  std::map<std::string, std::string> provenance;
  Graph graph;
  DType dtype = DType::bf16;  // of weights and activations
  Keep keep = Keep::digest;
  std::string selection;                 // Selection::text()
  std::map<std::string, Schema> schema;  // by point name; a missing one is undeclared
  std::vector<RequestInfo> requests;     // known in full only when the run has ended
};

// Writes one trace. Not thread-safe. What was written before a kill stays readable.
class TraceWriter {
 public:
  virtual ~TraceWriter() = default;
  // Tensors whose `data` is empty are kept as digests.
  virtual void write(const Pass& pass) = 0;
  // A fact for the provenance that is known only now.
  virtual void note(const std::string& name, const std::string& value) = 0;
  // Ends the trace: `requests` as they ended. A trace that is not finished is incomplete.
  virtual void finish(const std::vector<RequestInfo>& requests) = 0;
};

class TraceReader {
 public:
  virtual ~TraceReader() = default;
  virtual const Manifest& manifest() const = 0;
  virtual int passes() const = 0;
  // Pass i. `data`: load the tensors that were kept, else their digests only. Throws Error with the
  // file and what is wrong with it, hashes that do not match included.
  virtual Pass read(int i, bool data) = 0;
  // False when the run did not end or a part is missing or damaged; `problems` says so in
  // sentences.
  virtual bool complete() const = 0;
  virtual const std::vector<std::string>& problems() const = 0;
};

// Opens a new trace at `path`, whose extension picks the format (formats.cc). Throws Error when it
// exists already, cannot be written, or no format has that extension.
std::unique_ptr<TraceWriter> create_trace(const std::string& path, const Manifest& manifest);
// Opens a trace of any known format. Throws Error when it is none.
std::unique_ptr<TraceReader> open_trace(const std::string& path);

}  // namespace lockstep
