// A picture of one place's numbers on a screen: a strip of blocks a head, over buckets of
// positions, as high as the root mean square there; N where a number is not finite.
#include "src/report/trace_picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "src/report/trace_overview.h"
#include "src/stats/moments.h"

namespace lockstep {
namespace {

constexpr int32_t kBuckets = 64, kLabel = 6;
constexpr int kRequests = 4;  // of those that have a strip
constexpr const char* kBlocks[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};

// The heads of one request by bucket of positions.
struct Strip {
  int32_t first = 0, per_bucket = 1;
  std::vector<std::vector<Selected::HeadSum>> heads;  // [head][bucket]
  double largest = 0;                                 // root mean square of a bucket
};

double rms(const Selected::HeadSum& sum) {
  return root_mean(sum.squares, sum.elements - sum.nonfinite);
}

// The positions of a request in at most so many buckets, each of equally many.
Strip strip_of(const Selected& selected, int32_t request, int32_t most) {
  const auto from = selected.heads.lower_bound({request, 0});
  const auto to = selected.heads.lower_bound({request + 1, 0});
  Strip strip{.first = from->first.second};
  const int32_t positions = std::prev(to)->first.second - strip.first + 1;
  strip.per_bucket = (positions + most - 1) / most;
  const size_t buckets = (positions - 1) / strip.per_bucket + 1;
  for (auto at = from; at != to; ++at) {
    const size_t bucket = (at->first.second - strip.first) / strip.per_bucket;
    if (strip.heads.size() < at->second.size())
      strip.heads.resize(at->second.size(), std::vector<Selected::HeadSum>(buckets));
    for (size_t head = 0; head < at->second.size(); ++head) {
      Selected::HeadSum& sum = strip.heads[head][bucket];
      sum.squares += at->second[head].squares;
      sum.elements += at->second[head].elements;
      sum.nonfinite += at->second[head].nonfinite;
    }
  }
  for (const auto& head : strip.heads)
    for (const Selected::HeadSum& sum : head) strip.largest = std::max(strip.largest, rms(sum));
  return strip;
}

// An eighth of the height a step, on a linear scale up to the strip's largest rms.
std::string glyph_of(const Selected::HeadSum& sum, double largest) {
  if (sum.elements == 0) return " ";
  if (sum.nonfinite > 0) return "N";
  if (largest == 0) return kBlocks[0];
  return kBlocks[std::clamp(static_cast<int>(8 * rms(sum) / largest), 0, 7)];
}

void add_strip(const Selected& selected, int32_t request, int32_t most,
               std::vector<Block>& blocks) {
  const Strip strip = strip_of(selected, request, most);
  const std::string height = strip.largest > 0
                                 ? fmt::format("full height is {}", number_in_four(strip.largest))
                                 : std::string("all is 0 or not finite");
  blocks.push_back(Heading{
      fmt::format("request {}: rms by {} and position, from {} on, {} a column; {}", request,
                  strip.heads.size() > 1 ? "head" : "row", strip.first, strip.per_bucket, height)});
  for (size_t head = 0; head < strip.heads.size(); ++head) {
    const auto any = [](const Selected::HeadSum& sum) { return sum.elements > 0; };
    if (std::ranges::none_of(strip.heads[head], any)) continue;  // --head left it out
    std::string text = fmt::format("{:>{}} ", head, kLabel - 1);
    for (const Selected::HeadSum& sum : strip.heads[head]) text += glyph_of(sum, strip.largest);
    blocks.push_back(Paragraph{text});
  }
}

}  // namespace

// A strip for each of the first requests.
std::vector<Block> picture_of(const Selected& selected, int width) {
  const int32_t most = std::clamp(width - kLabel, 8, kBuckets);
  std::vector<Block> blocks;
  int drawn = 0;
  int32_t last = -1;
  for (const auto& [row, heads] : selected.heads) {
    if (row.first == last) continue;
    last = row.first;
    if (++drawn <= kRequests) add_strip(selected, last, most, blocks);
  }
  if (drawn > kRequests)
    blocks.push_back(Paragraph{
        fmt::format("... and {} more requests: choose some with --request", drawn - kRequests)});
  return blocks;
}

}  // namespace lockstep
