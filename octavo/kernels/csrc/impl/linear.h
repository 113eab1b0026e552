// y = x @ weight.T + bias over packed panels [out / 16][in][16] of fp32, fp16 or bf16, which become fp32 on the way.
//
// A slice of a panel comes from memory once and stays in the second-level cache while a block of rows passes over it. Leaving a
// slice stores the chains in y and the next slice takes them up again, so slices change no bits. Meanwhile each tile of rows
// asks for its share of the next panel's slice: all of it at once would be more than can be under way.
#pragma once

namespace {

constexpr int64_t kSliceDepth = 2048;
// Shorter numbers are converted once for more tiles of rows than these; as many share in asking for the next panel.
constexpr int64_t kFewTiles = 4, kMostFetchingTiles = 16;

// Part of a linear: panels first_panel .. end_panel - 1 for rows first_row .. end_row - 1.
struct LinearPart {
    int64_t first_panel, end_panel, first_row, end_row;
};

// Calls run(panels of W or of fp32, slices of a panel) with what micro() is to read; shorter numbers that many tiles of rows
// take are converted once.
template <typename W, typename Run>
inline void with_panels(const W* const* w, const W* const* next, int panels, int64_t depth, bool convert_once, Run run) {
    if constexpr (!kSame<W, float>) {
        if (convert_once) {
            float* converted = octavo::scratch(panels * depth * kLanes);
            const float* to[kMaxPanels];
            for (int p = 0; p < panels; ++p) {
                float* panel = converted + p * depth * kLanes;
                for (int64_t i = 0; i < depth * kLanes; i += kLanes) store(panel + i, load(w[p] + i));
                to[p] = panel;
            }
            return run(to, static_cast<const float* const*>(nullptr));
        }
    }
    run(w, next);
}

// One panel that reaches past the last output: whole chains into memory of its own, then the outputs that exist.
template <typename W>
inline void linear_last_panel(const LinearArgs& a, const LinearPart& part) {
    const int64_t first_output = part.first_panel * kLanes;
    const RowTiles tiles(part.end_row - part.first_row);
    alignas(64) float sums[kMaxRows * kLanes];
    float* c[1] = {sums};
    const W* w[1] = {static_cast<const W*>(a.packed) + part.first_panel * a.in_features * kLanes};
    with_panels<W>(w, nullptr, 1, a.in_features, tiles.num > kFewTiles, [&](auto panel, auto next) {
        for (int64_t t = 0; t < tiles.num; ++t) {
            const int64_t row = part.first_row + tiles.begin(t);
            run_micro(tiles.rows(t), 1,
                      {a.x + row * a.in_features, a.in_features, kLanes, a.in_features, kLanes, false, next}, panel, c);
            for (int r = 0; r < tiles.rows(t); ++r)
                std::memcpy(a.y + (row + r) * a.out_features + first_output, sums + r * kLanes,
                            static_cast<size_t>(a.out_features - first_output) * sizeof(float));
        }
    });
}

// A slice of `panels` panels over all tiles of rows: panels `now` from `k` on, and what to fetch meanwhile or null.
template <typename W>
inline void linear_slice(const LinearArgs& a, const LinearPart& part, int64_t panel, int panels, int64_t k, int64_t slice,
                         const W* const* now, const W* const* next) {
    const RowTiles tiles(part.end_row - part.first_row);
    const int64_t fetching = smaller(tiles.num, kMostFetchingTiles);
    for (int64_t t = 0; t < tiles.num; ++t) {
        const int64_t row = part.first_row + tiles.begin(t);
        float* c[kMaxPanels];
        const W* share[kMaxPanels];
        for (int p = 0; p < panels; ++p) {
            c[p] = a.y + row * a.out_features + (panel + p) * kLanes;
            if (next != nullptr) share[p] = next[p] + slice * t / fetching * kLanes;
        }
        run_micro(tiles.rows(t), panels,
                  {a.x + row * a.in_features + k, a.in_features, kLanes, slice, a.out_features, k > 0,
                   next != nullptr && t < fetching ? share : nullptr, 0, kLanes / fetching},
                  now, c);
    }
}

template <typename W>
inline void linear_panels(const LinearArgs& a, const LinearPart& part) {
    const RowTiles tiles(part.end_row - part.first_row);
    const int at_once = panels_at_once(tiles.tallest());
    for (int64_t k = 0; k < a.in_features; k += kSliceDepth) {
        const int64_t slice = smaller(kSliceDepth, a.in_features - k);
        for (int64_t panel = part.first_panel, panels; panel < part.end_panel; panel += panels) {
            panels = part.end_panel - panel >= at_once ? at_once : 1;
            const W* w[kMaxPanels];
            const W* next[kMaxPanels];  // of one or two panels; four streams are as many as the processor fetches by itself
            for (int p = 0; p < panels; ++p) {
                w[p] = static_cast<const W*>(a.packed) + ((panel + p) * a.in_features + k) * kLanes;
                next[p] = w[p] + panels * a.in_features * kLanes;
            }
            const int count = static_cast<int>(panels);
            with_panels<W>(w, count <= 2 ? next : nullptr, count, slice, tiles.num > kFewTiles, [&](auto now, auto fetched) {
                linear_slice(a, part, panel, count, k, slice, now, fetched);
            });
        }
    }
}

inline void linear_bias(const LinearArgs& a, int64_t first_output, int64_t end_output, int64_t first_row,
                        int64_t end_row) {
    for (int64_t row = first_row; row < end_row; ++row)
        for (int64_t o = first_output; o < end_output; ++o) a.y[row * a.out_features + o] += a.bias[o];
}

template <typename W>
inline void linear_of(const LinearArgs& a, const LinearPart& part) {
    const int64_t whole_panels = smaller(part.end_panel, a.out_features / kLanes);
    linear_panels<W>(a, {part.first_panel, whole_panels, part.first_row, part.end_row});
    if (whole_panels < part.end_panel)
        linear_last_panel<W>(a, {whole_panels, part.end_panel, part.first_row, part.end_row});
}

inline void linear(const LinearArgs& a, int64_t task) {
    const int64_t first_panel = task % a.num_panel_groups * a.panels_per_task;
    const int64_t first_row = task / a.num_panel_groups * a.rows_per_task;
    const int64_t end_panel = smaller(first_panel + a.panels_per_task, divide_up(a.out_features, kLanes));
    const int64_t end_row = smaller(first_row + a.rows_per_task, a.num_rows);
    const auto run = a.weight_type == kOctavoWeightFp16   ? linear_of<Half>
                     : a.weight_type == kOctavoWeightBf16 ? linear_of<BFloat16>
                                                          : linear_of<float>;
    run(a, {first_panel, end_panel, first_row, end_row});
    if (a.bias != nullptr)
        linear_bias(a, first_panel * kLanes, smaller(end_panel * kLanes, a.out_features), first_row, end_row);
}

// A table that is also the head: one lane of one panel for each row.
template <typename W>
inline void gather_packed_of(const PackedGatherArgs& a, int64_t task) {
    gather_each(a, task, [&](int64_t index, float* to) {
        const W* panel = static_cast<const W*>(a.packed) + index / kLanes * a.width * kLanes;
        alignas(64) float lanes[kLanes];
        for (int64_t j = 0; j < a.width; ++j) {
            store(lanes, load(panel + j * kLanes));
            to[j] = lanes[index % kLanes] * a.scale;
        }
    });
}

inline void gather_packed(const PackedGatherArgs& a, int64_t task) {
    const auto gather = a.weight_type == kOctavoWeightFp16   ? gather_packed_of<Half>
                        : a.weight_type == kOctavoWeightBf16 ? gather_packed_of<BFloat16>
                                                             : gather_packed_of<float>;
    gather(a, task);
}

}  // namespace
