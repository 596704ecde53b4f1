#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/files/text.h"
#include "traces/columns.h"
#include "traces/journal_writer.h"

namespace lockstep {

// Bytes of a file from `begin` on; fewer where it ends.
std::string file_part(const InputFile& file, const std::string& path, size_t begin, size_t size);

// Reads a journal: all of it once, to see how far it is whole, and then pass by pass, so that no
// more than one lies in memory, and the row hashes of the caches. Not for several threads.
class JournalReader {
 public:
  struct PassAt {
    int32_t number = 0;
    bool kept = false;  // numbers of its tensors were kept somewhere
    size_t block = 0;   // where its block begins, in passes()
    size_t begin = 0, end = 0;
  };

  // Throws Error when there is no file, or its beginning is no journal's. A record that was cut or
  // damaged ends the journal there, and the pass that it is of is left out.
  explicit JournalReader(const std::string& path);

  const SavedManifest& saved() const { return saved_; }  // as it ended, if it did
  const std::vector<PassAt>& passes() const { return passes_; }
  // Why reading stopped before the end of the file; empty: it did not.
  const std::string& problem() const { return problem_; }
  // The judgement that is kept behind a journal that ended; "": none that is whole. It begins, or
  // would, at `end`, after a record of that checksum. Whether there is but a part of one, or one
  // that was changed: the journal before it is whole.
  const std::string& result() const { return result_; }
  bool result_is_damaged() const { return result_is_damaged_; }
  size_t end() const { return end_; }
  uint64_t checksum() const { return checksum_; }

  // passes()[i], without data. Throws Error where what it says makes no sense. Fast in order.
  Pass read(size_t i);

 private:
  class Scan;
  Pass next_pass();

  std::string path_;
  InputFile file_;
  SavedManifest saved_;
  std::vector<PassAt> passes_;
  std::string problem_, result_;
  bool result_is_damaged_ = false;
  size_t end_ = 0;
  uint64_t checksum_ = 0;

  size_t next_ = 0;  // pass that next_pass() reads
  CacheHashes caches_;
  RowBudget budget_{0};  // of the block
};

}  // namespace lockstep
