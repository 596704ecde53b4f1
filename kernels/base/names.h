// The words for the values of an enum that count up from 0. A table beside the enum is all that it
// takes, from which name_of() and value_named() read:
//
//     enum class Colour : uint8_t { red, green };
//     template <>
//     inline constexpr auto kNamesOf<Colour> = std::to_array<const char*>({"red", "green"});
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string_view>

namespace lockstep {

// The names of an enum's values in their order; an enum that has none here is named by a function
// of its own, or not at all.
template <typename E>
inline constexpr std::array<const char*, 0> kNamesOf{};

template <typename E>
concept Named = !kNamesOf<E>.empty();

template <Named E>
constexpr const char* name_of(E value) {
  return kNamesOf<E>[static_cast<size_t>(value)];
}

// The value of that name; nothing when there is none.
template <Named E>
constexpr std::optional<E> find_named(std::string_view name) {
  for (size_t i = 0; i < kNamesOf<E>.size(); ++i)
    if (name == kNamesOf<E>[i]) return static_cast<E>(i);
  return std::nullopt;
}

// Throws the Error that nothing called `what` has that name, and which names there are.
[[noreturn]] void fail_no_name(std::string_view name, std::string_view what,
                               std::span<const char* const> names);

// The value of that name, where one is needed; `what` is what the values are, as in "verdict".
template <Named E>
E value_named(std::string_view name, std::string_view what) {
  if (const std::optional<E> value = find_named<E>(name)) return *value;
  fail_no_name(name, what, kNamesOf<E>);
}

// All values of the enum, in their order.
template <Named E>
constexpr auto values_of() {
  std::array<E, kNamesOf<E>.size()> values{};
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<E>(i);
  return values;
}

// An array with an element for each value of the enum.
template <Named E, typename T>
struct EnumArray {
  std::array<T, kNamesOf<E>.size()> elements{};

  constexpr T& operator[](E value) { return elements[static_cast<size_t>(value)]; }
  constexpr const T& operator[](E value) const { return elements[static_cast<size_t>(value)]; }
  bool operator==(const EnumArray&) const = default;
};

}  // namespace lockstep
