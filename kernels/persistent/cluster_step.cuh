#pragma once

#include "kernels/decode_step.h"
#include "kernels/persistent/step.cuh"

namespace lockstep::persistent {

// Bytes of the sums that clusters add up, which begin with zeros: two of o by four clusters and two
// of down by seven, of `columns` in all rows.
inline int64_t cluster_sums_bytes(int64_t columns) { return 22 * 4 * columns; }

// Whether the current device holds all clusters at once.
bool device_fits_clusters();

// Writes the weights into `packed`, in the order of their use.
void pack_for_clusters(CUstream_st* stream, const Step& step, const TensorView& packed);

// Launches the step by clusters (cluster_plan.cuh). `sums`: of cluster_sums_bytes().
void launch_clusters(CUstream_st* stream, const Step& step, const TensorView& packed, char* sums);

}  // namespace lockstep::persistent
