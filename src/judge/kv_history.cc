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

// Whether K and V of two rows are an eighth of what the second has apart, or less, each by itself:
// more than the roundings of some layers in 16 bits come to.
bool are_near(const TensorView& a, const TensorView& b) {
  const int64_t half = a.count() / 2;
  for (const int64_t first : {int64_t{0}, half}) {
    double apart = 0, size = 0;
    for (int64_t i = first; i < first + half; ++i) {
      const double x = value_at(a, i), y = value_at(b, i);
      apart += (x - y) * (x - y);
      size += y * y;
    }
    if (!(apart <= size / 64)) return false;  // nor where one is no number
  }
  return true;
}

// In the place of a hash: somebody wrote to that slot, and nobody saw what.
constexpr uint64_t kUnseen = ~uint64_t{0};

}  // namespace

void KvHistory::begin(const PassInfo& pass, int64_t page_size) {
  pass_ = pass.pass;
  rows_ = pass.rows;
  page_size_ = page_size;
  tables_.clear();
  for (const RequestPages& table : pass.pages) tables_[table.request] = table.pages;
  for (const Inherited& inherited : pass.inherited) {
    inherited_[inherited.request] = inherited.tokens.size();
    for (auto& [of, hashes] : own_)  // it may be handed other bits than the last time
      if (of.second == inherited.request)
        std::fill_n(hashes.begin(), std::min(hashes.size(), inherited.tokens.size()), 0);
    for (size_t p = 0; p < inherited.tokens.size(); ++p)
      put_token(inherited.request, p, inherited.tokens[p]);
  }
  for (const PassRow& r : pass.rows) {
    put_token(r.row.request, r.row.position, r.token);
    // A request no longer inherits what it computes itself, as after it was preempted.
    const auto inherited = inherited_.find(r.row.request);
    if (inherited != inherited_.end())
      inherited->second = std::min<size_t>(inherited->second, r.row.position);
  }
}

void KvHistory::leave(uint64_t prefix) {
  const auto found = living_.find(prefix);
  if (found != living_.end() && --found->second == 0) living_.erase(found);
}

// prefix[p] = hash(prefix[p - 1], token p) names a text up to a position: two requests with the
// same beginning share what may lie in their caches.
void KvHistory::put_token(int32_t request, size_t position, int32_t token) {
  Text& text = texts_[request];
  std::vector<uint64_t>& chain = text.prefixes;
  if (chain.size() <= position) chain.resize(position + 1), text.tokens.resize(position + 1, -1);
  text.tokens[position] = token;
  uint64_t before = position == 0 ? 1 : chain[position - 1];
  // Where a trace lacks the passes before, a position stands for itself alone.
  if (before == 0) before = linked(~request, position);
  const uint64_t now = linked(before, token), old = std::exchange(chain[position], now);
  if (token == -1)
    text.known = std::min(text.known, position);
  else if (text.known == position || (text.known > position && old != now))
    text.known = position + 1;
  if (old == now) return;
  ++living_[now];
  if (old == 0) return;
  leave(old);
  // Other tokens than before: what the request wrote there is not its own any more.
  for (auto& [of, hashes] : own_)
    if (of.second == request) hashes.resize(std::min(hashes.size(), position));
}

// A row that was written again (a preempted request) is legal in both versions, the latest last.
void KvHistory::write(int layer, std::span<const Row> rows, const TensorView& k,
                      const TensorView& v) {
  layers_ = std::max(layers_, layer + 1);
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
    only_adopted_.erase(key_of(layer, row_prefix));
    if (i == 0 || rows[i].request != rows[i - 1].request) own = &own_[{layer, rows[i].request}];
    grown(*own, rows[i].position) = hash;
    next = std::ranges::find(next, rows_.end(), rows[i], &PassRow::row);
    const int64_t slot = next == rows_.end() ? -1 : next->slot;
    Content& content = keep(hash, {layer, rows[i], pass_, slot}, both);
    if (!std::exchange(content.written, true))  // what was adopted has its writer now
      put_facts(content, {layer, rows[i], pass_, slot});
    content.ended = false;
    put_into_slot(hash, content, layer, slot);
  }
  forget_gone();
  forget_of_ended();
}

// Rows become unknown by that: they are neither right nor wrong.
void KvHistory::write_unseen(int layer, std::span<const Row> seen) {
  if (std::ranges::equal(seen, rows_, {}, {}, &PassRow::row)) return;
  layers_ = std::max(layers_, layer + 1);
  std::vector<Row> sorted(seen.begin(), seen.end());
  const auto order = [](const Row& row) { return std::pair(row.request, row.position); };
  std::ranges::sort(sorted, {}, order);
  for (const PassRow& r : rows_) {
    if (std::ranges::binary_search(sorted, order(r.row), {}, order)) continue;
    unseen_.insert(key_of(layer, prefix(r.row)));
    Content nothing;
    put_into_slot(kUnseen, nothing, layer, r.slot);
    const auto own = own_.find({layer, r.row.request});
    const size_t position = r.row.position;
    if (own != own_.end() && position < own->second.size()) own->second[position] = 0;
  }
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
    only_adopted_.erase(key_of(layer, prefix));
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
  if (fresh) put_facts(content->second, writer);
  const bool lacks = fresh || content->second.bytes.empty();  // who wrote them first may have ended
  if (lacks && keep_bytes_) content->second.bytes.assign(bytes.begin(), bytes.end());
  return content->second;
}

