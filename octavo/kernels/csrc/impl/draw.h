// Which tokens of a row may be drawn, and one of them: temperature, top_k, top_p, min_p, then one draw. What is computed is
// said in octavo/runner/drawing.py; how, here: no vocabulary is sorted. Tokens are counted into bins by their distance
// from the best, bins are taken from the best one down, and only the one that reaches what is asked for is sorted.
#pragma once

namespace {

constexpr int64_t kBinsPerUnit = 64;
constexpr int64_t kNumBins = static_cast<int64_t>(-kLowest) * kBinsPerUnit;

// Numbers of a row, in memory of the calling thread; blocks are of kSumBlock tokens.
struct DrawRow {
    const float* logits;
    int64_t count;
    float best, scale;
    float* weights;     // relative to the best token's
    int64_t* units;     // of each block, the sum of its weights
    float* greatest;    // of each block, the logit
    int32_t* candidates;  // [count]
    uint64_t* keys;       // [count]

    int64_t num_blocks() const { return divide_up(count, kSumBlock); }
    int64_t total_units() const {
        int64_t total = 0;
        for (int64_t block = 0; block < num_blocks(); ++block) total += units[block];
        return total;
    }
};

inline int64_t draw_row_floats(int64_t count) {
    const int64_t num_blocks = divide_up(count, kSumBlock);
    return num_blocks * (kSumBlock * 4 + 3 + kLanes) + 4 * kLanes;
}

inline DrawRow make_draw_row(const float* logits, int64_t count, float best, float scale, float* memory) {
    const int64_t num_blocks = divide_up(count, kSumBlock), padded = num_blocks * kSumBlock;
    uint64_t* keys = reinterpret_cast<uint64_t*>(memory);
    int64_t* units = reinterpret_cast<int64_t*>(memory + 2 * padded);
    float* weights = memory + 2 * padded + divide_up(2 * num_blocks, kLanes) * kLanes;
    float* greatest = weights + padded;
    int32_t* candidates = reinterpret_cast<int32_t*>(greatest + num_blocks);
    return {logits, count, best, scale, weights, units, greatest, candidates, keys};
}

inline void weigh(const DrawRow& row) {
    const F16 best = set1(row.best), scale = set1(row.scale);
    for (int64_t block = 0; block < row.num_blocks(); ++block) {
        ExactSum sum;
        F16 greatest = set1(-__builtin_inff());
        const int64_t end = smaller((block + 1) * kSumBlock, row.count);
        for (int64_t i = block * kSumBlock; i < end; i += kLanes) {
            const F16 logits = load_logits(row.logits + i, end - i);
            const F16 weights = relative_weights(logits, best, scale);
            greatest = max(logits, greatest);
            store(row.weights + i, weights);
            sum.count(weights);
        }
        row.units[block] = sum.units();
        row.greatest[block] = max_lanes(greatest);
    }
}

// Only tokens no further from the best than `furthest` and of no less weight than `least` keep theirs.
inline void drop(const DrawRow& row, float furthest, float least) {
    const F16 best = set1(row.best), scale = set1(row.scale);
    for (int64_t block = 0; block < row.num_blocks(); ++block) {
        if (row.units[block] == 0) continue;
        ExactSum sum;
        const int64_t end = smaller((block + 1) * kSumBlock, row.count);
        for (int64_t i = block * kSumBlock; i < end; i += kLanes) {
            const F16 x = mul(sub(load_logits(row.logits + i, end - i), best), scale);
            F16 weights = select(less(x, set1(furthest)), set1(0.0f), load(row.weights + i));
            weights = select(less(weights, set1(least)), set1(0.0f), weights);
            store(row.weights + i, weights);
            sum.count(weights);
        }
        row.units[block] = sum.units();
    }
}

// Ascending keys are descending logits, equal ones by id.
inline uint64_t rank_key(float logit, int64_t id) {
    const float plain = logit + 0.0f;  // makes -0.0 equal to 0.0
    uint32_t bits;
    std::memcpy(&bits, &plain, sizeof bits);
    const uint32_t falling = (bits & 0x80000000u) != 0 ? bits : bits ^ 0x7fffffffu;
    return static_cast<uint64_t>(falling) << 32 | static_cast<uint64_t>(id);
}

// The ids of tokens no further from the best than `furthest`, nor than kLowest, into row.candidates; how many.
inline int64_t collect_candidates(const DrawRow& row, float furthest) {
    const F16 best = set1(row.best), scale = set1(row.scale);
    int64_t size = 0;
    for (int64_t block = 0; block < row.num_blocks(); ++block) {
        if (distance(row.greatest[block], row.best, row.scale) < furthest) continue;
        const int64_t end = smaller((block + 1) * kSumBlock, row.count);
        for (int64_t i = block * kSumBlock; i < end; i += kLanes) {
            const F16 x = mul(sub(load_logits(row.logits + i, end - i), best), scale);
            if (!any(less(set1(kLowest), x)) || !any(less_equal(set1(furthest), x))) continue;
            for (int64_t id = i; id < smaller(i + kLanes, end); ++id) {
                row.candidates[size] = static_cast<int32_t>(id);
                const float here = distance(row.logits[id], row.best, row.scale);
                size += (here >= furthest) & (here > kLowest);  // without a branch: it would be a coin's toss
            }
        }
    }
    return size;
}

// Keep the fewest best tokens that together measure at least `need`; all of those that have a weight, where they do not.
// Tokens further from the best than `furthest` (at most 0) are known not to be needed.
template <typename Measure>
inline void keep_best(const DrawRow& row, int64_t need, float furthest, Measure measure) {
    const auto x_of = [&](int64_t id) { return distance(row.logits[id], row.best, row.scale); };
    const auto bin_of = [&](int64_t id) { return static_cast<int64_t>(x_of(id) * -static_cast<float>(kBinsPerUnit)); };
    int64_t sums[kNumBins] = {};
    const int64_t num_candidates = collect_candidates(row, furthest);
    for (int64_t i = 0; i < num_candidates; ++i) sums[bin_of(row.candidates[i])] += measure(row.candidates[i]);
    int64_t bin = 0;
    for (; bin < kNumBins && sums[bin] < need; ++bin) need -= sums[bin];
    if (bin == kNumBins) return;
    int64_t num_keys = 0;
    for (int64_t i = 0; i < num_candidates; ++i) {
        const int64_t id = row.candidates[i];
        if (bin_of(id) == bin) row.keys[num_keys++] = rank_key(row.logits[id], id);
    }
    octavo::sort_ascending(row.keys, num_keys);
    const auto id_at = [&](int64_t place) { return static_cast<int64_t>(row.keys[place] & 0xffffffffu); };
    int64_t last = 0;
    for (; (need -= measure(id_at(last))) > 0; ++last) {}
    for (int64_t place = last + 1; place < num_keys; ++place) row.weights[id_at(place)] = 0.0f;
    drop(row, x_of(id_at(last)), 0.0f);
}

inline void keep_top_k(const DrawRow& row, int64_t top_k) {
    // The k best blocks hold at least k tokens as good as the worst of these blocks' best.
    float furthest = kLowest;
    if (top_k <= row.num_blocks()) {
        for (int64_t block = 0; block < row.num_blocks(); ++block) row.keys[block] = rank_key(row.greatest[block], block);
        octavo::sort_ascending(row.keys, row.num_blocks());
        furthest = distance(row.greatest[row.keys[top_k - 1] & 0xffffffffu], row.best, row.scale);
    }
    keep_best(row, top_k, furthest, [](int64_t) { return int64_t{1}; });
}

// The sum of the weights of tokens no further from the best than `furthest`.
inline int64_t units_within(const DrawRow& row, float furthest) {
    const F16 best = set1(row.best), scale = set1(row.scale);
    int64_t units = 0;
    for (int64_t block = 0; block < row.num_blocks(); ++block) {
        if (distance(row.greatest[block], row.best, row.scale) < furthest) continue;
        ExactSum sum;
        const int64_t end = smaller((block + 1) * kSumBlock, row.count);
        for (int64_t i = block * kSumBlock; i < end; i += kLanes) {
            const F16 x = mul(sub(load_logits(row.logits + i, end - i), best), scale);
            sum.count(select(less(x, set1(furthest)), set1(0.0f), load(row.weights + i)));
        }
        units += sum.units();
    }
    return units;
}

inline void keep_top_p(const DrawRow& row, double top_p) {
    const int64_t need = larger(1, static_cast<int64_t>(__builtin_ceil(top_p * static_cast<double>(row.total_units()))));
    float furthest = -1.0f;
    while (furthest > kLowest && units_within(row, furthest) < need) furthest *= 2.0f;
    keep_best(row, need, furthest, [&](int64_t id) { return in_units(row.weights[id]); });
}

// The token at `uniform` of the total weight, tokens laid end to end in the order of their ids.
inline int64_t draw_token(const DrawRow& row, double uniform) {
    const uint64_t number = static_cast<uint64_t>(uniform * 0x1p53);
    int64_t left = static_cast<int64_t>(static_cast<unsigned __int128>(number) * static_cast<uint64_t>(row.total_units()) >> 53);
    int64_t block = 0;
    for (; row.units[block] <= left; ++block) left -= row.units[block];
    int64_t id = block * kSumBlock;
    for (int64_t units; (units = in_units(row.weights[id])) <= left; ++id) left -= units;
    return id;
}

}  // namespace
