// One HDF5 file of passes: a segment of a trace, or a whole one. README.md has its layout.
#pragma once

#include <memory>
#include <string>

#include "traces/columns.h"
#include "traces/hdf5_file.h"
#include "traces/place_reader.h"
#include "traces/write_behind.h"

namespace lockstep {

// Writes a new file. Tensors go out as they come, the columns at the end. Whoever owns the writer
// discards a file whose `finish` was not reached. Not for several threads, but for one that settles
// it in the end. It keeps the columns of all its passes in memory until it ends, and no tensor but
// those that are to be written behind.
class SegmentWriter {
 public:
  // seq: of the first tensor, counted over the whole trace. behind: who writes large tensors, and
  // outlives this; null: all are written by whoever adds them.
  SegmentWriter(const std::string& path, int64_t seq, WriteBehind* behind = nullptr);
  ~SegmentWriter();
  SegmentWriter(const SegmentWriter&) = delete;
  SegmentWriter& operator=(const SegmentWriter&) = delete;

  // Throws Error when a tensor has no digest. The memory of the tensors is shared until they are
  // written.
  void add(const Pass& pass);
  // The number of the next tensor, where the trace has others elsewhere before it.
  void set_seq(int64_t seq) { seq_ = seq; }
  // Both of the next.
  void finish(const Manifest& manifest);
  // Writes columns and attributes, `complete` last, and closes. Requests as they are known by then.
  void end(const Manifest& manifest);
  // Returns when all tensors are written too, and seals the file. HDF5 is not called, so that
  // another thread may do this.
  void settle();

  size_t passes() const { return columns_.passes(); }
  int64_t bytes() const { return bytes_; }  // of tensors

 private:
  Hdf5File file_;
  Columns columns_;
  int64_t seq_;
  int64_t bytes_ = 0;
  WriteBehind* behind_;
  std::shared_ptr<WriteBehind::Writes> writes_;  // null: none are written behind
};

// It holds the columns of all passes in memory, and reads tensors as they are asked for. Not for
// several threads: HDF5 is not.
class SegmentReader {
 public:
  // Throws Error, naming the file, when it is no complete and sound file of a layout that is known.
  explicit SegmentReader(const std::string& path);
  // The same of a file that may be without a seal.
  explicit SegmentReader(Hdf5File file);

  Manifest manifest() const;
  std::string run_id() const;
  const Columns& columns() const { return columns_; }
  // Opens every tensor that is there, and reads none. Throws Error where one is not stored as
  // tensors of a trace are.
  void open_tensors() const;
  // Pass i of this file; each tensor of a place that is wanted is read, and checked against its
  // xxh3.
  Pass read(size_t i, const WantedPlaces& wanted) const;

 private:
  Hdf5File file_;
  Columns columns_;
};

}  // namespace lockstep
