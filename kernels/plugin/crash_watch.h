#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace lockstep {

// Bytes of memory: [begin, end).
struct AddressRange {
  uintptr_t begin = 0, end = 0;

  bool contains(uintptr_t address) const { return address >= begin && address < end; }
};

// The memory that the shared library with that function was loaded into; empty when it cannot be
// found.
AddressRange library_around(const void* function);

// A guard, on the stack of the calling thread, that turns a crash inside a foreign library into one
// sentence. While one lives, its thread is in a function of that library. When that thread, or
// another one within the code of the library, then gets a SIGSEGV, SIGBUS, SIGFPE, SIGILL or
// SIGABRT that this process made itself, the process ends with exit status 2 and one sentence on
// stderr: `who`, the signal, the address, and what to do. So it does when one of them calls exit or
// quick_exit, whose status would else pass for a verdict; _exit asks nobody. It ends as if killed,
// with no destructor run: what was being written is left as it was, under the name that it had
// then. Every other signal goes where it went before the first of them was made. Threads may have
// one each; a library's own threads are those of the one that was made last, while it lives.
class CrashWatch {
 public:
  // Borrows all: `code` of the library, `on_device` of those tensors of the call that the host
  // cannot read.
  CrashWatch(std::string_view who, const AddressRange& code,
             std::span<const AddressRange> on_device);
  ~CrashWatch();
  CrashWatch(const CrashWatch&) = delete;
  CrashWatch& operator=(const CrashWatch&) = delete;

  // For the handler of signals: what is safe there, and no more.
  bool claims(uintptr_t instruction) const { return code_.contains(instruction); }
  bool on_device(uintptr_t address) const;
  std::string_view who() const { return who_; }

 private:
  std::string_view who_;
  AddressRange code_;
  std::span<const AddressRange> on_device_;
};

// The calls of ops that are made for one reason among many, such as a case of a grid: while one
// lives, the sentence of a crash or an exit says its text after what it is of. One at a time.
class CrashScene {
 public:
  explicit CrashScene(std::string text);  // "in the case bf16, width 100"
  ~CrashScene();
  CrashScene(const CrashScene&) = delete;
  CrashScene& operator=(const CrashScene&) = delete;

  std::string_view text() const { return text_; }

 private:
  std::string text_;
};

}  // namespace lockstep
