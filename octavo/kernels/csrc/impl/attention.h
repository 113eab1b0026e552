// Paged attention, decode and chunk alike, in three passes over tiles of 16 logical positions (0-15, 16-31, ...):
// scores, softmax, values. A tile is where the positions say, whatever the block size, so a row's bits depend on its
// position and context alone. Blocks that do not hold whole tiles are gathered first.
//
// One task is up to queries_per_task (row, head) pairs of one sequence and one KV head, so keys and values that are in
// the cache serve several rows and heads.
#pragma once

namespace {

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
    // queries [num_queries, D]; gathered tiles [kMaxPanels][16 * padded_dim].
    float *scores, *sums, *queries, *gathered;

    int64_t group() const { return args.shape.num_heads / args.shape.num_kv_heads; }
    int64_t row(int64_t query) const { return first_row + (first_query + query) / group(); }
    int64_t head(int64_t query) const { return kv_head * group() + (first_query + query) % group(); }
    int64_t position(int64_t query) const { return args.batch.positions[row(query)]; }
    int64_t first_visible(int64_t query) const {
        const int64_t window = args.shape.window;
        return window == 0 ? 0 : larger(0, position(query) - window + 1);
    }
};

// Where the keys (or values) of the block that holds logical position `t` begin, or null if the table has no such block.
inline const float* block_of(const AttentionTask& k, const float* memory, int64_t t) {
    const OctavoAttentionShape& s = k.args.shape;
    const int64_t index = t / s.block_size;
    const int64_t block = index < k.args.batch.table_width ? k.table[index] : -1;
    if (block < 0 || block >= s.num_blocks) {
        k.args.bad_index->store(true, std::memory_order_relaxed);
        return nullptr;
    }
    return memory + (block * s.num_kv_heads + k.kv_head) * s.head_dim * s.block_size;
}

inline bool holds_whole_tiles(const OctavoAttentionShape& s) { return s.block_size % kLanes == 0; }

// Keys of a tile, [D][16] with this pitch between dimensions.
inline int64_t key_pitch(const OctavoAttentionShape& s) { return holds_whole_tiles(s) ? s.block_size : kLanes; }

inline const float* keys_of_tile(const AttentionTask& k, int64_t tile, float* gathered) {
    const OctavoAttentionShape& s = k.args.shape;
    if (holds_whole_tiles(s)) {
        const float* block = block_of(k, k.args.batch.keys, larger(tile * kLanes, k.first_key));
        return block == nullptr ? nullptr : block + tile * kLanes % s.block_size;
    }
    std::memset(gathered, 0, static_cast<size_t>(kLanes * s.head_dim) * sizeof(float));
    const int64_t end = smaller((tile + 1) * kLanes, k.end_key);
    for (int64_t t = larger(tile * kLanes, k.first_key); t < end; ++t) {
        const float* block = block_of(k, k.args.batch.keys, t);
        if (block == nullptr) return nullptr;
        for (int64_t d = 0; d < s.head_dim; ++d)
            gathered[d * kLanes + t % kLanes] = block[d * s.block_size + t % s.block_size];
    }
    return gathered;
}

inline bool find_key_tiles(const AttentionTask& k, int64_t first_tile, int count, const float** tiles) {
    for (int p = 0; p < count; ++p) {
        tiles[p] = keys_of_tile(k, first_tile + p, k.gathered + p * kLanes * k.padded_dim);
        if (tiles[p] == nullptr) return false;
    }
    return true;
}

inline bool values_are_in_place(const AttentionTask& k) {
    return holds_whole_tiles(k.args.shape) && k.padded_dim == k.args.shape.head_dim;
}

// Values of a tile, [16][D] with pitch padded_dim; only positions first_key .. end_key - 1 may be read.
inline const float* values_of_tile(const AttentionTask& k, int64_t tile) {
    const OctavoAttentionShape& s = k.args.shape;
    const int64_t begin = larger(tile * kLanes, k.first_key), end = smaller((tile + 1) * kLanes, k.end_key);
    if (values_are_in_place(k)) {
        const float* block = block_of(k, k.args.batch.values, begin);
        return block == nullptr ? nullptr : block + tile * kLanes % s.block_size * s.head_dim;
    }
    std::memset(k.gathered, 0, static_cast<size_t>(kLanes * k.padded_dim) * sizeof(float));
    for (int64_t t = begin; t < end; ++t) {
        const float* block = block_of(k, k.args.batch.values, t);
        if (block == nullptr) return nullptr;
        std::memcpy(k.gathered + t % kLanes * k.padded_dim, block + t % s.block_size * s.head_dim,
                    static_cast<size_t>(s.head_dim) * sizeof(float));
    }
    return k.gathered;
}

