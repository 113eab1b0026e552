// Where the keys and values of one task of attention lie: by tiles of 16 logical positions (0-15, 16-31, ...), whatever
// the block size. Blocks that do not hold whole tiles are gathered first.
//
// KV is the type that the memory holds: float, Half, or int8_t with scales. Panel is the type that micro() reads: KV, or
// float where shorter numbers are better converted once a task than once a call. Both give the same bits.
#pragma once

namespace {

template <typename T, typename U>
constexpr bool kSame = false;
template <typename T>
constexpr bool kSame<T, T> = true;

inline bool holds_whole_tiles(const OctavoAttentionShape& s) { return s.block_size % kLanes == 0; }

// Up to queries_per_task (row, head) pairs of one sequence and one KV head, so keys and values that are in the cache
// serve several rows and heads.
template <typename KV, typename Panel>
struct AttentionTask {
    const AttentionArgs& args;
    int64_t first_row;      // of the sequence, in the batch
    int64_t kv_head;
    int64_t first_query;    // the pairs first_query .. first_query + num_queries - 1 of the sequence and KV head
    int64_t num_queries;
    const int32_t* table;
    int64_t first_key, end_key;    // logical positions that at least one of the pairs sees
    int64_t first_tile, end_tile;
    int64_t scores_pitch, padded_dim;
    // Scratch: scores [num_queries, scores_pitch], later probabilities; sums [num_queries, padded_dim];
    // queries [num_queries, D]; key_scales and value_scales [scores_pitch] where there are scales;
    // gathered tiles [kMaxPanels][16 * padded_dim].
    float *scores, *sums, *queries, *key_scales, *value_scales;
    Panel* gathered;

    int64_t group() const { return args.shape.num_heads / args.shape.num_kv_heads; }
    int64_t row(int64_t query) const { return first_row + (first_query + query) / group(); }
    int64_t head(int64_t query) const { return kv_head * group() + (first_query + query) % group(); }
    int64_t position(int64_t query) const { return args.batch.positions[row(query)]; }
    int64_t first_visible(int64_t query) const {
        const int64_t window = args.shape.window;
        return window == 0 ? 0 : larger(0, position(query) - window + 1);
    }
    // Where the block that holds logical position `t` keeps what `memory` keeps of this KV head, `width` elements a
    // token; or null if the table has no such block.
    template <typename T>
    const T* block_of(const T* memory, int64_t width, int64_t t) const {
        const OctavoAttentionShape& s = args.shape;
        const int64_t index = t / s.block_size;
        const int64_t block = index < args.batch.table_width ? table[index] : -1;
        if (block < 0 || block >= s.num_blocks) {
            args.bad_index->store(true, std::memory_order_relaxed);
            return nullptr;
        }
        return memory + (block * s.num_kv_heads + kv_head) * width * s.block_size;
    }
    const KV* key_block(int64_t t) const {
        return block_of(static_cast<const KV*>(args.batch.keys), args.shape.head_dim, t);
    }
    const KV* value_block(int64_t t) const {
        return block_of(static_cast<const KV*>(args.batch.values), args.shape.head_dim, t);
    }
    // Whether micro() reads them where they lie.
    bool keys_are_in_place() const { return kSame<KV, Panel> && holds_whole_tiles(args.shape); }
    bool values_are_in_place() const { return keys_are_in_place() && padded_dim == args.shape.head_dim; }
    // Keys of a tile are [D][16] with this pitch between dimensions.
    int64_t key_pitch() const { return keys_are_in_place() ? args.shape.block_size : kLanes; }
};

template <typename Panel, typename KV>
inline Panel to_panel(KV held) {
    if constexpr (kSame<KV, Panel>) return held;
    else if constexpr (kSame<KV, Half>) return to_float(held);
    else return static_cast<Panel>(held);
}

template <typename KV, typename Panel>
inline const Panel* keys_of_tile(const AttentionTask<KV, Panel>& k, int64_t tile, Panel* gathered) {
    const OctavoAttentionShape& s = k.args.shape;
    if (holds_whole_tiles(s)) {
        const KV* block = k.key_block(larger(tile * kLanes, k.first_key));
        if (block == nullptr) return nullptr;
        const KV* keys = block + tile * kLanes % s.block_size;
        if constexpr (kSame<KV, Panel>) {
            return keys;
        } else {
            for (int64_t d = 0; d < s.head_dim; ++d) store(gathered + d * kLanes, load(keys + d * s.block_size));
            return gathered;
        }
    }
    std::memset(gathered, 0, static_cast<size_t>(kLanes * s.head_dim) * sizeof(Panel));
    const int64_t end = smaller((tile + 1) * kLanes, k.end_key);
    for (int64_t t = larger(tile * kLanes, k.first_key); t < end; ++t) {
        const KV* block = k.key_block(t);
        if (block == nullptr) return nullptr;
        for (int64_t d = 0; d < s.head_dim; ++d)
            gathered[d * kLanes + t % kLanes] = to_panel<Panel>(block[d * s.block_size + t % s.block_size]);
    }
    return gathered;
}

template <typename KV, typename Panel>
inline bool find_key_tiles(const AttentionTask<KV, Panel>& k, int64_t first_tile, int count, const Panel** tiles) {
    for (int p = 0; p < count; ++p) {
        tiles[p] = keys_of_tile(k, first_tile + p, k.gathered + p * kLanes * k.padded_dim);
        if (tiles[p] == nullptr) return false;
    }
    return true;
}

// Values of a tile, [16][D] with pitch padded_dim; only positions first_key .. end_key - 1 may be read.
template <typename KV, typename Panel>
inline const Panel* values_of_tile(const AttentionTask<KV, Panel>& k, int64_t tile) {
    const OctavoAttentionShape& s = k.args.shape;
    const int64_t begin = larger(tile * kLanes, k.first_key), end = smaller((tile + 1) * kLanes, k.end_key);
    if constexpr (kSame<KV, Panel>) {
        if (k.values_are_in_place()) {
            const KV* block = k.value_block(begin);
            return block == nullptr ? nullptr : block + tile * kLanes % s.block_size * s.head_dim;
        }
    }
    std::memset(k.gathered, 0, static_cast<size_t>(kLanes * k.padded_dim) * sizeof(Panel));
    for (int64_t t = begin; t < end; ++t) {
        const KV* block = k.value_block(t);
        if (block == nullptr) return nullptr;
        const KV* value = block + t % s.block_size * s.head_dim;
        Panel* to = k.gathered + t % kLanes * k.padded_dim;
        if constexpr (kSame<KV, Panel>) {
            std::memcpy(to, value, static_cast<size_t>(s.head_dim) * sizeof(KV));
        } else {
            for (int64_t d = 0; d < s.head_dim; d += kLanes) store(to + d, load_first(value + d, s.head_dim - d));
        }
    }
    return k.gathered;
}

// The scales of the task's tiles side by side, position t at to[t - 16 * first_tile]; zeros where no pair sees.
template <typename KV, typename Panel>
inline bool gather_scales(const AttentionTask<KV, Panel>& k, const float* memory, float* to) {
    const int64_t block_size = k.args.shape.block_size;
    std::memset(to, 0, static_cast<size_t>(k.scores_pitch) * sizeof(float));
    for (int64_t t = k.first_key; t < k.end_key;) {
        const float* block = k.block_of(memory, 1, t);
        if (block == nullptr) return false;
        const int64_t count = smaller(block_size - t % block_size, k.end_key - t);
        std::memcpy(to + t - k.first_tile * kLanes, block + t % block_size, static_cast<size_t>(count) * sizeof(float));
        t += count;
    }
    return true;
}

}  // namespace
