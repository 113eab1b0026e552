// y = x @ weight.T + bias over a quantised weight and quantised rows.
//
// The whole sum of a group is exact, and each output is one chain of a fused multiply-add a group (two with minima) in
// ascending order: the same chain whatever tile, task or thread computes it.
#pragma once

namespace {

template <typename Format>
struct QuantizedTile {
    const uint8_t* panel;
    const float* rows;  // quantised, `pitch` floats from one to the next
    int64_t pitch, num_groups;
    float* y;
    int64_t y_pitch;
};

// How many groups before it is read a block is asked for, by tiles that compute for about as long as their weights take to
// arrive. Smaller ones wait for memory alone, and the processor's own fetching keeps up with them.
constexpr int64_t kGroupsAhead = 8;

template <typename Format>
inline void fetch_ahead(const uint8_t* block) {
#pragma GCC unroll 16
    for (int64_t line = 0; line < kBlockBytes<Format>; line += 64)
        __builtin_prefetch(block + kGroupsAhead * kBlockBytes<Format> + line);
}

template <typename Format, int R>
__attribute__((noinline)) void quantized_tile(const QuantizedTile<Format>& t) {
    using Activation = typename Format::Activation;
    const uint8_t* block = t.panel;
    const int64_t pitch = t.pitch, y_pitch = t.y_pitch;
    const float* scales = t.rows;
    const float* sums = t.rows + t.num_groups;
    float* const y = t.y;
    const Activation* x[R];
    [[maybe_unused]] F16 held[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
        x[r] = numbers_of<Format>(t.rows + r * pitch, t.num_groups);
        held[r] = set1(0.0f);
        if constexpr (R > kHeldRows) store(y + r * y_pitch, held[r]);
    }
    for (int64_t g = 0; g < t.num_groups; ++g) {
        typename Format::Sums products[R];
        if constexpr (R >= kFetchingRows) fetch_ahead<Format>(block);
        Format::template add_group<R>(products, block, x);
        const F16 weight_scales = load(scales_of<Format>(block));
        [[maybe_unused]] F16 weight_minima;
        if constexpr (Format::kHasMinima) weight_minima = load(minima_of<Format>(block));
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            F16 product = to_float(products[r]);
            if constexpr (Format::kHasOffset) product = sub(product, broadcast(sums + r * pitch));
            F16 sum = R > kHeldRows ? load(y + r * y_pitch) : held[r];
            sum = fma(product, mul(weight_scales, broadcast(scales + r * pitch)), sum);
            if constexpr (Format::kHasMinima)
                sum = fma(weight_minima, broadcast(sums + r * pitch), sum);
            if constexpr (R > kHeldRows) store(y + r * y_pitch, sum);
            else held[r] = sum;
        }
        block += kBlockBytes<Format>;
        ++scales;
        ++sums;
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) x[r] += Format::kGroup;
    }
    if constexpr (R <= kHeldRows) {
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) store(y + r * y_pitch, held[r]);
    }
}

template <typename Format, int R = kQuantizedRows>
inline void run_quantized_tile(int rows, const QuantizedTile<Format>& t) {
    if constexpr (R > 1)
        if (rows < R) return run_quantized_tile<Format, R - 1>(rows, t);
    quantized_tile<Format, R>(t);
}

// One panel over rows first_row .. end_row - 1. Outputs that do not exist go to memory of the tile's own.
template <typename Format>
inline void quantized_panel(const QuantizedLinearArgs& a, int64_t panel, int64_t first_row, int64_t end_row) {
    const int64_t num_groups = a.in_features / Format::kGroup, pitch = quantized_pitch<Format>(a.in_features);
    const uint8_t* packed = a.packed + panel * num_groups * kBlockBytes<Format>;
    const int64_t lanes = smaller(kLanes, a.out_features - panel * kLanes);
    for (int64_t row = first_row; row < end_row; row += kQuantizedRows) {
        const int rows = static_cast<int>(smaller(kQuantizedRows, end_row - row));
        float* y = a.y + row * a.y_pitch + panel * kLanes;
        const float* x = a.rows + row * pitch;
        if (lanes == kLanes) {
            run_quantized_tile<Format>(rows, {packed, x, pitch, num_groups, y, a.y_pitch});
            continue;
        }
        alignas(64) float sums[kQuantizedRows * kLanes];
        run_quantized_tile<Format>(rows, {packed, x, pitch, num_groups, sums, kLanes});
        for (int r = 0; r < rows; ++r)
            std::memcpy(y + r * a.y_pitch, sums + r * kLanes, static_cast<size_t>(lanes) * sizeof(float));
    }
}

inline void linear_quantized(const QuantizedLinearArgs& a, int64_t task) {
    const int64_t first_panel = task % a.num_panel_groups * a.panels_per_task;
    const int64_t end_panel = smaller(first_panel + a.panels_per_task, divide_up(a.out_features, kLanes));
    const int64_t first_row = task / a.num_panel_groups * a.rows_per_task;
    const int64_t end_row = smaller(first_row + a.rows_per_task, a.num_rows);
    with_format(a.format, [&](auto format) {
        for (int64_t panel = first_panel; panel < end_panel; ++panel)
            quantized_panel<decltype(format)>(a, panel, first_row, end_row);
    });
    if (a.bias == nullptr) return;
    const int64_t end_output = smaller(end_panel * kLanes, a.out_features);
    for (int64_t row = first_row; row < end_row; ++row)
        for (int64_t o = first_panel * kLanes; o < end_output; ++o) a.y[row * a.y_pitch + o] += a.bias[o];
}

// Rows of a quantised embedding table, in fp32.
inline void gather_quantized(const QuantizedGatherArgs& a, int64_t task) {
    with_format(a.format, [&](auto format) {
        using Format = decltype(format);
        const int64_t num_groups = a.width / Format::kGroup;
        gather_each(a, task, [&](int64_t index, float* to) {
            const int64_t lane = index % kLanes;
            const uint8_t* block = a.packed + index / kLanes * num_groups * kBlockBytes<Format>;
            for (int64_t g = 0; g < num_groups; ++g, block += kBlockBytes<Format>, to += Format::kGroup) {
                alignas(64) float scales[kLanes], minima[kLanes] = {};
                store(scales, load(scales_of<Format>(block)));
                if constexpr (Format::kHasMinima) store(minima, load(minima_of<Format>(block)));
                for (int64_t k = 0; k < Format::kGroup; ++k)
                    to[k] = (scales[lane] * Format::number(block, lane, k) + minima[lane]) * a.scale;
            }
        });
    });
}

}  // namespace
