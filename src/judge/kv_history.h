#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "kernels/base/tensor.h"
#include "probes/record.h"

namespace lockstep {

// Rows of attn.kv that are not what was written for their request's tokens.
struct WrongRows {
  std::vector<int64_t> wrong;  // those that hold something else, ascending
  int64_t unknown = 0;         // rows for whose tokens nothing was written
  int64_t first_unknown = -1;
};

// Every K/V row that the model has written, by what it stands for: the layer, and all tokens up to
// its own. Whoever has the same tokens may read it, because shared prefixes, forks and computing
// again are legal; nobody else may. Also where a row that was found instead came from. One thread
// at a time may use it, for asking too: k() and v() mark bytes as read, which keeps them from being
// forgotten.
class KvHistory {
 public:
  static constexpr int64_t kMostGone = int64_t{256} << 20;

  // Who wrote a row first.
  struct Writer {
    int layer = -1;
    Row row;
    int32_t pass = 0;
    int64_t slot = -1;
  };

  // The writer of some bytes, and which of K and V they are.
  struct HalfOf {
    Writer writer;
    bool of_v = false;
  };

  // keep_bytes: k(), v() and written_as() can be asked, at the price of a copy of what was written:
  // of all that a slot of the cache holds, and of at most `most_gone` bytes that were overwritten
  // in each slot that they were written to. Beyond that, what was overwritten first is forgotten,
  // with its writer, unless it was read in this pass or the one before. sees_all: attention sees
  // all tokens before in each layer, so that rows behind other tokens hold something else from the
  // second layer on.
  explicit KvHistory(bool keep_bytes, int64_t most_gone = kMostGone, bool sees_all = true)
      : keep_bytes_(keep_bytes), sees_all_(sees_all), most_gone_(most_gone) {}

  // Before the writes of each pass: which tokens its rows stand for. page_size: positions in a page
  // of the tables of the pass; 0: not known, nor which slot a row is read from.
  void begin(const PassInfo& pass, int64_t page_size = 0);
  // Row i of k and v belongs to rows[i], a row of the pass. Both [rows, kv_heads, head_dim], CPU,
  // of one shape and dtype. What the same tokens had before stays legal: a page may hold it still.
  void write(int layer, std::span<const Row> rows, const TensorView& k, const TensorView& v);
  // The pass writes its rows in that layer too, but for those that were seen, and nobody knows
  // what: it may hold other bits than what the same tokens had before.
  void write_unseen(int layer, std::span<const Row> seen);

  // The request is in no further pass, and nobody inherits from it: its bytes are kept for as long
  // as a slot holds them. Who wrote them stays known for the last 16,384 rows that such requests
  // had, and that no slot holds any more.
  void end(int32_t request);

  // Takes what a request was found to read of inherited tokens that nobody wrote for what was
  // written: row i of kv, [rows, 2, kv_heads, head_dim], or its hash alone, is of rows[i]. But not
  // what was written in another layer, at another position or for other tokens, as where a prefix
  // cache matched too far, nor what stands where the right row was written: that is wrong. Where
  // the tokens have other bits besides it may be an older copy of a page, near to them: that is
  // taken where nobody wrote to its slot, or others were handed those; else it is unknown.
  void adopt(int layer, std::span<const Row> rows, std::span<const uint64_t> hashes,
             const TensorView& kv);
  // How many positions were adopted, by request.
  const std::map<int32_t, std::set<int32_t>>& adopted() const { return adopted_; }
  // Whether that is unknown since it may be an older copy of what the tokens have.
  bool may_be_copy(int layer, const Row& row, uint64_t hash) const;
  // How many rows were adopted where the same tokens had other bits.
  int64_t copies() const { return copies_; }

  // Whether what was read at rows[i], whose hash (xxh3 over the bytes of K, then V) is hashes[i],
  // was written for the tokens of that request up to that position.
  WrongRows compare(int layer, std::span<const Row> rows, std::span<const uint64_t> hashes) const;
  // The first writer of that hash; null: nobody.
  const Writer* writer_of(uint64_t hash) const;
  // Who first wrote those bytes as K, or as V where of_v is asked for; else as the other one.
  // Nothing: nobody did. Looks through all that was written, so it is for findings.
  std::optional<HalfOf> written_as(std::span<const char> bytes, bool of_v) const;
  // Stands for all tokens of the request up to that position; 0: never seen.
  uint64_t prefix(const Row& row) const;

  // Bytes of K or V by hash; empty when they are not kept. The spans hold until the next write(),
  // which may free what no slot holds any more.
  std::span<const char> k(uint64_t hash) const;
  std::span<const char> v(uint64_t hash) const;
  // The hash of what was to be written last to that slot; 0: nothing, or it is not known.
  uint64_t in_slot(int layer, int64_t slot) const;
  // The hash of what was written last for the tokens up to there; 0 when nothing was.
  uint64_t latest(int layer, const Row& row) const;

