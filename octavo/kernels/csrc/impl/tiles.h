// Where the keys and values of one task of attention lie: by tiles of 16 logical positions (0-15, 16-31, ...), whatever
// the block size. Blocks that do not hold whole tiles are gathered first.
//
// KV is the type that the memory holds: float, Half, or int8_t with scales. Panel is the type that micro() reads: KV, or
// float where shorter numbers are better converted once a slice than once a call. Both give the same bits.
#pragma once

namespace {

// Tiles of one KV head's keys or values that are read at once.
constexpr int kMostTilesAtOnce = 4;
constexpr int64_t kSliceTiles = octavo::kSlice / kLanes;

inline bool holds_whole_tiles(const OctavoAttentionShape& s) { return s.block_size % kLanes == 0; }

struct Positions {
    int64_t begin, end;
};

// Tiles that micro() reads where they lie: those of a slice, side by side, for the first KV head of a task.
template <typename Panel>
struct Places {
    const Panel* keys[kSliceTiles];
    const Panel* values[kSliceTiles];
    int64_t scales[kSliceTiles];  // of keys and of values, counted in slots of memory
    int64_t count = 0;
};

// Some KV heads of one sequence and for each of them up to queries_per_task (row, head) pairs, so that keys and values that
// are in the cache serve several rows and heads; and the slice of positions that is being worked on.
template <typename KV, typename Panel>
struct AttentionTask {
    const AttentionArgs& args;
    int64_t sequence;
    int64_t first_kv_head, num_kv_heads;
    int64_t first_query;  // of each KV head's pairs first_query .. first_query + num_queries - 1
    int64_t num_queries;
    int64_t padded_dim;
    // Scratch: scores [num_pairs, kSlice], later probabilities; queries [num_pairs, D]; key_scales and value_scales
    // [num_kv_heads, kSlice] where there are scales; gathered tiles of one KV head [kMostTilesAtOnce][16 * padded_dim].
    float *scores, *queries, *key_scales, *value_scales;
    Panel* gathered;
    Positions slice;                    // that at least one of the pairs sees
    int64_t first_tile, end_tile;       // of the slice
    Places<Panel> places, next_places;  // of the slice and of the one after it, where they are read in place

    // Pairs are numbered KV head first.
    int64_t num_pairs() const { return num_kv_heads * num_queries; }
    int64_t group() const { return args.shape.num_heads / args.shape.num_kv_heads; }
    int64_t row(int64_t pair) const {
        return args.batch.query_starts[sequence] + (first_query + pair % num_queries) / group();
    }
    int64_t head(int64_t pair) const {
        return (first_kv_head + pair / num_queries) * group() + (first_query + pair % num_queries) % group();
    }
    int64_t position(int64_t pair) const { return args.batch.positions[row(pair)]; }
    // What the pair sees of `among`; empty where it begins at its end or after.
    Positions visible(int64_t pair, Positions among) const {
        const int64_t at = position(pair), window = args.shape.window;
        return {larger(among.begin, window == 0 ? 0 : at - window + 1), smaller(among.end, at + 1)};
    }
    Positions visible(int64_t pair) const { return visible(pair, slice); }
    // What the pairs see of slice `index`. Positions ascend: the first pair's window begins first, the last one's context
    // ends last.
    Positions visible_slice(int64_t index) const {
        const Positions all = {index * octavo::kSlice, (index + 1) * octavo::kSlice};
        return {visible(0, all).begin, visible(num_queries - 1, all).end};
    }

