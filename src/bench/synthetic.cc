// Random weights are written through a table of normal draws rather than drawn one by one, which
// makes a file of gigabytes in seconds. The file loses its name before the first weight is written,
// and is on the disk before anything is timed.
#include "src/bench/synthetic.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/files/disk.h"
#include "src/report/output.h"

namespace lockstep {
namespace {

constexpr size_t kDraws = 1 << 16;

// Throws Error where anything cannot be written.
class OutputFile {
 public:
  explicit OutputFile(const std::string& path)
      : path_(path), fd_(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600)) {
    check_done(fd_ >= 0);
  }
  ~OutputFile() { ::close(fd_); }
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(const void* bytes, size_t size) {
    const auto* from = static_cast<const char*>(bytes);
    while (size > 0) {
      const ssize_t done = ::write(fd_, from, size);
      check_done(done > 0);
      from += done;
      size -= done;
    }
  }
  // Makes the file that many bytes longer, without writing them.
  void extend(int64_t bytes) {
    const off_t end = ::lseek(fd_, 0, SEEK_CUR);
    check_done(end >= 0 && ::ftruncate(fd_, end + bytes) == 0);
  }
  // Pages that the system writes back later would share memory bandwidth with the measurement.
  void finish() { check_done(::fdatasync(fd_) == 0); }

 private:
  void check_done(bool done) const {
    check(done, "\"{}\" cannot be written ({}); set TMPDIR to a folder with room", path_,
          std::strerror(errno));
  }

  std::string path_;
  int fd_;
};

// The header of a safetensors file with those tensors in bf16, one behind the other.
std::string header_of(const std::map<std::string, Shape>& tensors) {
  nlohmann::json header;
  int64_t at = 0;
  for (const auto& [name, shape] : tensors) {
    const int64_t end = at + shape.count() * size_of(DType::bf16);
    const auto extents = shape.extents();
    header[name] = {{"dtype", "BF16"},
                    {"shape", std::vector<int64_t>(extents.begin(), extents.end())},
                    {"data_offsets", {at, end}}};
    at = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // so that the data is aligned
  return text;
}

// `count` draws of a normal distribution, written in parts. A table of draws that is picked from
// at random: half a billion draws one by one would take longer than the benchmark.
void write_normal(OutputFile& file, int64_t count, float mean, float deviation,
                  std::mt19937_64& random) {
  std::vector<BFloat16> draws(kDraws), part(1 << 20);
  std::normal_distribution<float> normal(mean, deviation);
  std::ranges::generate(draws, [&] { return from_float<BFloat16>(normal(random)); });
  for (int64_t left = count; left > 0;) {
    const size_t n = std::min(left, std::ssize(part));
    uint64_t bits = 0;
    for (size_t i = 0; i < n; ++i, bits >>= 16) {
      if (i % 4 == 0) bits = random();
      part[i] = draws[bits % kDraws];
    }
    file.write(part.data(), n * sizeof(BFloat16));
    left -= n;
  }
}

}  // namespace

Checkpoint synthetic_checkpoint(const std::string& config) {
  std::optional<ScratchFolder> folder(std::in_place);
  write_file(folder->path() + "/config.json", config);
  const std::map<std::string, Shape> tensors = needed_tensors(read_config(folder->path()));
  const std::string header = header_of(tensors);
  OutputFile file(folder->path() + "/model.safetensors");
  const uint64_t length = header.size();
  file.write(&length, sizeof length);
  file.write(header.data(), header.size());
  int64_t bytes = 0;
  for (const auto& [name, shape] : tensors) bytes += shape.count() * size_of(DType::bf16);
  file.extend(bytes);
  // From here on the file lives by its mapping, which on Linux shows what is written to it.
  Checkpoint checkpoint = Checkpoint::open(folder->path());
  folder.reset();
  std::mt19937_64 random(1);
  for (const auto& [name, shape] : tensors) {
    const bool matrix = shape.rank() > 1, bias = name.ends_with(".bias");
    // Rows of a matrix have a norm of about 1, so that numbers neither grow nor vanish along the
    // layers.
    const float deviation = matrix ? 1 / std::sqrt(static_cast<float>(shape.last())) : 0.02f;
    write_normal(file, shape.count(), matrix || bias ? 0.0f : 1.0f, deviation, random);
  }
  file.finish();
  return checkpoint;
}

}  // namespace lockstep
