// Near misses: which known name a misspelt one probably means.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace lockstep {

// The known name that a misspelt one probably means; "" when none is near: a third of the letters
// may be wrong, or all after the first three may be missing.
std::string_view nearest(std::string_view name, std::span<const std::string_view> names);

// The end of a sentence about an unknown name: `; did you mean "x"?`, or nothing when none is near.
std::string did_you_mean(std::string_view name, std::span<const std::string_view> names);

}  // namespace lockstep
