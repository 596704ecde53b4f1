#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "kernels/base/memory.h"
#include "probes/probe.h"
#include "src/judge/kv_history.h"
#include "src/judge/verdict.h"

namespace lockstep {

// Checks the K/V cache of a serving engine from the outside, by hashes and page tables alone: no
// reference, no tolerance. Attention cannot tell pages apart, so this is what no comparison of
// numbers sees. Sees every pass of a run from the first one on. It finds
// - a row that is read and is not what was written for its request's tokens: another request's,
//   another position's, an old one's, or what nobody wrote
// - a row that is read and was never written for these tokens
// - two tokens of a pass that are written to one slot, or a token written to another slot than its
//   request's page table says
// - a page that two requests of a pass hold for different tokens
// - a page that is written while another request holds it
// - a page that is held by more or fewer requests than the engine counts
// Copies that the engine makes between pages - before it writes a shared one, or from host memory -
// are judged by the rows that are read later. At most one finding is made of a layer, request and
// pass. For the thread that runs the engine. It keeps hashes alone, a few bytes a row of K and V.
class Auditor final : public Sink {
 public:
  // Positions of a page. Throws Error unless it is at least 1.
  explicit Auditor(int64_t page_size);

  bool wants(const Point& point, int layer) const override;
  void begin(const PassInfo& pass) override;
  void record(const Record& record) override;
  void end() override {}
  // The request is in no further pass, and nobody inherits from it: what it wrote is forgotten as
  // KvHistory::end() says.
  void end(int32_t request) { history_.end(request); }
  // So many entries of a request's page table, from the first on, are not looked at in the passes
  // that follow: no query sees their positions, and they may name any page.
  void hide(int32_t request, int64_t entries) { hidden_[request] = entries; }
  int64_t hidden(int32_t request) const;

  // In the order in which they were found. Layer -1: of the page tables, whatever the layer.
  const std::vector<Finding>& findings() const { return findings_; }
  int64_t rows_written() const { return rows_written_; }  // K/V rows, counted in every layer
  int64_t rows_read() const { return rows_read_; }

 private:
  struct Written {
    Row row;
    int32_t pass = 0;
  };
  // A row that holds another row's K and V, which were to be written to another slot.
  struct Misplaced {
    size_t finding = 0;  // among findings_
    Row row;
    int64_t slot = -1, other = -1;  // its own, and the one of what it holds
  };
  void check_slots();
  void check_tables();
  void check_counts();
  void check_pair(const RequestPages& a, const RequestPages& b);
  void check_read(const Record& record);
  void find(const Row& row, int layer, Verdict verdict, std::string rule);
  // Where the page table of this pass has that position; -1: nowhere.
  int64_t slot_of(const Row& row) const;
  int64_t length_of(int32_t request) const;
  std::string place_of(int64_t slot) const;
  std::string what_is_read(int layer, const Row& row, uint64_t hash) const;
  // Says of rows that hold each other's K and V what can be said of them.
  void leave_open(const Record& record, const std::vector<uint64_t>& hashes,
                  const std::vector<int64_t>& wrong);

  int64_t page_size_;
  KvHistory history_{/*keep_bytes=*/false};
  PassInfo pass_;
  Tensor v_;                                     // of the layer that is being computed
  std::unordered_map<int64_t, Written> slots_;   // who was told last to write there
  std::unordered_map<int32_t, int64_t> hidden_;  // entries, by request
  std::vector<Finding> findings_;
  // Findings of the layer and pass in work about one row for another; and, by the slot of each
  // wrong row, the slot that what it holds was to be written to.
  std::vector<Misplaced> misplaced_;
  std::unordered_map<int64_t, int64_t> holds_;
  int layer_ = -1;
  int64_t rows_written_ = 0, rows_read_ = 0;
};

// Enters what an audit found into the result of the same run. A node that the judge found too keeps
// its numbers and its words, which say whether K or V is wrong, and gets the audit's, which say
// where the row lies that was read. Ops after a cache of numbers that are not finite, which the
// judge found to hand such numbers on, are no findings then.
void add_audit(Result& result, const std::vector<Finding>& findings);
// The same, and says how much was audited.
void add_audit(Result& result, const Auditor& auditor);

}  // namespace lockstep
