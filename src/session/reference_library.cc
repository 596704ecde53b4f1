#include "src/session/reference_library.h"

#include "kernels/base/check.h"
#include "kernels/base/ending.h"
#include "kernels/base/memory.h"
#include "src/session/shared_library.h"

namespace lockstep {

namespace {

ReferenceLibrary* reference_library() {
  using Factory = ReferenceLibrary* (*)();
  static const auto make = reinterpret_cast<Factory>(torch_factory(
      "liblockstep_reference.so", "lockstep_reference", "judging needs the LibTorch reference"));
  return make();
}

}  // namespace

ReferenceLibrary& open_reference() {
  static ReferenceLibrary* library = [] {
    ReferenceLibrary* made = reference_library();
    end_at_once();  // asked for after LibTorch's own ends, so that it comes before them
    register_keeper([made](Device device) { made->free_unused(device.index); });
    return made;
  }();
  return *library;
}

std::future<void> load_reference_for_device() {
  return std::async(std::launch::async, [] {
    try {
      reference_library()->has_gpu(0);
    } catch (const Error&) {
    }
  });
}

}  // namespace lockstep