    // Where the block of logical position `t` holds the task's KV head number `h`, counted in (block, KV head)s of memory;
    // or -1 if the table has no such block.
    int64_t find_block(int64_t t, int64_t h) const {
        const OctavoAttentionShape& s = args.shape;
        const int64_t index = t / s.block_size, width = args.batch.table_width;
        int64_t block = -1;
        if (index < width)
            block = args.batch.block_tables == nullptr ? sequence * width + index
                                                       : args.batch.block_tables[sequence * args.batch.table_pitch + index];
        if (block >= 0 && block < s.num_blocks) return block * s.num_kv_heads + first_kv_head + h;
        args.bad_index->store(true, std::memory_order_relaxed);
        return -1;
    }
    int64_t block_elements() const { return args.shape.head_dim * args.shape.block_size; }
    const KV* key_block(int64_t block) const { return static_cast<const KV*>(args.batch.keys) + block * block_elements(); }
    const KV* value_block(int64_t block) const {
        return static_cast<const KV*>(args.batch.values) + block * block_elements();
    }
    // Whether micro() reads them where they lie.
    bool keys_are_in_place() const { return kSame<KV, Panel> && holds_whole_tiles(args.shape); }
    bool values_are_in_place() const { return keys_are_in_place() && padded_dim == args.shape.head_dim; }
    // Tiles that are read at once, the fewer the larger they are; and how many tiles before it is read one is fetched: what
    // a memory far away takes to answer.
    int64_t tiles_at_once() const { return larger(1, smaller(kMostTilesAtOnce, 256 / padded_dim)); }
    int64_t tiles_ahead() const { return larger(1, 512 / padded_dim); }
    // Keys of a tile are [D][16] with this pitch between dimensions.
    int64_t key_pitch() const { return keys_are_in_place() ? args.shape.block_size : kLanes; }
};

template <typename Panel, typename KV>
inline Panel to_panel(KV held) {
    if constexpr (kSame<KV, Panel>) return held;
    else if constexpr (kSame<KV, Half>) return to_float(held);
    else return static_cast<Panel>(held);
}

// Where the tiles of `slice` lie.
template <typename KV, typename Panel>
inline bool find_places(const AttentionTask<KV, Panel>& k, Positions slice, Places<Panel>& places) {
    places.count = 0;
    if constexpr (kSame<KV, Panel>) {
        if (!k.keys_are_in_place() || slice.begin >= slice.end) return true;
        const OctavoAttentionShape& s = k.args.shape;
        for (int64_t t = slice.begin / kLanes * kLanes; t < slice.end; t += kLanes) {
            const int64_t block = k.find_block(larger(t, slice.begin), 0), offset = t % s.block_size;
            if (block < 0) return false;
            places.keys[places.count] = k.key_block(block) + offset;
            places.values[places.count] = k.value_block(block) + offset * s.head_dim;
            places.scales[places.count++] = block * s.block_size + offset;
        }
    }
    return true;
}

// Fetch the scales of tile `index` of the next slice, the task's KV head `h`.
template <typename KV, typename Panel>
inline void fetch_scales(const AttentionTask<KV, Panel>& k, int64_t h, int64_t index) {
    if (!kScaled<KV> || index >= k.next_places.count) return;
    const int64_t slot = k.next_places.scales[index] + h * k.args.shape.block_size;
    __builtin_prefetch(k.args.batch.key_scales + slot, 0, 2);
    __builtin_prefetch(k.args.batch.value_scales + slot, 0, 2);
}

// What will be read `ahead` tiles after place `index` of the slice's keys, its values and the next slice's keys, one after
// the other; at the end, that place itself.
template <typename Panel>
inline const Panel* place_ahead(const Places<Panel>& now, const Places<Panel>& next, int64_t index, int64_t ahead) {
    const int64_t i = index + ahead < 2 * now.count + next.count ? index + ahead : index;
    if (i < now.count) return now.keys[i];
    return i < 2 * now.count ? now.values[i - now.count] : next.keys[i - 2 * now.count];
}

template <typename KV, typename Panel>
inline bool gather_key_tile(const AttentionTask<KV, Panel>& k, int64_t h, int64_t tile, Panel* gathered) {
    const OctavoAttentionShape& s = k.args.shape;
    const int64_t begin = larger(tile * kLanes, k.slice.begin), end = smaller((tile + 1) * kLanes, k.slice.end);
    if constexpr (!kSame<KV, Panel>) {
        if (holds_whole_tiles(s)) {
            const int64_t block = k.find_block(begin, h);
            if (block < 0) return false;
            const KV* keys = k.key_block(block) + tile * kLanes % s.block_size;
            for (int64_t d = 0; d < s.head_dim; ++d) store(gathered + d * kLanes, load(keys + d * s.block_size));
            return true;
        }
    }
    std::memset(gathered, 0, static_cast<size_t>(kLanes * s.head_dim) * sizeof(Panel));
    for (int64_t t = begin; t < end; ++t) {
        const int64_t block = k.find_block(t, h);
        if (block < 0) return false;
        const KV* key = k.key_block(block) + t % s.block_size;
        for (int64_t d = 0; d < s.head_dim; ++d) gathered[d * kLanes + t % kLanes] = to_panel<Panel>(key[d * s.block_size]);
    }
    return true;
}

// Values of a tile, [16][D] with pitch padded_dim; only positions of the slice may be read.
template <typename KV, typename Panel>
inline bool gather_value_tile(const AttentionTask<KV, Panel>& k, int64_t h, int64_t tile, Panel* gathered) {
    const OctavoAttentionShape& s = k.args.shape;
    const int64_t begin = larger(tile * kLanes, k.slice.begin), end = smaller((tile + 1) * kLanes, k.slice.end);
    std::memset(gathered, 0, static_cast<size_t>(kLanes * k.padded_dim) * sizeof(Panel));
    for (int64_t t = begin; t < end; ++t) {
        const int64_t block = k.find_block(t, h);
        if (block < 0) return false;
        const KV* value = k.value_block(block) + t % s.block_size * s.head_dim;
        Panel* to = gathered + t % kLanes * k.padded_dim;
        if constexpr (kSame<KV, Panel>) {
            std::memcpy(to, value, static_cast<size_t>(s.head_dim) * sizeof(KV));
        } else {
            for (int64_t d = 0; d < s.head_dim; d += kLanes) store(to + d, load_first(value + d, s.head_dim - d));
        }
    }
    return true;
}

// `count` tiles of the keys of the task's KV head `h`, from `first_tile` on, in `tiles`; in `next` what to fetch meanwhile.
template <typename KV, typename Panel>
inline bool find_key_tiles(const AttentionTask<KV, Panel>& k, int64_t h, int64_t first_tile, int count, const Panel** tiles,
                           const Panel** next) {
    for (int i = 0; i < count; ++i) {
        const int64_t index = first_tile + i - k.first_tile;
        if (k.keys_are_in_place()) {
            fetch_scales(k, h, index);
            tiles[i] = k.places.keys[index] + h * k.block_elements();
            next[i] = place_ahead(k.places, k.next_places, index, k.tiles_ahead()) + h * k.block_elements();
            continue;
        }
        Panel* gathered = k.gathered + i * kLanes * k.padded_dim;
        if (!gather_key_tile(k, h, first_tile + i, gathered)) return false;
        tiles[i] = next[i] = gathered;
    }
    return true;
}

// Likewise tiles of values.
template <typename KV, typename Panel>
inline bool find_value_tiles(const AttentionTask<KV, Panel>& k, int64_t h, int64_t first_tile, int count, const Panel** tiles,
                             const Panel** next) {
    for (int i = 0; i < count; ++i) {
        const int64_t index = first_tile + i - k.first_tile;
        if (k.values_are_in_place()) {
            tiles[i] = k.places.values[index] + h * k.block_elements();
            next[i] = place_ahead(k.places, k.next_places, k.places.count + index, k.tiles_ahead()) + h * k.block_elements();
            continue;
        }
        Panel* gathered = k.gathered + i * kLanes * k.padded_dim;
        if (!gather_value_tile(k, h, first_tile + i, gathered)) return false;
        tiles[i] = next[i] = gathered;
    }
    return true;
}

// The scales of the slice's tiles, each KV head's side by side: position t at to[h * kSlice + t - 16 * first_tile]; zeros
// where no pair sees.
template <typename KV, typename Panel>
inline bool gather_scales(const AttentionTask<KV, Panel>& k, const float* memory, float* to) {
    const int64_t block_size = k.args.shape.block_size;
    std::memset(to, 0, static_cast<size_t>(k.num_kv_heads * octavo::kSlice) * sizeof(float));
    for (int64_t t = k.slice.begin; t < k.slice.end;) {
        const int64_t block = k.find_block(t, 0);
        if (block < 0) return false;
        const int64_t count = smaller(block_size - t % block_size, k.slice.end - t);
        for (int64_t h = 0; h < k.num_kv_heads; ++h)
            std::memcpy(to + h * octavo::kSlice + t - k.first_tile * kLanes,
                        memory + (block + h) * block_size + t % block_size, static_cast<size_t>(count) * sizeof(float));
        t += count;
    }
    return true;
}

}  // namespace
