#pragma once

#include <initializer_list>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace lockstep {

// fp64 values that nobody changes any more. Copies share them, so that what an oracle computed is
// read where it computed it.
class Numbers {
 public:
  Numbers() = default;
  Numbers(std::vector<double> values)
      : Numbers(std::make_shared<const std::vector<double>>(std::move(values))) {}
  Numbers(std::initializer_list<double> values) : Numbers(std::vector(values)) {}
  // owner: keeps the values alive and as they are.
  Numbers(std::span<const double> values, std::shared_ptr<const void> owner)
      : values_(values), owner_(std::move(owner)) {}

  size_t size() const { return values_.size(); }
  bool empty() const { return values_.empty(); }
  const double& operator[](size_t i) const { return values_[i]; }
  const double* begin() const { return values_.data(); }
  const double* end() const { return values_.data() + values_.size(); }

 private:
  explicit Numbers(std::shared_ptr<const std::vector<double>> values)
      : values_(*values), owner_(std::move(values)) {}

  std::span<const double> values_;
  std::shared_ptr<const void> owner_;
};

}  // namespace lockstep
