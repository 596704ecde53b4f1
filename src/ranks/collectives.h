// The way between the ranks of one model, a process each. src/collectives implements it with c10d,
// in a shared library of its own, so that the engine links no LibTorch; nothing of this project
// moves bytes between ranks.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/tensor.h"

namespace lockstep {

// Calls that every rank makes, each in the same order. Tensors are in host memory. Each call throws
// Error when a peer is gone. One thread calls.
class Collectives {
 public:
  virtual ~Collectives() = default;
  virtual int rank() const = 0;
  virtual int ranks() const = 0;
  // Adds the tensors of all ranks, which are of one shape and float dtype, and leaves the sum in
  // each. It rounds in that dtype, once for every rank but the first.
  virtual void all_reduce(const TensorView& tensor) = 0;
  // parts: [ranks, ...], row r becomes rank r's `part`, which has the shape of a row.
  virtual void all_gather(const TensorView& parts, const TensorView& part) = 0;
  virtual void send(const std::vector<std::byte>& bytes, int to) = 0;
  virtual std::vector<std::byte> receive(int from) = 0;
};

// Where the ranks of a model meet.
struct Meeting {
  int rank = 0, ranks = 1;
  int port = 0;  // of this machine, that rank 0 listens at; 0: one that is free
  // Called in rank 0 with the port that it listens at, before it waits for the others.
  std::function<void(int port)> opened = {};
};

class CollectivesLibrary {
 public:
  virtual ~CollectivesLibrary() = default;
  virtual std::string name() const = 0;  // "Gloo of LibTorch 2.7.0"
  // Returns once all ranks are there. Throws Error when the port is in use.
  virtual std::unique_ptr<Collectives> meet(const Meeting& meeting) = 0;
};

}  // namespace lockstep
