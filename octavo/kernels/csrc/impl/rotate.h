// Rotary positions, and keys and values to their slots.
#pragma once

namespace {

// out[i] = rotated head; halves are rotated against each other, each product rounded on its own.
inline void rotate_head(const float* head, const float* cos, const float* sin, int64_t half, float* out) {
    for (int64_t i = 0; i < half; ++i) {
        const float first = head[i], second = head[i + half];
        out[i] = first * cos[i] - second * sin[i];
        out[i + half] = second * cos[i] + first * sin[i];
    }
}

inline void rotate_row(const RotateArgs& a, int64_t row, const float* cos, const float* sin, float* rotated_key) {
    const OctavoAttentionShape& s = a.shape;
    const float* heads = a.qkv + row * (s.num_heads + 2 * s.num_kv_heads) * s.head_dim;
    const int64_t half = s.head_dim / 2;
    for (int64_t h = 0; h < s.num_heads; ++h)
        rotate_head(heads + h * s.head_dim, cos, sin, half, a.q + (row * s.num_heads + h) * s.head_dim);

    const int64_t block = a.batch.slots[row] / s.block_size;
    const int64_t offset = a.batch.slots[row] % s.block_size;
    for (int64_t g = 0; g < s.num_kv_heads; ++g) {
        const int64_t base = (block * s.num_kv_heads + g) * s.head_dim * s.block_size;
        rotate_head(heads + (s.num_heads + g) * s.head_dim, cos, sin, half, rotated_key);
        float* key = a.batch.keys + base + offset;
        for (int64_t d = 0; d < s.head_dim; ++d) key[d * s.block_size] = rotated_key[d];
        std::memcpy(a.batch.values + base + offset * s.head_dim,
                    heads + (s.num_heads + s.num_kv_heads + g) * s.head_dim,
                    static_cast<size_t>(s.head_dim) * sizeof(float));
    }
}

inline void rotate_and_write_kv(const RotateArgs& a, int64_t task) {
    const int64_t half = a.shape.head_dim / 2;
    const int64_t num_slots = a.shape.num_blocks * a.shape.block_size;
    float* rotated_key = octavo::scratch(a.shape.head_dim);
    const int64_t end = smaller((task + 1) * a.rows_per_task, a.batch.num_rows);
    for (int64_t row = task * a.rows_per_task; row < end; ++row) {
        const int64_t position = a.batch.positions[row], slot = a.batch.slots[row];
        if (position < 0 || position >= a.rope_rows || slot < 0 || slot >= num_slots) {
            a.bad_index->store(true, std::memory_order_relaxed);
            continue;
        }
        rotate_row(a, row, a.cos + position * half, a.sin + position * half, rotated_key);
    }
}

}  // namespace
