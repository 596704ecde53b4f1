// A user's op runs in this process, and when it crashes the sentence must say whose op it was.
// While a CrashWatch lives, signals of crashes and calls of exit on its thread, or from code of its
// library on another, end the process with that sentence and status 2; all others go to whoever had
// the signal before.
//
// Everything on the way is safe in a signal handler: no allocation, no locks, no stdio; the handler
// has a stack of its own, for the thread's may be what ran out. A watch is found by a thread_local
// pointer of the executable's own block, which a handler may read.
#include "kernels/plugin/crash_watch.h"

#include <execinfo.h>
#include <link.h>
#include <signal.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <utility>

namespace lockstep {
namespace {

struct Watched {
  int signal;
  std::string_view name;
};
constexpr auto kWatched = std::to_array<Watched>({{SIGSEGV, "SIGSEGV"},
                                                  {SIGBUS, "SIGBUS"},
                                                  {SIGFPE, "SIGFPE"},
                                                  {SIGILL, "SIGILL"},
                                                  {SIGABRT, "SIGABRT"}});

// The signal handler may read it, because it is constant-initialised in the executable's own block.
constinit thread_local const CrashWatch* of_this_thread = nullptr;
// The last that began, for threads that the library started itself.
constinit std::atomic<const CrashWatch*> of_any_thread = nullptr;

constinit std::atomic<const CrashScene*> scene = nullptr;

// Written once, before the first watch is there, and only read from then on.
std::array<struct sigaction, kWatched.size()> before_us;

size_t place_of(int signal) {
  return std::ranges::find(kWatched, signal, &Watched::signal) - kWatched.begin();
}

// A number in hexadecimal, made without the library.
class Hex {
 public:
  explicit Hex(uintptr_t number) {
    do {
      digits_[--begin_] = "0123456789abcdef"[number % 16];
      number /= 16;
    } while (number != 0);
    digits_[--begin_] = 'x';
    digits_[--begin_] = '0';
  }
  std::string_view text() const { return {digits_ + begin_, sizeof digits_ - begin_}; }

 private:
  char digits_[2 + 2 * sizeof(uintptr_t)] = {};
  size_t begin_ = sizeof digits_;
};

// One write for all pieces, so that lines of two threads do not mix.
void write_error(std::span<const std::string_view> pieces) {
  std::array<iovec, 10> parts;
  for (size_t i = 0; i < pieces.size(); ++i)
    parts[i] = {const_cast<char*>(pieces[i].data()), pieces[i].size()};
  // A failed write has nobody to be reported to.
  [[maybe_unused]] const ssize_t written =
      writev(STDERR_FILENO, parts.data(), static_cast<int>(pieces.size()));
}

// The sentence for a signal: whose op, which signal, which address.
void say(const CrashWatch& watch, const siginfo_t& info) {
  // The kernel does not say which address an instruction meant that no memory could ever have.
  const bool has_address =
      info.si_signo != SIGABRT && info.si_code > 0 && info.si_code != SI_KERNEL;
  const bool of_code = info.si_signo == SIGFPE || info.si_signo == SIGILL;
  const auto address = reinterpret_cast<uintptr_t>(info.si_addr);
  const Hex hex(address);
  const CrashScene* where = scene;
  const bool away = has_address && !of_code && watch.on_device(address);
  const std::string_view pieces[] = {
      "error: ",
      watch.who(),
      " crashed with ",
      kWatched[place_of(info.si_signo)].name,
      !has_address ? ""
      : of_code    ? " in the instruction at "
                   : " at the address ",
      has_address ? hex.text() : "",
      where != nullptr ? " " : "",
      where != nullptr ? where->text() : "",
      away ? ", in a tensor in the memory of the CUDA device, which the host cannot read: launch a "
             "kernel that works on it, or leave out --device cuda\n"
      : where != nullptr
          ? ": run it under gdb\n"
          : ": run it under gdb, or keep what it read with --trace and --record-before of that "
            "point\n"};
  write_error(pieces);
}

// To whoever had the signal before us.
void hand_on(int signal, siginfo_t* info, void* machine) {
  const struct sigaction& before = before_us[place_of(signal)];
  if ((before.sa_flags & SA_SIGINFO) != 0) return before.sa_sigaction(signal, info, machine);
  if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN)
    return before.sa_handler(signal);
  sigaction(signal, &before, nullptr);
  // The instruction fails once more when this returns; a signal that was sent is sent once more.
  if (info->si_code <= 0) raise(signal);
}

void handle(int signal, siginfo_t* info, void* machine) {
  static constinit std::atomic_flag said;
  const CrashWatch* watch = of_this_thread;
  if (watch == nullptr) {
    const auto& registers = static_cast<const ucontext_t*>(machine)->uc_mcontext.gregs;
    const CrashWatch* other = of_any_thread;
    if (other != nullptr && other->claims(registers[REG_RIP])) watch = other;
  }
  // A kill from outside is not the library's doing; abort() sends its signal from this process.
  const bool sent_by_others = info->si_code <= 0 && info->si_pid != getpid();
  if (watch == nullptr || sent_by_others) return hand_on(signal, info, machine);
  while (said.test_and_set()) pause();  // another thread crashed too, and says so
  say(*watch, *info);
  _exit(2);
}

// The watch of the call that this thread, which ends the process, was called from; or null.
const CrashWatch* watch_of_exit() {
  if (of_this_thread != nullptr) return of_this_thread;
  const CrashWatch* other = of_any_thread;
  if (other == nullptr) return nullptr;
  std::array<void*, 64> callers;
  // Not in a signal handler: exit was called, on a stack that is whole.
  const size_t count = backtrace(callers.data(), std::ssize(callers));
  const bool of_library = std::any_of(callers.begin(), callers.begin() + count, [&](void* caller) {
    return other->claims(reinterpret_cast<uintptr_t>(caller));
  });
  return of_library ? other : nullptr;
}

// Called by exit and quick_exit, on the stack of whoever calls them.
void handle_exit() {
  const CrashWatch* watch = watch_of_exit();
  if (watch == nullptr) return;
  const CrashScene* where = scene;
  const std::string_view pieces[] = {
      "error: ", watch->who(), where != nullptr ? " " : "", where != nullptr ? where->text() : "",
      " ended the process, as exit does: have it return a sentence that says what went wrong\n"};
  write_error(pieces);
  _exit(2);
}

bool begin_to_watch() {
  std::atexit(handle_exit);
  std::at_quick_exit(handle_exit);
  struct sigaction ours = {};
  ours.sa_sigaction = handle;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&ours.sa_mask);
  // Once in a process: handlers stay, and hand on what no watch claims.
  for (size_t i = 0; i < kWatched.size(); ++i) sigaction(kWatched[i].signal, &ours, &before_us[i]);
  return true;
}

