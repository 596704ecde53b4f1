// The life of a trace that is being written:
//
//     X.trace/manifest.json   at once, without the requests' ends; anew at the end
//     X.trace/run.journal     each pass as digests, before its tensors
//     X.trace/seg-000000.h5   passes of which tensors are kept, published when all of it is written
//     X.h5                    written in one piece from such a folder, X.h5.part, when the run ends
//
// Tensors are written by threads beside the run, of one segment or of several, and segments are
// published in their order by one more. After a kill everything up to the last published segment is
// there in full, and digests of all are in the journal. After trouble with the disk nothing more is
// written, because a hole in the middle would look whole.
#include "traces/writers.h"

#include <unistd.h>

#include <chrono>
#include <exception>
#include <filesystem>
#include <optional>

#include "kernels/base/check.h"
#include "kernels/base/sentence.h"
#include "kernels/files/disk.h"
#include "traces/journal_writer.h"
#include "traces/manifest.h"
#include "traces/readers.h"
#include "traces/segment.h"
#include "traces/segment_closer.h"

namespace lockstep {
namespace {

// Names a run: its segments are never taken for those of another one in the same place.
std::string new_run_id(const std::string& path) {
  const std::string seed = fmt::format("{} {} {}", path, ::getpid(),
                                       std::chrono::system_clock::now().time_since_epoch().count());
  return fmt::format("{:016x}", hash_of(seed.data(), seed.size()));
}

Manifest named(Manifest manifest, const std::string& path) {
  manifest.provenance.try_emplace("run_id", new_run_id(path));
  return manifest;
}

// The passes of a trace come in their order.
void check_order(const Pass& pass, int64_t last) {
  check(pass.info.pass > last, "pass {} was written after pass {}: passes are written in order",
        pass.info.pass, last);
}

class JournalWriter final : public TraceWriter {
 public:
  JournalWriter(const std::string& path, const Manifest& manifest)
      : manifest_(manifest), journal_(path) {
    journal_.append(encoder_.begin({manifest_}));
  }

  void write(const Pass& pass) override {
    check_order(pass, last_);
    journal_.append(encoder_.pass(pass));
    last_ = pass.info.pass;
    ++passes_;
  }

  void note(const std::string& name, const std::string& value) override {
    manifest_.provenance[name] = value;
  }

  void finish(const std::vector<RequestInfo>& requests) override {
    manifest_.requests = requests;
    journal_.append(encoder_.end({manifest_, passes_}));
    journal_.sync();
  }

 private:
  Manifest manifest_;
  AppendFile journal_;
  JournalEncoder encoder_;
  int64_t last_ = -1, passes_ = 0;
};

class FolderWriter final : public TraceWriter {
 public:
  FolderWriter(const std::string& folder, const Manifest& manifest)
      : folder_(folder), manifest_(manifest) {
    std::error_code error;
    const bool made = std::filesystem::create_directory(folder, error);
    check(made,
          "{}: a new folder was wanted there, but it cannot be made ({}): choose another --trace",
          folder, error.message());
    try {
      replace_file(manifest_path(), json_of({manifest_}, Layout::pretty), Durable::yes);
      journal_.emplace(journal_in(folder_), manifest_);
    } catch (const Error&) {  // nothing is lost with a folder that holds no pass yet
      std::filesystem::remove_all(folder_, error);
      throw;
    }
  }

  // A run that broke off keeps what it has seen.
  ~FolderWriter() override {
    try {
      if (segment_) close_segment();
    } catch (const std::exception&) {  // a lack of memory too: a destructor has nobody to tell
      drop_segment();
    }
  }

  void write(const Pass& pass) override {
    guarded([&] {
      // First the digests, so that there is no tensor without its own in the journal.
      journal_->write(pass);
      if (keeps_tensors(pass)) add_to_segment(pass);
      seq_ += std::ssize(pass.tensors);
      ++passes_;
      if (segment_ && is_full(segment_->writer)) close_segment();
    });
  }

  void note(const std::string& name, const std::string& value) override {
    manifest_.provenance[name] = value;
    journal_->note(name, value);
  }

