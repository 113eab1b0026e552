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
template <int64_t Group>
inline float group_scale(const float* x, float limit) {
    int32_t greatest = 0;  // magnitudes order as their bits do, infinity and NaN above all
    for (int64_t i = 0; i < Group; ++i) {
        int32_t bits;
        std::memcpy(&bits, x + i, sizeof bits);
        bits &= 0x7fffffff;
        greatest = bits > greatest ? bits : greatest;
    }
    if (greatest >= 0x7f800000) return __builtin_nanf("");
    float magnitude;
    std::memcpy(&magnitude, &greatest, sizeof magnitude);
    return magnitude / limit;
}

template <typename Format>
inline void quantize_row(const float* x, int64_t num_groups, float* row) {
    using Number = typename Format::Activation;
    constexpr int64_t kGroup = Format::kGroup;
    constexpr float kLimit = static_cast<float>(Format::kLimit);
    Number* numbers = const_cast<Number*>(numbers_of<Format>(row, num_groups));
    for (int64_t g = 0; g < num_groups; ++g, x += kGroup, numbers += kGroup) {
        const float scale = group_scale<kGroup>(x, kLimit);
        int32_t sum = 0;
        if (scale > 0.0f) {
            for (int64_t i = 0; i < kGroup; ++i) {
                float steps = x[i] / scale;
                steps = steps < -kLimit ? -kLimit : steps > kLimit ? kLimit : steps;  // a scale near zero is coarse
                const int32_t whole = static_cast<int32_t>((steps + 12582912.0f) - 12582912.0f);  // 1.5 * 2^23 rounds
                numbers[i] = static_cast<Number>(whole);
                sum += whole;
            }
        } else {
            std::memset(numbers, 0, kGroup * sizeof(Number));
        }
        row[g] = scale;
        row[num_groups + g] = Format::kHasMinima ? scale * static_cast<float>(sum) : 8.0f * static_cast<float>(sum);
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
