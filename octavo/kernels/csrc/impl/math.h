// What every operation shares: partial loads, ranges of lanes, reductions in a fixed order, one exp.
// Included after an isa/*.h, in that file's unnamed namespace: nothing here may be shared between instruction sets.
#pragma once

#include <cstdint>
#include <cstring>

namespace {

constexpr int64_t kLanes = octavo::kLanes;

template <typename T, typename U>
constexpr bool kSame = false;
template <typename T>
constexpr bool kSame<T, T> = true;

// Whether keys and values held as KV have a scale a token and KV head: value = scale * what is held.
template <typename KV>
constexpr bool kScaled = false;
template <>
constexpr bool kScaled<int8_t> = true;

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Calls read_row(index, to) for each index of the task that the table has.
template <typename Args, typename ReadRow>
inline void gather_each(const Args& a, int64_t task, ReadRow read_row) {
    const int64_t end = smaller((task + 1) * a.rows_per_task, a.count);
    for (int64_t i = task * a.rows_per_task; i < end; ++i) {
        const int64_t index = a.indices[i];
        if (index < 0 || index >= a.table_rows) {
            a.bad_index->store(true, std::memory_order_relaxed);
            continue;
        }
        read_row(index, a.out + i * a.width);
    }
}

// The first `count` lanes from memory, zeros after them; nothing past them is read.
template <typename T>
inline F16 load_first(const T* p, int64_t count) {
    if (count >= kLanes) return load(p);
    alignas(64) T lanes[kLanes] = {};
    std::memcpy(lanes, p, static_cast<size_t>(count) * sizeof(T));
    return load(lanes);
}
template <typename T>
inline void store_first(T* p, F16 a, int64_t count) {
    if (count >= kLanes) return store(p, a);
    alignas(64) T lanes[kLanes];
    store(lanes, a);
    std::memcpy(p, lanes, static_cast<size_t>(count) * sizeof(T));
}

// Lanes begin .. end - 1 of a, `fill` in the others (whatever they held, NaN included).
inline F16 keep_lanes(F16 a, int64_t begin, int64_t end, F16 fill) {
    alignas(64) static const float kLaneNumbers[kLanes] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const F16 lane = load(kLaneNumbers);
    const F16 below_end = select(less(lane, set1(static_cast<float>(end))), a, fill);
    return select(less(lane, set1(static_cast<float>(begin))), fill, below_end);
}

inline float sum_lanes(F16 a) {
    alignas(64) float lanes[kLanes];
    store(lanes, a);
    for (int64_t width = kLanes / 2; width > 0; width /= 2)
        for (int64_t i = 0; i < width; ++i) lanes[i] += lanes[i + width];
    return lanes[0];
}
inline float max_lanes(F16 a) {
    alignas(64) float lanes[kLanes];
    store(lanes, a);
    float greatest = lanes[0];
    for (int64_t i = 1; i < kLanes; ++i) greatest = lanes[i] > greatest ? lanes[i] : greatest;
    return greatest;
}

// e^x within 2 units in the last place; x is clamped to -87.3 .. 88. Range reduction and polynomial of Cephes expf.
inline F16 exp(F16 x) {
    x = max(set1(-87.33654f), min(set1(88.0f), x));  // this order lets NaN through
    // Adding and taking away 1.5 * 2^23 rounds to a whole number.
    const F16 round = set1(12582912.0f);
    const F16 n = sub(add(mul(x, set1(1.44269504f)), round), round);
    F16 r = fma(n, set1(-0.693359375f), x);
    r = fma(n, set1(2.12194440e-4f), r);
    F16 p = set1(1.9875691500e-4f);
    p = fma(p, r, set1(1.3981999507e-3f));
    p = fma(p, r, set1(8.3334519073e-3f));
    p = fma(p, r, set1(4.1665795894e-2f));
    p = fma(p, r, set1(1.6666665459e-1f));
    p = fma(p, r, set1(5.0000001201e-1f));
    p = add(fma(p, mul(r, r), r), set1(1.0f));
    return mul(p, pow2(n));
}

inline F16 sigmoid(F16 x) { return div(set1(1.0f), add(set1(1.0f), exp(sub(set1(0.0f), x)))); }
inline F16 tanh(F16 x) { return sub(mul(set1(2.0f), sigmoid(add(x, x))), set1(1.0f)); }

}  // namespace
