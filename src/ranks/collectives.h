// The way between the ranks of one model, a process each. src/collectives implements it with c10d,
// in a shared library of its own, so that the engine links no LibTorch; nothing of this project
// moves bytes between ranks.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/base/stream.h"
#include "kernels/base/tensor.h"

namespace lockstep {

// Calls that every rank makes, each in the same order. Tensors are in host memory, or in that of
// the GPU of the meeting: a call of these is queued on its stream. Each call throws Error when a
// peer is gone. One thread calls.
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
  // The sum of row r of all ranks' `parts` becomes rank r's `part`, rounded as of all_reduce().
  virtual void reduce_scatter(const TensorView& parts, const TensorView& part) = 0;
  virtual void send(const std::vector<std::byte>& bytes, int to) = 0;
  virtual std::vector<std::byte> receive(int from) = 0;
};

// Where the ranks of a model meet, and what they bring.
struct Meeting {
  int rank = 0, ranks = 1;
  std::string host = "127.0.0.1";  // of rank 0
  int port = 0;                    // of it, that rank 0 listens at; 0: one that is free
  // Somebody else listens there, who lets all that meet at the same name: rank 0 does not.
  bool hosted = false;
  std::string name = "lockstep";
  // How long a rank waits for the others to come.
  std::chrono::milliseconds patience = std::chrono::hours(24);
  // Facts by name that all ranks must have alike: they meet with an Error else.
  std::map<std::string, std::string> facts = {};
  int gpu = -1;  // the number of the rank's CUDA device; -1: it computes on the CPU
  CUstream_st* stream = nullptr;  // of its ops there
  // Called in rank 0 with the port that it listens at, before it waits for the others.
  std::function<void(int port)> opened = {};
};

class CollectivesLibrary {
 public:
  virtual ~CollectivesLibrary() = default;
  virtual std::string name() const = 0;  // "Gloo of LibTorch 2.7.0"
  // Returns once all ranks are there. Throws Error when the port is in use, when a rank does not
  // come, and when one brings other facts than rank 0.
  virtual std::unique_ptr<Collectives> meet(const Meeting& meeting) = 0;
};

// Facts as a text for another rank, and back. Throws Error on a text of anybody else.
std::string text_of_facts(const std::map<std::string, std::string>& facts);
std::map<std::string, std::string> facts_from(const std::string& text);
// Throws Error, with what is not alike, when a rank brings other facts than rank 0. texts: by rank.
void check_alike(const std::vector<std::string>& texts);

}  // namespace lockstep
