/* Loaded before the C library (LD_PRELOAD): the calls of a process that a full disk, a signal or a
 * lack of memory would fail, fail here by their number. What to do is said by variables:
 *
 *   TROUBLE_CALL=N    the N-th call that writes fails with TROUBLE_ERRNO (from 1; 0: none)
 *
 *   TROUBLE_STAYS=1   and so do all after it, as on a full disk
 *
 *   TROUBLE_SHORT=1   each write and read takes half of what it is given
 *
 *   TROUBLE_READ=N, TROUBLE_OPEN=N    the N-th read or open fails with TROUBLE_ERRNO
 *
 *   TROUBLE_ALLOC=N   the N-th allocation fails, with TROUBLE_STAYS all after it
 *
 *   TROUBLE_CLOCK=1   each clock goes a second back whenever it is asked
 *
 *   TROUBLE_COUNT=F   at its end the process writes how many such calls there were into the file F
 *
 * Left alone are calls on descriptors 0 to 2, on what the system says of itself (/proc, /sys), and
 * those of other programs than TROUBLE_OF. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

enum Kind { WRITES, READS, OPENS, ALLOCS, KINDS };
static const char* const variables[KINDS] = {"TROUBLE_CALL", "TROUBLE_READ", "TROUBLE_OPEN",
                                             "TROUBLE_ALLOC"};
static long at[KINDS];
static atomic_long calls[KINDS];
static int error = ENOSPC, stays, is_short, clock_back, ready;
static atomic_long seconds_back;

static long number(const char* name) {
  const char* text = getenv(name);
  return text ? atol(text) : 0;
}

static void begin(void) {
  char program[4096] = "";
  const char* wanted = getenv("TROUBLE_OF");
  const ssize_t got = readlink("/proc/self/exe", program, sizeof program - 1);
  if (got < 0 || (wanted && strcmp(wanted, program) != 0)) return;
  for (int kind = 0; kind < KINDS; ++kind) at[kind] = number(variables[kind]);
  if (getenv("TROUBLE_ERRNO")) error = (int)number("TROUBLE_ERRNO");
  stays = (int)number("TROUBLE_STAYS");
  is_short = (int)number("TROUBLE_SHORT");
  clock_back = (int)number("TROUBLE_CLOCK");
  ready = 1;
}

static int (*real_main)(int, char**, char**);

/* Nothing fails before main: what initialises a library has nobody to tell. */
static int main_in_trouble(int count, char** arguments, char** environment) {
  begin();
  return real_main(count, arguments, environment);
}

int __libc_start_main(int (*main_)(int, char**, char**), int count, char** arguments,
                      void (*init)(void), void (*fini)(void), void (*loader_fini)(void),
                      void* stack_end) {
  static int (*next)(int (*)(int, char**, char**), int, char**, void (*)(void), void (*)(void),
                     void (*)(void), void*);
  next = dlsym(RTLD_NEXT, "__libc_start_main");
  real_main = main_;
  return next(main_in_trouble, count, arguments, init, fini, loader_fini, stack_end);
}

__attribute__((destructor)) static void end(void) {
  const char* path = getenv("TROUBLE_COUNT");
  if (!ready || !path) return;
  ready = 0;
  FILE* file = fopen(path, "w");
  if (!file) return;
  for (int kind = 0; kind < KINDS; ++kind) fprintf(file, "%ld ", atomic_load(&calls[kind]));
  fclose(file);
}

/* Whether this call is to fail. */
static int fails(enum Kind kind) {
  if (!ready) return 0;
  const long n = atomic_fetch_add(&calls[kind], 1) + 1;
  if (at[kind] == 0 || n < at[kind] || (n > at[kind] && !stays)) return 0;
  errno = kind == ALLOCS ? ENOMEM : error;
  return 1;
}

static int is_file(int descriptor) {
  struct stat status;
  struct statfs on;
  if (descriptor <= 2 || fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) return 0;
  return fstatfs(descriptor, &on) == 0 && on.f_type != PROC_SUPER_MAGIC && on.f_type != SYSFS_MAGIC;
}

static int is_of_the_system(const char* path) {
  return strncmp(path, "/proc/", 6) == 0 || strncmp(path, "/sys/", 5) == 0;
}

static size_t part_of(size_t count) {
  return is_short && ready && count > 1 ? (count + 1) / 2 : count;
}

/* The function of that name that this library stands before; found once. */
static void* next_of(void** known, const char* name) {
  if (!*known) *known = dlsym(RTLD_NEXT, name);
  return *known;
}

