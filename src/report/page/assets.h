#pragma once

#include <string_view>

namespace lockstep {

// page.css and page.js, which the build makes text of.
extern const std::string_view kPageStyle;
extern const std::string_view kPageScript;

}  // namespace lockstep
