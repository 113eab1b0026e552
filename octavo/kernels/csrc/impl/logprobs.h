// What raw logits say of one token: the sum that they are normalized by, the token's rank, and the best tokens.
#pragma once

namespace {

inline int64_t sum_of_relative_weights(const float* logits, int64_t width, float best) {
    int64_t units = 0;
    for (int64_t begin = 0; begin < width; begin += kSumBlock) {
        ExactSum sum;
        const int64_t end = smaller(begin + kSumBlock, width);
        for (int64_t i = begin; i < end; i += kLanes)
            sum.count(relative_weights(load_logits(logits + i, end - i), set1(best), set1(1.0f)));
        units += sum.units();
    }
    return units;
}

// 1 + the number of logits that come before that of `token_id`: greater ones, and equal ones of a lower id.
inline int64_t rank_of(const float* logits, int64_t count, int64_t token_id) {
    const float logit = logits[token_id];
    int32_t rank = 1;  // 32 bits, as the logits: so they are compared and counted in vectors
    for (int64_t i = 0; i < smaller(token_id, count); ++i) rank += logits[i] >= logit;
    for (int64_t i = token_id + 1; i < count; ++i) rank += logits[i] > logit;
    return rank;
}

// The `num_top` best of at least as many logits, best first, equal ones by id.
inline void top_of(const float* logits, int64_t count, int64_t num_top, int64_t* ids, float* values) {
    int64_t size = 0;
    for (int64_t begin = 0; num_top > 0 && begin < count; begin += kLanes) {
        const F16 lanes = load_logits(logits + begin, count - begin);
        if (size == num_top && !any(less(set1(values[num_top - 1]), lanes))) continue;
        for (int64_t i = begin; i < smaller(begin + kLanes, count); ++i) {
            const float logit = logits[i];
            if (size == num_top && !(logit > values[num_top - 1])) continue;
            int64_t place = size < num_top ? size++ : num_top - 1;
            for (; place > 0 && logit > values[place - 1]; --place) {
                ids[place] = ids[place - 1];
                values[place] = values[place - 1];
            }
            ids[place] = i;
            values[place] = logit;
        }
    }
}

inline void logprobs(const LogprobArgs& a, int64_t row) {
    const float* logits = a.logits + row * a.width;
    OctavoSample& sample = a.samples[row];
    sample.raw_best = logits[argmax_of_row(logits, a.width)];
    if (!__builtin_isfinite(sample.raw_best)) return;
    sample.units = sum_of_relative_weights(logits, a.width, sample.raw_best);
    sample.raw_logit = logits[sample.token_id];
    sample.rank = rank_of(logits, a.count, sample.token_id);
    top_of(logits, a.count, a.num_top, a.top_ids + row * a.num_top, a.top_logits + row * a.num_top);
}

}  // namespace
