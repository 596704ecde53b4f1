#include "probes/digest_recorder.h"

#include <utility>

namespace lockstep {

DigestRecorder::DigestRecorder(Selection selection, bool tensors,
                               std::function<void(Pass&&)> finished)
    : whole_rows_(selection.has_every_row()),
      tensors_(tensors),
      finished_(std::move(finished)),
      host_(std::move(selection), true, [this](Pass pass) { take(std::move(pass)); }) {}

void DigestRecorder::take(Pass&& pass) {
  for (RecordedTensor& tensor : pass.tensors)
    if (!keeps(*tensor.point, tensor.layer)) tensor.data = {};
  finished_(std::move(pass));
}

}  // namespace lockstep