// scores[query][t] = q . k[t], one chain in ascending dimension. Slots that no pair sees give rubbish (masked later).
inline bool score_tiles(const AttentionTask& k) {
    const int64_t dim = k.args.shape.head_dim;
    const RowTiles rows(k.num_queries);
    const int at_once = panels_at_once(rows.tallest());
    for (int64_t tile = k.first_tile; tile < k.end_tile;) {
        const int panels = k.end_tile - tile >= at_once ? at_once : 1;
        const float* w[kMaxPanels];
        const float* next[kMaxPanels];
        float* c[kMaxPanels];
        if (!find_key_tiles(k, tile, panels, w)) return false;
        // The panels after these are fetched meanwhile, where they lie in place.
        const bool fetch = holds_whole_tiles(k.args.shape) && tile + 2 * panels <= k.end_tile;
        if (fetch && !find_key_tiles(k, tile + panels, panels, next)) return false;
        for (int64_t r = 0; r < rows.num; ++r) {
            const int64_t first = rows.begin(r);
            for (int p = 0; p < panels; ++p)
                c[p] = k.scores + first * k.scores_pitch + (tile + p - k.first_tile) * kLanes;
            run_micro(rows.rows(r), panels,
                      {k.queries + first * dim, dim, key_pitch(k.args.shape), dim, k.scores_pitch, false,
                       fetch && r + 1 == rows.num ? next : nullptr},
                      w, c);
        }
        tile += panels;
    }
    return true;
}

// Scale, cap and mask the scores of one pair; what it does not see becomes the lowest float. Returns the greatest score.
inline float finish_scores(const AttentionTask& k, int64_t query) {
    const OctavoAttentionShape& s = k.args.shape;
    const F16 lowest = set1(-3.402823466e38f), scale = set1(s.scale), cap = set1(s.soft_cap);
    float* scores = k.scores + query * k.scores_pitch;
    const int64_t begin = k.first_visible(query), end = k.position(query) + 1;
    F16 greatest = lowest;
    for (int64_t t = begin / kLanes * kLanes; t < end; t += kLanes) {
        float* tile = scores + (t - k.first_tile * kLanes);
        F16 v = mul(load(tile), scale);
        if (s.soft_cap != 0.0f) v = mul(cap, tanh(div(v, cap)));
        v = keep_lanes(v, begin - t, end - t, lowest);
        greatest = max(v, greatest);
        store(tile, v);
    }
    return max_lanes(greatest);
}

// What one pair sees: scores to e^(score - greatest). Returns their sum; lanes that are not seen add exactly 0.
inline float exponentiate(const AttentionTask& k, int64_t query, float greatest) {
    float* scores = k.scores + query * k.scores_pitch;
    const int64_t begin = k.first_visible(query), end = k.position(query) + 1;
    const int64_t first_seen = begin / kLanes - k.first_tile, end_seen = divide_up(end, kLanes) - k.first_tile;
    const F16 zero = set1(0.0f), shift = set1(greatest);
    F16 sum = zero;
    for (int64_t tile = first_seen; tile < end_seen; ++tile) {
        const int64_t t = (k.first_tile + tile) * kLanes;
        const F16 v = keep_lanes(exp(sub(load(scores + tile * kLanes), shift)), begin - t, end - t, zero);
        sum = add(sum, v);
        store(scores + tile * kLanes, v);
    }
    return sum_lanes(sum);
}

// One tile's part of sums[query][d] = sum of probability[t] * v[t][d] for the pairs first .. first + rows - 1, over the
// positions begin .. end - 1 alone: nothing else, were it NaN, can reach these pairs.
inline void add_tile(const AttentionTask& k, const float* values, const float* next_values, int64_t first, int rows,
                     int64_t begin, int64_t end) {
    if (begin >= end) return;
    const int64_t offset = begin % kLanes;
    const float* probabilities = k.scores + first * k.scores_pitch + begin - k.first_tile * kLanes;
    const int at_once = panels_at_once(rows);
    for (int64_t d = 0; d < k.padded_dim;) {
        const int panels = k.padded_dim - d >= at_once * kLanes ? at_once : 1;
        const float* w[kMaxPanels];
        const float* next[kMaxPanels];
        float* c[kMaxPanels];
        for (int p = 0; p < panels; ++p, d += kLanes) {
            w[p] = values + offset * k.padded_dim + d;
            if (next_values != nullptr) next[p] = next_values + d;
            c[p] = k.sums + first * k.padded_dim + d;
        }
        run_micro(rows, panels,
                  {probabilities, k.scores_pitch, k.padded_dim, end - begin, k.padded_dim, true,
                   next_values != nullptr ? next : nullptr},
                  w, c);
    }
}

