// Looks for the shortest true sentence about wrong cases: one trait that they all have and no right
// case has; else a bound on a number; else two traits together; and where nothing separates the
// two, what leaves the fewest right cases among them. A trait that every case has says nothing.
#include "src/opcheck/common_traits.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>

namespace lockstep {
namespace {

bool has_trait(const TriedCase& tried, const Trait& trait) {
  return std::ranges::count(tried.traits, trait) > 0;
}

std::string phrase_of(const Trait& trait) {
  if (trait.name == "dtype" || trait.name == "passes") return trait.value;
  return fmt::format("{} {}", trait.name, trait.value);
}

std::optional<double> number_of_trait(const TriedCase& tried, const std::string& name) {
  for (const Trait& trait : tried.traits) {
    double x = 0;
    const char* end = trait.value.data() + trait.value.size();
    if (trait.name != name) continue;
    if (const auto [at, error] = std::from_chars(trait.value.data(), end, x);
        error == std::errc() && at == end)
      return x;
  }
  return {};
}

// The traits that all wrong cases have, and not all others.
class Common {
 public:
  explicit Common(const std::vector<TriedCase>& tried) : tried_(tried) {
    const auto first = std::ranges::find(tried, true, &TriedCase::wrong);
    for (const Trait& trait : first->traits) {
      const bool shared = std::ranges::all_of(
          tried, [&](const TriedCase& one) { return !one.wrong || has_trait(one, trait); });
      if (shared && right_with({trait}) < right_with({})) traits_.push_back(trait);
    }
  }

  std::string text() const;

 private:
  int64_t right_with(const std::vector<Trait>& traits) const {
    return std::ranges::count_if(tried_, [&](const TriedCase& one) {
      return !one.wrong &&
             std::ranges::all_of(traits, [&](const Trait& trait) { return has_trait(one, trait); });
    });
  }
  int64_t wrong() const { return std::ranges::count(tried_, true, &TriedCase::wrong); }
  std::string all_with(const std::string& what) const {
    return fmt::format("all {} with {}, and no other", wrong(), what);
  }
  std::string of_numbers() const;
  std::string fewest_around() const;

  const std::vector<TriedCase>& tried_;
  std::vector<Trait> traits_;
};

// A number from which on cases are wrong, or up to which. A name counts only where every case has a
// number under it, or else a case without it would pass for a right one.
std::string Common::of_numbers() const {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const Trait& trait : tried_.front().traits) {
    double wrong_least = kInfinity, wrong_most = -kInfinity;
    double right_least = kInfinity, right_most = -kInfinity;
    bool all = true;
    for (const TriedCase& one : tried_) {
      const std::optional<double> x = number_of_trait(one, trait.name);
      all = all && x.has_value();
      if (!x) break;
      double& least = one.wrong ? wrong_least : right_least;
      double& most = one.wrong ? wrong_most : right_most;
      least = std::min(least, *x), most = std::max(most, *x);
    }
    if (!all) continue;
    if (wrong_least > right_most)
      return all_with(fmt::format("{} from {} on", trait.name, wrong_least));
    if (wrong_most < right_least)
      return all_with(fmt::format("{} up to {}", trait.name, wrong_most));
  }
  return "";
}

// Where nothing is of wrong cases alone: the fewest among which they all are.
std::string Common::fewest_around() const {
  int64_t fewest = right_with({});
  std::string what;
  const auto offer = [&](int64_t right, const std::string& phrase) {
    if (right < fewest) fewest = right, what = phrase;
  };
  for (const Trait& trait : tried_.front().traits) {
    double least = std::numeric_limits<double>::infinity(), most = -least;
    bool all = true;
    for (const TriedCase& one : tried_) {
      const std::optional<double> x = number_of_trait(one, trait.name);
      all = all && x.has_value();
      if (x && one.wrong) least = std::min(least, *x), most = std::max(most, *x);
    }
    if (!all) continue;
    const auto right_where = [&](const auto& is_within) {
      return std::ranges::count_if(tried_, [&](const TriedCase& one) {
        return !one.wrong && is_within(number_of_trait(one, trait.name).value());
      });
    };
    offer(right_where([least](double x) { return x >= least; }),
          fmt::format("{} from {} on", trait.name, least));
    offer(right_where([most](double x) { return x <= most; }),
          fmt::format("{} up to {}", trait.name, most));
  }
  for (const Trait& trait : traits_) offer(right_with({trait}), phrase_of(trait));
  return what.empty() ? "" : fmt::format("all among the {} with {}", wrong() + fewest, what);
}

std::string Common::text() const {
  for (const Trait& trait : traits_)
    if (right_with({trait}) == 0) return all_with(phrase_of(trait));
  if (std::string numbers = of_numbers(); !numbers.empty()) return numbers;
  for (size_t i = 0; i < traits_.size(); ++i)
    for (size_t j = i + 1; j < traits_.size(); ++j)
      if (right_with({traits_[i], traits_[j]}) == 0)
        return all_with(phrase_of(traits_[i]) + " and " + phrase_of(traits_[j]));
  return fewest_around();
}

}  // namespace

std::string common_to(const std::vector<TriedCase>& tried) {
  const int64_t wrong = std::ranges::count(tried, true, &TriedCase::wrong);
  if (wrong < 2 || wrong == std::ssize(tried)) return "";
  return Common(tried).text();
}

}  // namespace lockstep
