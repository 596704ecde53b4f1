// A trace's manifest as JSON: manifest.json, and the first and last line of a journal.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/base/check.h"
#include "traces/trace.h"

namespace lockstep {

inline constexpr const char* kFormat = "lockstep";
inline constexpr const char* kFormatVersion = "2.2";
inline constexpr size_t kMostManifest = size_t{1} << 28;  // bytes: long prompts by the thousand

// A manifest with what only the end of a run tells.
struct SavedManifest {
  Manifest manifest;
  int64_t passes = -1;  // of the whole trace, known when it has ended; -1: it has not
  bool ended() const { return passes >= 0; }
};

enum class Layout : uint8_t { one_line, pretty };
// Bytes that are no UTF-8 are replaced. One line for a journal, indented for a file that people
// open.
std::string json_of(const SavedManifest& saved, Layout layout);
// Throws Error, naming `file`, on what is no manifest or one of another format version.
SavedManifest manifest_from(std::string_view json, const std::string& file);

// The meaning of a word of a file, by a function that throws Error on a word it does not know; the
// Error that comes out names the file, or the field, where the word stands.
template <typename Meaning>
auto meaning_of(const std::string& word, const std::string& where, Meaning meaning) {
  try {
    return meaning(word);
  } catch (const Error& error) {
    fail("{}: {}", where, error.what());
  }
}

// Throws Error, naming `file`, unless a file that says it is `format` `version` can be read here.
void check_format(const std::string& format, const std::string& version, const std::string& file);

// A graph as columns, one entry a node: of /graph, and of the manifest's nodes. input_edges [i] and
// [i + 1] bound the inputs of node i.
struct GraphColumns {
  std::vector<std::string> point;
  std::vector<int32_t> layer, input;
  std::vector<int64_t> input_edges{0};
};
GraphColumns columns_of(const Graph& graph);
// Throws Error, naming `file`, on what is no graph: a point that none is, more layers than any
// model has, a node that reads one after it.
inline constexpr int kMostLayers = 1 << 16;
Graph graph_from(const GraphColumns& columns, const std::string& file);

// Throws Error, naming `file`, when two requests have one number.
void check_requests(const std::vector<RequestInfo>& requests, const std::string& file);

RoundingContract contract_from(const std::string& name);  // throws Error on another name

// How a request draws, as a JSON object: an entry of /requests/draw. "" where it is not known.
std::string draw_json_of(const std::optional<DrawInfo>& draw);
std::optional<DrawInfo> draw_from_json(const std::string& json, const std::string& file);

// The point -> contract table alone, as a JSON object: the attribute schema_json.
std::string contracts_json_of(const Manifest& manifest);
std::map<std::string, RoundingContract> contracts_from_json(const std::string& json,
                                                            const std::string& file);

}  // namespace lockstep
