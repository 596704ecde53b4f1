// The growth curve: how large the error in the tensors is along the graph, and what each op adds.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "src/judge/ledger.h"
#include "src/report/page/sections.h"
#include "src/stats/moments.h"

namespace lockstep {
namespace {

constexpr double kWidth = 1000, kHeight = 240;  // of the drawing, which is stretched
constexpr double kLeastDecades = 2;

// The range of positive, finite numbers, in whole decades.
struct Decades {
  double low = 0, high = 0;
  bool any = false;
  // Zero has no logarithm: it stands on a line of its own.
  void add(double x) {
    if (!(x > 0) || !std::isfinite(x)) return;
    low = any ? std::min(low, std::log10(x)) : std::log10(x);
    high = any ? std::max(high, std::log10(x)) : std::log10(x);
    any = true;
  }
  void round() {
    low = std::floor(low);
    high = std::ceil(high);
    // Two decades at least, so that noise on a flat curve does not look like growth.
    high = std::max(high, low + kLeastDecades);
  }
  // Above what is drawn is the room of what is not finite, below it that of zero.
  double y(double x) const {
    if (x == 0) return kHeight;
    if (!std::isfinite(x)) return 0;
    return kHeight - 12 - (std::log10(x) - low) / (high - low) * (kHeight - 24);
  }
};

double x_of(size_t place, size_t places) {
  return (static_cast<double>(place) + 0.5) / static_cast<double>(places) * kWidth;
}

// The y axis: whole powers of ten around all that is drawn.
Decades decades_of(const Result& result) {
  Decades decades;
  for (const PlaceSummary& p : result.places) {
    if (p.compared) decades.add(p.total_rms);
    if (p.measured) decades.add(p.introduced_rms);
  }
  decades.round();
  return decades;
}

// Every other layer is shaded, and lines stand at the decades.
void write_ground(Html& html, const Result& result, const Decades& decades) {
  for (size_t i = 0; i < result.places.size();) {
    const int layer = result.places[i].place.layer;
    size_t end = i;
    while (end < result.places.size() && result.places[end].place.layer == layer) ++end;
    // Half a place before its first, since a place stands at the middle of its width.
    const double from =
        x_of(i, result.places.size()) - kWidth / 2 / static_cast<double>(result.places.size());
    const double wide = fraction(end - i, result.places.size()) * kWidth;
    if (layer >= 0 && layer % 2 == 0)
      html.single("rect", {{"class", "shade"},
                           {"x", fmt::format("{:.1f}", from)},
                           {"y", "0"},
                           {"width", fmt::format("{:.1f}", wide)},
                           {"height", fmt::format("{}", kHeight)}});
    i = end;
  }
  for (double d = decades.low; d <= decades.high; ++d)
    html.single("path", {{"class", "grid"},
                         {"d", fmt::format("M0 {:.1f}H{}", decades.y(std::pow(10, d)), kWidth)}});
}

// The line breaks where nothing was compared.
void write_total(Html& html, const Result& result, const Decades& decades) {
  std::string path;
  bool drawn = false;
  for (size_t i = 0; i < result.places.size(); ++i) {
    const PlaceSummary& p = result.places[i];
    // Hashes say nothing of an error: the line goes on behind them.
    if (!p.compared) {
      drawn = drawn && p.judged > 0;
      continue;
    }
    path += fmt::format("{}{:.1f} {:.1f}", drawn ? 'L' : 'M', x_of(i, result.places.size()),
                        decades.y(p.total_rms));
    drawn = true;
  }
  if (!path.empty()) html.single("path", {{"class", "total"}, {"d", path}});
}

// Right dots are drawn first and wrong ones over them, in two calls. One that is not finite stands
// at the top.
void write_dots(Html& html, const Result& result, const Decades& decades, bool of_wrong) {
  const std::vector<bool> wrong = wrong_places(result);
  for (size_t i = 0; i < result.places.size(); ++i) {
    const PlaceSummary& p = result.places[i];
    const bool none = !p.measured && !(wrong[i] && p.verdict == Verdict::nonfinite);
    if (wrong[i] != of_wrong || none) continue;
    const bool finite = p.verdict != Verdict::nonfinite && std::isfinite(p.introduced_rms);
    const auto dot =
        html.open("path", {{"class", fmt::format("dot{}", !wrong[i] ? ""
                                                          : finite  ? " wrong"
                                                                    : " nan")},
                           {"data-place", std::to_string(i)},
                           {"d", fmt::format("M{:.1f} {:.1f}h0", x_of(i, result.places.size()),
                                             // A line of no length: its round cap is the dot, which
                                             // stays round however the picture is stretched.
                                             finite ? decades.y(p.introduced_rms) : 0)}});
    html.leaf("title", fmt::format("{}: introduced rms {}, total rms {}", text_of(p.place),
                                   short_number(p.introduced_rms, p.measured),
                                   short_number(p.total_rms, p.compared)));
  }
}

// Labels are HTML over the picture: SVG text would be stretched with it. At most nine on one axis
// and twelve layers on the other.
void write_axes(Html& html, const Result& result, const Decades& decades) {
  const auto at_y = [&](double y, const std::string& text) {
    html.leaf("span", text,
              {{"class", "y"}, {"style", fmt::format("top:{:.2f}%", 100 * y / kHeight)}});
  };
  const double step = std::max(1.0, std::ceil((decades.high - decades.low) / 8));
  for (double d = decades.low; d <= decades.high; d += step)
    at_y(decades.y(std::pow(10, d)), fmt::format("1e{:g}", d));
  at_y(kHeight, "0");
  int last = -1, number = 0;
  int layers = 0;
  for (const PlaceSummary& p : result.places) layers = std::max(layers, p.place.layer + 1);
  const int every = std::max(1, (layers + 11) / 12);
  for (size_t i = 0; i < result.places.size(); ++i) {
    const int layer = result.places[i].place.layer;
    if (layer < 0 || layer == last || layer % every != 0) continue;
    last = layer;
    html.leaf(
        "span", number == 0 ? fmt::format("layer {}", layer) : std::to_string(layer),
        {{"class", number % 2 == 0 ? "x" : "x minor"},
         {"style", fmt::format("left:{:.2f}%", 100 * x_of(i, result.places.size()) / kWidth)}});
    ++number;
  }
}

void write_key(Html& html, const Result& result) {
  const auto key = html.open("ul", {{"class", "key"}});
  const auto entry = [&](std::string_view kind, std::string_view text) {
    const auto item = html.open("li");
    html.leaf("i", "", {{"class", kind}, {"aria-hidden", "true"}});
    html.text(text);
  };
  entry("k-total", "total: against the model in fp64");
  entry("k-dot", "introduced: by the op itself, on its own inputs");
  const auto any = [&](Verdict verdict) {
    return std::ranges::any_of(result.findings,
                               [&](const Finding& f) { return f.verdict == verdict; });
  };
  if (any(Verdict::introduced)) entry("k-wrong", "introduced, wrong");
  if (any(Verdict::nonfinite)) entry("k-nan", "not finite (at the top)");
}

}  // namespace

// The picture is stretched to the page's width (preserveAspectRatio none): lines keep their width
// by vector-effect.
void write_growth(Html& html, const Result& result) {
  const auto shown = [](const PlaceSummary& p) { return p.measured || p.compared; };
  if (std::ranges::none_of(result.places, shown)) return;
  const Part part(
      html, "growth", "How the error grows",
      "Root mean square of the errors at each op, in the order of the computation, on a "
      "logarithmic scale. A right engine's total grows by rounding alone; a dot far "
      "above its neighbours is an op that adds an error of its own.");
  const Decades decades = decades_of(result);
  write_key(html, result);
  const auto figure = html.open("figure");
  {
    const auto plot = html.open("div", {{"class", "plot"}});
    {
      const auto svg =
          html.open("svg", {{"viewBox", fmt::format("0 0 {} {}", kWidth, kHeight)},
                            {"preserveAspectRatio", "none"},
                            {"role", "img"},
                            {"aria-label",
                             "Total and introduced rms error by op; the numbers are in the "
                             "table of all ops."}});
      write_ground(html, result, decades);
      write_total(html, result, decades);
      write_dots(html, result, decades, false);
      write_dots(html, result, decades, true);
    }
    write_axes(html, result, decades);
  }
  html.leaf("div", "", {{"class", "plot-foot"}});
}

}  // namespace lockstep