 private:
  struct Content {
    Writer writer;
    uint64_t prefix = 0;           // of the tokens that it was written for
    int32_t token = -1;            // the last of them; -1: not known
    bool known = false;            // all of them are
    bool written = false;          // else it was adopted alone
    bool ended = false;            // who had it last was in no further pass
    std::vector<char> bytes;       // K, then V
    int slots = 0;                 // that hold it; -1: it is not known which
    mutable int32_t read_in = -2;  // the last pass that asked for its bytes
  };
  // The tokens of a request, and what they stand for, by position.
  struct Text {
    std::vector<uint64_t> prefixes;  // 0: never seen
    std::vector<int32_t> tokens;     // -1: not known
    size_t known = 0;                // tokens from the first one on that are
  };
  // A version that is to be forgotten, as its request has ended.
  struct OfEnded {
    int layer = -1;
    uint64_t prefix = 0, hash = 0;
  };
  // Whether those are bytes that were written for another place than that.
  bool is_of_another(uint64_t hash, int layer, const Row& row) const;
  // Whether that hash is legal there. Nothing: nothing was written.
  std::optional<bool> is_legal(int layer, const Row& row, uint64_t hash) const;
  void put_token(int32_t request, size_t position, int32_t token);
  void leave(uint64_t prefix);  // one request less has it in its text
  Content& keep(uint64_t hash, const Writer& writer, std::span<const char> bytes);
  const Text* text_of(const Row& row) const;  // null: that position was never seen
  int64_t slot_of(const Row& row) const;      // that the pass reads it from; -1: not known
  // Why a row of inherited tokens is not taken, if it is not. kv_row: its bytes; or empty.
  enum class Adoption { taken, wrong, unknown };
  Adoption adoption_of(int layer, const Row& row, uint64_t hash, const TensorView& kv_row) const;
  void put_facts(Content& content, const Writer& writer) const;
  // The content is in that slot of the layer now, and what was there is not.
  void put_into_slot(uint64_t hash, Content& content, int layer, int64_t slot);
  void write_version(int layer, uint64_t prefix, uint64_t hash);
  void forget_version(int layer, uint64_t prefix, uint64_t hash);
  // The hash of what was written last in that layer for tokens with that prefix; 0: nothing was.
  uint64_t latest_of(int layer, uint64_t prefix) const;
  void forget_gone();
  void forget_of_ended();
  const std::vector<char>* bytes_of(uint64_t hash) const;

  bool keep_bytes_, sees_all_;
  int64_t most_gone_, gone_bytes_ = 0;
  // Hashes and bytes of what no slot held any more when it was put here, in that order.
  std::deque<std::pair<uint64_t, int64_t>> gone_;
  std::deque<OfEnded> gone_of_ended_;  // what ended requests had, without bytes
  // Hashes by layer, 0: none, of one slot or prefix. Rows of a pass are written once a layer: a
  // table of slots or prefixes stays in the processor's caches, where one of all layers does not.
  using ByLayer = std::vector<uint64_t>;
  std::unordered_map<int64_t, ByLayer> slots_;
  std::map<int32_t, Text> texts_;  // by request
  // Mistaken reads where nobody wrote: hashes of the layer, the prefix and what was read.
  std::unordered_set<uint64_t> mistaken_;
  // By key_of() layer and prefix: what was adopted alone, and what was written unseen as well.
  std::unordered_set<uint64_t> only_adopted_, unseen_;
  // Hashes of such a key and of what was adopted by it, or is neither right nor wrong by it.
  std::unordered_set<uint64_t> handed_, untold_;
  std::unordered_map<uint64_t, int> living_;  // by prefix: requests in whose text it is
  int layers_ = 0;
  int64_t copies_ = 0;
  std::vector<PassRow> rows_;                       // of the pass
  std::map<int32_t, std::vector<int32_t>> tables_;  // its pages, by request
  int64_t page_size_ = 0;
  std::map<int32_t, size_t> inherited_;  // tokens, by request
  std::map<int32_t, std::set<int32_t>> adopted_;
  int32_t pass_ = 0;
  // The hash of what was written last, by prefix; and of what was written there before, by key_of()
  // layer and prefix, in that order, where there is any, which is seldom.
  std::unordered_map<uint64_t, ByLayer> written_;
  std::unordered_map<uint64_t, std::vector<uint64_t>> earlier_;
  std::unordered_map<uint64_t, Content> contents_;  // by hash
  // By (layer, request), by position: what the request itself wrote last, 0: nothing. Nearly all
  // that is read is that, and this finds it without a lookup for each row.
  std::map<std::pair<int, int32_t>, std::vector<uint64_t>> own_;
};

}  // namespace lockstep
