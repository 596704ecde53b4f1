// The expression is Qwen's own, compiled once by PCRE2 with its JIT where the machine has one. Two
// things differ between PCRE2 and the library that tokenizers were trained with: `\s` has other
// members, so it is written out as a list; and a run of blanks recurses, so the matcher gets a
// stack of its own.
//
// Normal form C is made in two steps, decompose() and utf8proc's composition, as utf8proc's own way
// of ordering marks is quadratic in a run of them and a prompt may be all marks.
#include "src/weights/words.h"

#include <pcre2.h>
#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/base/utf8.h"

namespace lockstep {
namespace {

constexpr std::string_view kPattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

// PCRE2's \s is not quite Unicode's White_Space, which the original engine means by it.
constexpr std::string_view kSpaces =
    R"(\x09-\x0D\x20\x85\xA0\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";

constexpr size_t kJitStackMin = 32 * 1024, kJitStackMax = 64 * 1024 * 1024;

// The pattern with \s and \S written out, inside and outside of brackets.
std::string written_out() {
  std::string out;
  bool bracket = false;
  for (size_t i = 0; i < kPattern.size(); ++i) {
    const std::string_view two = kPattern.substr(i, 2);
    if (two == R"(\s)" || two == R"(\S)") {
      out += bracket ? std::string(kSpaces)
                     : (two == R"(\s)" ? "[" : "[^") + std::string(kSpaces) + "]";
      ++i;
      continue;
    }
    if (kPattern[i] == '[') bracket = true;
    if (kPattern[i] == ']') bracket = false;
    out += kPattern[i];
  }
  return out;
}

// PCRE2's words for one of its error codes.
std::string message_of(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

// The text as PCRE2 takes it, which wants a pointer even to nothing.
PCRE2_SPTR code_units(std::string_view text) {
  return reinterpret_cast<PCRE2_SPTR>(text.empty() ? "" : text.data());
}

// The state of one run over a text, beside the compiled expression.
struct Matcher {
  explicit Matcher(const pcre2_code* code)
      : data(pcre2_match_data_create_from_pattern(code, nullptr), pcre2_match_data_free),
        stack(pcre2_jit_stack_create(kJitStackMin, kJitStackMax, nullptr), pcre2_jit_stack_free),
        context(pcre2_match_context_create(nullptr), pcre2_match_context_free) {
    check(data && stack && context,
          "there is no memory left to split a text into words; free some");
    // Long runs of blanks take more than the machine stack that JIT code has by itself.
    pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  }
  std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data;
  std::unique_ptr<pcre2_jit_stack, decltype(&pcre2_jit_stack_free)> stack;
  std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)> context;
};

}  // namespace

std::string_view WordSplitter::pattern() { return kPattern; }

WordSplitter::WordSplitter() {
  const std::string text = written_out();
  int error = 0;
  size_t where = 0;
  pcre2_code* code =
      pcre2_compile(code_units(text), text.size(), PCRE2_UTF | PCRE2_UCP, &error, &where, nullptr);
  check(code != nullptr,
        "this PCRE2 does not take the words' expression at {}: {}; use 10.40 or newer", where,
        message_of(error));
  code_ =
      std::shared_ptr<void>(code, [](void* p) { pcre2_code_free(static_cast<pcre2_code*>(p)); });
  // Where there is no JIT for this machine, PCRE2 interprets: slower, and equal.
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
}

void WordSplitter::split(std::string_view text,
                         const std::function<void(std::string_view)>& take) const {
  const auto* code = static_cast<const pcre2_code*>(code_.get());
  const Matcher matcher(code);
  size_t at = 0;
  uint32_t options = 0;
  while (at < text.size()) {
    const int found = pcre2_match(code, code_units(text), text.size(), at, options,
                                  matcher.data.get(), matcher.context.get());
    check(found > 0 || found == PCRE2_ERROR_NOMATCH,
          "a text cannot be split into words from byte {} on: {}; give UTF-8", at,
          message_of(found));
    options = PCRE2_NO_UTF_CHECK;  // the first match has checked all of it
    const size_t* ends = pcre2_get_ovector_pointer(matcher.data.get());
    const size_t begin = found > 0 ? ends[0] : text.size();
    const size_t end = found > 0 ? ends[1] : text.size();
    if (begin > at) take(text.substr(at, begin - at));
    if (end > begin) take(text.substr(begin, end - begin));
    at = end;
  }
}

namespace {

constexpr auto kComposed = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);

// Appends the code points that those of the text are made of. Returns less than 0, as utf8proc
// does, for what is no UTF-8.
utf8proc_ssize_t decompose(std::string_view text, std::vector<utf8proc_int32_t>& points) {
  const auto* at = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  const auto* const end = at + text.size();
  std::array<utf8proc_int32_t, 32> parts;  // the longest has 4
  while (at < end) {
    utf8proc_int32_t point = 0;
    const utf8proc_ssize_t bytes = utf8proc_iterate(at, end - at, &point);
    if (bytes < 0) return bytes;
    at += bytes;
    const utf8proc_ssize_t count =
        utf8proc_decompose_char(point, parts.data(), std::ssize(parts), kComposed, nullptr);
    if (count < 0 || count > std::ssize(parts)) return UTF8PROC_ERROR_OVERFLOW;
    points.insert(points.end(), parts.begin(), parts.begin() + count);
  }
  return 0;
}

// Puts each run of combining marks into the order of their classes. utf8proc does so too, by
// exchanging neighbours: of a run of 400,000 marks that took minutes.
void sort_marks(std::vector<utf8proc_int32_t>& points) {
  const auto mark = [](utf8proc_int32_t point) {
    return utf8proc_get_property(point)->combining_class;
  };
  for (auto begin = points.begin(); begin != points.end();) {
    const auto first = std::find_if(begin, points.end(), mark);
    begin = std::find_if_not(first, points.end(), mark);
    std::stable_sort(first, begin, [&](auto a, auto b) { return mark(a) < mark(b); });
  }
}

}  // namespace

std::string normalised(std::string_view text) {
  if (std::all_of(text.begin(), text.end(), [](char c) { return byte_of(c) < 0x80; }))
    return std::string(text);
  std::vector<utf8proc_int32_t> points;
  utf8proc_ssize_t size = decompose(text, points);
  if (size >= 0) {
    sort_marks(points);
    const utf8proc_ssize_t count = std::ssize(points);
    points.push_back(0);  // room for what ends a text of C
    size = utf8proc_reencode(points.data(), count, kComposed);
  }
  check(size >= 0, "a text of {} bytes cannot be normalised: {}; give UTF-8", text.size(),
        utf8proc_errmsg(size));
  return {reinterpret_cast<const char*>(points.data()), static_cast<size_t>(size)};
}

}  // namespace lockstep
