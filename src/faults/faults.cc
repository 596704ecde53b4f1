// From the words of --fault to a seeded engine: the name is looked up among all tables, the model
// is asked whether it has what the fault breaks, sizes get their default, and the fault's own
// function wraps ops or hooks. Nothing here knows what any fault does.
#include "src/faults/faults.h"

#include <algorithm>
#include <charconv>

#include "kernels/base/check.h"
#include "kernels/base/nearest.h"
#include "probes/points.h"
#include "src/faults/seeds.h"
#include "src/model/model.h"

namespace lockstep {
namespace {

const Fault& find_fault(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Fault& fault : faults()) {
    if (fault.name == name) return fault;
    names.push_back(fault.name);
  }
  fail("no fault is called '{}'{} ('lockstep faults' lists them all)", name,
       did_you_mean(name, names));
}

template <typename Number>
Number number_from(std::string_view text, std::string_view whole) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  check(error == std::errc() && end == text.data() + text.size(),
        "a number was wanted in --fault {}, found '{}': write NAME@layer=2 or "
        "NAME@layer=2,size=1e-4",
        whole, text);
  return value;
}

}  // namespace

const Fault& fault_of(const FaultRequest& request) { return find_fault(request.name); }

FaultRequest parse_fault(std::string_view text) {
  const size_t at = text.find('@');
  FaultRequest request{.name = std::string(text.substr(0, at))};
  find_fault(request.name);
  std::string_view rest = at == text.npos ? std::string_view() : text.substr(at + 1);
  check(at == text.npos || !rest.empty(),
        "--fault {} ends after '@': write NAME@layer=2 or NAME@layer=2,size=1e-4", text);
  while (!rest.empty()) {
    const std::string_view item = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
    if (item.starts_with("layer="))
      request.layer = number_from<int>(item.substr(6), text);
    else if (item.starts_with("size="))
      request.size = number_from<double>(item.substr(5), text);
    else if (item.starts_with("rank="))
      request.rank = number_from<int>(item.substr(5), text);
    else
      fail("--fault {} has '{}', which is not known: the keys are layer, size and rank", text,
           item);
  }
  return request;
}

std::vector<FaultRequest> parse_faults(const std::vector<std::string>& texts) {
  std::vector<FaultRequest> faults;
  for (const std::string& text : texts) faults.push_back(parse_fault(text));
  return faults;
}

void seed_fault(const Seams& seams, const FaultRequest& request) {
  const Fault& fault = find_fault(request.name);
  check(request.layer >= -1 && request.layer < seams.config.layers,
        "--fault {} names layer {}, but the model's layers are 0..{}", request.name, request.layer,
        seams.config.layers - 1);
  check(request.layer < 0 || fault.one_layer,
        "fault {} is one of no layer of its own: leave out layer={}", fault.name, request.layer);
  check(fault.applies(fault.seat == Fault::Seat::ranks && seams.ranks ? seams.ranks->cut.whole
                                                                      : seams.config),
        "fault {} cannot be seeded into this model: it needs {}", fault.name, fault.needs);
  check(fault.seat != Fault::Seat::ranks || seams.ranks != nullptr,
        "fault {} is one of how ranks share a model: add --tp 2", fault.name);
  check(fault.seat != Fault::Seat::instructions || seams.step != nullptr,
        "fault {} is one of a step's instructions: add --executor instructions", fault.name);
  check(request.layer < 0 || !seams.config.experts.in(request.layer) ||
            graph_of(seams.config).has({find_point(fault.point), request.layer}),
        "fault {} needs a layer with one MLP for all tokens, and layer {} has experts", fault.name,
        request.layer);
  check(
      fault.seat != Fault::Seat::device || seams.broken != nullptr,
      "fault {} is one of a CUDA device's kernels: add --device cuda, and leave out faults of ops",
      fault.name);
  check(request.size == 0 || fault.sizes[0] != 0, "fault {} has no size: leave out size={}",
        fault.name, request.size);
  FaultRequest sized = request;
  if (sized.size == 0) sized.size = fault.sizes[0];
  if (!request.right) return fault.seed(seams, sized);
  if (fault.right != nullptr) fault.right(seams, sized);
}

}  // namespace lockstep
