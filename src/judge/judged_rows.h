// How many rows of its nodes a judge looks at, and how many it did.
#pragma once

#include <cstdint>
#include <string>

namespace lockstep {

// The most rows of a node that are judged by numbers, and the seed that they are drawn by.
struct RowsToJudge {
  int64_t most = 0;  // 0: all
  uint64_t seed = 0;

  bool all() const { return most == 0; }
};

// The rows of nodes of numbers that were judged, and those of the node of which the least share
// was.
struct JudgedRows {
  static constexpr int64_t kOneIn = 32;

  RowsToJudge asked;
  int64_t judged = 0, expected = 0;
  int64_t of_node = 0, node_rows = 0;  // 0: of every node all rows were judged

  bool all() const { return node_rows == 0; }
  void add(int64_t judged_rows, int64_t rows);
  // The chance that a bug in one row in kOneIn of that node is among what was judged, where the
  // bug is at one place alone.
  double power() const;
};

// The chance that any of `wrong` rows is among `drawn` of `rows`.
double chance_of_any(int64_t wrong, int64_t drawn, int64_t rows);

// "64 of 2048 rows of a node at the least, 31 % of all, drawn by seed 0". Of rows that are not all.
std::string text_of(const JudgedRows& rows);
// The text of how likely a bug in few rows of such a node shows.
std::string power_text(const JudgedRows& rows);

}  // namespace lockstep
