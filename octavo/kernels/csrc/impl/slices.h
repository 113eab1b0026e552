// A row's context in slices of 256 logical positions (0-255, 256-511, ...): each by itself, then merged in ascending
// order. Slices are where the positions say, so a row's bits do not depend on who works on which slice, or on how many
// threads.
//
//     one task     slice 0 -> sums    slice 1 -> merged in    slice 2 -> merged in ...               -> out
//     several      slices 0, 1 -> partial sums | slices 2, 3 -> partial sums | ...   the last to end merges all -> out
#pragma once

#include "attention.h"

namespace {

// Floats of the sums of `num_pairs` pairs.
inline int64_t slice_sums_size(int64_t num_pairs, int64_t padded_dim) { return num_pairs * (padded_dim + 2); }

inline SliceSums slice_sums_at(float* memory, int64_t num_pairs) {
    return {memory, memory + num_pairs, memory + 2 * num_pairs};
}

inline float first_lane(F16 a) {
    alignas(64) float lanes[kLanes];
    store(lanes, a);
    return lanes[0];
}

// `slice` into `all`, which holds the slices before it. Sums of what a pair does not see are not looked at.
inline void merge(SliceSums all, SliceSums slice, int64_t num_pairs, int64_t padded_dim) {
    for (int64_t pair = 0; pair < num_pairs; ++pair) {
        float* to = all.sums + pair * padded_dim;
        const float* from = slice.sums + pair * padded_dim;
        if (slice.totals[pair] == 0.0f) continue;
        if (all.totals[pair] == 0.0f) {
            all.greatest[pair] = slice.greatest[pair];
            all.totals[pair] = slice.totals[pair];
            std::memcpy(to, from, static_cast<size_t>(padded_dim) * sizeof(float));
            continue;
        }
        const float greatest = all.greatest[pair] < slice.greatest[pair] ? slice.greatest[pair] : all.greatest[pair];
        const F16 old_share = exp(set1(all.greatest[pair] - greatest)), share = exp(set1(slice.greatest[pair] - greatest));
        all.greatest[pair] = greatest;
        all.totals[pair] = first_lane(fma(set1(slice.totals[pair]), share, mul(set1(all.totals[pair]), old_share)));
        for (int64_t d = 0; d < padded_dim; d += kLanes)
            store(to + d, fma(load(from + d), share, mul(load(to + d), old_share)));
    }
}

template <typename KV, typename Panel>
inline void write_out(const AttentionTask<KV, Panel>& k, SliceSums all) {
    const OctavoAttentionShape& s = k.args.shape;
    for (int64_t pair = 0; pair < k.num_pairs(); ++pair) {
        float* out = k.args.out + (k.row(pair) * s.num_heads + k.head(pair)) * s.head_dim;
        const float factor = 1.0f / all.totals[pair];
        for (int64_t d = 0; d < s.head_dim; ++d) out[d] = all.sums[pair * k.padded_dim + d] * factor;
    }
}

// Slices first .. end - 1, each to what place(slice) names, then use(slice, those sums). False where the table lacks a
// block.
template <typename KV, typename Panel, typename Place, typename Use>
inline bool each_slice(AttentionTask<KV, Panel>& k, int64_t first, int64_t end, Place place, Use use) {
    const OctavoAttentionShape& s = k.args.shape;
    for (int64_t pair = 0; pair < k.num_pairs(); ++pair)
        std::memcpy(k.queries + pair * s.head_dim, k.args.q + (k.row(pair) * s.num_heads + k.head(pair)) * s.head_dim,
                    static_cast<size_t>(s.head_dim) * sizeof(float));
    if (first < end && !find_places(k, k.visible_slice(first), k.next_places)) return false;
    for (int64_t slice = first; slice < end; ++slice) {
        k.slice = k.visible_slice(slice);
        k.first_tile = k.slice.begin / kLanes;
        k.end_tile = divide_up(k.slice.end, kLanes);
        k.places = k.next_places;
        k.next_places.count = 0;
        if (slice + 1 < end && !find_places(k, k.visible_slice(slice + 1), k.next_places)) return false;
        const SliceSums sums = place(slice);
        if (k.slice.begin >= k.slice.end) std::memset(sums.totals, 0, static_cast<size_t>(k.num_pairs()) * sizeof(float));
        else if (!attend_slice(k, sums)) return false;
        use(sums);
    }
    return true;
}

// Alone with its pairs: slices are merged as they come.
template <typename KV, typename Panel>
inline void attend_alone(AttentionTask<KV, Panel>& k, int64_t first, int64_t end, float* memory) {
    const int64_t size = slice_sums_size(k.num_pairs(), k.padded_dim);
    const SliceSums all = slice_sums_at(memory, k.num_pairs()), one = slice_sums_at(memory + size, k.num_pairs());
    std::memset(all.totals, 0, static_cast<size_t>(k.num_pairs()) * sizeof(float));
    const bool done = each_slice(k, first, end, [&](int64_t) { return one; },
                                 [&](SliceSums sums) { merge(all, sums, k.num_pairs(), k.padded_dim); });
    if (done) write_out(k, all);
}

// One of several tasks for the same pairs, whose slices are `partials`: the last to end merges them all.
template <typename KV, typename Panel>
inline void attend_together(AttentionTask<KV, Panel>& k, const SlicedSequence& s, int64_t list, int64_t first, int64_t end,
                            float* memory) {
    const int64_t size = slice_sums_size(k.args.kv_heads_per_task * k.args.queries_per_task, k.padded_dim);
    float* partials = k.args.partials + s.first_partial + list * s.num_slices * size;
    const auto place = [&](int64_t slice) { return slice_sums_at(partials + (slice - s.first_slice) * size, k.num_pairs()); };
    if (!each_slice(k, first, end, place, [](SliceSums) {})) return;
    std::atomic<int32_t>& num_ended = k.args.num_ended[s.first_list + list];
    if (num_ended.fetch_add(1, std::memory_order_acq_rel) + 1 != s.tasks_per_list) return;
    const SliceSums all = slice_sums_at(memory, k.num_pairs());
    std::memset(all.totals, 0, static_cast<size_t>(k.num_pairs()) * sizeof(float));
    for (int64_t slice = s.first_slice; slice < s.first_slice + s.num_slices; ++slice)
        merge(all, place(slice), k.num_pairs(), k.padded_dim);
    write_out(k, all);
}

inline int64_t sequence_of_task(const AttentionArgs& a, int64_t task) {
    int64_t low = 0, high = a.batch.num_sequences;
    while (high - low > 1) {
        const int64_t middle = (low + high) / 2;
        (a.sequences[middle].first_task <= task ? low : high) = middle;
    }
    return low;
}

template <typename KV, typename Panel>
inline void attention_over(const AttentionArgs& a, int64_t task, int64_t sequence, int64_t queries_per_head) {
    const OctavoAttentionShape& shape = a.shape;
    const SlicedSequence& s = a.sequences[sequence];
    const int64_t list = (task - s.first_task) / s.tasks_per_list, part = (task - s.first_task) % s.tasks_per_list;
    const int64_t lists_per_head = divide_up(queries_per_head, a.queries_per_task);
    const int64_t first_kv_head = list / lists_per_head * a.kv_heads_per_task;
    const int64_t num_kv_heads = smaller(a.kv_heads_per_task, shape.num_kv_heads - first_kv_head);
    const int64_t first_query = list % lists_per_head * a.queries_per_task;
    const int64_t num_queries = smaller(a.queries_per_task, queries_per_head - first_query);
    const int64_t padded_dim = divide_up(shape.head_dim, kLanes) * kLanes, num_pairs = num_kv_heads * num_queries;

    const int64_t num_scores = num_pairs * octavo::kSlice, num_scales = kScaled<KV> ? num_kv_heads * octavo::kSlice : 0;
    float* scores = octavo::scratch(num_scores + num_pairs * padded_dim + 2 * num_scales +
                                    kMostTilesAtOnce * kLanes * padded_dim + 2 * slice_sums_size(num_pairs, padded_dim));
    float* queries = scores + num_scores;
    float* key_scales = queries + num_pairs * padded_dim;
    float* value_scales = key_scales + num_scales;
    float* gathered = value_scales + num_scales;
    float* sums = gathered + kMostTilesAtOnce * kLanes * padded_dim;
    AttentionTask<KV, Panel> k{a, sequence, first_kv_head, num_kv_heads, first_query, num_queries, padded_dim, scores, queries,
                               key_scales, value_scales, reinterpret_cast<Panel*>(gathered), {}, 0, 0, {}, {}};

    const int64_t first = s.first_slice + part * s.slices_per_task;
    const int64_t end = smaller(first + s.slices_per_task, s.first_slice + s.num_slices);
    if (s.tasks_per_list == 1) attend_alone(k, first, end, sums);
    else attend_together(k, s, list, first, end, sums);
}

inline void attention(const AttentionArgs& a, int64_t task) {
    const int64_t sequence = sequence_of_task(a, task);
    const int64_t num_rows = a.batch.query_starts[sequence + 1] - a.batch.query_starts[sequence];
    const int64_t queries_per_head = num_rows * (a.shape.num_heads / a.shape.num_kv_heads);
    // Shorter numbers are converted once where many calls of micro() would each convert them. A few had better read them where
    // they lie: that is in one piece, and asked for ahead.
    const bool convert_once = queries_per_head > 5 * kMaxRows;
    auto run = attention_over<float, float>;
    if (a.batch.kv_type == kOctavoKvFp16) run = convert_once ? attention_over<Half, float> : attention_over<Half, Half>;
    if (a.batch.kv_type == kOctavoKvInt8) run = convert_once ? attention_over<int8_t, float> : attention_over<int8_t, int8_t>;
    run(a, task, sequence, queries_per_head);
}

}  // namespace
