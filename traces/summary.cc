// Cubes over pass, layer and point (rms, absmax, mean, nonfinite), with dimension scales, so that a
// plot in xarray or pandas is one line and needs none of the tensors.
#include "traces/summary.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace lockstep {
namespace {

// The sums over the tensors of one place in one pass, of those whose digests have numbers.
struct Cell {
  double absmax = 0, sum = 0, sum_squares = 0;
  int64_t tensors = 0, finite = 0, nonfinite = 0;
};

template <typename Value>
void write_cells(const char* name, const std::vector<Cell>& cells, const std::vector<int64_t>& dims,
                 Hdf5File& file, Value value) {
  std::vector<double> values;
  for (const Cell& cell : cells)
    values.push_back(cell.tensors > 0 ? value(cell) : std::numeric_limits<double>::quiet_NaN());
  const std::string path = std::string("/summary/") + name;
  file.write(path, values, dims);
  for (unsigned axis = 0; const char* scale : {"pass", "layer", "point"})
    file.attach_scale(path, axis++, std::string("/summary/") + scale);
}

double per_finite(double sum, const Cell& cell) {
  return cell.finite > 0 ? sum / static_cast<double>(cell.finite) : 0;
}

}  // namespace

void write_summary(const Columns& columns, const Graph& graph, Hdf5File& file) {
  int last = graph.layers() - 1;
  for (int32_t layer : columns.index.layer) last = std::max(last, layer);
  std::vector<int32_t> layers;
  for (int layer = -1; layer <= last; ++layer) layers.push_back(layer);
  std::vector<std::string> points;
  for (const Point& p : kPoints) points.emplace_back(p.name);

  const Columns::Index& index = columns.index;
  std::vector<Cell> cells(columns.passes() * layers.size() * points.size());
  for (size_t pass = 0; pass < columns.passes(); ++pass) {
    for (int64_t i = columns.tensor_edges[pass]; i < columns.tensor_edges[pass + 1]; ++i) {
      // Layer -1 has index 0.
      const size_t layer = index.layer[i] + 1;
      const size_t point = find_point(index.point[i])->order();
      Cell& cell = cells[(pass * layers.size() + layer) * points.size() + point];
      const int64_t nonfinite = index.nan[i] + index.posinf[i] + index.neginf[i];
      const int64_t finite = index.n[i] - nonfinite;
      if (index.nan[i] < 0) continue;  // hashes alone
      ++cell.tensors;
      cell.finite += finite;
      cell.nonfinite += nonfinite;
      cell.absmax = std::max(cell.absmax, index.absmax[i]);
      cell.sum += index.mean[i] * static_cast<double>(finite);
      cell.sum_squares += index.sum_squares[i];
    }
  }

  const std::vector<int64_t> dims = {std::ssize(columns.number), std::ssize(layers),
                                     std::ssize(points)};
  file.make_group("/summary");
  file.write("/summary/pass", columns.number);
  file.write("/summary/layer", layers);
  file.write("/summary/point", points);
  for (const char* scale : {"pass", "layer", "point"})
    file.make_scale(std::string("/summary/") + scale, scale);
  write_cells("rms", cells, dims, file,
              [](const Cell& c) { return std::sqrt(per_finite(c.sum_squares, c)); });
  write_cells("absmax", cells, dims, file, [](const Cell& c) { return c.absmax; });
  write_cells("mean", cells, dims, file, [](const Cell& c) { return per_finite(c.sum, c); });
  write_cells("nonfinite", cells, dims, file,
              [](const Cell& c) { return static_cast<double>(c.nonfinite); });
  file.set("/summary", "NX_class", "NXdata");
  file.set("/summary", "signal", "rms");
  file.set("/summary", "axes", {"pass", "layer", "point"});
}

}  // namespace lockstep
