// The greatest number of a row: of its blocks by lanes, then the first such number in the first such block.
#pragma once

namespace {

constexpr int64_t kArgmaxBlock = 256;

// Of numbers that may hold a NaN, which then is the answer.
inline int64_t argmax_of_any(const float* x, int64_t count) {
    int64_t best = 0;
    for (int64_t i = 0; i < count; ++i) {
        if (x[i] != x[i]) return i;
        if (x[i] > x[best]) best = i;
    }
    return best;
}

inline int64_t argmax_of_row(const float* x, int64_t count) {
    float best = 0.0f;
    int64_t best_block = -1;
    F16 zeros = set1(0.0f);  // until there is a NaN or an infinite number, which times 0 is NaN
    for (int64_t begin = 0; begin < count; begin += kArgmaxBlock) {
        const int64_t end = smaller(begin + kArgmaxBlock, count);
        F16 greatest = set1(x[begin]);
        for (int64_t i = begin; i < end; i += kLanes) {
            const F16 v = end - i >= kLanes ? load(x + i) : keep_lanes(load_first(x + i, end - i), 0, end - i, set1(x[begin]));
            greatest = max(v, greatest);
            zeros = fma(v, set1(0.0f), zeros);
        }
        const float here = max_lanes(greatest);
        if (best_block >= 0 && !(here > best)) continue;
        best = here;
        best_block = begin;
    }
    if (!(sum_lanes(zeros) == 0.0f)) return argmax_of_any(x, count);
    int64_t i = best_block;
    while (x[i] != best) ++i;
    return i;
}

inline void argmax(const ArgmaxArgs& a, int64_t task) {
    const int64_t end = smaller((task + 1) * a.rows_per_task, a.num_rows);
    for (int64_t row = task * a.rows_per_task; row < end; ++row) a.out[row] = argmax_of_row(a.x + row * a.width, a.count);
}

}  // namespace