// Values in ascending t. Pairs that all see the task's whole part of a tile share its values; others go one by one.
inline bool add_values(const AttentionTask& k) {
    std::memset(k.sums, 0, static_cast<size_t>(k.num_queries * k.padded_dim) * sizeof(float));
    const RowTiles rows(k.num_queries);
    const float* values = values_of_tile(k, k.first_tile);
    for (int64_t tile = k.first_tile; tile < k.end_tile; ++tile) {
        if (values == nullptr) return false;
        const bool last = tile + 1 == k.end_tile;
        const float* next_values = last || !values_are_in_place(k) ? nullptr : values_of_tile(k, tile + 1);
        const int64_t begin = larger(tile * kLanes, k.first_key), end = smaller((tile + 1) * kLanes, k.end_key);
        for (int64_t r = 0; r < rows.num; ++r) {
            const int64_t first = rows.begin(r), after = rows.begin(r + 1);
            // Positions ascend: the last pair's window begins last, the first pair's context ends first.
            if (k.first_visible(after - 1) <= begin && k.position(first) + 1 >= end) {
                add_tile(k, values, r + 1 == rows.num ? next_values : nullptr, first, rows.rows(r), begin, end);
                continue;
            }
            for (int64_t q = first; q < after; ++q)
                add_tile(k, values, nullptr, q, 1, larger(begin, k.first_visible(q)), smaller(end, k.position(q) + 1));
        }
        if (!last) values = next_values != nullptr ? next_values : values_of_tile(k, tile + 1);
    }
    return true;
}

inline void run_attention(AttentionTask& k) {
    const OctavoAttentionShape& s = k.args.shape;
    for (int64_t q = 0; q < k.num_queries; ++q)
        std::memcpy(k.queries + q * s.head_dim, k.args.q + (k.row(q) * s.num_heads + k.head(q)) * s.head_dim,
                    static_cast<size_t>(s.head_dim) * sizeof(float));
    if (!score_tiles(k)) return;
    float* totals = k.queries;  // the queries are done with
    for (int64_t q = 0; q < k.num_queries; ++q) totals[q] = exponentiate(k, q, finish_scores(k, q));
    if (!add_values(k)) return;
    for (int64_t q = 0; q < k.num_queries; ++q) {
        float* out = k.args.out + (k.row(q) * s.num_heads + k.head(q)) * s.head_dim;
        const float factor = 1.0f / totals[q];
        for (int64_t d = 0; d < s.head_dim; ++d) out[d] = k.sums[q * k.padded_dim + d] * factor;
    }
}

inline int64_t sequence_of_task(const AttentionArgs& a, int64_t task) {
    int64_t low = 0, high = a.batch.num_sequences;
    while (high - low > 1) {
        const int64_t middle = (low + high) / 2;
        (a.first_tasks[middle] <= task ? low : high) = middle;
    }
    return low;
}

inline void attention(const AttentionArgs& a, int64_t task) {
    const OctavoAttentionShape& s = a.shape;
    const int64_t sequence = sequence_of_task(a, task);
    const int64_t first_row = a.batch.query_starts[sequence];
    const int64_t num_pairs = (a.batch.query_starts[sequence + 1] - first_row) * (s.num_heads / s.num_kv_heads);
    const int64_t tasks_per_head = divide_up(num_pairs, a.queries_per_task);
    const int64_t index = task - a.first_tasks[sequence];
    const int64_t first_query = index % tasks_per_head * a.queries_per_task;

    AttentionTask k{a, first_row, index / tasks_per_head, first_query,
                    smaller(a.queries_per_task, num_pairs - first_query),
                    a.batch.block_tables + sequence * a.batch.table_pitch, 0, 0, 0, 0, 0, 0,
                    nullptr, nullptr, nullptr, nullptr};
    k.first_key = k.first_visible(0);
    k.end_key = k.position(k.num_queries - 1) + 1;
    k.first_tile = k.first_key / kLanes;
    k.end_tile = divide_up(k.end_key, kLanes);
    k.scores_pitch = (k.end_tile - k.first_tile) * kLanes;
    k.padded_dim = divide_up(s.head_dim, kLanes) * kLanes;

    const int64_t num_scores = k.num_queries * k.scores_pitch, num_sums = k.num_queries * k.padded_dim;
    k.scores = octavo::scratch(num_scores + 2 * num_sums + kMaxPanels * kLanes * k.padded_dim);
    k.sums = k.scores + num_scores;
    k.queries = k.sums + num_sums;
    k.gathered = k.queries + num_sums;
    run_attention(k);
}

}  // namespace
