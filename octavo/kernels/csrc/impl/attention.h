// Paged attention, decode and chunk alike, in three passes over tiles of 16 logical positions: scores, softmax, values.
// A tile is where the positions say, whatever the block size, so a row's bits depend on its position and context alone.
//
// Keys and values in 8 bits are multiplied as the whole numbers that they are; a token's scale then takes part once,
// in its score, and in its probability before the values.
#pragma once

#include "tiles.h"

namespace {

// scores[query][t] = q . k[t], one chain in ascending dimension. Slots that no pair sees give rubbish (masked later).
template <typename KV, typename Panel>
inline bool score_tiles(const AttentionTask<KV, Panel>& k) {
    const int64_t dim = k.args.shape.head_dim;
    const RowTiles rows(k.num_queries);
    const int at_once = panels_at_once(rows.tallest());
    for (int64_t tile = k.first_tile; tile < k.end_tile;) {
        const int panels = k.end_tile - tile >= at_once ? at_once : 1;
        const Panel* w[kMaxPanels];
        const Panel* next[kMaxPanels];
        float* c[kMaxPanels];
        if (!find_key_tiles(k, tile, panels, w)) return false;
        // The panels after these are fetched meanwhile, where they lie in place.
        const bool fetch = k.keys_are_in_place() && tile + 2 * panels <= k.end_tile;
        if (fetch && !find_key_tiles(k, tile + panels, panels, next)) return false;
        for (int64_t r = 0; r < rows.num; ++r) {
            const int64_t first = rows.begin(r);
            for (int p = 0; p < panels; ++p)
                c[p] = k.scores + first * k.scores_pitch + (tile + p - k.first_tile) * kLanes;
            run_micro(rows.rows(r), panels,
                      {k.queries + first * dim, dim, k.key_pitch(), dim, k.scores_pitch, false,
                       fetch && r + 1 == rows.num ? next : nullptr},
                      w, c);
        }
        tile += panels;
    }
    return true;
}

// Scale, cap and mask the scores of one pair; what it does not see becomes the lowest float. Returns the greatest score.
template <typename KV, typename Panel>
inline float finish_scores(const AttentionTask<KV, Panel>& k, int64_t query) {
    const OctavoAttentionShape& s = k.args.shape;
    const F16 lowest = set1(-3.402823466e38f), scale = set1(s.scale), cap = set1(s.soft_cap);
    float* scores = k.scores + query * k.scores_pitch;
    const int64_t begin = k.first_visible(query), end = k.position(query) + 1;
    F16 greatest = lowest;
    for (int64_t t = begin / kLanes * kLanes; t < end; t += kLanes) {
        float* tile = scores + (t - k.first_tile * kLanes);
        F16 v = load(tile);
        if constexpr (kScaled<KV>) v = mul(v, load(k.key_scales + (t - k.first_tile * kLanes)));
        v = mul(v, scale);
        if (s.soft_cap != 0.0f) v = mul(cap, tanh(div(v, cap)));
        v = keep_lanes(v, begin - t, end - t, lowest);
        greatest = max(v, greatest);
        store(tile, v);
    }
    return max_lanes(greatest);
}

// What one pair sees: scores to e^(score - greatest), times the values' scale if there is one. Returns the sum without
// scales; lanes that are not seen add exactly 0.
template <typename KV, typename Panel>
inline float exponentiate(const AttentionTask<KV, Panel>& k, int64_t query, float greatest) {
    float* scores = k.scores + query * k.scores_pitch;
    const int64_t begin = k.first_visible(query), end = k.position(query) + 1;
    const int64_t first_seen = begin / kLanes - k.first_tile, end_seen = divide_up(end, kLanes) - k.first_tile;
    const F16 zero = set1(0.0f), shift = set1(greatest);
    F16 sum = zero;
    for (int64_t tile = first_seen; tile < end_seen; ++tile) {
        const int64_t t = (k.first_tile + tile) * kLanes;
        F16 v = keep_lanes(exp(sub(load(scores + tile * kLanes), shift)), begin - t, end - t, zero);
        sum = add(sum, v);
        if constexpr (kScaled<KV>) v = mul(v, load(k.value_scales + tile * kLanes));
        store(scores + tile * kLanes, v);
    }
    return sum_lanes(sum);
}

// One tile's part of sums[query][d] = sum of probability[t] * v[t][d] for the pairs first .. first + rows - 1, over the
// positions begin .. end - 1 alone: nothing else, were it NaN, can reach these pairs.
template <typename KV, typename Panel>
inline void add_tile(const AttentionTask<KV, Panel>& k, const Panel* values, const Panel* next_values, int64_t first, int rows,
                     int64_t begin, int64_t end) {
    if (begin >= end) return;
    const int64_t offset = begin % kLanes;
    const float* probabilities = k.scores + first * k.scores_pitch + begin - k.first_tile * kLanes;
    const int at_once = panels_at_once(rows);
    for (int64_t d = 0; d < k.padded_dim;) {
        const int panels = k.padded_dim - d >= at_once * kLanes ? at_once : 1;
        const Panel* w[kMaxPanels];
        const Panel* next[kMaxPanels];
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
template <typename KV, typename Panel>
inline bool add_values(const AttentionTask<KV, Panel>& k) {
    std::memset(k.sums, 0, static_cast<size_t>(k.num_queries * k.padded_dim) * sizeof(float));
    const RowTiles rows(k.num_queries);
    const Panel* values = values_of_tile(k, k.first_tile);
    for (int64_t tile = k.first_tile; tile < k.end_tile; ++tile) {
        if (values == nullptr) return false;
        const bool last = tile + 1 == k.end_tile;
        const Panel* next_values = last || !k.values_are_in_place() ? nullptr : values_of_tile(k, tile + 1);
        const int64_t begin = larger(tile * kLanes, k.first_key), end = smaller((tile + 1) * kLanes, k.end_key);
        for (int64_t r = 0; r < rows.num; ++r) {
            const int64_t first = rows.begin(r), after = rows.begin(r + 1);
            // Positions ascend: the last pair's window begins last, the first pair's context ends first.
            if (k.first_visible(after - 1) <= begin && k.position(first) + 1 >= end) {
                const Panel* to_fetch = r + 1 == rows.num ? next_values : nullptr;
                add_tile(k, values, to_fetch, first, rows.rows(r), begin, end);
                continue;
            }
            for (int64_t q = first; q < after; ++q)
                add_tile<KV, Panel>(k, values, nullptr, q, 1, larger(begin, k.first_visible(q)),
                                    smaller(end, k.position(q) + 1));
        }
        if (!last) values = next_values != nullptr ? next_values : values_of_tile(k, tile + 1);
    }
    return true;
}

template <typename KV, typename Panel>
inline void run_attention(AttentionTask<KV, Panel>& k) {
    const OctavoAttentionShape& s = k.args.shape;
    for (int64_t q = 0; q < k.num_queries; ++q)
        std::memcpy(k.queries + q * s.head_dim, k.args.q + (k.row(q) * s.num_heads + k.head(q)) * s.head_dim,
                    static_cast<size_t>(s.head_dim) * sizeof(float));
    if constexpr (kScaled<KV>) {
        if (!gather_scales(k, k.args.batch.key_scales, k.key_scales)) return;
        if (!gather_scales(k, k.args.batch.value_scales, k.value_scales)) return;
    }
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

template <typename KV, typename Panel>
inline void attention_over(const AttentionArgs& a, int64_t task, int64_t sequence, int64_t num_pairs) {
    const OctavoAttentionShape& s = a.shape;
    const int64_t tasks_per_head = divide_up(num_pairs, a.queries_per_task);
    const int64_t index = task - a.first_tasks[sequence];
    const int64_t first_query = index % tasks_per_head * a.queries_per_task;

    AttentionTask<KV, Panel> k{a, a.batch.query_starts[sequence], index / tasks_per_head, first_query,
                               smaller(a.queries_per_task, num_pairs - first_query),
                               a.batch.block_tables + sequence * a.batch.table_pitch, 0, 0, 0, 0, 0, 0,
                               nullptr, nullptr, nullptr, nullptr, nullptr, nullptr};
    k.first_key = k.first_visible(0);
    k.end_key = k.position(k.num_queries - 1) + 1;
    k.first_tile = k.first_key / kLanes;
    k.end_tile = divide_up(k.end_key, kLanes);
    k.scores_pitch = (k.end_tile - k.first_tile) * kLanes;
    k.padded_dim = divide_up(s.head_dim, kLanes) * kLanes;

    const int64_t num_scores = k.num_queries * k.scores_pitch, num_sums = k.num_queries * k.padded_dim;
    const int64_t num_scales = kScaled<KV> ? k.scores_pitch : 0;
    k.scores = octavo::scratch(num_scores + 2 * num_sums + 2 * num_scales + kMaxPanels * kLanes * k.padded_dim);
    k.sums = k.scores + num_scores;
    k.queries = k.sums + num_sums;
    k.key_scales = k.queries + num_sums;
    k.value_scales = k.key_scales + num_scales;
    k.gathered = reinterpret_cast<Panel*>(k.value_scales + num_scales);
    run_attention(k);
}

inline void attention(const AttentionArgs& a, int64_t task) {
    const int64_t sequence = sequence_of_task(a, task);
    const int64_t num_rows = a.batch.query_starts[sequence + 1] - a.batch.query_starts[sequence];
    const int64_t num_pairs = num_rows * (a.shape.num_heads / a.shape.num_kv_heads);
    // Shorter numbers are converted once where several calls of micro() would each convert them.
    const bool convert_once = num_pairs > kAccumulators;
    auto run = attention_over<float, float>;
    if (a.batch.kv_type == kOctavoKvFp16) run = convert_once ? attention_over<Half, float> : attention_over<Half, Half>;
    if (a.batch.kv_type == kOctavoKvInt8) run = convert_once ? attention_over<int8_t, float> : attention_over<int8_t, int8_t>;
    run(a, task, sequence, num_pairs);
}

}  // namespace
