// Products of whole numbers for sixteen outputs side by side, in AVX2.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace {

// Rows that a tile of a quantised linear takes at once: their products take 8 of 16 registers.
constexpr int kQuantizedRows = 4;
// Sums of so few rows stay in registers from group to group; more would leave none for the products.
constexpr int kHeldRows = 2;
// From so many rows on a tile asks for weights ahead.
constexpr int kFetchingRows = 4;

// Keeps the compiler from adding up products in an order of its own, which takes more registers than there are.
inline void pin(__m256i& sum) { asm("" : "+x"(sum)); }

// Four numbers 0 .. 15 of each output, a byte each.
struct Quads {
    __m256i lo, hi;
};
// Sums of products of quads with numbers in 8 bits, in 16 bits: two to an output, each of at most 16 products.
struct QuadSums {
    __m256i lo = _mm256_setzero_si256(), hi = _mm256_setzero_si256();
};

// 64 bytes: in the low halves the quads of one place in the row, in the high halves those of another.
inline void load_quads(const uint8_t* p, Quads& first, Quads& second) {
    const __m256i mask = _mm256_set1_epi8(15);
    const __m256i lo = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    const __m256i hi = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32));
    first = {_mm256_and_si256(lo, mask), _mm256_and_si256(hi, mask)};
    second = {_mm256_and_si256(_mm256_srli_epi16(lo, 4), mask), _mm256_and_si256(_mm256_srli_epi16(hi, 4), mask)};
}

// No pair of products leaves 16 bits: 8 * 2 * 15 * 127 = 30480.
inline void add_products(QuadSums& sums, Quads w, const int8_t* x) {
    int32_t four;
    std::memcpy(&four, x, sizeof four);
    const __m256i a = _mm256_set1_epi32(four);
    sums.lo = _mm256_add_epi16(sums.lo, _mm256_maddubs_epi16(w.lo, a));
    sums.hi = _mm256_add_epi16(sums.hi, _mm256_maddubs_epi16(w.hi, a));
    pin(sums.lo);
    pin(sums.hi);
}

inline F16 to_float(QuadSums sums) {
    const __m256i ones = _mm256_set1_epi16(1);
    return {_mm256_cvtepi32_ps(_mm256_madd_epi16(sums.lo, ones)), _mm256_cvtepi32_ps(_mm256_madd_epi16(sums.hi, ones))};
}

// Two numbers of each output, 16 bits each.
struct Pairs {
    __m256i lo, hi;
};
struct PairSums {
    __m256i lo = _mm256_setzero_si256(), hi = _mm256_setzero_si256();
};

inline Pairs load_pairs(const uint8_t* p) {
    const __m128i* bytes = reinterpret_cast<const __m128i*>(p);
    return {_mm256_cvtepi8_epi16(_mm_loadu_si128(bytes)), _mm256_cvtepi8_epi16(_mm_loadu_si128(bytes + 1))};
}

inline void add_products(PairSums& sums, Pairs w, const int16_t* x) {
    int32_t two;
    std::memcpy(&two, x, sizeof two);
    const __m256i a = _mm256_set1_epi32(two);
    sums.lo = _mm256_add_epi32(sums.lo, _mm256_madd_epi16(w.lo, a));
    sums.hi = _mm256_add_epi32(sums.hi, _mm256_madd_epi16(w.hi, a));
    pin(sums.lo);
    pin(sums.hi);
}

inline F16 to_float(PairSums sums) { return {_mm256_cvtepi32_ps(sums.lo), _mm256_cvtepi32_ps(sums.hi)}; }

// The bits of the greatest magnitude of `count` (a multiple of 8) numbers: magnitudes order as their bits do, infinity
// and NaN above all.
inline int32_t greatest_magnitude(const float* x, int64_t count) {
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    __m256i greatest = _mm256_setzero_si256();
    for (int64_t i = 0; i < count; i += 8) {
        const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i));
        greatest = _mm256_max_epi32(greatest, _mm256_and_si256(bits, magnitude));
    }
    __m128i four = _mm_max_epi32(_mm256_castsi256_si128(greatest), _mm256_extracti128_si256(greatest, 1));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1));
    return _mm_cvtsi128_si32(four);
}

// Whole numbers in fp32 to integers.
inline void store_whole(int16_t* p, F16 a) {
    const __m256i pairs = _mm256_packs_epi32(_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(pairs, 0xd8));
}
inline void store_whole(int8_t* p, F16 a) {
    const __m256i pairs = _mm256_packs_epi32(_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi));
    const __m256i ordered = _mm256_permute4x64_epi64(pairs, 0xd8);
    const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}
// Their sum, exact in any order.
inline float sum_whole(F16 a) {
    const __m256 eight = _mm256_add_ps(a.lo, a.hi);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}

}  // namespace
