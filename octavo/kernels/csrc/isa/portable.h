// Sixteen fp32 lanes in four vectors of the compiler's generic kind (SSE2 on any x86-64, NEON on any AArch64).
// fma() rounds twice: multiply, then add.
#pragma once

#include <cstdint>
#include <cstring>

#include "../element_types.h"

namespace {

using octavo::BFloat16;
using octavo::Half;

typedef float Float4 __attribute__((vector_size(16)));
typedef float UnalignedFloat4 __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t Int4 __attribute__((vector_size(16)));

struct F16 {
    Float4 v[4];
};
struct Mask {
    Int4 v[4];
};

// What of the arithmetic the bits of results depend on.
constexpr const char* kArithmetic = "multiply, then add";
// Rows of a tile: the accumulators (F16) of one panel that fit the registers beside the operands, 8 of 16 registers.
constexpr int kMaxRows = 2;
// Panels that a tile of `rows` rows takes at once, so that enough chains are in flight to hide the latency.
constexpr int panels_at_once(int rows) { return rows == 1 ? 2 : 1; }

template <typename Op>
inline F16 each(Op op) {
    return {{op(0), op(1), op(2), op(3)}};
}

inline F16 load(const float* p) {
    const UnalignedFloat4* v = reinterpret_cast<const UnalignedFloat4*>(p);
    return {{v[0], v[1], v[2], v[3]}};
}
inline uint32_t bits_of(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}
inline float float_of(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

// Exact: the multiplication moves the exponent's bias, of subnormal numbers too.
inline float to_float(Half h) {
    const uint32_t magnitude = static_cast<uint32_t>(h.bits & 0x7fffu) << 13;
    const uint32_t finite = bits_of(float_of(magnitude) * 0x1p112f);
    const uint32_t quiet = (h.bits & 0x03ffu) != 0 ? 0x00400000u : 0;
    const uint32_t bits = magnitude >= 0x0f800000u ? magnitude | 0x7f800000u | quiet : finite;
    return float_of(bits | (static_cast<uint32_t>(h.bits & 0x8000u) << 16));
}
// To nearest, ties to even; what is too large becomes infinite. The bits of F16C, NaN included.
inline Half to_half(float x) {
    const uint32_t bits = bits_of(x), magnitude = bits & 0x7fffffffu;
    const uint32_t nan = 0x7e00u | (magnitude >> 13 & 0x01ffu);
    // Below 2^-14 the unit is 2^-24, which adding 0.5 leaves as the last bit.
    const uint32_t subnormal = bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f);
    const uint32_t normal = (magnitude - 0x38000000u + 0x0fffu + (magnitude >> 13 & 1u)) >> 13;
    const uint32_t finite = magnitude < 0x38800000u ? subnormal : normal;
    const uint32_t rounded = magnitude > 0x7f800000u ? nan : magnitude >= 0x477ff000u ? 0x7c00u : finite;
    return {static_cast<uint16_t>(rounded | (bits >> 16 & 0x8000u))};
}

inline F16 load(const Half* p) {
    alignas(64) float lanes[16];
    for (int i = 0; i < 16; ++i) lanes[i] = to_float(p[i]);
    return load(lanes);
}
inline F16 load(const BFloat16* p) {
    alignas(64) float lanes[16];
    for (int i = 0; i < 16; ++i) lanes[i] = float_of(static_cast<uint32_t>(p[i].bits) << 16);
    return load(lanes);
}
inline F16 load(const int8_t* p) {
    alignas(64) float lanes[16];
    for (int i = 0; i < 16; ++i) lanes[i] = p[i];  // the compiler makes better code of this than of generic vectors
    return load(lanes);
}
inline void store(float* p, F16 a) {
    UnalignedFloat4* v = reinterpret_cast<UnalignedFloat4*>(p);
    for (int i = 0; i < 4; ++i) v[i] = a.v[i];
}
inline void store(Half* p, F16 a) {
    alignas(64) float lanes[16];
    store(lanes, a);
    for (int i = 0; i < 16; ++i) p[i] = to_half(lanes[i]);
}
inline F16 set1(float x) {
    const Float4 v = {x, x, x, x};
    return {{v, v, v, v}};
}
inline F16 broadcast(const float* p) { return set1(*p); }
inline Float4 choose(Int4 mask, Float4 a, Float4 b) {
    return reinterpret_cast<Float4>((mask & reinterpret_cast<Int4>(a)) | (~mask & reinterpret_cast<Int4>(b)));
}
inline F16 add(F16 a, F16 b) { return each([&](int i) { return a.v[i] + b.v[i]; }); }
inline F16 sub(F16 a, F16 b) { return each([&](int i) { return a.v[i] - b.v[i]; }); }
inline F16 mul(F16 a, F16 b) { return each([&](int i) { return a.v[i] * b.v[i]; }); }
inline F16 div(F16 a, F16 b) { return each([&](int i) { return a.v[i] / b.v[i]; }); }
inline F16 fma(F16 a, F16 b, F16 c) { return each([&](int i) { return a.v[i] * b.v[i] + c.v[i]; }); }
inline F16 min(F16 a, F16 b) { return each([&](int i) { return choose(a.v[i] < b.v[i], a.v[i], b.v[i]); }); }
inline F16 max(F16 a, F16 b) { return each([&](int i) { return choose(a.v[i] > b.v[i], a.v[i], b.v[i]); }); }
inline Mask less(F16 a, F16 b) {
    return {{a.v[0] < b.v[0], a.v[1] < b.v[1], a.v[2] < b.v[2], a.v[3] < b.v[3]}};
}
inline Mask less_equal(F16 a, F16 b) {
    return {{a.v[0] <= b.v[0], a.v[1] <= b.v[1], a.v[2] <= b.v[2], a.v[3] <= b.v[3]}};
}
inline bool any(Mask mask) {
    const Int4 either = (mask.v[0] | mask.v[1]) | (mask.v[2] | mask.v[3]);
    return (either[0] | either[1] | either[2] | either[3]) != 0;
}
// mask ? a : b
inline F16 select(Mask mask, F16 a, F16 b) {
    return each([&](int i) { return choose(mask.v[i], a.v[i], b.v[i]); });
}
// sums[r] += a[r] * panel.
template <int R, typename W>
inline void add_products(F16 (&sums)[R], const F16 (&a)[R], const W* panel) {
    const F16 w = load(panel);
    for (int r = 0; r < R; ++r) sums[r] = fma(a[r], w, sums[r]);
}
// 2^n for whole n in -126 .. 127
inline F16 pow2(F16 n) {
    return each([&](int i) { return reinterpret_cast<Float4>((__builtin_convertvector(n.v[i], Int4) + 127) << 23); });
}

}  // namespace
