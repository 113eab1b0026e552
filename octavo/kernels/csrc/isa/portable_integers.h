// Products of whole numbers for sixteen outputs side by side, in vectors of the compiler's generic kind.
#pragma once

#include <cstdint>
#include <cstring>

namespace {

constexpr int kQuantizedRows = 2;
constexpr int kHeldRows = 2;
// From so many rows on a tile asks for weights ahead.
constexpr int kFetchingRows = 2;

typedef int16_t Short8 __attribute__((vector_size(16)));
typedef uint8_t Byte8 __attribute__((vector_size(8)));

// Four numbers 0 .. 15 of each output, in 16 bits.
struct Quads {
    Short8 v[8];
};
// A sum for each number of a quad: 8 * 15 * 127 = 15240 fits.
struct QuadSums {
    Short8 v[8] = {};
};

inline void load_quads(const uint8_t* p, Quads& first, Quads& second) {
    for (int i = 0; i < 8; ++i) {
        Byte8 bytes;
        std::memcpy(&bytes, p + 8 * i, sizeof bytes);
        const Short8 both = __builtin_convertvector(bytes, Short8);
        first.v[i] = both & 15;
        second.v[i] = both >> 4;
    }
}

inline void add_products(QuadSums& sums, const Quads& w, const int8_t* x) {
    const Short8 a = {x[0], x[1], x[2], x[3], x[0], x[1], x[2], x[3]};
    for (int i = 0; i < 8; ++i) sums.v[i] += w.v[i] * a;
}

inline F16 to_float(const QuadSums& sums) {
    alignas(64) float lanes[16];
    for (int i = 0; i < 8; ++i) {
        const Short8 v = sums.v[i];
        lanes[2 * i] = static_cast<float>(v[0] + v[1] + v[2] + v[3]);
        lanes[2 * i + 1] = static_cast<float>(v[4] + v[5] + v[6] + v[7]);
    }
    return load(lanes);
}

// Two numbers of each output.
struct Pairs {
    const int8_t* numbers;
};
struct PairSums {
    int32_t lanes[16] = {};
};

inline Pairs load_pairs(const uint8_t* p) { return {reinterpret_cast<const int8_t*>(p)}; }

inline void add_products(PairSums& sums, Pairs w, const int16_t* x) {
    for (int i = 0; i < 16; ++i) sums.lanes[i] += w.numbers[2 * i] * x[0] + w.numbers[2 * i + 1] * x[1];
}

inline F16 to_float(const PairSums& sums) {
    alignas(64) float lanes[16];
    for (int i = 0; i < 16; ++i) lanes[i] = static_cast<float>(sums.lanes[i]);
    return load(lanes);
}

// The bits of the greatest magnitude of `count` numbers: magnitudes order as their bits do, infinity and NaN above all.
inline int32_t greatest_magnitude(const float* x, int64_t count) {
    int32_t greatest = 0;
    for (int64_t i = 0; i < count; ++i) {
        int32_t bits;
        std::memcpy(&bits, x + i, sizeof bits);
        bits &= 0x7fffffff;
        greatest = bits > greatest ? bits : greatest;
    }
    return greatest;
}

// Whole numbers in fp32 to integers.
template <typename Number>
inline void store_whole(Number* p, F16 a) {
    alignas(64) float lanes[16];
    store(lanes, a);
    for (int i = 0; i < 16; ++i) p[i] = static_cast<Number>(lanes[i]);
}
// Their sum, exact in any order.
inline float sum_whole(F16 a) {
    alignas(64) float lanes[16];
    store(lanes, a);
    float sum = 0.0f;
    for (int i = 0; i < 16; ++i) sum += lanes[i];
    return sum;
}

}  // namespace
