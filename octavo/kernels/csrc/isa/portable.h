// Sixteen fp32 lanes in four vectors of the compiler's generic kind (SSE2 on any x86-64, NEON on any AArch64).
// fma() rounds twice: multiply, then add.
#pragma once

#include <cstdint>

namespace {

typedef float Float4 __attribute__((vector_size(16)));
typedef float UnalignedFloat4 __attribute__((vector_size(16), aligned(4), may_alias));
typedef int32_t Int4 __attribute__((vector_size(16)));

struct F16 {
    Float4 v[4];
};
struct Mask {
    Int4 v[4];
};

// Accumulators (F16) that fit the registers beside the operands: 8 of 16 registers.
constexpr int kAccumulators = 2;

template <typename Op>
inline F16 each(Op op) {
    return {{op(0), op(1), op(2), op(3)}};
}

inline F16 load(const float* p) {
    const UnalignedFloat4* v = reinterpret_cast<const UnalignedFloat4*>(p);
    return {{v[0], v[1], v[2], v[3]}};
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
// mask ? a : b
inline F16 select(Mask mask, F16 a, F16 b) {
    return each([&](int i) { return choose(mask.v[i], a.v[i], b.v[i]); });
}
// 2^n for whole n in -126 .. 127
inline F16 pow2(F16 n) {
    return each([&](int i) { return reinterpret_cast<Float4>((__builtin_convertvector(n.v[i], Int4) + 127) << 23); });
}

}  // namespace
