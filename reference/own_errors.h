#pragma once

#include "src/judge/oracle.h"

namespace at {
class Tensor;
}

namespace lockstep {

// The error before the last rounding (JudgedOp::InnerError) of an op's results, whose numbers are
// held (bridge.h), in their shape and on the device that holds them. shared: undefined where errors
// share nothing. products: what JudgedOp::is_product says of each; undefined: of none. common: of a
// sum, common_part(); else 0. False: of another op, or of a chain with roundings on the way.
bool own_errors(OpKind op, const Exact& e, at::Tensor& limit, at::Tensor& variance,
                at::Tensor& shared, at::Tensor& products, double& common);

}  // namespace lockstep
