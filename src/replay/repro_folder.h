// A folder that shows one wrong call of an op without Lockstep.
#pragma once

#include <string>
#include <vector>

#include "src/replay/captured_call.h"
#include "src/replay/op_case.h"

namespace lockstep {

// The elements of the results that a folder compares, one entry each.
struct ReproElements {
  std::vector<int32_t> output;  // of CapturedCall::outputs
  std::vector<int64_t> index;   // in it, flat
  std::vector<double> want, limit, got;
};

// The worst wrong elements of a case, and some right ones of each output. At most 48 wrong ones and
// 16 right ones: those show that a kernel which gives nothing but zeros is not right either. Of a
// cache also some of slots that the call must leave as they are: NaN, with which the programs fill
// it.
ReproElements picked_from(const CaseElements& elements, const CapturedCall& call);

// Text for people: what it is of.
struct ReproStory {
  std::string title;               // "layer 3 attn.out of x.trace"
  std::vector<std::string> lines;  // how it was reduced, who is right on it
};

// Throws Error where the folder cannot be made: it is there and not empty, or is a file or a link,
// or lies in no folder that may be written to. So a command says so before it computes for minutes.
void check_repro_folder(const std::string& folder);

// Writes the folder, which check_repro_folder() lets pass: inputs.safetensors, repro.c, repro.py
// and README.md. Of tensors only what is not 0, and of products' weights only what the elements
// need, is written. Returns its bytes. Throws Error when it cannot. The folder is made beside, as
// FOLDER.part, and gets its name when it is whole; a failure leaves nothing.
int64_t write_repro(const std::string& folder, const CapturedCall& call,
                    const ReproElements& elements, const ReproStory& story);

}  // namespace lockstep
