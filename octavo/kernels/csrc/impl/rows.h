// Operations that treat each row alone: gather, norm, gate, add.
#pragma once

namespace {

inline void gather_rows(const GatherArgs& a, int64_t task) {
    gather_each(a, task, [&](int64_t index, float* to) {
        const float* from = a.table + index * a.width;
        for (int64_t j = 0; j < a.width; ++j) to[j] = from[j] * a.scale;
    });
}

inline void rms_norm(const float* x, const float* weight, float* out, int64_t width, float eps) {
    F16 squares = set1(0.0f);
    for (int64_t i = 0; i < width; i += kLanes) {
        const F16 v = load_first(x + i, width - i);
        squares = fma(v, v, squares);
    }
    const float factor = 1.0f / __builtin_sqrtf(sum_lanes(squares) / static_cast<float>(width) + eps);
    for (int64_t i = 0; i < width; ++i) out[i] = x[i] * factor * weight[i];
}

inline void norm(const NormArgs& a, int64_t task) {
    const int64_t end = smaller((task + 1) * a.rows_per_task, a.num_rows);
    for (int64_t row = task * a.rows_per_task; row < end; ++row)
        rms_norm(a.x + row * a.width, a.weight, a.out + row * a.width, a.width, a.eps);
}

inline void norm_heads(const NormHeadsArgs& a, int64_t task) {
    const OctavoAttentionShape& s = a.shape;
    const int64_t end = smaller((task + 1) * a.rows_per_task, a.num_rows);
    for (int64_t row = task * a.rows_per_task; row < end; ++row) {
        float* heads = a.qkv + row * (s.num_heads + 2 * s.num_kv_heads) * s.head_dim;
        for (int64_t h = 0; h < s.num_heads + s.num_kv_heads; ++h) {
            float* head = heads + h * s.head_dim;
            rms_norm(head, h < s.num_heads ? a.q_weight : a.k_weight, head, s.head_dim, a.eps);
        }
    }
}

inline F16 silu(F16 x) { return mul(x, sigmoid(x)); }

// x * (1 + tanh(u)) / 2 with u = sqrt(2 / pi) * (x + 0.044715 x^3), since (1 + tanh(u)) / 2 = sigmoid(2 u).
inline F16 gelu_tanh(F16 x) {
    const F16 cubic = fma(mul(set1(0.044715f), mul(x, x)), x, x);
    return mul(x, sigmoid(mul(set1(1.5957691216f), cubic)));
}

inline void gate(const GateArgs& a, int64_t task) {
    const int64_t end = smaller((task + 1) * a.rows_per_task, a.num_rows);
    for (int64_t row = task * a.rows_per_task; row < end; ++row) {
        const float* x = a.x + row * 2 * a.width;
        float* out = a.out + row * a.width;
        for (int64_t i = 0; i < a.width; i += kLanes) {
            const F16 v = load_first(x + i, a.width - i);
            const F16 activated = a.activation == 0 ? silu(v) : gelu_tanh(v);
            store_first(out + i, mul(activated, load_first(x + a.width + i, a.width - i)), a.width - i);
        }
    }
}

inline void add_rows(const AddArgs& a, int64_t task) {
    const int64_t end = smaller((task + 1) * a.rows_per_task, a.num_rows) * a.width;
    for (int64_t i = task * a.rows_per_task * a.width; i < end; ++i) a.x[i] += a.y[i];
}

}  // namespace
