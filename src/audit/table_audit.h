#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "src/audit/audit.h"
#include "traces/trace.h"

namespace lockstep {

// Checks the page tables and slots of a saved trace, by the size of a page and of the pool that its
// provenance declares. Whose K/V rows are read is what the judge asks of attn.kv; this is where
// they lie, which no hash of rows shows. Beyond what an Auditor finds in tables and slots:
// - a page that is none of the pool, or that a table has twice
// - two tables of one request in a pass
// - a table that from one pass to the next has positions in a page that held others of the same
//   request: rows do not change places. To a page that the request had not they may go, as a shared
//   page is copied before it is written.
// A trace that declares no size of a page is not audited. Passes are added in their order, by one
// thread.
class TableAudit {
 public:
  // window: keys that a query of the widest layer sees; 0: all. A page whose positions lie before
  // what any query sees may be given back, and its entry of the table may name any page then.
  // Throws Error when the trace declares a size of a page, or a number of pages, that is none.
  explicit TableAudit(const Manifest& manifest, int64_t window = 0);

  void add(const PassInfo& pass);
  // Enters what was found. What is declared but shown by no pass, tables or slots, leaves a clean
  // result undecided.
  void put_into(Result& result) const;

 private:
  struct Table {
    std::vector<int32_t> pages;
    int64_t hidden = 0;  // entries of `pages` that no query saw
    int64_t length = 0;  // positions that its last pass read
    int64_t seen = -1;   // number of that pass among those that were added
  };
  int64_t first_row(const PassInfo& pass, int32_t request) const;
  int64_t entries_out_of_sight(const PassInfo& pass, int32_t request) const;
  void check_table(const PassInfo& pass, const RequestPages& table);
  void check_moves(const PassInfo& pass, const RequestPages& table, int64_t first);
  void find(const PassInfo& pass, int32_t request, int64_t position, std::string rule);

  int64_t page_size_ = 0;  // 0: not declared
  int64_t pages_ = 0;      // of the pool; 0: not declared
  int64_t window_ = 0;     // 0: all keys are seen
  std::optional<Auditor> auditor_;
  std::vector<Finding> findings_;
  std::map<int32_t, Table> tables_;  // by request, as last seen
  int64_t passes_ = 0;
  bool any_table_ = false, any_slot_ = false;
};

}  // namespace lockstep
