#include "src/bench/figures.h"

namespace lockstep {
namespace {

std::vector<Cell> row_of(const Figure& figure) {
  const double least = std::ranges::min(figure.samples), most = std::ranges::max(figure.samples);
  const double median = median_of(figure.samples);
  // Figures of time are held to a best time, rates to the best that was seen.
  const auto row = [&](double share, const char* of) {
    return std::vector<Cell>{
        figure.shape,          figure.what,         figure.unit, least * figure.scale,
        median * figure.scale, most * figure.scale, share,       std::string(of)};
  };
  switch (figure.whole) {
    case Figure::Whole::read_roof:
      return row(figure.best / median, "the read roof");
    case Figure::Whole::dot_roof:
      return row(figure.best / median, "the products' roof");
    case Figure::Whole::step:
      return row(median / figure.best, "the pass");
    case Figure::Whole::digested:
      return row(median / figure.best, "the digested pass");
    case Figure::Whole::limit:
      return row(median / figure.best, "weights + K/V + 200 MB");
    case Figure::Whole::judging_limit:
      return row(median / figure.best, "2 GB");
    case Figure::Whole::fp64_model:
      return row(median / figure.best, "the fp64 model's pass");
    case Figure::Whole::least:
      return row(least / median, "its best");
    case Figure::Whole::most:
      break;
  }
  return row(median / most, "its best");
}

}  // namespace

Table table_of(const std::vector<Figure>& figures) {
  Table table{{"shape", "what", "unit", "min", "median", "max", "share", "of"}, {}};
  for (const Figure& figure : figures) table.rows.push_back(row_of(figure));
  return table;
}

}  // namespace lockstep
