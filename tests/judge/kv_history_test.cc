// What is kept of K and V that were written, and for how long.
#include "src/judge/kv_history.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <set>

#include "kernels/base/memory.h"
#include "probes/digest.h"

namespace lockstep {
namespace {

constexpr int64_t kRowBytes = 2 * 4 * sizeof(float);  // K, then V, of four numbers

// One row of one request, at `slot` of a layer, whose K and V are all `value`.
void write(KvHistory& history, int32_t pass, int32_t request, int64_t slot, float value,
           int layer = 0) {
  const Row row{request, 0};
  history.begin({.pass = pass, .rows = {{row, 100 + request, slot, Phase::prefill}}});
  Tensor kv({1, 1, 4}, DType::f32);
  std::fill_n(kv.as<float>(), 4, value);
  history.write(layer, {&row, 1}, kv, kv);
}

uint64_t hash_of_request(const KvHistory& history, int32_t request) {
  return history.latest(0, {request, 0});
}

bool is_kept(const KvHistory& history, int32_t request) {
  return !history.k(hash_of_request(history, request)).empty();
}

TEST(KvHistory, KeepsWhatASlotHolds) {
  KvHistory history(/*keep_bytes=*/true, /*most_gone=*/0);
  for (int32_t request = 0; request < 5; ++request)
    write(history, 10 * request, request, request, static_cast<float>(request));
  for (int32_t request = 0; request < 5; ++request) EXPECT_TRUE(is_kept(history, request));
}

TEST(KvHistory, ForgetsWhatWasOverwrittenFirst) {
  KvHistory history(/*keep_bytes=*/true, 2 * kRowBytes);
  for (int32_t request = 0; request < 6; ++request)
    write(history, 10 * request, request, 7, static_cast<float>(request));
  for (int32_t request = 0; request < 6; ++request)
    EXPECT_EQ(history.writer_of(hash_of_request(history, request)) != nullptr, request >= 3)
        << request;
  const Row first{0, 0};
  const uint64_t hash = hash_of_request(history, 0);
  EXPECT_NE(hash, 0U);
  EXPECT_TRUE(history.compare(0, {&first, 1}, {&hash, 1}).wrong.empty())
      << "what it may read is known all the same";
}

TEST(KvHistory, KeepsWhatIsReadOrWrittenAgain) {
  KvHistory history(/*keep_bytes=*/true, /*most_gone=*/0);
  write(history, 0, 0, 7, 1);
  for (int32_t pass = 1; pass < 6; ++pass) {
    EXPECT_TRUE(is_kept(history, 0)) << "a copy of its page is read in each pass";
    write(history, pass, pass, 7, static_cast<float>(pass + 1));
  }
  write(history, 20, 20, 8, 1);  // the same numbers at another slot
  for (int32_t pass = 30; pass < 60; pass += 10)
    write(history, pass, pass, 7, static_cast<float>(pass));
  EXPECT_TRUE(is_kept(history, 0));
}

TEST(KvHistory, LetsGoOfAnEndedRequestAsSoonAsItsSlotsAreWrittenAgain) {
  KvHistory history(/*keep_bytes=*/true);
  write(history, 0, 0, 7, 1);
  const uint64_t hash = hash_of_request(history, 0);
  history.end(0);
  EXPECT_FALSE(history.k(hash).empty()) << "a slot holds it";
  write(history, 1, 1, 7, 2);
  EXPECT_TRUE(history.k(hash).empty());
  ASSERT_TRUE(history.writer_of(hash)) << "who reads it nevertheless is told whose it was";
  EXPECT_EQ(history.writer_of(hash)->row.request, 0);
  EXPECT_TRUE(is_kept(history, 1));
  write(history, 2, 2, 8, 1);  // the same numbers for another request
  EXPECT_TRUE(is_kept(history, 2));
  EXPECT_FALSE(history.k(hash).empty());
}

// A service of any length takes the memory of its cache: of long ago it is not known who wrote
// what.
TEST(KvHistory, ForgetsWhoWroteWhatManyEndedRequestsHad) {
  for (const bool keep_bytes : {true, false}) {
    KvHistory history(keep_bytes);
    write(history, 0, 0, 7, 0);
    const uint64_t first = hash_of_request(history, 0);
    uint64_t late = 0;
    for (int32_t request = 1; request < (1 << 14) + 4; ++request) {
      history.end(request - 1);
      write(history, request, request, 7, static_cast<float>(request));
      if (request == 1 << 13) late = hash_of_request(history, request);
    }
    EXPECT_FALSE(history.writer_of(first));
    ASSERT_TRUE(history.writer_of(late));
    EXPECT_EQ(history.writer_of(late)->row.request, 1 << 13);
  }
}

// A preempted request computes its positions again, with other bits: all of them may be read.
TEST(KvHistory, TakesEachVersionOfARowForRight) {
  KvHistory history(/*keep_bytes=*/false);
  const Row row{0, 0};
  const auto is_right = [&](uint64_t hash) {
    return history.compare(0, {&row, 1}, {&hash, 1}).wrong.empty();
  };
  std::vector<uint64_t> hashes;
  for (int32_t pass = 0; const float value : {1.0F, 2.0F, 3.0F, 2.0F}) {
    write(history, pass++, 0, 7, value);
    hashes.push_back(history.latest(0, row));
  }
  EXPECT_EQ(hashes[3], hashes[1]) << "the latest is the one that was written last";
  for (const uint64_t hash : hashes) EXPECT_TRUE(is_right(hash));
  EXPECT_FALSE(is_right(hashes[0] ^ 1));
  // When the latest is forgotten, as of long ago, the one before it is the latest.
  history.end(0);
  for (int32_t request = 1; request < (1 << 14) + 6; ++request) {
    write(history, 10 + request, request, 7, static_cast<float>(10 + request));
    history.end(request);
  }
  history.begin({.pass = 1 << 20, .rows = {{row, 100, -1, Phase::prefill}}});
  EXPECT_EQ(history.latest(0, row), hashes[2]);
  EXPECT_FALSE(is_right(hashes[1]));
  EXPECT_TRUE(is_right(hashes[0]));
}

// Layers have the same slots and tokens, and each its own rows: what one of them forgets is known
// to the others.
TEST(KvHistory, KnowsEachLayerByItself) {
  KvHistory history(/*keep_bytes=*/true);
  const Row row{0, 0};
  for (const int layer : {2, 0}) write(history, 0, 0, 7, static_cast<float>(layer + 1), layer);
  const uint64_t first = history.latest(0, row), third = history.latest(2, row);
  EXPECT_NE(first, third);
  EXPECT_EQ(history.latest(1, row), 0U);
  EXPECT_EQ(history.latest(3, row), 0U);
  EXPECT_EQ(history.in_slot(0, 7), first);
  EXPECT_EQ(history.in_slot(1, 7), 0U);
  EXPECT_EQ(history.in_slot(2, 7), third);
  const auto told = [&](int layer, uint64_t hash) {
    return history.compare(layer, {&row, 1}, {&hash, 1});
  };
  EXPECT_EQ(told(2, first).wrong.size(), 1U);
  EXPECT_EQ(told(1, first).unknown, 1);
  history.end(0);
  for (int32_t request = 1; request < (1 << 14) + 6; ++request) {
    write(history, 10 + request, request, 7, static_cast<float>(10 + request), 2);
    history.end(request);
  }
  history.begin({.pass = 1 << 20, .rows = {{row, 100, -1, Phase::prefill}}});
  EXPECT_EQ(history.latest(2, row), 0U);
  EXPECT_EQ(history.latest(0, row), first);
  EXPECT_FALSE(history.k(first).empty()) << "a slot holds it";
}

// A prefix cache that matched too far hands on what was computed for other tokens.
TEST(KvHistory, AdoptsNothingThatWasWrittenForAnotherPlace) {
  KvHistory history(/*keep_bytes=*/true);
  Tensor kv({2, 1, 4}, DType::f32);
  for (int i = 0; i < 8; ++i) kv.as<float>()[i] = static_cast<float>(i + 1);
  const std::vector<Row> written = {{0, 0}, {0, 1}};
  history.begin({.pass = 0, .rows = {{written[0], 7, 0}, {written[1], 8, 1}}});
  for (const int layer : {0, 1}) {
    kv.as<float>()[0] = static_cast<float>(layer);  // whose first row is its own
    history.write(layer, written, kv, kv);
  }
  const uint64_t first = history.latest(0, written[0]), second = history.latest(0, written[1]);
  const uint64_t unwritten = first ^ second;
  const auto enters = [&](int32_t request, int32_t token, int32_t next) {
    history.begin({.pass = request,
                   .rows = {{{request, 2}, 9, 2}},
                   .inherited = {{.request = request, .tokens = {token, next}}}});
  };
  const auto wrong = [&](int32_t request, int layer, std::array<uint64_t, 2> hashes) {
    const std::vector<Row> rows = {{request, 0}, {request, 1}};
    history.adopt(layer, rows, hashes, TensorView{});
    EXPECT_EQ(history.compare(layer, rows, hashes).unknown, 0) << request;
    return history.compare(layer, rows, hashes).wrong;
  };
  enters(1, 7, 30);  // its own second token is another one
  EXPECT_EQ(wrong(1, 0, {first, second}), std::vector<int64_t>{1});
  EXPECT_FALSE(history.adopted().contains(1));
  enters(2, 40, 8);  // the same token behind another one has the same in the first layer
  EXPECT_EQ(wrong(2, 0, {unwritten, second}), std::vector<int64_t>{});
  EXPECT_EQ(history.adopted().at(2), std::set<int32_t>{0}) << "the other one was written";
  enters(3, 50, 7);  // what stands at another position, or in another layer
  EXPECT_EQ(wrong(3, 0, {second, first}), (std::vector<int64_t>{0, 1}));
  enters(4, 7, 60);
  EXPECT_EQ(wrong(4, 1, {first, unwritten}), std::vector<int64_t>{0});
  enters(5, 7, 30);  // who has the right ones is not held to what another read by mistake
  EXPECT_EQ(wrong(5, 0, {first, unwritten}), std::vector<int64_t>{});
  enters(6, 70, 71);  // what nobody wrote may be the same at all positions
  EXPECT_EQ(wrong(6, 0, {unwritten + 1, unwritten + 1}), std::vector<int64_t>{});
}

// What the rows of a test stand for: the first row is at position 0 of each request.
std::vector<Row> rows_of(int32_t request, int32_t count) {
  std::vector<Row> rows;
  for (int32_t p = 0; p < count; ++p) rows.push_back({request, p});
  return rows;
}

PassInfo pass_of(int32_t pass, int32_t request, const std::vector<int32_t>& tokens) {
  PassInfo info{.pass = pass};
  for (int32_t p = 0; p < std::ssize(tokens); ++p)
    info.rows.push_back({{request, p}, tokens[p], -1, Phase::prefill});
  return info;
}

PassInfo heir(int32_t pass, int32_t request, const std::vector<int32_t>& tokens) {
  const auto position = static_cast<int32_t>(tokens.size());
  return {.pass = pass,
          .rows = {{{request, position}, 9, -1}},
          .inherited = {{.request = request, .tokens = tokens}}};
}

// Writes two rows of that request in layers 0 and 1, whose numbers begin with those of the layer.
std::array<uint64_t, 2> write_two(KvHistory& history, int32_t request,
                                  const std::vector<int32_t>& tokens, std::array<float, 2> begin) {
  history.begin(pass_of(request, request, tokens));
  Tensor kv({2, 1, 4}, DType::f32);
  for (const int layer : {0, 1}) {
    for (int i = 0; i < 8; ++i) kv.as<float>()[i] = begin[layer] + static_cast<float>(i);
    history.write(layer, rows_of(request, 2), kv, kv);
  }
  return {history.latest(0, {request, 1}), history.latest(1, {request, 1})};
}

// Its pages are keyed by their own tokens, and not by all tokens before them.
TEST(KvHistory, AdoptsNothingThatWasWrittenBehindOtherTokens) {
  for (const bool sees_all : {true, false}) {
    KvHistory history(/*keep_bytes=*/true, KvHistory::kMostGone, sees_all);
    const auto [first, second] = write_two(history, 0, {7, 8}, {1, 20});
    const std::vector<Row> rows = {{1, 1}};
    history.begin(heir(1, 1, {50, 8}));
    for (const int layer : {0, 1})
      history.adopt(layer, rows, {{layer == 0 ? first : second}}, TensorView{});
    EXPECT_TRUE(history.compare(0, rows, {{first}}).wrong.empty());
    EXPECT_EQ(history.compare(1, rows, {{second}}).wrong.empty(), !sees_all)
        << "a window of keys may leave out what differs";
    EXPECT_EQ(history.compare(1, rows, {{second}}).unknown, 0);
    EXPECT_FALSE(history.adopted().contains(1)) << "it was written in the trace";
  }
  // Where the tokens before are not known, nobody can tell.
  for (const bool writer_is_known : {true, false}) {
    KvHistory history(/*keep_bytes=*/true);
    const std::vector<int32_t> known = {7, 8}, unknown = {-1, 8};
    const uint64_t second = write_two(history, 0, writer_is_known ? known : unknown, {1, 20})[1];
    history.begin(heir(1, 1, writer_is_known ? unknown : known));
    const Row row{1, 1};
    history.adopt(1, {&row, 1}, {&second, 1}, TensorView{});
    EXPECT_TRUE(history.compare(1, {&row, 1}, {&second, 1}).wrong.empty());
  }
}

// Positions that were computed again unseen may hold other bits than before.
TEST(KvHistory, CallsNothingWrongThatMayHaveBeenWrittenUnseen) {
  KvHistory history(/*keep_bytes=*/true);
  const uint64_t seen = write_two(history, 0, {7, 8}, {1, 20})[1];
  const std::vector<Row> rows = rows_of(0, 2);
  const uint64_t other = seen ^ 1, first = history.latest(1, rows[0]);
  EXPECT_EQ(history.compare(1, rows, {{first, other}}).wrong, std::vector<int64_t>{1});
  history.begin(pass_of(1, 0, {7, 8}));
  history.write_unseen(1, std::span(rows).first(1));
  EXPECT_TRUE(history.compare(1, rows, {{first, other}}).wrong.empty());
  EXPECT_EQ(history.compare(1, rows, {{first, other}}).first_unknown, 1);
  EXPECT_EQ(history.compare(1, rows, {{first, seen}}).unknown, 0) << "that is still right";
  EXPECT_EQ(history.compare(1, rows, {{other, seen}}).wrong, std::vector<int64_t>{0})
      << "the first row was seen";
  EXPECT_EQ(history.compare(0, rows, {{other, other}}).wrong.size(), 2U) << "another layer";
  // Also where another one with the same tokens was seen only afterwards, and in whatever order.
  history.begin(pass_of(2, 4, {30, 31}));
  history.write_unseen(1, {});
  write_two(history, 5, {30, 31}, {2, 50});
  EXPECT_EQ(history.compare(1, rows_of(4, 2), {{other, other}}).unknown, 2);
  history.end(5);
  EXPECT_EQ(history.compare(1, rows_of(4, 2), {{other, other}}).unknown, 2);
  history.begin(pass_of(6, 6, {40, 41}));
  const std::vector<Row> backwards = {{6, 1}, {6, 0}};
  history.write_unseen(0, backwards);
  write_two(history, 6, {40, 41}, {3, 70});
  EXPECT_EQ(history.compare(0, rows_of(6, 2), {{other, other}}).wrong.size(), 2U);
}

// A server may hold two copies of a prefix, of other bits.
TEST(KvHistory, HoldsARequestToWhatItselfWasHanded) {
  KvHistory history(/*keep_bytes=*/true);
  const auto wrong = [&](int32_t request, uint64_t hash) {
    const Row row{request, 0};
    history.adopt(1, {&row, 1}, {&hash, 1}, TensorView{});
    const WrongRows found = history.compare(1, {&row, 1}, {&hash, 1});
    EXPECT_EQ(found.unknown, 0);
    return std::ssize(found.wrong);
  };
  for (const int32_t request : {0, 1}) {
    history.begin(heir(request, request, {7}));
    EXPECT_EQ(wrong(request, 11 + request), 0) << request;
  }
  EXPECT_EQ(history.adopted().size(), 2U);
  EXPECT_EQ(wrong(0, 15), 1);
  EXPECT_EQ(wrong(0, 11), 0);
  history.begin(heir(2, 0, {7}));  // it was put aside, and enters by another copy
  EXPECT_EQ(wrong(0, 16), 0);
  EXPECT_EQ(wrong(1, 17), 1);
  EXPECT_EQ(history.copies(), 2);
  // Also where somebody computed the same since then: who wrote another copy cannot be told.
  write_two(history, 3, {7, 8}, {1, 20});
  EXPECT_EQ(wrong(1, 12), 0);
  history.begin(heir(4, 4, {7}));
  EXPECT_EQ(wrong(4, history.latest(1, {3, 0})), 0);
}

// Row 0 of a request in layer 1, whose elements are all that number, in that slot.
struct Handed {
  int32_t request;
  int64_t slot;  // -1: not known
  float value;
  std::optional<float> of_v = {};  // nothing: the same
};

// What becomes of an inherited row of the token that request 0 wrote 20 for, into slot 3.
WrongRows handed(KvHistory& history, const Handed& handed, bool with_bytes = true) {
  const Row row{handed.request, 0};
  PassInfo info = heir(handed.request, handed.request, {7});
  if (handed.slot >= 0) info.pages = {{handed.request, {static_cast<int32_t>(handed.slot)}}};
  history.begin(info, /*page_size=*/1);
  Tensor kv({1, 2, 1, 4}, DType::f32);
  std::fill_n(kv.as<float>(), 8, handed.value);
  if (handed.of_v) std::fill_n(kv.as<float>() + 4, 4, *handed.of_v);
  const uint64_t hash = hash_of(kv.as<char>(), 8 * sizeof(float));
  history.adopt(1, {&row, 1}, {&hash, 1}, with_bytes ? kv.view() : TensorView{});
  return history.compare(1, {&row, 1}, {&hash, 1});
}

// A warm cache holds pages from before the trace, of tokens that the trace computes again.
TEST(KvHistory, TellsAnOlderCopyOfAPageFromWhatIsWrong) {
  KvHistory history(/*keep_bytes=*/true);
  history.begin({.pass = 0, .rows = {{{0, 0}, 7, 3, Phase::prefill}}});
  Tensor kv({1, 1, 4}, DType::f32);
  std::fill_n(kv.as<float>(), 4, 20.0F);
  const Row row{0, 0};
  history.write(1, {&row, 1}, kv, kv);
  EXPECT_TRUE(handed(history, {1, 3, 20}).wrong.empty()) << "what was written";
  EXPECT_EQ(handed(history, {2, 3, 20.5}).wrong.size(), 1U) << "another than was written there";
  const WrongRows old = handed(history, {3, 8, 20.25});
  EXPECT_TRUE(old.wrong.empty() && old.unknown == 0) << "nobody wrote to that slot";
  EXPECT_EQ(history.adopted().count(3), 1U);
  EXPECT_EQ(handed(history, {10, 8, 0}).wrong.size(), 1U) << "nor ever before";
  for (const float v : {17.0F, 20.0F})  // by both together the first would be near
    EXPECT_EQ(handed(history, {13, 8, 20.5, v}).wrong.size(), v < 18 ? 1U : 0U) << v;
  EXPECT_EQ(handed(history, {11, 8, std::numeric_limits<float>::quiet_NaN()}).wrong.size(), 1U);
  EXPECT_EQ(handed(history, {12, 9, 20.75}, /*with_bytes=*/false).unknown, 1);
  EXPECT_EQ(history.k(history.latest(1, row)).size(), 4 * sizeof(float));
  EXPECT_EQ(*reinterpret_cast<const float*>(history.k(history.latest(1, row)).data()), 20)
      << "a copy is not what others are compared with";
  // Where the slot is not known, near numbers may be a copy, and others are none.
  EXPECT_EQ(handed(history, {4, -1, 20.125}).unknown, 1);
  Tensor near({8}, DType::f32);
  std::fill_n(near.as<float>(), 8, 20.125F);
  const uint64_t hash = hash_of(near.as<char>(), 8 * sizeof(float));
  EXPECT_TRUE(history.may_be_copy(1, {4, 0}, hash));
  EXPECT_FALSE(history.may_be_copy(1, {4, 0}, hash ^ 1));
  EXPECT_EQ(handed(history, {5, -1, 40}).wrong.size(), 1U);
  EXPECT_EQ(handed(history, {6, -1, 41}, /*with_bytes=*/false).unknown, 1);
  // The same tokens were computed into that slot again, and nobody saw with what bits.
  history.begin({.pass = 20, .rows = {{{20, 0}, 7, 3, Phase::prefill}}});
  history.write_unseen(1, {});
  EXPECT_EQ(handed(history, {21, 3, 20.0625}).unknown, 1);
  EXPECT_EQ(history.in_slot(1, 3), 0U);
}

// Where nobody computed the tokens, copies are near to each other, and which of two is right that
// are not cannot be told.
TEST(KvHistory, TakesCopiesThatAreNear) {
  KvHistory history(/*keep_bytes=*/true);
  EXPECT_EQ(handed(history, {1, -1, 20}).unknown, 0);
  EXPECT_EQ(handed(history, {2, -1, 20.5}).unknown, 0);
  EXPECT_EQ(history.copies(), 1);
  EXPECT_EQ(handed(history, {3, -1, 40}).unknown, 1);
  EXPECT_EQ(handed(history, {4, 8, 41}).unknown, 1);
  EXPECT_FALSE(history.adopted().contains(3));
}

// An id that is used again says nothing of what its first owner inherited.
TEST(KvHistory, ForgetsWhatWasInheritedWhereItIsComputed) {
  KvHistory history(/*keep_bytes=*/true);
  const std::vector<Row> rows = rows_of(5, 2);
  history.begin(heir(0, 5, {1, 2}));
  history.adopt(0, rows, {{11, 12}}, TensorView{});
  EXPECT_EQ(history.compare(0, rows, {{11, 12}}).unknown, 0);
  history.begin(pass_of(1, 5, {30, 31}));  // its K and V are not seen
  history.adopt(0, rows, {{21, 22}}, TensorView{});
  EXPECT_EQ(history.compare(0, rows, {{21, 22}}).unknown, 2);
  write(history, 2, 5, 7, 1);
  const uint64_t hash = hash_of_request(history, 5);
  history.end(5);
  write(history, 3, 5, 8, 1);  // the same by one that lives, whose slots are overwritten
  write(history, 4, 6, 7, 2);
  write(history, 5, 6, 8, 3);
  EXPECT_FALSE(history.k(hash).empty());
}

// Of two with the same text the one that ended takes nothing from the other.
TEST(KvHistory, KnowsWhatALivingRequestHasWhateverEnds) {
  KvHistory history(/*keep_bytes=*/true);
  write_two(history, 0, {6, 8}, {1, 10});  // the first layer of its second row is theirs too
  const uint64_t theirs = write_two(history, 1, {7, 8}, {1, 20})[0];
  EXPECT_EQ(write_two(history, 2, {7, 8}, {1, 20})[0], theirs);
  history.end(0);
  history.end(1);
  for (int32_t r = 10; r < (1 << 14) + 20; ++r) {
    write(history, r, r, 7, static_cast<float>(r));
    history.end(r);
  }
  const Row row{2, 1};
  const uint64_t other = theirs ^ 1;
  EXPECT_EQ(history.latest(0, row), theirs);
  EXPECT_EQ(history.compare(0, {&row, 1}, {&other, 1}).wrong.size(), 1U);
}

// Of requests that ended no more is known than the bound says: also where their slots were
// overwritten before, and where many of them had the same bits.
TEST(KvHistory, ForgetsEndedRequestsHoweverTheyEnd) {
  constexpr int32_t kMany = 3 << 14;
  for (const bool overwritten_before : {true, false}) {
    KvHistory history(/*keep_bytes=*/true, /*most_gone=*/0);
    const auto value = [&](int32_t r) { return overwritten_before ? static_cast<float>(r) : 1; };
    for (int32_t r = 0; r < kMany; ++r) {
      write(history, r, r, 7, value(r));
      if (!overwritten_before) history.end(r);
      if (overwritten_before && r > 0) history.end(r - 1);
    }
    const auto knows = [&](int32_t r) {
      history.begin({.pass = 1 << 20, .rows = {{{r, 0}, 100 + r, -1, Phase::prefill}}});
      return history.latest(0, {r, 0}) != 0;
    };
    EXPECT_FALSE(knows(1));
    EXPECT_FALSE(knows(kMany / 2));
    EXPECT_TRUE(knows(kMany - 1000));
  }
}

TEST(KvHistory, KeepsWhatLiesNobodyKnowsWhere) {
  KvHistory history(/*keep_bytes=*/true, /*most_gone=*/0);
  for (int32_t request = 0; request < 5; ++request)
    write(history, 10 * request, request, -1, static_cast<float>(request));
  for (int32_t request = 0; request < 5; ++request) EXPECT_TRUE(is_kept(history, request));
}

}  // namespace
}  // namespace lockstep
