// A trace's manifest as JSON: manifest.json, and the first and last line of a journal.
#pragma once

#include <string>

#include "traces/trace.h"

namespace lockstep {

inline constexpr const char* kFormat = "lockstep";
inline constexpr const char* kFormatVersion = "1.1";
// What is read besides: the digests of attn.kv were of all its bytes, and had numbers.
inline constexpr const char* kFormatVersionBefore = "1.0";

struct SavedManifest {
  Manifest manifest;
  int64_t passes = -1;  // of the whole trace, known when it has ended; -1: it has not
  bool ended() const { return passes >= 0; }
};

enum class Layout : uint8_t { one_line, pretty };
std::string json_of(const SavedManifest& saved, Layout layout);
// Throws Error, naming `file`, on what is no manifest or one of another format version.
SavedManifest manifest_from(const std::string& json, const std::string& file);

// Throws Error, naming `file`, unless a file that says it is `format` `version` can be read here.
void check_format(const std::string& format, const std::string& version, const std::string& file);

// Throws Error, naming `file`, on more layers than any model has.
inline constexpr int kMostLayers = 1 << 16;
int layers_from(int64_t layers, const std::string& file);

const char* name_of(Schema schema);
Schema schema_from(const std::string& name);  // throws Error on another name

// The point -> schema table alone, as a JSON object: the attribute schema_json.
std::string schema_json_of(const Manifest& manifest);
std::map<std::string, Schema> schema_from_json(const std::string& json, const std::string& file);

}  // namespace lockstep
