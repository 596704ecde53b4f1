// A baseline: all that a check holds a later run of the same requests to.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kernels/base/dtype.h"
#include "src/check/run_bits.h"
#include "src/engine/request.h"
#include "src/judge/limits.h"
#include "src/judge/verdict.h"

namespace lockstep {

struct Baseline {
  struct OpClass {
    OpKind op = OpKind::gather;
    Reached reached;  // four digits of each
    OpLimits limits;  // that the run was held to, and later ones are
  };
  struct PointRow {
    const Point* point = nullptr;
    int32_t layers = 1;          // with such a place; 1 for a point of no layer
    int64_t nodes = 0;           // judged, of all layers
    int64_t excluded = 0;        // elements that are not finite
    std::vector<uint32_t> bits;  // a hash a layer, 32 bits of RunBits; of the cache none
  };
  struct Text {
    std::string name;             // the request's, for people
    std::string asks;             // hash of what was asked for; "": another sample of a request
    int64_t prompt = 0;           // tokens
    std::vector<int32_t> tokens;  // that were chosen
    std::vector<int32_t> argmax;  // the most likely ones; empty: the tokens are these
    std::vector<uint16_t> bits;   // a hash a position, 16 bits of RunBits; the last token has none
  };

  std::string model, model_xxh3;  // the folder's name; Checkpoint::fingerprint()
  std::string weights_xxh3;       // Checkpoint::weights_hash(); "": not known
  DType dtype = DType::bf16;
  std::map<std::string, std::string> provenance;  // without what differs from run to run
  std::vector<std::string> untested;              // Result::blind
  std::vector<OpClass> classes;                   // in the order of OpKind
  std::vector<PointRow> points;                   // in graph order
  std::vector<Text> texts;                        // first those of the requests, in their order

  Limits limits() const;
};

// The hash of everything that decides what becomes of a request, but for what it is forced to by a
// check. As hexadecimal digits.
std::string asks_of(const Request& request);

// The baseline that a clean run makes, which served those requests, held to those limits, and
// showed those bits.
Baseline baseline_of(const Result& result, const std::vector<Request>& requests,
                     const Limits& limits, const RunBits& bits);

// The file: an op class, a point, a request a line, in an order that does not change, and nothing
// of a time, so that two of the same build are equal byte for byte.
std::string json_of(const Baseline& baseline);
// Throws Error, with the path, when there is no such file or it holds something else.
Baseline read_baseline(const std::string& path);
// Throws Error where a new baseline would take the place of a file that is none. A damaged one may
// be replaced, and one of another version.
void check_replaceable(const std::string& path);

}  // namespace lockstep
