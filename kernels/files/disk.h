// Files and folders, with errors that say what to do.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep {

// Whether what is written must be on the disk on return, so that it survives a power cut.
enum class Durable : uint8_t { no, yes };

// A file that is being written. Until it is published it has a name of its own beside `path` (as
// "X.json.k3JdWq.part"), which nothing else has, and its owner alone can read it; unless it is
// published it is gone with this object.
class NewFile {
 public:
  // Makes the file, empty. Throws Error when its folder takes none.
  explicit NewFile(const std::string& path);
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  const std::string& name() const { return name_; }  // under which a library may write it
  // Throws Error when the disk is full or the write fails.
  void write(std::string_view text);
  // Puts the file, whole, in the place of what `path` was, with the access that new files have.
  // Throws Error when it cannot: the old file stays then, but where the new one was in its place
  // already and only could not be assured to be on the disk.
  void publish(Durable durable);

 private:
  std::string path_, name_;
  int file_ = -1;
};

// Replaces `path` by a file of that text: whole or not at all. Throws Error when it cannot, as the
// next two do.
void replace_file(const std::string& path, std::string_view text, Durable durable);

// Replaces what a file holds from byte `begin` on: what is before it stays as it is, also when this
// throws Error, as for a file that may not be written or a disk that is full.
void replace_end(const std::string& path, size_t begin, std::string_view text);

// Makes the bytes of a file, or the names in a folder, survive a power cut.
void sync(const std::string& path);

// Whether the system's message says that there is no room for more.
bool is_out_of_room(std::string_view message);
// Throws Error for such a message, with the file, the space that is left there, and what to do.
[[noreturn]] void fail_out_of_room(const std::string& path, std::string_view message);
// Throws Error for the system call that just failed to write `path`: errno says why.
[[noreturn]] void fail_writing(const std::string& path);

// A file that only grows. What `append` was given is with the system on return: it survives the
// death of this process. For one thread.
class AppendFile {
 public:
  // Throws Error when the file is there already, unless it may be: then it is extended.
  explicit AppendFile(const std::string& path, bool may_exist = false);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;
  void append(std::string_view text);
  void sync();  // survives a power cut too

 private:
  std::string path_;
  int file_ = -1;
};

// A folder of this process's own among the temporary ones, which is gone with this object.
class ScratchFolder {
 public:
  ScratchFolder();  // throws Error when none can be made
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace lockstep
