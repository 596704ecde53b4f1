// The word is a linked list of parts, and a heap holds the merges of neighbours by rank and place.
// A merge that is popped may be of parts that were merged meanwhile; it is recognised and dropped.
#include "src/weights/bpe.h"

#include <queue>
#include <tuple>

#include "kernels/base/check.h"
#include "kernels/base/utf8.h"

namespace lockstep {
namespace {

// A token of the word under way, in a list of its neighbours by index; -1: none. A token that was
// merged into its left neighbour has the id -1.
struct Symbol {
  int32_t id;
  int64_t left;
  int64_t right;
};

// A merge that was possible at symbol `at` when it was queued. Ordered by rank and then by place:
// of equal merges the leftmost goes first.
struct Candidate {
  int32_t rank;
  int64_t at;
  int32_t id;
  bool operator>(const Candidate& other) const {
    return std::tie(rank, at) > std::tie(other.rank, other.at);
  }
};

// A pair of tokens as one key of the table of merges.
uint64_t key_of(int32_t left, int32_t right) {
  return (uint64_t{static_cast<uint32_t>(left)} << 32) | static_cast<uint32_t>(right);
}

}  // namespace

Bpe::Bpe(const std::unordered_map<std::string, int32_t>& ids, const std::string& path) {
  for (size_t byte = 0; byte < byte_ids_.size(); ++byte) {
    const auto found = ids.find(std::string(1, static_cast<char>(byte)));
    check(found != ids.end(),
          "{}: model.vocab has no token for the byte {}, and one for each was wanted: use the "
          "tokenizer.json of a Qwen checkpoint, or fetch it again",
          path, byte);
    byte_ids_[byte] = found->second;
  }
}

void Bpe::add_merge(int32_t left, int32_t right, int32_t merged) {
  merges_[key_of(left, right)] = {next_rank_++, merged};
}

const Bpe::Merge* Bpe::find(int32_t left, int32_t right) const {
  const auto found = merges_.find(key_of(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

void Bpe::encode(std::string_view word, std::vector<int32_t>& out) const {
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  for (const char byte : word) {
    const int64_t i = symbols.size();
    symbols.push_back({byte_ids_[byte_of(byte)], i - 1, i + 1});
  }
  if (symbols.empty()) return;
  symbols.back().right = -1;
  const auto symbol = [&](int64_t i) -> Symbol& { return symbols[i]; };

  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  // Queues the merge of a symbol with its right neighbour, if there is one.
  const auto offer = [&](int64_t at) {
    if (at < 0 || symbol(at).right < 0) return;
    if (const Merge* merge = find(symbol(at).id, symbol(symbol(at).right).id))
      queue.push({merge->rank, at, merge->id});
  };
  for (int64_t i = 0; i < std::ssize(symbols); ++i) offer(i);
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = symbol(best.at);
    // Merged into its left neighbour since, or the last of the word now.
    if (left.id < 0 || left.right < 0) continue;
    // A neighbour may have been merged away since this was queued.
    const Merge* now = find(left.id, symbol(left.right).id);
    if (now == nullptr || now->rank != best.rank) continue;
    Symbol& right = symbol(left.right);
    right.id = -1;
    left.id = best.id;
    left.right = right.right;
    if (left.right >= 0) symbol(left.right).left = best.at;
    // Both neighbours have a new partner.
    offer(left.left);
    offer(best.at);
  }
  // The first symbol is never merged into a left one, so that the list begins there.
  for (int64_t i = 0; i >= 0; i = symbol(i).right) out.push_back(symbol(i).id);
}

}  // namespace lockstep