  void finish(const std::vector<RequestInfo>& requests) override {
    guarded([&] {
      if (segment_) close_segment();
      closer_.flush();
      manifest_.requests = requests;
      journal_->finish(requests);
      replace_file(manifest_path(), json_of({manifest_, passes_}, Layout::pretty), Durable::yes);
    });
  }

 private:
  std::string manifest_path() const { return folder_ + "/manifest.json"; }
  std::string segment_path() const { return fmt::format("{}/seg-{:06}.h5", folder_, segments_); }

  static bool is_full(const SegmentWriter& segment) {
    return segment.passes() >= kSegmentPasses || segment.bytes() >= kSegmentBytes;
  }

  void add_to_segment(const Pass& pass) {
    if (!segment_) segment_ = std::make_unique<NewSegment>(segment_path(), seq_, behind_);
    segment_->writer.set_seq(seq_);
    segment_->writer.add(pass);
  }

  // HDF5 is done with it here; its tensors, the disk and its name are waited for elsewhere.
  void close_segment() {
    segment_->writer.end(manifest_);
    closer_.take(std::move(segment_));
    ++segments_;
  }

  // Those that were closed before it are published yet, if that works.
  void drop_segment() noexcept {
    segment_.reset();
    try {
      closer_.flush();
    } catch (const std::exception&) {  // it is in trouble already
    }
  }

  // After trouble the trace is what was closed before: a hole in its middle would look whole.
  template <typename Call>
  void guarded(Call call) {
    check(trouble_.empty(), "{}", trouble_);
    try {
      closer_.check_trouble();
      call();
    } catch (const std::exception& error) {
      trouble_ = sentence_of(error);
      drop_segment();
      throw;
    }
  }

  std::string folder_;
  Manifest manifest_;
  std::optional<JournalWriter> journal_;
  WriteBehind behind_;  // of all segments
  SegmentCloser closer_;
  std::unique_ptr<NewSegment> segment_;  // that passes are added to
  int64_t segments_ = 0, seq_ = 0, passes_ = 0;
  std::string trouble_;
};

class SingleFileWriter final : public TraceWriter {
 public:
  SingleFileWriter(const std::string& path, const Manifest& manifest)
      : path_(path), folder_(path + ".part"), manifest_(manifest), segments_(folder_, manifest) {}

  void write(const Pass& pass) override { segments_.write(pass); }

  void note(const std::string& name, const std::string& value) override {
    manifest_.provenance[name] = value;
    segments_.note(name, value);
  }

  void finish(const std::vector<RequestInfo>& requests) override {
    segments_.finish(requests);
    manifest_.requests = requests;
    try {
      NewFile whole(path_);
      WriteBehind behind;
      SegmentWriter file(whole.name(), 0, &behind);
      const auto trace = open_folder(folder_);
      for (int i = 0; i < trace->passes(); ++i) file.add(trace->read(i, true));
      file.finish(manifest_);
      whole.publish(Durable::yes);
    } catch (const Error& error) {
      fail("{} (the segments are whole: they are in {})", error.what(), folder_);
    }
    std::error_code ignored;  // what is left over harms nobody
    std::filesystem::remove_all(folder_, ignored);
  }

 private:
  std::string path_, folder_;
  Manifest manifest_;
  FolderWriter segments_;
};

}  // namespace

std::unique_ptr<TraceWriter> create_folder(const std::string& path, const Manifest& manifest) {
  return std::make_unique<FolderWriter>(path, named(manifest, path));
}

std::unique_ptr<TraceWriter> create_single_file(const std::string& path, const Manifest& manifest) {
  return std::make_unique<SingleFileWriter>(path, named(manifest, path));
}

void replace_single_file(const std::string& path, const Manifest& manifest, const Pass& pass) {
  NewFile whole(path);
  SegmentWriter file(whole.name(), 0);
  file.add(pass);
  file.finish(named(manifest, path));
  whole.publish(Durable::yes);
}

std::unique_ptr<TraceWriter> create_journal(const std::string& path, const Manifest& manifest) {
  check(manifest.level == TraceLevel::digest,
        "{}: a journal keeps digests alone: use --keep digest, or a trace X.trace or X.h5", path);
  return std::make_unique<JournalWriter>(path, named(manifest, path));
}

}  // namespace lockstep
