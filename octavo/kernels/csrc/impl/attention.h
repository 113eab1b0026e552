// Paged attention over one slice of positions, decode and chunk alike, in three passes over tiles of 16 logical positions:
// scores, softmax, values. A tile is where the positions say, whatever the block size, so a row's bits depend on its
// position and context alone.
//
// Keys and values in 8 bits are multiplied as the whole numbers that they are; a token's scale then takes part once,
// in its score, and in its probability before the values.
#pragma once

#include "tiles.h"

namespace {

// What a slice gives the pairs of a task, each pair by itself: the greatest score, the sum of e^(score - greatest), 0 where
// the pair sees none of it, and the values weighted so.
struct SliceSums {
    float* greatest;  // [num_pairs]
    float* totals;    // [num_pairs]
    float* sums;      // [num_pairs, padded_dim]
};

// scores[pair][t] = q . k[t], one chain in ascending dimension. Slots that no pair sees give rubbish (masked later).
// Several KV heads take turns every few tiles: in memory, a block's heads lie side by side.
template <typename KV, typename Panel>
inline bool score_tiles(const AttentionTask<KV, Panel>& k) {
    const int64_t dim = k.args.shape.head_dim;
    const RowTiles rows(k.num_queries);
    const int at_once = panels_at_once(rows.tallest());
    const int64_t stride = k.tiles_at_once();
    for (int64_t tile = k.first_tile; tile < k.end_tile; tile += stride) {
        const int count = static_cast<int>(smaller(stride, k.end_tile - tile));
        for (int64_t h = 0; h < k.num_kv_heads; ++h) {
            const Panel* w[kMostTilesAtOnce];
            const Panel* next[kMostTilesAtOnce];
            float* c[kMostTilesAtOnce];
            if (!find_key_tiles(k, h, tile, count, w, next)) return false;
            for (int i = 0, panels; i < count; i += panels) {
                panels = count - i >= at_once ? at_once : 1;
                for (int64_t r = 0; r < rows.num; ++r) {
                    const int64_t first = h * k.num_queries + rows.begin(r);
                    for (int p = 0; p < panels; ++p)
                        c[p] = k.scores + first * octavo::kSlice + (tile + i + p - k.first_tile) * kLanes;
                    run_micro(rows.rows(r), panels,
                              {k.queries + first * dim, dim, k.key_pitch(), dim, octavo::kSlice, false,
                               r + 1 == rows.num ? next + i : nullptr},
                              w + i, c);
                }
            }
        }
    }
    return true;
}

// Calls each(t, tile of scores, whether the pair sees all 16 positions) for the tiles of which the pair sees a part.
template <typename KV, typename Panel, typename Each>
inline void each_seen_tile(const AttentionTask<KV, Panel>& k, int64_t pair, Each each) {
    const Positions seen = k.visible(pair);
    float* scores = k.scores + pair * octavo::kSlice - k.first_tile * kLanes;
    for (int64_t t = seen.begin / kLanes * kLanes; t < seen.end; t += kLanes) {
        const bool whole = t >= seen.begin && t + kLanes <= seen.end;
        each(t, scores + t, [&](F16 v, F16 fill) {
            return whole ? v : keep_lanes(v, seen.begin - t, seen.end - t, fill);
        });
    }
}

// Scale, cap and mask the scores of one pair; what it does not see becomes the lowest float. Returns the greatest score.
template <typename KV, typename Panel>
inline float finish_scores(const AttentionTask<KV, Panel>& k, int64_t pair) {
    const OctavoAttentionShape& s = k.args.shape;
    [[maybe_unused]] const float* scales = k.key_scales + pair / k.num_queries * octavo::kSlice - k.first_tile * kLanes;
    const F16 lowest = set1(-3.402823466e38f), scale = set1(s.scale), cap = set1(s.soft_cap);
    F16 greatest = lowest;
    each_seen_tile(k, pair, [&](int64_t t, float* tile, auto mask) {
        F16 v = load(tile);
        if constexpr (kScaled<KV>) v = mul(v, load(scales + t));
        v = mul(v, scale);
        if (s.soft_cap != 0.0f) v = mul(cap, tanh(div(v, cap)));
        v = mask(v, lowest);
        greatest = max(v, greatest);
        store(tile, v);
    });
    return max_lanes(greatest);
}

// What one pair sees: scores to e^(score - greatest), times the values' scale if there is one. Returns the sum without
// scales; lanes that are not seen add exactly 0.
template <typename KV, typename Panel>
inline float exponentiate(const AttentionTask<KV, Panel>& k, int64_t pair, float greatest) {
    [[maybe_unused]] const float* scales = k.value_scales + pair / k.num_queries * octavo::kSlice - k.first_tile * kLanes;
    const F16 zero = set1(0.0f), shift = set1(greatest);
    F16 sum = zero;
    each_seen_tile(k, pair, [&](int64_t t, float* tile, auto mask) {
        F16 v = mask(exp(sub(load(tile), shift)), zero);
        sum = add(sum, v);
        if constexpr (kScaled<KV>) v = mul(v, load(scales + t));
        store(tile, v);
    });
    return sum_lanes(sum);
}

// Up to kMostTilesAtOnce tiles of one KV head's values, side by side in logical position.
template <typename Panel>
struct ValueTiles {
    int64_t first_tile;
    const Panel* values[kMostTilesAtOnce];
    const Panel* next[kMostTilesAtOnce];  // to fetch meanwhile
};

// Their part of sums[pair][d] = sum of probability[t] * v[t][d] for the pairs first .. first + rows - 1, over the
// positions `seen` alone: nothing else, were it NaN, can reach these pairs.
template <typename KV, typename Panel>
inline void add_tiles(const AttentionTask<KV, Panel>& k, const ValueTiles<Panel>& tiles, bool fetch, int64_t first, int rows,
                      Positions seen, float* sums) {
    if (seen.begin >= seen.end) return;
    const float* probabilities = k.scores + first * octavo::kSlice + seen.begin - k.first_tile * kLanes;
    const int64_t first_segment = smaller(kLanes - seen.begin % kLanes, seen.end - seen.begin);
    const int64_t begin_tile = seen.begin / kLanes - tiles.first_tile, before = seen.begin % kLanes * k.padded_dim;
    const int num_tiles = static_cast<int>(divide_up(seen.end, kLanes) - tiles.first_tile - begin_tile);
    const int at_once = panels_at_once(rows);
    for (int64_t d = 0; d < k.padded_dim;) {
        const int panels = k.padded_dim - d >= at_once * kLanes ? at_once : 1;
        const Panel* w[kMostTilesAtOnce * kMaxPanels];
        const Panel* next[kMostTilesAtOnce * kMaxPanels];
        float* c[kMaxPanels];
        for (int p = 0; p < panels; ++p) c[p] = sums + first * k.padded_dim + d + p * kLanes;
        for (int i = 0; i < num_tiles; ++i)
            for (int p = 0; p < panels; ++p) {
                w[i * panels + p] = tiles.values[begin_tile + i] + (i == 0 ? before : 0) + d + p * kLanes;
                next[i * panels + p] = tiles.next[begin_tile + i] + d + p * kLanes;
            }
        run_micro(rows, panels,
                  {probabilities, octavo::kSlice, k.padded_dim, seen.end - seen.begin, k.padded_dim, true,
                   fetch ? next : nullptr, first_segment},
                  w, c);
        d += panels * kLanes;
    }
}

// Values in ascending t. Pairs that all see the task's whole part of some tiles share their values; others go one by one.
template <typename KV, typename Panel>
inline void add_to_pairs(const AttentionTask<KV, Panel>& k, const ValueTiles<Panel>& tiles, int64_t h, Positions here,
                         float* sums) {
    const RowTiles rows(k.num_queries);
    for (int64_t r = 0; r < rows.num; ++r) {
        const int64_t first = h * k.num_queries + rows.begin(r), after = h * k.num_queries + rows.begin(r + 1);
        // Positions ascend: the last pair's window begins last, the first pair's context ends first.
        if (k.visible(after - 1, here).begin <= here.begin && k.visible(first, here).end >= here.end) {
            add_tiles(k, tiles, r + 1 == rows.num, first, rows.rows(r), here, sums);
            continue;
        }
        for (int64_t pair = first; pair < after; ++pair) add_tiles(k, tiles, false, pair, 1, k.visible(pair, here), sums);
    }
}

template <typename KV, typename Panel>
inline bool add_values(const AttentionTask<KV, Panel>& k, float* sums) {
    std::memset(sums, 0, static_cast<size_t>(k.num_pairs() * k.padded_dim) * sizeof(float));
    const int64_t stride = k.tiles_at_once();
    for (int64_t tile = k.first_tile; tile < k.end_tile; tile += stride) {
        const int64_t end_tile = smaller(tile + stride, k.end_tile);
        const Positions here = {larger(tile * kLanes, k.slice.begin), smaller(end_tile * kLanes, k.slice.end)};
        for (int64_t h = 0; h < k.num_kv_heads; ++h) {
            ValueTiles<Panel> tiles{tile, {}, {}};
            if (!find_value_tiles(k, h, tile, static_cast<int>(end_tile - tile), tiles.values, tiles.next)) return false;
            add_to_pairs(k, tiles, h, here, sums);
        }
    }
    return true;
}

// The slice that the task stands at. False where the table lacks a block.
template <typename KV, typename Panel>
inline bool attend_slice(const AttentionTask<KV, Panel>& k, SliceSums to) {
    if constexpr (kScaled<KV>) {
        if (!gather_scales(k, k.args.batch.key_scales, k.key_scales)) return false;
        if (!gather_scales(k, k.args.batch.value_scales, k.value_scales)) return false;
    }
    if (!score_tiles(k)) return false;
    for (int64_t pair = 0; pair < k.num_pairs(); ++pair) {
        to.greatest[pair] = finish_scores(k, pair);
        to.totals[pair] = exponentiate(k, pair, to.greatest[pair]);
    }
    return add_values(k, to.sums);
}

}  // namespace
