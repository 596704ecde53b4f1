#pragma once

#include <map>
#include <string>
#include <vector>

#include "probes/recorder.h"

namespace lockstep {

// Knows what a run exercised, and so which bugs could not have shown in it. It sees what passes
// tell of themselves (rows, pages, phases), and of their tensors only shapes and the gains of
// QK-norm, so that it costs next to nothing beside a judgement.
class RunCoverage {
 public:
  // Keys of a page, and keys that a query of the narrowest layer sees; 0: not known, or no window.
  RunCoverage(int64_t page_size, int64_t window) : page_size_(page_size), window_(window) {}

  // The passes of the run in their order.
  void add(const Pass& pass);
  // The same in two: as a pass begins, and tensors of it from the one of that number on, those that
  // they are made of included.
  void begin(const PassInfo& pass);
  void add_tensors(const Pass& pass, size_t from);
  // Which bugs this run could not have shown, each as NAME (WHY): WHAT WOULD SHOW THEM. Of what
  // the trace does not tell (no pages, no tensors of queries) nothing is said.
  std::vector<std::string> not_covered() const;
  bool asks_for_logits() const { return asks_for_logits_; }
  bool inherits() const { return shared_; }
  // That requests compute all their positions again in each pass, in a sentence. Empty where none
  // does.
  std::string without_cache() const;
  int32_t longest() const;  // tokens of a request
  int64_t requests() const { return std::ssize(lengths_); }

 private:
  void add_rows(const PassInfo& pass);
  void add_pages(const PassInfo& pass);
  std::vector<std::string> blind_in_positions() const;
  std::vector<std::string> blind_in_pages() const;
  std::vector<std::string> blind_in_batches() const;

  int64_t page_size_, window_;
  // Passes of a request that begin at its position 0 though it had been computed, and go further;
  // and those that do not.
  struct Again {
    int64_t all = 0, some = 0;
  };

  std::map<int32_t, int32_t> lengths_;              // tokens by request
  std::map<int32_t, Again> again_;                  // by request
  std::map<int32_t, std::vector<int32_t>> tables_;  // pages by request, as last seen
  size_t most_pages_ = 0, most_requests_ = 0;
  size_t most_rows_ = 0, most_logit_rows_ = 0;  // of a pass
  bool asks_for_logits_ = false;
  bool mixes_lengths_ = false;  // requests of different lengths are in one pass
  bool decodes_ = false;        // a pass feeds a token that was chosen
  bool chunked_ = false;        // several queries over a longer cache
  bool scattered_ = false;      // the pages of a request are not in the order of their numbers
  bool ragged_ = false;         // a pass ends inside a page
  bool shared_ = false;         // a request has positions that another one computed
  bool parted_ = false;         // and goes on inside their last page
  bool preempted_ = false;  // positions are computed again, or read from other pages than before
  bool slots_known_ = false;
  bool gain_known_ = false, gain_varies_ = false;  // of QK-norm
  int64_t heads_ = 0, kv_heads_ = 0;
};

}  // namespace lockstep
