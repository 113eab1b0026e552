// Sixteen fp32 lanes in two AVX2 registers. fma() rounds once.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "../element_types.h"

namespace {

using octavo::BFloat16;
using octavo::Half;

struct F16 {
    __m256 lo, hi;
};
using Mask = F16;

// What of the arithmetic the bits of results depend on.
constexpr const char* kArithmetic = "fused multiply-add";
// Rows of a tile: the accumulators (F16) of one panel that fit the registers beside the operands, 12 of 16 registers.
constexpr int kMaxRows = 6;
// Panels that a tile of `rows` rows takes at once, so that enough chains are in flight to hide the latency.
constexpr int panels_at_once(int rows) { return rows == 1 ? 4 : rows <= 3 ? 2 : 1; }

inline __m256 load8(const float* p) { return _mm256_loadu_ps(p); }
inline __m256 load8(const int8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
inline __m256 load8(const Half* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
inline __m256 load8(const BFloat16* p) {
    const __m256i bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16));
}
template <typename T>
inline F16 load(const T* p) {
    return {load8(p), load8(p + 8)};
}
inline float to_float(Half h) { return _cvtsh_ss(h.bits); }
inline void store(float* p, F16 a) {
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}
// To nearest, ties to even; what is too large becomes infinite.
inline void store(Half* p, F16 a) {
    __m128i* halves = reinterpret_cast<__m128i*>(p);
    _mm_storeu_si128(halves, _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(halves + 1, _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT));
}
inline F16 set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline F16 broadcast(const float* p) {
    const __m256 x = _mm256_broadcast_ss(p);
    return {x, x};
}
inline F16 add(F16 a, F16 b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
inline F16 sub(F16 a, F16 b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
inline F16 mul(F16 a, F16 b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
inline F16 div(F16 a, F16 b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
inline F16 fma(F16 a, F16 b, F16 c) { return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)}; }
inline F16 min(F16 a, F16 b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
inline F16 max(F16 a, F16 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
inline Mask less(F16 a, F16 b) { return {_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ)}; }
inline Mask less_equal(F16 a, F16 b) {
    return {_mm256_cmp_ps(a.lo, b.lo, _CMP_LE_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_LE_OQ)};
}
inline bool any(Mask mask) { return _mm256_movemask_ps(_mm256_or_ps(mask.lo, mask.hi)) != 0; }
// mask ? a : b
inline F16 select(Mask mask, F16 a, F16 b) {
    return {_mm256_blendv_ps(b.lo, a.lo, mask.lo), _mm256_blendv_ps(b.hi, a.hi, mask.hi)};
}
// sums[r] += a[r] * panel. Eight lanes at a time, so that three rows by two panels, 12 sums and 3 factors, leave a register.
template <int R, typename W>
inline void add_products(F16 (&sums)[R], const F16 (&a)[R], const W* panel) {
    const __m256 lo = load8(panel);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sums[r].lo = _mm256_fmadd_ps(a[r].lo, lo, sums[r].lo);
    const __m256 hi = load8(panel + 8);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sums[r].hi = _mm256_fmadd_ps(a[r].hi, hi, sums[r].hi);
}
// 2^n for whole n in -126 .. 127
inline F16 pow2(F16 n) {
    const __m256i bias = _mm256_set1_epi32(127);
    const __m256i lo = _mm256_add_epi32(_mm256_cvtps_epi32(n.lo), bias);
    const __m256i hi = _mm256_add_epi32(_mm256_cvtps_epi32(n.hi), bias);
    return {_mm256_castsi256_ps(_mm256_slli_epi32(lo, 23)), _mm256_castsi256_ps(_mm256_slli_epi32(hi, 23))};
}

}  // namespace
