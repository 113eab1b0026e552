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
// Rows of a tile: as many chains as hide the latency of two multiply-adds a cycle. More do not fit the general registers.
constexpr int kMaxRows = 8;
// Panels that a tile of `rows` rows takes at once, so that enough chains are in flight to hide the latency.
constexpr int panels_at_once(int rows) { return rows <= 4 ? 4 : 1; }

inline F16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline F16 load(const int8_t* p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
// In halves: beside multiply-adds, the whole in one instruction takes Zen 4 a quarter longer.
inline F16 load(const Half* p) {
    const __m128i* halves = reinterpret_cast<const __m128i*>(p);
    const __m512 low = _mm512_castps256_ps512(_mm256_cvtph_ps(_mm_loadu_si128(halves)));
    return {_mm512_insertf32x8(low, _mm256_cvtph_ps(_mm_loadu_si128(halves + 1)), 1)};
}
// Number i becomes word 2 i + 1; the words below are zeros.
inline F16 load(const BFloat16* p) {
    const __m512i from = _mm512_slli_epi32(_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0), 16);
    const __m512i numbers = _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return {_mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xaaaaaaaau, from, numbers))};
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
