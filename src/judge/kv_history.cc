// Two keys make the comparison cheap and fair. The content of a row, K beside V, is known by the
// hash of its bytes. The place where it is right is known by the layer and the chain of tokens up
// to it: chain(p) = hash(chain(p - 1), token(p)). So a request may read what another one wrote
// behind the same tokens, as prefix caches do, and no row behind other tokens. A row has several
// right contents where a position was computed more than once. `own_` is the short way: what the
// request itself wrote there last.
#include "src/judge/kv_history.h"

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

#include "probes/digest.h"

namespace lockstep {
namespace {

uint64_t linked(uint64_t a, uint64_t b) {
  const uint64_t both[] = {a, b};
  return hash_of(both, sizeof(both));
}

// Rows of ended requests, in no slot, whose writers stay known: some 4 MB.
constexpr size_t kMostOfEnded = 1 << 14;

uint64_t key_of(int layer, uint64_t prefix) { return linked(layer, prefix); }

// That element, which is there afterwards.
uint64_t& grown(std::vector<uint64_t>& hashes, size_t index) {
  if (hashes.size() <= index) hashes.resize(index + 1);
  return hashes[index];
}

uint64_t hash_at(const std::vector<uint64_t>& hashes, size_t index) {
  return index < hashes.size() ? hashes[index] : 0;
}

}  // namespace

void KvHistory::begin(const PassInfo& pass) {
  pass_ = pass.pass;
  rows_ = pass.rows;
  for (const Inherited& inherited : pass.inherited) {
    inherited_[inherited.request] = inherited.tokens.size();
    for (size_t p = 0; p < inherited.tokens.size(); ++p)
      put_token(inherited.request, p, inherited.tokens[p]);
  }
  for (const PassRow& r : pass.rows) put_token(r.row.request, r.row.position, r.token);
}

// prefix[p] = hash(prefix[p - 1], token p) names a text up to a position: two requests with the
// same beginning share what may lie in their caches.
void KvHistory::put_token(int32_t request, size_t position, int32_t token) {
  std::vector<uint64_t>& chain = prefixes_[request];
  std::vector<int32_t>& tokens = tokens_[request];
  if (chain.size() <= position) chain.resize(position + 1), tokens.resize(position + 1, -1);
  tokens[position] = token;
  uint64_t before = position == 0 ? 1 : chain[position - 1];
  // Where a trace lacks the passes before, a position stands for itself alone.
  if (before == 0) before = linked(~request, position);
  const uint64_t now = linked(before, token);
  if (const uint64_t old = std::exchange(chain[position], now); old == 0 || old == now) return;
  // Other tokens than before: what the request wrote there is not its own any more.
  for (auto& [of, hashes] : own_)
    if (of.second == request) hashes.resize(std::min(hashes.size(), position));
}

// A row that was written again (a preempted request) is legal in both versions, the latest last.
void KvHistory::write(int layer, std::span<const Row> rows, const TensorView& k,
                      const TensorView& v) {
  const size_t bytes = k.row_size() * size_of(k.dtype);
  std::vector<char> both(2 * bytes);
  auto next = rows_.begin();             // rows come in the order of the pass, or some of them do
  std::vector<uint64_t>* own = nullptr;  // of the request of this row
  for (size_t i = 0; i < rows.size(); ++i) {
    std::memcpy(both.data(), k.as<const char>() + i * bytes, bytes);
    std::memcpy(both.data() + bytes, v.as<const char>() + i * bytes, bytes);
    const uint64_t hash = hash_of(both.data(), both.size());

    const uint64_t row_prefix = prefix(rows[i]);
    write_version(layer, row_prefix, hash);
    if (i == 0 || rows[i].request != rows[i - 1].request) own = &own_[{layer, rows[i].request}];
    grown(*own, rows[i].position) = hash;
    next = std::ranges::find(next, rows_.end(), rows[i], &PassRow::row);
    const int64_t slot = next == rows_.end() ? -1 : next->slot;
    Content& content = keep(hash, {layer, rows[i], pass_, slot}, both);
    if (!std::exchange(content.written, true))  // what was adopted has its writer now
      content.writer = {layer, rows[i], pass_, slot}, content.prefix = row_prefix,
      content.token = token_of(rows[i]);
    put_into_slot(hash, content, layer, slot);
  }
  forget_gone();
  forget_of_ended();
}

void KvHistory::write_version(int layer, uint64_t prefix, uint64_t hash) {
  uint64_t& latest = grown(written_[prefix], layer);
  const uint64_t before = std::exchange(latest, hash);
  if (before == 0 || before == hash) return;
  std::vector<uint64_t>& earlier = earlier_[key_of(layer, prefix)];
  std::erase(earlier, hash);
  earlier.push_back(before);
}

void KvHistory::forget_version(int layer, uint64_t prefix, uint64_t hash) {
  const auto written = written_.find(prefix);
  if (written == written_.end() || hash_at(written->second, layer) == 0) return;
  uint64_t& latest = written->second[layer];
  const auto earlier = earlier_.find(key_of(layer, prefix));
  if (earlier != earlier_.end()) {
    if (latest == hash)
      latest = earlier->second.back(), earlier->second.pop_back();
    else
      std::erase(earlier->second, hash);
    if (earlier->second.empty()) earlier_.erase(earlier);
  } else if (latest == hash) {
    latest = 0;
    if (std::ranges::count(written->second, uint64_t{0}) == std::ssize(written->second))
      written_.erase(written);
  }
}

uint64_t KvHistory::latest_of(int layer, uint64_t prefix) const {
  const auto written = written_.find(prefix);
  return written == written_.end() ? 0 : hash_at(written->second, layer);
}

KvHistory::Content& KvHistory::keep(uint64_t hash, const Writer& writer,
                                    std::span<const char> bytes) {
  const auto [content, fresh] = contents_.try_emplace(hash);
  if (fresh)
    content->second = {
        .writer = writer, .prefix = prefix(writer.row), .token = token_of(writer.row)};
  const bool lacks = fresh || content->second.bytes.empty();  // who wrote them first may have ended
  if (lacks && keep_bytes_) content->second.bytes.assign(bytes.begin(), bytes.end());
  return content->second;
}

// Contents are counted by the slots that hold them: one that no slot holds can still be read by
// mistake for a while, and is queued to be forgotten.
void KvHistory::put_into_slot(uint64_t hash, Content& content, int layer, int64_t slot) {
  // A row whose slot is not known may be anywhere, and is never forgotten.
  if (slot < 0) content.slots = -1;
  if (slot < 0) return;
  const uint64_t before = std::exchange(grown(slots_[slot], layer), hash);
  if (before == hash) return;
  if (content.slots >= 0) ++content.slots;
  if (before == 0) return;
  const auto old = contents_.find(before);
  if (old == contents_.end() || old->second.slots <= 0 || --old->second.slots > 0) return;
  // The bytes of a request that ended go at once: nobody may read them any more by right, and who
  // wrote them is still known for a finding.
  if (ended_.contains(old->second.writer.row.request)) {
    std::vector<char>().swap(old->second.bytes);  // an assignment would keep the memory
    gone_of_ended_.push_back(before);
    return;
  }
  if (!keep_bytes_) return;
  gone_.emplace_back(before, std::ssize(old->second.bytes));
  gone_bytes_ += gone_.back().second;
}

void KvHistory::end(int32_t request) {
  ended_.insert(request);
  prefixes_.erase(request);
  tokens_.erase(request);
  inherited_.erase(request);
  std::erase_if(own_, [request](const auto& own) { return own.first.second == request; });
}

// Oldest first, while the queue is over its bound.
void KvHistory::forget_gone() {
  for (size_t looked = gone_.size(); looked > 0 && gone_bytes_ > most_gone_; --looked) {
    const auto [hash, bytes] = gone_.front();
    gone_.pop_front();
    gone_bytes_ -= bytes;
    const auto found = contents_.find(hash);
    if (found == contents_.end() || found->second.slots != 0) continue;  // it was written again
    if (found->second.read_in < pass_ - 1) {
      contents_.erase(found);
    } else {  // a copy of its page is in use
      gone_.emplace_back(hash, bytes);
      gone_bytes_ += bytes;
    }
  }
}

// A row that no slot holds can be read through a page copied elsewhere alone: one that was read of
// late is put at the end of the queue again.
void KvHistory::forget_of_ended() {
  for (size_t looked = gone_of_ended_.size(); looked > 0 && gone_of_ended_.size() > kMostOfEnded;
       --looked) {
    const uint64_t hash = gone_of_ended_.front();
    gone_of_ended_.pop_front();
    const auto found = contents_.find(hash);
    if (found == contents_.end() || found->second.slots != 0) continue;  // it was written again
    if (found->second.read_in >= pass_ - 1) {
      gone_of_ended_.push_back(hash);
      continue;
    }
    forget_version(found->second.writer.layer, found->second.prefix, hash);
    contents_.erase(found);
  }
}

void KvHistory::adopt(int layer, std::span<const Row> rows, std::span<const uint64_t> hashes,
                      const TensorView& kv) {
  const auto bytes = kv.empty() ? size_t{0} : kv.row_size() * size_of(kv.dtype);
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto inherited = inherited_.find(rows[i].request);
    const size_t position = rows[i].position;
    if (inherited == inherited_.end() || position >= inherited->second) continue;
    // Rows that some request wrote for these tokens are held to that; only what is unknown is taken
    // as it was read.
    const uint64_t row_prefix = prefix(rows[i]);
    uint64_t& latest = grown(written_[row_prefix], layer);
    if (latest != 0) continue;
    if (is_of_another(hashes[i], layer, rows[i])) {
      mistaken_.insert(linked(key_of(layer, row_prefix), hashes[i]));
      continue;
    }
    latest = hashes[i];
    grown(own_[{layer, rows[i].request}], position) = hashes[i];
    adopted_[rows[i].request].insert(rows[i].position);
    if (bytes > 0)
      keep(hashes[i], {layer, rows[i], pass_, -1}, {kv.as<const char>() + i * bytes, bytes});
  }
}

