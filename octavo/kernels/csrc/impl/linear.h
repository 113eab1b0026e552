// y = x @ weight.T + bias over packed panels [out / 16][in][16].
//
// Blocked so that a slice of a panel stays in the first-level cache while a block of rows, in the second, passes over
// it. Leaving a slice stores the chains in y and the next slice takes them up again, so blocking changes no bits.
#pragma once

namespace {

constexpr int64_t kSliceDepth = 256;
// Tiles of rows that do not pay for slicing: whole panels then stream from memory in one go.
constexpr int64_t kFewTiles = 4;

// One panel that reaches past the last output: whole chains into memory of its own, then the outputs that exist.
inline void linear_last_panel(const LinearArgs& a, int64_t panel, int64_t first_row, int64_t end_row) {
    const int64_t first_output = panel * kLanes;
    const RowTiles tiles(end_row - first_row);
    alignas(64) float sums[kAccumulators * kLanes];
    float* c[1] = {sums};
    const float* w[1] = {a.packed + panel * a.in_features * kLanes};
    for (int64_t t = 0; t < tiles.num; ++t) {
        const int64_t row = first_row + tiles.begin(t);
        run_micro(tiles.rows(t), 1, {a.x + row * a.in_features, a.in_features, kLanes, a.in_features, kLanes, false, nullptr},
                  w, c);
        for (int r = 0; r < tiles.rows(t); ++r)
            std::memcpy(a.y + (row + r) * a.out_features + first_output, sums + r * kLanes,
                        static_cast<size_t>(a.out_features - first_output) * sizeof(float));
    }
}

inline void linear_panels(const LinearArgs& a, int64_t first_panel, int64_t end_panel, int64_t first_row,
                          int64_t end_row) {
    const RowTiles tiles(end_row - first_row);
    const int at_once = panels_at_once(tiles.tallest());
    const int64_t depth = tiles.num <= kFewTiles ? a.in_features : kSliceDepth;
    for (int64_t k = 0; k < a.in_features; k += depth) {
        const int64_t slice = smaller(depth, a.in_features - k);
        for (int64_t panel = first_panel; panel < end_panel;) {
            const int panels = end_panel - panel >= at_once ? at_once : 1;
            const float* w[kMaxPanels];
            const float* next[kMaxPanels];
            for (int p = 0; p < panels; ++p) {
                w[p] = a.packed + ((panel + p) * a.in_features + k) * kLanes;
                next[p] = w[p] + panels * a.in_features * kLanes;
            }
            for (int64_t t = 0; t < tiles.num; ++t) {
                const int64_t row = first_row + tiles.begin(t);
                float* c[kMaxPanels];
                for (int p = 0; p < panels; ++p) c[p] = a.y + row * a.out_features + (panel + p) * kLanes;
                run_micro(tiles.rows(t), panels,
                          {a.x + row * a.in_features + k, a.in_features, kLanes, slice, a.out_features, k > 0,
                           t + 1 == tiles.num ? next : nullptr},
                          w, c);
            }
            panel += panels;
        }
    }
}

inline void linear_bias(const LinearArgs& a, int64_t first_output, int64_t end_output, int64_t first_row,
                        int64_t end_row) {
    for (int64_t row = first_row; row < end_row; ++row)
        for (int64_t o = first_output; o < end_output; ++o) a.y[row * a.out_features + o] += a.bias[o];
}

inline void linear(const LinearArgs& a, int64_t task) {
    const int64_t first_panel = task % a.num_panel_groups * a.panels_per_task;
    const int64_t first_row = task / a.num_panel_groups * a.rows_per_task;
    const int64_t end_panel = smaller(first_panel + a.panels_per_task, divide_up(a.out_features, kLanes));
    const int64_t end_row = smaller(first_row + a.rows_per_task, a.num_rows);
    const int64_t whole_panels = smaller(end_panel, a.out_features / kLanes);
    linear_panels(a, first_panel, whole_panels, first_row, end_row);
    if (whole_panels < end_panel) linear_last_panel(a, whole_panels, first_row, end_row);
    if (a.bias != nullptr)
        linear_bias(a, first_panel * kLanes, smaller(end_panel * kLanes, a.out_features), first_row, end_row);
}

}  // namespace
