// Sixteen fp32 lanes in one AVX-512 register. fma() rounds once: the bits of AVX2.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "../element_types.h"

namespace {

using octavo::BFloat16;
using octavo::Half;

struct F16 {
    __m512 v;
};
struct Mask {
    __mmask16 bits;
};

// What of the arithmetic the bits of results depend on.
constexpr const char* kArithmetic = "fused multiply-add";
// Accumulators (F16) of 32 registers: as many as hide the latency of two multiply-adds a cycle, and some more.
constexpr int kAccumulators = 12;

inline F16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline F16 load(const int8_t* p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
inline F16 load(const Half* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline F16 load(const BFloat16* p) {
    const __m512i bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(bits, 16))};
}
inline float to_float(Half h) { return _cvtsh_ss(h.bits); }
inline void store(float* p, F16 a) { _mm512_storeu_ps(p, a.v); }
// To nearest, ties to even; what is too large becomes infinite.
inline void store(Half* p, F16 a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}
inline F16 set1(float x) { return {_mm512_set1_ps(x)}; }
inline F16 broadcast(const float* p) { return set1(*p); }
inline F16 add(F16 a, F16 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F16 sub(F16 a, F16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F16 mul(F16 a, F16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F16 div(F16 a, F16 b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F16 fma(F16 a, F16 b, F16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline F16 min(F16 a, F16 b) { return {_mm512_min_ps(a.v, b.v)}; }
inline F16 max(F16 a, F16 b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Mask less(F16 a, F16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
inline Mask less_equal(F16 a, F16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LE_OQ)}; }
inline bool any(Mask mask) { return mask.bits != 0; }
// mask ? a : b
inline F16 select(Mask mask, F16 a, F16 b) { return {_mm512_mask_blend_ps(mask.bits, b.v, a.v)}; }
// sums[r] += a[r] * panel, which is read once: compilers like to read it for each row anew.
template <int R, typename W>
inline void add_products(F16 (&sums)[R], const F16 (&a)[R], const W* panel) {
    F16 w = load(panel);
    if constexpr (R > 1) asm("" : "+v"(w.v));
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) sums[r] = fma(a[r], w, sums[r]);
}
// 2^n for whole n in -126 .. 127
inline F16 pow2(F16 n) {
    const __m512i exponent = _mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23))};
}

}  // namespace
