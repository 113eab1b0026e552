// Products of whole numbers for sixteen outputs side by side, with VNNI: four numbers in 8 bits, or two in 16, are
// multiplied and added to a sum of 32 bits in one instruction. Neither saturates: the sums are exact.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace {

// Rows that a tile of a quantised linear takes at once, and of how many the sums stay in registers from group to group: all,
// 8 for their products and 8 for their sums of 32 registers.
constexpr int kQuantizedRows = 8;
constexpr int kHeldRows = 8;
// From so many rows on a tile asks for weights ahead.
constexpr int kFetchingRows = 5;

// Four numbers 0 .. 15 of each output, a byte each.
struct Quads {
    __m512i v;
};
struct QuadSums {
    __m512i v = _mm512_setzero_si512();
};

// 64 bytes: in the low halves the quads of one place in the row, in the high halves those of another.
inline void load_quads(const uint8_t* p, Quads& first, Quads& second) {
    const __m512i mask = _mm512_set1_epi8(15), both = _mm512_loadu_si512(p);
    first = {_mm512_and_si512(both, mask)};
    second = {_mm512_and_si512(_mm512_srli_epi16(both, 4), mask)};
}

inline void add_products(QuadSums& sums, Quads w, const int8_t* x) {
    int32_t four;
    std::memcpy(&four, x, sizeof four);
    sums.v = _mm512_dpbusd_epi32(sums.v, w.v, _mm512_set1_epi32(four));
}

inline F16 to_float(QuadSums sums) { return {_mm512_cvtepi32_ps(sums.v)}; }

// Two numbers of each output, 16 bits each.
struct Pairs {
    __m512i v;
};
struct PairSums {
    __m512i v = _mm512_setzero_si512();
};

inline Pairs load_pairs(const uint8_t* p) {
    return {_mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}

inline void add_products(PairSums& sums, Pairs w, const int16_t* x) {
    int32_t two;
    std::memcpy(&two, x, sizeof two);
    sums.v = _mm512_dpwssd_epi32(sums.v, w.v, _mm512_set1_epi32(two));
}

inline F16 to_float(PairSums sums) { return {_mm512_cvtepi32_ps(sums.v)}; }

// The bits of the greatest magnitude of `count` (a multiple of 16) numbers: magnitudes order as their bits do, infinity
// and NaN above all.
inline int32_t greatest_magnitude(const float* x, int64_t count) {
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    __m512i greatest = _mm512_setzero_si512();
    for (int64_t i = 0; i < count; i += 16)
        greatest = _mm512_max_epi32(greatest, _mm512_and_si512(_mm512_loadu_si512(x + i), magnitude));
    return _mm512_reduce_max_epi32(greatest);
}

// Whole numbers in fp32 to integers.
inline void store_whole(int16_t* p, F16 a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(a.v)));
}
inline void store_whole(int8_t* p, F16 a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(a.v)));
}
// Their sum, exact in any order.
inline float sum_whole(F16 a) { return _mm512_reduce_add_ps(a.v); }

}  // namespace
