#include "kernels/base/names.h"

#include <fmt/ranges.h>

#include "kernels/base/check.h"
#include "kernels/base/printable.h"

namespace lockstep {

void fail_no_name(std::string_view name, std::string_view what,
                  std::span<const char* const> names) {
  fail("'{}' is no {}: use {}", shown(name), what, fmt::join(names, ", "));
}

}  // namespace lockstep
