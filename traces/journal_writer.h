#pragma once

#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/base/thread_pool.h"
#include "traces/journal_format.h"
#include "traces/manifest.h"

namespace lockstep {

// The row hashes of each cache as the last pass that had it left them. Both ends of a journal keep
// them, so that a pass need not hold those again that did not change. A cache is known by its
// point, layer and request.
class CacheHashes {
 public:
  struct Cache {
    std::vector<uint64_t> hashes;
    bool in_pass = false;  // this one
  };
  Cache& of(const Point& point, int layer, int32_t request) {
    return caches_[{&point, layer, request}];
  }
  void begin_pass(bool anew);

 private:
  std::map<std::tuple<const Point*, int, int32_t>, Cache> caches_;
};

// Makes a journal, record by record, in the order of the calls. It keeps the row hashes of the
// caches between the passes; data of tensors is not looked at. Passes of many rows are made with
// threads of its own.
class JournalEncoder {
 public:
  // The bytes are good until the next call, here and below.
  std::string_view begin(const SavedManifest& saved);
  // Throws Error when a tensor has no digest.
  std::string_view pass(const Pass& pass);
  std::string_view end(const SavedManifest& saved);

 private:
  void put_manifest(const SavedManifest& saved);
  void put_pass(const Pass& pass);
  void put_tensors(const Pass& pass);
  std::string body_of(const RecordedTensor& tensor, CacheHashes::Cache* cache) const;
  void put_record(JournalKind kind, std::string_view body);

  std::string out_;
  uint64_t checksum_ = 0;  // of the last record
  size_t in_block_ = 0;    // passes
  CacheHashes caches_;
  std::vector<Row> rows_, logit_rows_;  // of the pass
  std::unique_ptr<ThreadPool> pool_;    // made for the first pass of many rows
};

}  // namespace lockstep
