#include "src/replay/passes_reader.h"

#include <utility>

namespace lockstep {
namespace {

class PassesReader final : public TraceReader {
 public:
  PassesReader(Manifest manifest, std::vector<Pass> passes)
      : manifest_(std::move(manifest)), passes_(std::move(passes)) {}

  const Manifest& manifest() const override { return manifest_; }
  int passes() const override { return static_cast<int>(passes_.size()); }
  Pass read(int i, bool) override { return passes_.at(static_cast<size_t>(i)); }
  bool complete() const override { return true; }
  const std::vector<std::string>& problems() const override { return none_; }

 private:
  Manifest manifest_;
  std::vector<Pass> passes_;
  std::vector<std::string> none_;
};

}  // namespace

std::unique_ptr<TraceReader> reader_of(Manifest manifest, std::vector<Pass> passes) {
  return std::make_unique<PassesReader>(std::move(manifest), std::move(passes));
}

}  // namespace lockstep
