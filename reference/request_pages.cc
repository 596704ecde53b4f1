#include "reference/request_pages.h"

#include <algorithm>

namespace lockstep {

const std::vector<int32_t>& pages_of(int32_t request, const PassInfo& pass) {
  static const std::vector<int32_t> kNone;
  const auto found = std::ranges::find(pass.pages, request, &RequestPages::request);
  return found == pass.pages.end() ? kNone : found->pages;
}

int64_t common_pages(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  return std::ranges::mismatch(a, b).in1 - a.begin();
}

}  // namespace lockstep
