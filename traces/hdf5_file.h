// The part of HDF5 that traces need, over its C API. HDF5's ids are the int64_t here.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "kernels/base/memory.h"
#include "kernels/files/shared_file.h"

namespace lockstep {

// One open file. Every trouble is an Error that names the file, and HDF5 prints nothing itself.
// What is read takes memory in proportion to the file, whatever the file claims: a dataset lies in
// it in one piece, neither compressed nor in chunks nor behind a link, and the texts of a column
// are together at most 64 times as long as the file. Paths are absolute; a tensor lies in a group.
// Not thread-safe.
class Hdf5File {
 public:
  // Numbers as another program stored them: of 16, 32 or 64 bits.
  struct ForeignNumbers {
    Tensor tensor;  // bf16, fp16, fp32, or int64
    bool only_bits =
        false;  // of unsigned integers of 16 bits, of which nothing says what they mean
  };

  static Hdf5File create(const std::string& path);  // format bounds V110; replaces what is there
  static Hdf5File open(const std::string& path);    // to read; the seal must be whole
  static Hdf5File open_unsealed(const std::string& path);  // to read, whoever wrote it
  Hdf5File(Hdf5File&& other) noexcept;
  ~Hdf5File();  // closes without a word: a file that counts was closed by `close`

  // Everything written from now on is under the seal (seal.h); without a call, the whole file is.
  void seal_from_here();
  // Writes out what is buffered and closes. Throws Error, a full disk included.
  void close();
  // Makes a file whole that was closed and whose tensors are all written. HDF5 is not called, so
  // that another thread may do this.
  void seal() const;
  const std::string& path() const { return path_; }
  int64_t bytes() const { return bytes_; }  // of a file that was opened

  // Attributes of a group or dataset, which must exist.
  struct Attribute {
    const char* name;
    std::variant<int64_t, std::string> value;
  };
  void set(const std::string& object, const std::vector<Attribute>& attributes);
  void set(const std::string& object, const char* name, const std::string& value);
  void set(const std::string& object, const char* name, int64_t value);
  void set(const std::string& object, const char* name, const std::vector<std::string>& values);
  std::string text(const std::string& object, const char* name) const;
  int64_t number(const std::string& object, const char* name) const;
  std::map<std::string, std::string> texts(const std::string& object) const;  // all that are texts
  bool has(const std::string& object, const char* name) const;
  bool has(const std::string& path) const;  // a group or dataset whose parent is there

  void make_group(const std::string& path);  // and those above it

  // Datasets of T: int32_t int64_t uint8_t uint32_t uint64_t double std::string. `dims` multiply to
  // values.size().
  template <typename T>
  void write(const std::string& path, const std::vector<T>& values, std::vector<int64_t> dims);
  template <typename T>
  void write(const std::string& path, const std::vector<T>& values) {
    write(path, values, {std::ssize(values)});
  }
  template <typename T>
  std::vector<T> read(const std::string& path) const;

  // A tensor's bytes as they are, contiguous, in a type that readers understand: bf16 and fp16 are
  // HDF5 floats. Groups of the path are made. Reading throws unless dtype and shape are those.
  void write_tensor(const std::string& path, const TensorView& tensor);
  // The same without the bytes: returns where in the file they are to be put, by whoever writes
  // into written(). Of a tensor without bytes the place means nothing.
  int64_t place_tensor(const std::string& path, const TensorView& tensor);
  const std::shared_ptr<const SharedFile>& written() const { return written_; }
  Tensor read_tensor(const std::string& path, const Shape& shape, DType dtype) const;

  // Readers of files of others, in whose types nothing is agreed.
  std::vector<std::string> names(const std::string& group) const;  // of what lies in it
  std::vector<int64_t> integers(const std::string& path) const;    // a column of any width
  int64_t stored_bytes(const std::string& path) const;             // of a dataset
  ForeignNumbers numbers(const std::string& path,
                         bool whole) const;  // whole: integers, as int64

  // Dimension scales: `path` becomes the scale `name`, and axis `axis` of `dataset` gets it.
  void make_scale(const std::string& path, const std::string& name);
  void attach_scale(const std::string& dataset, unsigned axis, const std::string& scale);

 private:
  Hdf5File(int64_t id, const std::string& path);
  [[noreturn]] void trouble(const std::string& what) const;
  // The dataset of that path, open. Throws Error unless its bytes lie in this file as they are.
  int64_t stored_dataset(const std::string& path) const;
  std::vector<std::string> read_texts(int64_t dataset, const std::string& path) const;

  struct Kept;  // HDF5's ids that every tensor takes

  int64_t id_ = -1;
  std::unique_ptr<Kept> kept_;                 // of a file that is written, as the next
  std::shared_ptr<const SharedFile> written_;  // the same file, past HDF5
  int64_t seal_from_;
  int64_t bytes_ = 0;
  std::string path_;
};

}  // namespace lockstep
