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
      : values_(values), owner_(std::move(owner)), size_(values.size()) {}
  // So many that lie where no processor reads them, for who knows what `owner` is.
  static Numbers elsewhere(size_t size, std::shared_ptr<const void> owner) {
    Numbers numbers({}, std::move(owner));
    numbers.size_ = size;
    return numbers;
  }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  bool is_here() const { return values_.size() == size_; }
  const std::shared_ptr<const void>& owner() const { return owner_; }
  const double& operator[](size_t i) const { return values_[i]; }
  const double* begin() const { return values_.data(); }
  const double* end() const { return values_.data() + values_.size(); }

 private:
  explicit Numbers(std::shared_ptr<const std::vector<double>> values)
      : values_(*values), owner_(std::move(values)), size_(values_.size()) {}

  std::span<const double> values_;
  std::shared_ptr<const void> owner_;
  size_t size_ = 0;
};

}  // namespace lockstep
