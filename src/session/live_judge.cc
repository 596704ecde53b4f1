#include "src/session/live_judge.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace lockstep {

LiveJudge::LiveJudge(Judge& judge, Options options)
    : judge_(judge),
      options_(std::move(options)),
      recorder_(
          {}, options_.digests, [this](Pass pass) { take(std::move(pass)); }, options_.copied),
      thread_(options_.beside ? std::make_unique<Background>() : nullptr) {}

void LiveJudge::begin(const PassInfo& pass) {
  pass_ = {};
  pass_.info = pass;
  recorder_.begin(pass);
  layer_ = -1;
  flags_.clear();
  judge_.begin_pass(pass_);
}

// The logits and the tokens come after the last layer, and so together.
void LiveJudge::take(Pass pass) {
  if (thread_) thread_->wait();
  std::ranges::move(pass.tensors, std::back_inserter(pass_.tensors));
  if (!pass.logits.empty()) pass_.logits = std::move(pass.logits);
}

// The first tensor of a layer says that those before it are complete.
void LiveJudge::record(const Record& record) {
  if (record.layer > layer_) {
    layer_ = record.layer;
    recorder_.end();
    recorder_.begin(pass_.info);
    judge_what_is_there();
  }
  recorder_.record(record);
}

void LiveJudge::judge_what_is_there() {
  const auto judge = [this] {
    while (judge_.has_next_part(pass_)) judge_part();
  };
  if (!thread_) return judge();
  thread_->begin(judge);
}

void LiveJudge::judge_part() {
  const std::vector<NodeId> flags = judge_.judge_part(pass_);
  flags_.insert(flags_.end(), flags.begin(), flags.end());
  if (options_.judged) options_.judged(pass_, flags);
  if (judge_.parts_left() > 0) let_go();  // else the pass goes to who keeps it
}

void LiveJudge::let_go() {
  for (RecordedTensor& tensor : pass_.tensors) {
    const Place place{tensor.point, tensor.layer};
    if (tensor.data.view().empty() || !judge_.has_judged(place) || judge_.reads_later(place))
      continue;
    if (!options_.keeps || !options_.keeps(tensor, flags_)) tensor.data = {};
  }
}

void LiveJudge::end() {
  recorder_.end();
  while (judge_.parts_left() > 0) judge_part();
  judge_.end_pass(pass_);
  options_.ended(std::exchange(pass_, {}), flags_);
}

}  // namespace lockstep
