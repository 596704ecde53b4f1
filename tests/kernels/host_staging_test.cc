// The "device" of these tests is other memory of the CPU: what is staged there is a copy.
#include "kernels/plugin/host_staging.h"

#include "kernels/base/memory.h"
#include "tests/kernels/samples.h"

namespace lockstep {
namespace {

TEST(HostStaging, OpsGiveTheSameInPlaceToo) {
  const Ops far = staged_on(cpu_ops(), Device::cpu);
  Sample x({3, 8}, DType::bf16), weight({5, 8}, DType::bf16);
  Sample here({3, 5}, DType::bf16), there({3, 5}, DType::bf16);
  x.fill_normal(1);
  weight.fill_normal(2);
  matmul({}, here, x, weight, {});
  far.matmul({}, there, x, weight, {});
  EXPECT_EQ(there.bits(), here.bits());
  add({}, here, here, here);
  far.add({}, there, there, there);
  EXPECT_EQ(there.bits(), here.bits());
}

TEST(HostStaging, ACacheIsCopiedBackOnlyFromWhereItIsWritten) {
  Sample k({2, 2, 1, 4}, DType::f32), v({2, 2, 1, 4}, DType::f32);
  Sample rows({1, 1, 4}, DType::f32), slot({1}, DType::i64), table({2}, DType::i32);
  Sample seen({4, 2, 1, 4}, DType::f32);
  for (Sample* sample : {&k, &v, &rows}) sample->fill_normal(3);
  slot.set(0, 3);
  table.set(0, 0);
  table.set(1, 1);
  const std::string before = k.bits();
  Ops ops = cpu_ops();
  const Ops far = staged_on(ops, Device::cpu);
  far.kv_write({}, {k, v}, rows, rows, slot);
  EXPECT_EQ(k.bits().substr(0, 48), before.substr(0, 48));
  EXPECT_EQ(k.bits().substr(48), rows.bits());
  EXPECT_EQ(v.bits().substr(48), rows.bits());
  // An op that only reads the cache cannot change it, whatever it does to its copy.
  ops.kv_gather = [](const OpContext&, TensorView, KvCache cache, TensorView) {
    cache.k.as<float>()[0] = 42;
  };
  const std::string written = k.bits(), nothing = seen.bits();
  staged_on(ops, Device::cpu).kv_gather({}, seen, {k, v}, table);
  EXPECT_EQ(k.bits(), written);
  EXPECT_EQ(seen.bits(), nothing) << "what an op leaves unwritten stays what it was";
}

TEST(Memory, APartOfATensorKeepsItsMemory) {
  Tensor part;
  {
    Tensor whole({64}, DType::i32);
    for (int32_t i = 0; i < 64; ++i) whole.as<int32_t>()[i] = i;
    part = whole.part(16, {2, 3}, DType::i32);
    EXPECT_THROW(whole.part(252, {2}, DType::i32), Error);
    EXPECT_THROW(whole.part(-4, {2}, DType::i32), Error);
  }
  EXPECT_EQ(part.view().shape, (Shape{2, 3}));
  EXPECT_EQ(part.as<int32_t>()[0], 4);
  EXPECT_EQ(part.as<int32_t>()[5], 9);
}

TEST(Memory, CopiesAreOfEqualBytesAndOfDevicesThatAreThere) {
  const Tensor three({3}, DType::f32), six({6}, DType::bf16), four({4}, DType::f32);
  copy(six, three);
  EXPECT_EQ(std::memcmp(six.view().data, three.view().data, 12), 0);
  EXPECT_THROW(copy(four, three), Error);
  EXPECT_THROW(copy_on(Device::cuda, three), Error);
  EXPECT_THROW(wait_for(Device::cuda), Error);
  wait_for(Device::cpu);
  EXPECT_EQ(stream_of(Device::cpu), nullptr);
}

}  // namespace
}  // namespace lockstep