void KvHistory::put_facts(Content& content, const Writer& writer) const {
  content.writer = writer;
  const Text* text = text_of(writer.row);
  if (text == nullptr) return;
  const size_t position = writer.row.position;
  content.prefix = text->prefixes[position];
  content.token = text->tokens[position];
  content.known = position < text->known;
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
  if (old->second.ended) {
    std::vector<char>().swap(old->second.bytes);  // an assignment would keep the memory
    gone_of_ended_.push_back({old->second.writer.layer, old->second.prefix, before});
    return;
  }
  if (!keep_bytes_) return;
  gone_.emplace_back(before, std::ssize(old->second.bytes));
  gone_bytes_ += gone_.back().second;
}

// A row that a slot holds is queued to be forgotten when it is overwritten, if it is known by these
// tokens; all others are now, but for what may be handed to others again.
void KvHistory::end(int32_t request) {
  const auto found = texts_.find(request);
  const std::vector<uint64_t> prefixes =
      found == texts_.end() ? std::vector<uint64_t>() : found->second.prefixes;
  for (const auto& [of, hashes] : own_)
    for (size_t p = 0; of.second == request && p < hashes.size() && p < prefixes.size(); ++p) {
      const uint64_t hash = hashes[p];
      if (hash == 0 || handed_.contains(linked(key_of(of.first, prefixes[p]), hash))) continue;
      const auto content = contents_.find(hash);
      const bool known = content != contents_.end();
      if (known && content->second.writer.row.request == request) content->second.ended = true;
      if (!known || content->second.slots == 0 || content->second.prefix != prefixes[p])
        gone_of_ended_.push_back({of.first, prefixes[p], hash});
    }
  for (const uint64_t prefix : prefixes) {
    if (prefix != 0) leave(prefix);
    if (living_.contains(prefix)) continue;
    for (int layer = 0; layer < layers_ && !unseen_.empty(); ++layer)
      unseen_.erase(key_of(layer, prefix));
  }
  if (found != texts_.end()) texts_.erase(found);
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
    const OfEnded gone = gone_of_ended_.front();
    gone_of_ended_.pop_front();
    const auto found = contents_.find(gone.hash);
    const bool own = found != contents_.end() && found->second.prefix == gone.prefix;
    if (own && found->second.slots != 0) continue;  // it was written again
    if (own && found->second.read_in >= pass_ - 1) {
      gone_of_ended_.push_back(gone);
      continue;
    }
    if (!living_.contains(gone.prefix)) forget_version(gone.layer, gone.prefix, gone.hash);
    if (own) contents_.erase(found);
  }
}

// A request is held to what itself was handed.
void KvHistory::adopt(int layer, std::span<const Row> rows, std::span<const uint64_t> hashes,
                      const TensorView& kv) {
  const int64_t count = kv.empty() ? 0 : kv.row_size();
  size_t inherits = 0;
  std::vector<uint64_t>* own = nullptr;  // of the request of this row
  for (size_t i = 0; i < rows.size(); ++i) {
    const size_t position = rows[i].position;
    if (i == 0 || rows[i].request != rows[i - 1].request) {
      const auto inherited = inherited_.find(rows[i].request);
      inherits = inherited == inherited_.end() ? 0 : inherited->second;
      own = inherits == 0 ? nullptr : &own_[{layer, rows[i].request}];
    }
    if (position >= inherits || hash_at(*own, position) != 0) continue;
    const uint64_t row_prefix = prefix(rows[i]), key = key_of(layer, row_prefix);
    const uint64_t here = linked(key, hashes[i]);
    if (mistaken_.contains(here) || untold_.contains(here)) continue;  // as in a pass before
    const bool legal = is_legal(layer, rows[i], hashes[i]).value_or(false);
    const char* bytes = count == 0 ? nullptr : kv.as<const char>() + i * count * size_of(kv.dtype);
    const TensorView row{const_cast<char*>(bytes), kv.dtype, Device::cpu, {count}};
    const Adoption adoption = legal ? Adoption::taken : adoption_of(layer, rows[i], hashes[i], row);
    if (adoption == Adoption::wrong) mistaken_.insert(here);
    if (adoption == Adoption::unknown) untold_.insert(here);
    if (adoption != Adoption::taken) continue;
    grown(*own, position) = hashes[i];
    if (legal && !only_adopted_.contains(key)) continue;  // somebody wrote it
    // The same bits for the same token, in a layer where no other has a say, are no news.
    const auto known = contents_.find(hashes[i]);
    if (known == contents_.end() || !known->second.written)
      adopted_[rows[i].request].insert(rows[i].position);
    if (legal) continue;
    handed_.insert(here);
    if (latest_of(layer, row_prefix) == 0) {
      only_adopted_.insert(key);
      write_version(layer, row_prefix, hashes[i]);
    } else {  // the one before is what others are compared with
      ++copies_;
      earlier_[key].push_back(hashes[i]);
    }
    if (count > 0)
      keep(hashes[i], {layer, rows[i], pass_, -1}, {bytes, static_cast<size_t>(row.bytes())});
  }
}

