#pragma once

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "src/weights/checkpoint.h"
#include "tests/helpers.h"
#include "tests/weights/safetensors_file.h"

namespace lockstep {

// A tensor as a test writes it.
struct Stored {
  std::string dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};
using StoredWeights = std::map<std::string, Stored>;

inline StoredWeights weights_of(const std::string& path) {
  StoredWeights weights;
  const SafeTensors file(path);
  for (const auto& [name, tensor] : file.tensors()) {
    const auto extents = tensor.shape.extents();
    weights[name] = {"BF16",
                     {extents.begin(), extents.end()},
                     std::string(tensor.as<char>(), static_cast<size_t>(tensor.bytes()))};
  }
  return weights;
}

inline std::string file_of(const StoredWeights& weights) {
  nlohmann::json header = nlohmann::json::object();
  std::string data;
  for (const auto& [name, stored] : weights) {
    header[name] = {{"dtype", stored.dtype},
                    {"shape", stored.shape},
                    {"data_offsets", {data.size(), data.size() + stored.bytes.size()}}};
    data += stored.bytes;
  }
  return safetensors_file(padded(header.dump()), data);
}

// Copies a tiny checkpoint, changes its weights and the fields of its config.json, and opens it.
inline Checkpoint open_changed(const std::string& name,
                               const std::function<void(StoredWeights&)>& change,
                               const nlohmann::json& fields = nlohmann::json::object()) {
  const std::string dir = data_path("tiny/" + name);
  StoredWeights weights = weights_of(dir + "/model.safetensors");
  change(weights);
  nlohmann::json config = nlohmann::json::parse(text_of(dir + "/config.json"));
  config.merge_patch(fields);
  const TempFolder folder;
  folder.write("config.json", config.dump());
  folder.write("model.safetensors", file_of(weights));
  return Checkpoint::open(folder.path());
}

}  // namespace lockstep
