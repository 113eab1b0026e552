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

inline void store_head(const float* head, int64_t dim, float* out, int64_t pitch) {
    for (int64_t d = 0; d < dim; ++d) out[d * pitch] = head[d];
}

inline void store_head(const float* head, int64_t dim, Half* out, int64_t pitch) {
    Half halves[kLanes];
    for (int64_t d = 0; d < dim; d += kLanes) {
        const int64_t count = smaller(kLanes, dim - d);
        store(halves, load_first(head + d, count));
        for (int64_t i = 0; i < count; ++i) out[(d + i) * pitch] = halves[i];
    }
}

// Whole numbers in -127 .. 127, and the scale: the greatest magnitude / 127. Rounds half to even. What is not finite
// makes the scale NaN, so that it stays visible.
inline float store_head(const float* head, int64_t dim, int8_t* out, int64_t pitch) {
    float greatest = 0.0f;
    bool finite = true;
    for (int64_t d = 0; d < dim; ++d) {
        const float magnitude = __builtin_fabsf(head[d]);
        finite &= magnitude <= 3.402823466e38f;
        greatest = magnitude > greatest ? magnitude : greatest;
    }
    const float scale = finite ? greatest / 127.0f : __builtin_nanf("");
    const bool any = scale > 0.0f;  // not where all is zero, or so small that the scale is
    for (int64_t d = 0; d < dim; ++d) {
        float steps = any ? head[d] / scale : 0.0f;
        steps = steps < -127.0f ? -127.0f : steps > 127.0f ? 127.0f : steps;  // a scale near zero is coarse itself
        steps = (steps + 12582912.0f) - 12582912.0f;  // 1.5 * 2^23: to a whole number
        out[d * pitch] = static_cast<int8_t>(static_cast<int32_t>(steps));
    }
    return scale;
}

// A row's rotated key and its value for KV head `g`, to the slot; scales, if there are, beside.
template <typename KV>
inline void write_head(const RotateArgs& a, int64_t slot, int64_t g, const float* key, const float* value) {
    const OctavoAttentionShape& s = a.shape;
    const int64_t offset = slot % s.block_size;
    const int64_t first_token = (slot / s.block_size * s.num_kv_heads + g) * s.block_size;
    KV* key_to = static_cast<KV*>(a.batch.keys) + first_token * s.head_dim + offset;
    KV* value_to = static_cast<KV*>(a.batch.values) + (first_token + offset) * s.head_dim;
    if constexpr (kScaled<KV>) {
        a.batch.key_scales[first_token + offset] = store_head(key, s.head_dim, key_to, s.block_size);
        a.batch.value_scales[first_token + offset] = store_head(value, s.head_dim, value_to, 1);
    } else {
        store_head(key, s.head_dim, key_to, s.block_size);
        store_head(value, s.head_dim, value_to, 1);
    }
}

template <typename KV>
inline void rotate_row(const RotateArgs& a, int64_t row, const float* cos, const float* sin, float* rotated_key) {
    const OctavoAttentionShape& s = a.shape;
    const float* heads = a.qkv + row * (s.num_heads + 2 * s.num_kv_heads) * s.head_dim;
    const int64_t half = s.head_dim / 2;
    for (int64_t h = 0; h < s.num_heads; ++h)
        rotate_head(heads + h * s.head_dim, cos, sin, half, a.q + (row * s.num_heads + h) * s.head_dim);

    for (int64_t g = 0; g < s.num_kv_heads; ++g) {
        rotate_head(heads + (s.num_heads + g) * s.head_dim, cos, sin, half, rotated_key);
        const float* value = heads + (s.num_heads + s.num_kv_heads + g) * s.head_dim;
        write_head<KV>(a, a.batch.slots[row], g, rotated_key, value);
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
        const auto rotate = a.batch.kv_type == kOctavoKvInt8   ? rotate_row<int8_t>
                            : a.batch.kv_type == kOctavoKvFp16 ? rotate_row<Half>
                                                               : rotate_row<float>;
        rotate(a, row, a.cos + position * half, a.sin + position * half, rotated_key);
    }
}

}  // namespace
