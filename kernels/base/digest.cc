#include "kernels/base/digest.h"

#include "kernels/base/check.h"

namespace lockstep {
namespace {

DigestMaker the_maker;

}  // namespace

void set_digest_maker(const DigestMaker& maker) { the_maker = maker; }

const DigestMaker& digest_maker() {
  check(the_maker.digest != nullptr,
        "no CUDA library is loaded, which makes digests on a CUDA device: use --device cpu");
  return the_maker;
}

}  // namespace lockstep
