// JSON that somebody else wrote: every field is read with a check, and an error names the file, the
// field and what was wanted of it.
#pragma once

#include <compare>
#include <concepts>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep {

inline constexpr size_t kMostJson = 1 << 20;  // bytes, of a text that lists nothing large

// A text for the sentences about it.
struct JsonSource {
  std::string name;         // of the file, and the line: a sentence begins with it
  std::string_view remedy;  // what to do when it is not as it should be, if a sentence says so
  size_t most = kMostJson;  // bytes that such a text may have
};

class JsonValue;

// A parsed text. Objects and lists may stand 64 deep within each other, so that nothing that looks
// at a value can run out of stack, and no object has a key twice, of which readers take different
// ones. Throws Error otherwise. It owns the tree. Values of it may be read by several threads.
class JsonDocument {
 public:
  JsonDocument(std::string_view text, const JsonSource& source);
  // Throws Error too when the file cannot be read or has more than `most` bytes.
  static JsonDocument read(const std::string& path, std::string_view remedy,
                           size_t most = kMostJson);
  JsonDocument(JsonDocument&&) noexcept;
  ~JsonDocument();

  JsonValue root() const;

 private:
  friend class JsonValue;
  struct Tree;
  std::unique_ptr<const Tree> tree_;
};

// A value of a document, or a field that an object lacks. Small and cheap to copy; valid as long as
// the document, and a missing field as long as the key it was asked by. What it is not, it throws:
//   config.json: rope_scaling.factor is "x", a number was wanted: correct it
class JsonValue {
 public:
  // Whether there is a value, and it is not null.
  explicit operator bool() const;
  bool is_missing() const { return at_ == nullptr; }
  bool is_null() const;  // what is missing is not
  bool is_object() const;
  bool is_list() const;
  bool is_text() const;
  bool is(bool flag) const;
  bool is(std::string_view text) const;
  bool is(const char* text) const { return is(std::string_view(text)); }

  // These throw Error of a value of another kind, and of a missing one.
  bool flag() const;
  const std::string& text() const;
  double number() const;
  double real()
      const;  // a number, or a text that json_number() makes of what JSON has no number for
  template <std::integral T>
  // Throws Error of a fraction, and of a number outside of [least, most]; where least > most, of
  // any.
  T whole(T least = std::numeric_limits<T>::min(), T most = std::numeric_limits<T>::max()) const {
    return static_cast<T>(whole_within(Limit::of(least), Limit::of(most)));
  }

  // A field of an object, and an entry of a list. One that is missing throws when it is read.
  JsonValue operator[](std::string_view key) const;
  JsonValue operator[](size_t i) const;
  size_t size() const;  // entries of a list or an object
  std::vector<JsonValue> items() const;
  std::vector<std::pair<std::string_view, JsonValue>> fields() const;  // in the order of their keys

  // The entries of a list of whole numbers, and of texts.
  template <std::integral T>
  std::vector<T> wholes(T least = std::numeric_limits<T>::min()) const {
    std::vector<T> all;
    for (const JsonValue& item : items()) all.push_back(item.whole<T>(least));
    return all;
  }
  std::vector<std::string> texts() const;
  // The fields of an object of texts.
  std::map<std::string, std::string> text_fields() const;

  // The file and the field: "config.json: rope_scaling.factor". The field is sought in the whole
  // document: for sentences alone, not for every value that is read.
  std::string where() const;
  std::string said() const;  // the value for a sentence: printable and short
  // Throws the Error of a value that is another than was wanted: "a number", ...
  [[noreturn]] void refuse(std::string_view wanted) const;

 private:
  friend class JsonDocument;
  using Tree = JsonDocument::Tree;
  JsonValue(const Tree* tree, const void* at) : tree_(tree), at_(at) {}
  // A whole number of 64 bits, with or without a sign.
  struct Limit {
    template <std::integral T>
    static Limit of(T value) {
      return {std::cmp_less(value, 0), static_cast<uint64_t>(value)};
    }
    bool negative;
    uint64_t bits;  // two's complement

    friend bool operator==(const Limit&, const Limit&) = default;
    // In the order of the numbers, which those of one sign have as two's complement too.
    friend auto operator<=>(const Limit& a, const Limit& b) {
      return std::pair(!a.negative, a.bits) <=> std::pair(!b.negative, b.bits);
    }
  };
  static std::string wanted_within(Limit least, Limit most);
  // Two's complement. The limits of 64 bits are none.
  uint64_t whole_within(Limit least, Limit most) const;

  const Tree* tree_;
  const void* at_ = nullptr;     // the value in the tree; null: it is missing
  const void* owner_ = nullptr;  // the object or list that lacks it,
  std::string_view key_;         // under this key
  size_t place_ = 0;             // or at this place
};

}  // namespace lockstep
