// The columns of an HDF5 trace: those of a sound one, changed as the input says. HDF5 is left out:
// its own reading of a forged file is not ours to mend.
#include "traces/columns.h"

#include <algorithm>
#include <array>
#include <type_traits>

#include "kernels/base/check.h"
#include "tests/fuzz/target.h"
#include "tests/traces/passes.h"
#include "traces/manifest.h"

namespace lockstep::fuzz {
namespace {

constexpr int64_t kMostEntries = 1 << 12;
constexpr int64_t kBytesOfFile = 1 << 14;

Columns sound_columns() {
  Columns columns;
  columns.append(test_pass(0, false), 0);
  columns.append(test_pass(1, false), columns.index.seq.size());
  return columns;
}

template <typename T>
T value_from(Bytes& bytes) {
  if constexpr (std::is_same_v<T, std::string>) {
    static const std::array<std::string, 6> words = {"attn.kv", "bf16", "fp32", "row", "", "x"};
    const uint8_t which = bytes.byte();
    return which < words.size() ? words[which] : std::string(bytes.take(which % 16));
  } else {
    return static_cast<T>(bytes.number());
  }
}

template <typename T>
void change(std::vector<T>& column, Bytes& bytes) {
  const uint8_t what = bytes.byte();
  const auto at = static_cast<size_t>(bytes.byte());
  if (what % 8 == 0)
    column.resize(static_cast<size_t>(std::clamp<int64_t>(bytes.number(), 0, kMostEntries)));
  else if (what % 8 == 1)
    column.insert(column.begin() + static_cast<int64_t>(at % (column.size() + 1)),
                  value_from<T>(bytes));
  else if (what % 8 == 2 && !column.empty())
    column.erase(column.begin() + static_cast<int64_t>(at % column.size()));
  else if (!column.empty())
    column[at % column.size()] = value_from<T>(bytes);
}

void change_one(Columns& columns, Bytes& bytes) {
  constexpr int kColumns = 62;
  const int which = bytes.byte() % kColumns;
  int i = 0;
  visit_columns(columns, [&](const char*, auto& column, Columns::Per) {
    if (i++ == which) change(column, bytes);
  });
}

}  // namespace

void read(std::string_view input) {
  static const Columns sound = sound_columns();
  Columns columns = sound;
  Bytes bytes(input);
  columns.inherited_known = bytes.byte() % 2 == 0;
  while (!bytes.empty()) change_one(columns, bytes);
  columns.check_sound("x.h5", kBytesOfFile);
  for (size_t i = 0; i < columns.passes(); ++i) {
    const Pass pass = columns.pass_at(i);
    for (const RecordedTensor& tensor : pass.tensors)
      if (path_of(pass.info.pass, tensor).empty()) wrong("a tensor of no path");
  }
}

}  // namespace lockstep::fuzz