// Where the handler of a thread runs, whose own stack may be what ran out.
class HandlerStack {
 public:
  HandlerStack() {
    stack_t has = {};
    sigaltstack(nullptr, &has);
    if ((has.ss_flags & SS_DISABLE) == 0) return;  // as a sanitizer gives each thread
    memory_ = std::make_unique<char[]>(kBytes);
    const stack_t made = {.ss_sp = memory_.get(), .ss_flags = 0, .ss_size = kBytes};
    sigaltstack(&made, nullptr);
  }
  ~HandlerStack() {
    const stack_t none = {.ss_sp = nullptr, .ss_flags = SS_DISABLE, .ss_size = 0};
    if (memory_ != nullptr) sigaltstack(&none, nullptr);
  }
  HandlerStack(const HandlerStack&) = delete;
  HandlerStack& operator=(const HandlerStack&) = delete;

 private:
  static constexpr size_t kBytes = 64 << 10;  // the registers of AMX alone take 8 KiB of it

  std::unique_ptr<char[]> memory_;
};

struct Search {
  uintptr_t address;
  AddressRange found;
};

int look_at(dl_phdr_info* object, size_t, void* data) {
  auto& search = *static_cast<Search*>(data);
  // From the first segment to the last: what lies between them is the library's too.
  AddressRange all = {UINTPTR_MAX, 0};
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = object->dlpi_phdr[i];
    if (segment.p_type != PT_LOAD) continue;
    const uintptr_t begin = object->dlpi_addr + segment.p_vaddr;
    all = {std::min(all.begin, begin), std::max(all.end, begin + segment.p_memsz)};
  }
  if (!all.contains(search.address)) return 0;
  search.found = all;
  return 1;
}

}  // namespace

AddressRange library_around(const void* function) {
  Search search = {reinterpret_cast<uintptr_t>(function), {}};
  dl_iterate_phdr(look_at, &search);
  return search.found;
}

CrashWatch::CrashWatch(std::string_view who, const AddressRange& code,
                       std::span<const AddressRange> on_device)
    : who_(who), code_(code), on_device_(on_device) {
  // The first watch sets up the handlers, whichever thread it is on.
  [[maybe_unused]] static const bool watching = begin_to_watch();
  thread_local const HandlerStack stack;
  of_any_thread = this;
  of_this_thread = this;
}

CrashScene::CrashScene(std::string text) : text_(std::move(text)) { scene = this; }
CrashScene::~CrashScene() { scene = nullptr; }

CrashWatch::~CrashWatch() {
  of_this_thread = nullptr;
  const CrashWatch* last = this;
  // Another one may have begun meanwhile, and stays.
  of_any_thread.compare_exchange_strong(last, nullptr);
}

bool CrashWatch::on_device(uintptr_t address) const {
  return std::ranges::any_of(on_device_,
                             [&](const AddressRange& r) { return r.contains(address); });
}

}  // namespace lockstep
