// The one inner loop: R rows by P panels of 16 outputs, one chain of fused multiply-adds an output in ascending k.
//
// Linear: rows are activations, panels are packed weights. Scores: rows are queries, panels are tiles of 16 keys,
// transposed. Values: rows are probabilities, panels are 16 of the head's dimensions, in segments of 16 positions that lie
// where their blocks do. Since an output's chain is the same for every R, P and segment, its bits do not depend on which
// tile computed it.
#pragma once

#include <cstdint>

namespace {

// Most panels that one call takes.
constexpr int kMaxPanels = 4;

template <typename W>  // of the panels: float, Half, or int8_t taken as whole numbers
struct Micro {
    const float* x;  // x[r * x_pitch + i]: row r, k index i
    int64_t x_pitch;
    int64_t w_pitch;  // w[p][i * w_pitch + lane]
    int64_t k;
    int64_t c_pitch;  // c[p][r * c_pitch + lane]
    bool accumulate;  // continue the chains that c holds
    const W* const* next;  // what will be wanted next, laid out as w, fetched meanwhile; or null
    // The first so many of k are in the panels w[0 .. P - 1], the next kLanes in w[P .. 2 P - 1] and so on; 0: all in the
    // first.
    int64_t first_segment = 0;
    int64_t next_pitch = 0;  // numbers of `next` that are passed for each k; 0: as of w
};

// One k of a tile: the factors of all rows stay in registers where there are several panels, else the panel's lanes.
template <int R, int P, typename W>
inline void add_column(F16 (&acc)[P][R], const float* const (&x)[R], int64_t i, const W* const (&panel)[P]) {
    if constexpr (P == 1) {
        const F16 w = load(panel[0]);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) acc[0][r] = fma(broadcast(x[r] + i), w, acc[0][r]);
    } else {
        F16 a[R];
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) a[r] = broadcast(x[r] + i);
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) add_products(acc[p], a, panel[p]);
    }
}

template <int R, int P, typename W>
__attribute__((noinline)) void micro(const Micro<W>& m, const W* const* w, float* const* c) {
    F16 acc[P][R];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) acc[p][r] = m.accumulate ? load(c[p] + r * m.c_pitch) : set1(0.0f);

    const float* x[R];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) x[r] = m.x + r * m.x_pitch;
    const int64_t w_pitch = m.w_pitch, next_pitch = m.next_pitch == 0 ? w_pitch : m.next_pitch;
    const W* const* next = m.next;
    int64_t end = m.first_segment == 0 ? m.k : m.first_segment;
    for (int64_t i = 0; i < m.k; end = smaller(i + kLanes, m.k)) {
        const W* panel[P];
        const W* wanted[P];
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) {
            panel[p] = w[p];
            wanted[p] = next != nullptr ? next[p] : w[p];
        }
        for (; i < end; ++i) {
            add_column<R, P, W>(acc, x, i, panel);
#pragma GCC unroll 4
            for (int p = 0; p < P; ++p) {
                __builtin_prefetch(wanted[p], 0, 2);
                panel[p] += w_pitch;
                wanted[p] += next_pitch;
            }
        }
        w += P;
        if (next != nullptr) next += P;
    }

#pragma GCC unroll 16
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) store(c[p] + r * m.c_pitch, acc[p][r]);
}

template <int R, typename W>
inline void run_micro_rows(int panels, const Micro<W>& m, const W* const* w, float* const* c) {
    if constexpr (panels_at_once(R) >= 4)
        if (panels == 4) return micro<R, 4, W>(m, w, c);
    if constexpr (panels_at_once(R) >= 2)
        if (panels == 2) return micro<R, 2, W>(m, w, c);
    micro<R, 1, W>(m, w, c);
}

template <int R, typename W>
inline void run_micro_from(int rows, int panels, const Micro<W>& m, const W* const* w, float* const* c) {
    if constexpr (R > 1)
        if (rows < R) return run_micro_from<R - 1, W>(rows, panels, m, w, c);
    run_micro_rows<R, W>(panels, m, w, c);
}

// `panels` is panels_at_once(rows) or 1.
template <typename W>
inline void run_micro(int rows, int panels, const Micro<W>& m, const W* const* w, float* const* c) {
    run_micro_from<kMaxRows, W>(rows, panels, m, w, c);
}

// Cut `count` rows into tiles of nearly equal height, none above kMaxRows.
struct RowTiles {
    explicit RowTiles(int64_t count) : num(divide_up(count, kMaxRows)), count_(count) {}
    int64_t begin(int64_t tile) const { return count_ * tile / num; }
    int rows(int64_t tile) const { return static_cast<int>(begin(tile + 1) - begin(tile)); }
    int tallest() const { return static_cast<int>(divide_up(count_, num)); }
    int64_t num;

private:
    int64_t count_;
};

}  // namespace