ssize_t write(int fd, const void* from, size_t count) {
  static void* known;
  ssize_t (*next)(int, const void*, size_t) = next_of(&known, "write");
  if (!is_file(fd)) return next(fd, from, count);
  return fails(WRITES) ? -1 : next(fd, from, part_of(count));
}
ssize_t pwrite(int fd, const void* from, size_t count, off_t offset) {
  static void* known;
  ssize_t (*next)(int, const void*, size_t, off_t) = next_of(&known, "pwrite64");
  return fails(WRITES) ? -1 : next(fd, from, part_of(count), offset);
}
ssize_t pwrite64(int fd, const void* from, size_t count, off_t offset) {
  return pwrite(fd, from, count, offset);
}
ssize_t writev(int fd, const struct iovec* parts, int count) {
  static void* known;
  ssize_t (*next)(int, const struct iovec*, int) = next_of(&known, "writev");
  if (!is_file(fd)) return next(fd, parts, count);
  return fails(WRITES) ? -1 : next(fd, parts, count);
}
int fsync(int fd) {
  static void* known;
  int (*next)(int) = next_of(&known, "fsync");
  return fails(WRITES) ? -1 : next(fd);
}
int fdatasync(int fd) {
  static void* known;
  int (*next)(int) = next_of(&known, "fdatasync");
  return fails(WRITES) ? -1 : next(fd);
}
int ftruncate(int fd, off_t size) {
  static void* known;
  int (*next)(int, off_t) = next_of(&known, "ftruncate64");
  return fails(WRITES) ? -1 : next(fd, size);
}
int ftruncate64(int fd, off_t size) { return ftruncate(fd, size); }
int rename(const char* from, const char* to) {
  static void* known;
  int (*next)(const char*, const char*) = next_of(&known, "rename");
  return fails(WRITES) ? -1 : next(from, to);
}
int mkdir(const char* path, mode_t mode) {
  static void* known;
  int (*next)(const char*, mode_t) = next_of(&known, "mkdir");
  return fails(WRITES) ? -1 : next(path, mode);
}

ssize_t read(int fd, void* to, size_t count) {
  static void* known;
  ssize_t (*next)(int, void*, size_t) = next_of(&known, "read");
  if (!is_file(fd)) return next(fd, to, count);
  return fails(READS) ? -1 : next(fd, to, part_of(count));
}
ssize_t pread(int fd, void* to, size_t count, off_t offset) {
  static void* known;
  ssize_t (*next)(int, void*, size_t, off_t) = next_of(&known, "pread64");
  return fails(READS) ? -1 : next(fd, to, part_of(count), offset);
}
ssize_t pread64(int fd, void* to, size_t count, off_t offset) {
  return pread(fd, to, count, offset);
}

int open(const char* path, int flags, ...) {
  static void* known;
  int (*next)(const char*, int, ...) = next_of(&known, "open64");
  va_list more;
  va_start(more, flags);
  const mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;
  va_end(more);
  return !is_of_the_system(path) && fails(OPENS) ? -1 : next(path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;
  va_end(more);
  return open(path, flags, mode);
}

/* glibc has its own under these names, so that none need be looked up. */
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void*, size_t),
    *__libc_memalign(size_t, size_t);

void* malloc(size_t size) { return fails(ALLOCS) ? NULL : __libc_malloc(size); }
void* calloc(size_t count, size_t size) {
  return fails(ALLOCS) ? NULL : __libc_calloc(count, size);
}
void* realloc(void* old, size_t size) { return fails(ALLOCS) ? NULL : __libc_realloc(old, size); }
void* memalign(size_t align, size_t size) {
  return fails(ALLOCS) ? NULL : __libc_memalign(align, size);
}
void* aligned_alloc(size_t align, size_t size) { return memalign(align, size); }
int posix_memalign(void** to, size_t align, size_t size) {
  const int before = errno;
  void* memory = memalign(align, size);
  errno = before;
  if (!memory) return ENOMEM;
  *to = memory;
  return 0;
}

int clock_gettime(clockid_t clock, struct timespec* now) {
  static void* known;
  int (*next)(clockid_t, struct timespec*) = next_of(&known, "clock_gettime");
  const int done = next(clock, now);
  if (ready && clock_back && clock == CLOCK_REALTIME)
    now->tv_sec -= atomic_fetch_add(&seconds_back, 1);
  return done;
}
time_t time(time_t* to) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (to) *to = now.tv_sec;
  return now.tv_sec;
}