// Pages of before the trace hold copies that were computed in other company, so of other bits.
KvHistory::Adoption KvHistory::adoption_of(int layer, const Row& row, uint64_t hash,
                                           const TensorView& kv_row) const {
  const int64_t slot = slot_of(row);
  const auto slots = slots_.find(slot);
  const uint64_t held = slots == slots_.end() ? 0 : hash_at(slots->second, layer);
  const bool was_right = held != 0 && is_legal(layer, row, held).value_or(false);
  if (was_right || is_of_another(hash, layer, row)) return Adoption::wrong;
  const uint64_t latest = latest_of(layer, prefix(row));
  if (latest == 0) return Adoption::taken;
  const bool was_written = !only_adopted_.contains(key_of(layer, prefix(row)));
  const std::vector<char>* other = bytes_of(latest);
  if (kv_row.data == nullptr || other == nullptr || std::ssize(*other) != kv_row.bytes())
    return was_written ? Adoption::unknown : Adoption::taken;
  const bool near =
      are_near(kv_row, {const_cast<char*>(other->data()), kv_row.dtype, Device::cpu, kv_row.shape});
  const bool was_there = slot >= 0 && held == 0;  // nobody wrote to the slot in the trace
  if (was_written && !near) return Adoption::wrong;
  return near && (was_there || !was_written) ? Adoption::taken : Adoption::unknown;
}

// K and V of the same token at the same position are of the same bits behind other tokens in the
// first layer, and further on where a layer sees a window of keys.
bool KvHistory::is_of_another(uint64_t hash, int layer, const Row& row) const {
  const auto known = contents_.find(hash);
  const Text* text = text_of(row);
  if (known == contents_.end() || !known->second.written || text == nullptr) return false;
  const Content& content = known->second;
  const size_t position = row.position;
  const int32_t token = text->tokens[position];
  if (content.writer.layer != layer || content.writer.row.position != row.position ||
      (content.token != -1 && token != -1 && content.token != token))
    return true;
  return sees_all_ && layer > 0 && content.known && position < text->known &&
         content.prefix != text->prefixes[position];
}

// A mistaken read stays wrong where others were handed what is right, and rows that were written
// unseen may hold anything.
std::optional<bool> KvHistory::is_legal(int layer, const Row& row, uint64_t hash) const {
  const uint64_t of = prefix(row), latest = latest_of(layer, of), key = key_of(layer, of);
  if (latest == hash && hash != 0) return true;
  const auto earlier = earlier_.find(key);
  if (earlier != earlier_.end() && std::ranges::count(earlier->second, hash) > 0) return true;
  if (mistaken_.contains(linked(key, hash))) return false;
  if (latest == 0 || unseen_.contains(key) || untold_.contains(linked(key, hash)))
    return std::nullopt;
  return false;
}

bool KvHistory::may_be_copy(int layer, const Row& row, uint64_t hash) const {
  return untold_.contains(linked(key_of(layer, prefix(row)), hash));
}

uint64_t KvHistory::latest(int layer, const Row& row) const {
  return latest_of(layer, prefix(row));
}

uint64_t KvHistory::in_slot(int layer, int64_t slot) const {
  const auto held = slots_.find(slot);
  const uint64_t hash = held == slots_.end() ? 0 : hash_at(held->second, layer);
  return hash == kUnseen ? 0 : hash;
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

const KvHistory::Text* KvHistory::text_of(const Row& row) const {
  const auto found = texts_.find(row.request);
  const size_t position = row.position;
  return found == texts_.end() || position >= found->second.prefixes.size() ? nullptr
                                                                            : &found->second;
}

int64_t KvHistory::slot_of(const Row& row) const {
  const auto table = tables_.find(row.request);
  if (page_size_ <= 0 || table == tables_.end()) return -1;
  const size_t page = row.position / page_size_;
  if (page >= table->second.size() || table->second[page] < 0) return -1;
  return table->second[page] * page_size_ + row.position % page_size_;
}

uint64_t KvHistory::prefix(const Row& row) const {
  const Text* text = text_of(row);
  return text == nullptr ? 0 : text->prefixes[static_cast<size_t>(row.position)];
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
