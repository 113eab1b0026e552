// How the formats of a quantised weight (OctavoFormat) lie in memory, and the products of one group.
//
// Sixteen outputs make a panel, a group of a panel a block: the numbers of 16 outputs x kGroup inputs, then 16 scales,
// then, if there are any, 16 minima. A panel's blocks lie one after another in the order of the inputs, panels too.
#pragma once

namespace {

// 4 bits beside activations of 8. Byte [j][output][t] of the numbers (j 0 .. 3, t 0 .. 3) holds input 4 j + t in its low
// half and input 16 + 4 j + t in its high half. Without minima, 8 is taken from each number.
template <typename ScaleType, bool HasMinima>
struct Format4 {
    using Scale = ScaleType;
    using Activation = int8_t;
    using Sums = QuadSums;
    static constexpr int64_t kGroup = 32, kNumberBytes = 256, kLimit = 127;
    static constexpr bool kHasMinima = HasMinima, kHasOffset = !HasMinima;

    template <int R>
    static inline void add_group(Sums (&sums)[R], const uint8_t* numbers, const Activation* const (&x)[R]) {
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) {
            Quads first, second;
            load_quads(numbers + 64 * j, first, second);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) add_products(sums[r], first, x[r] + 4 * j);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) add_products(sums[r], second, x[r] + 16 + 4 * j);
        }
    }

    static inline float number(const uint8_t* numbers, int64_t lane, int64_t i) {
        const uint8_t byte = numbers[i % 16 / 4 * 64 + lane * 4 + i % 4];
        return static_cast<float>((i < 16 ? byte & 15 : byte >> 4) - (kHasOffset ? 8 : 0));
    }
};

// 8 bits beside activations of 16. Bytes [j][output][t]: input 2 j + t.
template <typename ScaleType, int64_t Group>
struct Format8 {
    using Scale = ScaleType;
    using Activation = int16_t;
    using Sums = PairSums;
    static constexpr int64_t kGroup = Group, kNumberBytes = 16 * Group, kLimit = 32767;
    static constexpr bool kHasMinima = false, kHasOffset = false;

    template <int R>
    static inline void add_group(Sums (&sums)[R], const uint8_t* numbers, const Activation* const (&x)[R]) {
#pragma GCC unroll 4
        for (int j = 0; j < Group / 2; ++j) {
            const Pairs w = load_pairs(numbers + 32 * j);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) add_products(sums[r], w, x[r] + 2 * j);
        }
    }

    static inline float number(const uint8_t* numbers, int64_t lane, int64_t i) {
        return static_cast<float>(reinterpret_cast<const int8_t*>(numbers)[i / 2 * 32 + lane * 2 + i % 2]);
    }
};

template <typename Format>
constexpr int64_t kBlockBytes = Format::kNumberBytes + kLanes * static_cast<int64_t>(sizeof(typename Format::Scale)) *
                                                           (Format::kHasMinima ? 2 : 1);

template <typename Format>
inline const typename Format::Scale* scales_of(const uint8_t* block) {
    return reinterpret_cast<const typename Format::Scale*>(block + Format::kNumberBytes);
}
template <typename Format>
inline const typename Format::Scale* minima_of(const uint8_t* block) {
    return scales_of<Format>(block) + kLanes;
}

// Calls function(Format{}).
template <typename Function>
inline void with_format(int32_t format, const Function& function) {
    switch (format) {
        case kOctavoInt8: return function(Format8<octavo::Half, 32>{});
        case kOctavoInt8Fine: return function(Format8<float, 16>{});
        case kOctavoInt4: return function(Format4<octavo::Half, false>{});
        case kOctavoInt4Minima: return function(Format4<octavo::Half, true>{});
        case kOctavoInt4MinimaFp32: return function(Format4<float, true>{});
        default: return;
    }
}

}  // namespace
