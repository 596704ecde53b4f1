#include "src/model/op_names.h"

#include <algorithm>

#include "probes/points.h"

namespace lockstep {

std::vector<std::string_view> op_names_of(OpKind kind) {
  switch (kind) {
    case OpKind::gather:
    case OpKind::angles:  // rows of tables
      return {"gather_rows"};
    case OpKind::norm:
      return {"rms_norm"};
    case OpKind::linear:
      return {"matmul"};
    case OpKind::cache:
      return {"kv_write", "kv_gather"};
    case OpKind::attention:
      return {"paged_attention"};
    case OpKind::softmax:
      return {"softmax_of"};
    case OpKind::expert_linear:
      return {"expert_matmul"};
    default:  // the op and its kind have one name
      return {name_of(kind)};
  }
}

bool makes(std::string_view op, std::string_view point) {
  const Point* made = find_point(point);
  return made != nullptr && std::ranges::count(op_names_of(made->op), op) > 0;
}

}  // namespace lockstep