// K and V of the same token at the same position may be of the same bits behind other tokens too:
// in the first layer they always are.
bool KvHistory::is_of_another(uint64_t hash, int layer, const Row& row) const {
  const auto known = contents_.find(hash);
  if (known == contents_.end() || !known->second.written) return false;
  const Content& content = known->second;
  const int32_t token = token_of(row);
  return content.writer.layer != layer || content.writer.row.position != row.position ||
         (content.token != -1 && token != -1 && content.token != token);
}

std::optional<bool> KvHistory::is_legal(int layer, const Row& row, uint64_t hash) const {
  const uint64_t of = prefix(row), latest = latest_of(layer, of);
  if (latest == 0)
    return mistaken_.contains(linked(key_of(layer, of), hash)) ? std::optional(false)
                                                               : std::nullopt;
  if (latest == hash) return true;
  const auto earlier = earlier_.find(key_of(layer, of));
  return earlier != earlier_.end() && std::ranges::count(earlier->second, hash) > 0;
}

uint64_t KvHistory::latest(int layer, const Row& row) const {
  return latest_of(layer, prefix(row));
}

uint64_t KvHistory::in_slot(int layer, int64_t slot) const {
  const auto held = slots_.find(slot);
  return held == slots_.end() ? 0 : hash_at(held->second, layer);
}

