// Loops over plain arrays, compiled for each width of vectors, of which the widest that this CPU
// has is called.
#pragma once

namespace lockstep {

#ifdef __x86_64__

template <typename Body>
#ifdef __clang__  // which ignores the whole of an attribute that has a word it does not know
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]] void
#else
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512")]] void
#endif
on_wide_vectors(const Body& body) {
  body();
}
template <typename Body>
[[gnu::target("avx2,fma")]] void on_some_vectors(const Body& body) {
  body();
}

#endif

// body: a lambda of no arguments that is always inlined, as is all that it calls:
// [&]() __attribute__((always_inline)) { ... }.
template <typename Body>
void on_widest_vectors(const Body& body) {
#ifdef __x86_64__
  static const bool widest =
      __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  static const bool some = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (widest) return on_wide_vectors(body);
  if (some) return on_some_vectors(body);
#endif
  body();
}

}  // namespace lockstep
