#pragma once

#include <array>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "src/judge/background.h"
#include "src/stats/statistics.h"
#include "traces/trace.h"

namespace lockstep {

// The pools of the places of a run, by place and contract. Rows may be added to one by a thread of
// this class, which is always the same one, in the order in which they came, while its owner does
// others; nobody else touches a pool then but after wait().
class PlacePools {
 public:
  using Key = std::pair<std::pair<int, int>, RoundingContract>;  // order of the point, layer

  // It stays where it is.
  PlacePool& operator[](const Key& key) { return pools_[key]; }
  const std::map<Key, PlacePool>& all() const { return pools_; }

  // Does as PlacePool::add_whole with the first `count` of the rows, whose memory room() hands out
  // again: by a thread where they were measured elsewhere, as what is there must be let go too.
  void add(const Key& key, std::vector<Meter::Row> rows, size_t count,
           std::shared_ptr<const DistantRows> elsewhere);
  // Memory of rows that were added, or given back; or none.
  std::vector<Meter::Row> room();
  void give_back(std::vector<Meter::Row> rows);
  // Returns when all is added. Throws what stood in the way.
  void wait() const;
  // The same, and says nothing of that yet.
  void let_end() const;

 private:
  // The judge waited for one alone, as its rows take longer to add than a place to judge.
  static constexpr int kThreads = 3;

  std::map<Key, PlacePool> pools_;
  std::mutex mutex_;  // of the next two, while a thread works
  std::vector<std::vector<Meter::Row>> spare_;
  std::exception_ptr failure_;                                 // the first
  std::array<std::unique_ptr<Background>, kThreads> threads_;  // null before they are needed
};

}  // namespace lockstep
