// Guesses where they do not belong: of ops with other heads, outputs and rows, as layers, passes
// and siblings hand them on. None may end the judgement, or be taken for numbers of this op.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <new>
#include <set>
#include <type_traits>

#include "kernels/base/check.h"
#include "kernels/ops.h"
#include "src/faults/seeds.h"
#include "tests/judged.h"

namespace lockstep {
namespace {

// Numbers of other extents: heads, rows, widths.
constexpr double kForeign[] = {3, 7, 100, 4999};

// Tries each guess about an op on the others of its kind, and each with foreign numbers.
class Exchanged final : public Hypotheses {
 public:
  explicit Exchanged(std::unique_ptr<Hypotheses> whole) : whole_(std::move(whole)) {}

  std::unique_ptr<OpHypotheses> of(const OpInPass& op) override {
    auto asked = whole_->of(op);
    if (!seen_.insert(op.call.place.point->name).second) return asked;
    std::vector<Guess>& guesses = of_kind_[op.call.place.point->op];
    std::set<int> with_value;
    for (const Guess& guess : asked->guesses()) {
      guesses.push_back(guess);
      said.insert(asked->says(guess));
      if (guess.value != 0 && with_value.insert(guess.number).second)
        for (const double foreign : kForeign) guesses.push_back({guess.number, foreign});
    }
    for (const Guess& guess : guesses) {
      SCOPED_TRACE(testing::Message() << op.call.place.point->name << ": " << asked->says(guess));
      EXPECT_NO_THROW({
        const Numbers numbers = asked->evaluate(guess);
        EXPECT_TRUE(numbers.empty() || std::ssize(numbers) == op.got.count());
        asked->evaluate_few(guess);
      });
    }
    tried += guesses.size();
    return asked;
  }

  static inline size_t tried = 0;
  static inline std::set<std::string> said;

 private:
  std::unique_ptr<Hypotheses> whole_;
  std::set<std::string_view> seen_;
  std::map<OpKind, std::vector<Guess>> of_kind_;
};

// Asks of ops whose neighbours in the pass cannot be had.
class Failing final : public Hypotheses {
 public:
  Failing(std::unique_ptr<Hypotheses> whole, std::function<void()> fail)
      : whole_(std::move(whole)), fail_(std::move(fail)) {}

  std::unique_ptr<OpHypotheses> of(const OpInPass& op) override {
    OpInPass& failing = ops_.emplace_back(op);
    failing.other = [this](const Place&) {
      fail_();
      return TensorView{};
    };
    return whole_->of(failing);
  }
  std::string trouble() const override { return whole_->trouble(); }

 private:
  std::unique_ptr<Hypotheses> whole_;
  std::function<void()> fail_;
  std::deque<OpInPass> ops_;
};

// LibTorch's reference, but for its hypotheses.
class Library final : public ReferenceLibrary {
 public:
  explicit Library(std::function<void()> fail = {}) : fail_(std::move(fail)) {}

  std::string version() const override { return whole_.version(); }
  bool has_gpu(int number) const override { return whole_.has_gpu(number); }
  std::unique_ptr<Oracle> oracle(const Checkpoint& checkpoint,
                                 const ReferenceOptions& options) override {
    return whole_.oracle(checkpoint, options);
  }
  std::unique_ptr<ReferenceModel> model(const Checkpoint& checkpoint,
                                        const ReferenceOptions& options, DType compute) override {
    return whole_.model(checkpoint, options, compute);
  }
  std::unique_ptr<ErrorSharer> error_sharer(const Checkpoint& checkpoint,
                                            const ReferenceOptions& options) override {
    return whole_.error_sharer(checkpoint, options);
  }
  std::unique_ptr<Hypotheses> hypotheses(const Checkpoint& checkpoint,
                                         const ReferenceOptions& options) override {
    auto whole = whole_.hypotheses(checkpoint, options);
    if (fail_) return std::make_unique<Failing>(std::move(whole), fail_);
    return std::make_unique<Exchanged>(std::move(whole));
  }

 private:
  ReferenceLibrary& whole_ = open_reference();
  std::function<void()> fail_;
};

// Every op that computes is wrong, so that all are asked about.
Ops spoilt() {
  Ops ops = cpu_ops();
  for_each_op([&](const auto& row) {
    wrap(ops.*row.entry,
         [=](const auto& right, const OpContext& context, const auto& out, const auto&... inputs) {
           right(context, out, inputs...);
           if constexpr (std::is_same_v<decltype(out), const TensorView&>)
             for (int64_t i = 0; out.dtype != DType::i32 && i < out.count(); ++i)
               put(out, i, get(out, i) * (i % 3 == 0 ? 0.6f : 1.3f));
         });
  });
  return ops;
}

TEST(Guesses, OfOtherExtentsSayNothingAndEndNothing) {
  const Checkpoint checkpoint = Checkpoint::open(data_path("tiny/qwen3-moe"));
  Library library;
  JudgedRun run{.checkpoint = checkpoint, .reference = library};
  run.ops = spoilt();
  run.causes = true;
  run.requests = {{.prompt = some_tokens(9, checkpoint.config().vocab), .max_new = 3},
                  {.prompt = some_tokens(5, checkpoint.config().vocab), .max_new = 2}};
  const Result result = judged(run);
  EXPECT_TRUE(result.first);
  EXPECT_GT(Exchanged::tried, 1000);
  // Of two requests neither stands before the other.
  for (const char* what : {"the keys and values of", "the context length of"}) {
    EXPECT_TRUE(Exchanged::said.contains(fmt::format("{} the other request in the pass", what)));
    EXPECT_FALSE(Exchanged::said.contains(fmt::format("{} the request +1 in the pass", what)));
    EXPECT_FALSE(Exchanged::said.contains(fmt::format("{} the request -1 in the pass", what)));
  }
}

// A guess that does not fit an op says nothing of it. One that ends otherwise is missed, and said.
std::vector<std::string> notes_where(std::function<void()> fail) {
  const Checkpoint checkpoint = Checkpoint::open(data_path("tiny/qwen3-default"));
  Library library(std::move(fail));
  JudgedRun run{.checkpoint = checkpoint, .reference = library};
  run.ops = spoilt();
  run.causes = true;
  run.requests = {{.prompt = some_tokens(9, checkpoint.config().vocab), .max_new = 1}};
  const Result result = judged(run);
  EXPECT_TRUE(result.first);
  return result.notes;
}
TEST(Guesses, ThatEndForWantOfMemoryAreCounted) {
  const auto lack = notes_where([] { throw std::bad_alloc(); });
  const auto told = [](const std::string& note) {
    return note.find("guesses failed, the first: there is no memory left") != note.npos;
  };
  EXPECT_EQ(std::ranges::count_if(lack, told), 1) << testing::PrintToString(lack);
  const auto misfit = notes_where([] { fail("extents that do not fit"); });
  EXPECT_EQ(std::ranges::count_if(
                misfit, [](const auto& note) { return note.find("guesses failed") != note.npos; }),
            0)
      << testing::PrintToString(misfit);
}

}  // namespace
}  // namespace lockstep
