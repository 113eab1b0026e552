// Activations as whole numbers: once a row, before the panels of a quantised linear pass over it.
//
// A row becomes G scales, G sums and `in` numbers, one behind another (G = in / group). A sum is what the format adds to a
// group's product: scale * sum of numbers where it has minima; 8 * sum of numbers where it takes 8 from each weight.
#pragma once

namespace {

template <typename Format>
constexpr int64_t quantized_pitch(int64_t in_features) {  // in floats
    return in_features / Format::kGroup * 2 +
           in_features * static_cast<int64_t>(sizeof(typename Format::Activation)) / static_cast<int64_t>(sizeof(float));
}

template <typename Format>
inline const typename Format::Activation* numbers_of(const float* row, int64_t num_groups) {
    return reinterpret_cast<const typename Format::Activation*>(row + 2 * num_groups);
}

// The scale of a group: its greatest magnitude / limit; NaN where a number of it is not finite.
inline float group_scale(const float* x, int64_t group, float limit) {
    const int32_t bits = greatest_magnitude(x, group);
    if (bits >= 0x7f800000) return __builtin_nanf("");
    float magnitude;
    std::memcpy(&magnitude, &bits, sizeof magnitude);
    return magnitude / limit;
}

// The group's numbers, and their sum.
template <typename Format>
inline float quantize_group(const float* x, float scale, typename Format::Activation* numbers) {
    if (!(scale > 0.0f)) {  // all is zero, or so small that the scale is; or not finite
        std::memset(numbers, 0, Format::kGroup * sizeof(typename Format::Activation));
        return 0.0f;
    }
    const F16 limit = set1(static_cast<float>(Format::kLimit)), divisor = set1(scale);
    const F16 round = set1(12582912.0f);  // 1.5 * 2^23: adding and taking it away rounds to a whole number
    F16 sum = set1(0.0f);
    for (int64_t i = 0; i < Format::kGroup; i += kLanes) {
        const F16 steps = max(sub(set1(0.0f), limit), min(limit, div(load(x + i), divisor)));  // a scale near 0 is coarse
        const F16 whole = sub(add(steps, round), round);
        store_whole(numbers + i, whole);
        if constexpr (Format::kHasMinima || Format::kHasOffset) sum = add(sum, whole);
    }
    return sum_whole(sum);
}

template <typename Format>
inline void quantize_row(const float* x, int64_t num_groups, float* row) {
    using Number = typename Format::Activation;
    Number* numbers = const_cast<Number*>(numbers_of<Format>(row, num_groups));
    for (int64_t g = 0; g < num_groups; ++g, x += Format::kGroup, numbers += Format::kGroup) {
        row[g] = group_scale(x, Format::kGroup, static_cast<float>(Format::kLimit));
        const float sum = quantize_group<Format>(x, row[g], numbers);
        row[num_groups + g] = Format::kHasMinima ? row[g] * sum : 8.0f * sum;
    }
}

inline void quantize_rows(const QuantizeArgs& a, int64_t task) {
    with_format(a.format, [&](auto format) {
        using Format = decltype(format);
        const int64_t pitch = quantized_pitch<Format>(a.in_features);
        const int64_t end = smaller((task + 1) * a.rows_per_task, a.num_rows);
        for (int64_t row = task * a.rows_per_task; row < end; ++row)
            quantize_row<Format>(a.x + row * a.in_features, a.in_features / Format::kGroup, a.out + row * pitch);
    });
}

}  // namespace