const KvHistory::Writer* KvHistory::writer_of(uint64_t hash) const {
  const auto found = contents_.find(hash);
  return found == contents_.end() ? nullptr : &found->second.writer;
}

// A search through everything, as it is asked for findings alone. The earliest writer of the half
// that was wanted comes first.
std::optional<KvHistory::HalfOf> KvHistory::written_as(std::span<const char> bytes,
                                                       bool of_v) const {
  std::optional<HalfOf> first;
  const auto order = [of_v](const HalfOf& of) {
    const Writer& w = of.writer;
    return std::tuple(of.of_v != of_v, w.pass, w.layer, w.row.request, w.row.position);
  };
  for (const auto& [hash, content] : contents_) {
    const std::span<const char> both = content.bytes, half = both.first(both.size() / 2);
    for (const bool as_v : {false, true}) {
      const HalfOf of{content.writer, as_v};
      if (!std::ranges::equal(as_v ? both.last(half.size()) : half, bytes)) continue;
      if (!first || order(of) < order(*first)) first = of;
    }
  }
  return first;
}

uint64_t KvHistory::prefix(const Row& row) const {
  const auto found = prefixes_.find(row.request);
  const size_t position = row.position;
  return found == prefixes_.end() || position >= found->second.size() ? 0 : found->second[position];
}

int32_t KvHistory::token_of(const Row& row) const {
  const auto found = tokens_.find(row.request);
  const size_t position = row.position;
  return found == tokens_.end() || position >= found->second.size() ? -1 : found->second[position];
}

const std::vector<char>* KvHistory::bytes_of(uint64_t hash) const {
  const auto found = contents_.find(hash);
  if (found == contents_.end()) return nullptr;
  found->second.read_in = pass_;
  return &found->second.bytes;
}

std::span<const char> KvHistory::k(uint64_t hash) const {
  const std::vector<char>* bytes = bytes_of(hash);
  return bytes == nullptr ? std::span<const char>() : std::span(*bytes).first(bytes->size() / 2);
}

std::span<const char> KvHistory::v(uint64_t hash) const {
  const std::vector<char>* bytes = bytes_of(hash);
  return bytes == nullptr ? std::span<const char>() : std::span(*bytes).last(bytes->size() / 2);
}

// The request's own latest row is looked at first: nearly all rows end there.
WrongRows KvHistory::compare(int layer, std::span<const Row> rows,
                             std::span<const uint64_t> hashes) const {
  WrongRows found;
  std::span<const uint64_t> own;  // of the request of this row
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i == 0 || rows[i].request != rows[i - 1].request) {
      const auto lane = own_.find({layer, rows[i].request});
      own = lane == own_.end() ? std::span<const uint64_t>() : lane->second;
    }
    const size_t position = rows[i].position;
    if (position < own.size() && own[position] == hashes[i] && hashes[i] != 0) continue;
    const int64_t index = i;
    // Another request with the same text may have written it, or the same one before it was
    // preempted.
    const std::optional<bool> legal = is_legal(layer, rows[i], hashes[i]);
    if (!legal) {
      if (found.unknown++ == 0) found.first_unknown = index;
    } else if (!*legal) {
      found.wrong.push_back(index);
    }
  }
  return found;
}

}  // namespace lockstep
