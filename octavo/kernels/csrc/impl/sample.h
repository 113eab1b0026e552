// One token for a row, by what its request asks for.
#pragma once

namespace {

inline bool has_bit(const uint32_t* bits, int64_t id) { return (bits[id >> 5] >> (id & 31) & 1) != 0; }

inline bool changes_logits(const OctavoSampleRequest& request, int64_t best_id) {
    if (request.allowed != nullptr || request.num_masked != 0 || request.num_biases != 0 || request.num_seen != 0) {
        return true;
    }
    // Where the best of all tokens is allowed, it is the best of those that are.
    return request.bits != nullptr && (request.scale != 0.0f || !has_bit(request.bits, best_id));
}

// changed [width]: -inf where the bit is 0.
inline void mask_by_bits(const uint32_t* bits, int64_t width, float* changed) {
    const float masked = -__builtin_inff();
    int64_t first = 0;
    for (; first + 32 <= width; first += 32) {
        const uint32_t word = bits[first >> 5];
        if (word == ~uint32_t{0}) continue;
        for (int64_t i = 0; i < 32; ++i) changed[first + i] = (word >> i & 1) != 0 ? changed[first + i] : masked;
    }
    for (; first < width; ++first) {
        if (!has_bit(bits, first)) changed[first] = masked;
    }
}

// The three penalties, in double precision. What one lifts beyond any number is bounded.
inline float penalized(float logit, int64_t seen_count, const OctavoSampleRequest& request) {
    constexpr double kLargest = 0x1.fffffep127;
    double value = logit;
    if (request.repetition != 1.0) value = value > 0.0 ? value / request.repetition : value * request.repetition;
    value -= request.frequency * static_cast<double>(seen_count) + request.presence * (seen_count > 0 ? 1.0 : 0.0);
    return static_cast<float>(value > kLargest ? kLargest : value);
}

// changed [width] = logits with masks, biases and penalties.
inline void change_logits(const float* logits, int64_t width, const OctavoSampleRequest& request, float* changed) {
    const float masked = -__builtin_inff();
    if (request.allowed == nullptr) {
        std::memcpy(changed, logits, static_cast<size_t>(width) * sizeof(float));
    } else {
        for (int64_t i = 0; i < width; ++i) changed[i] = masked;
        for (int64_t i = 0; i < request.num_allowed; ++i) changed[request.allowed[i]] = logits[request.allowed[i]];
    }
    if (request.bits != nullptr) mask_by_bits(request.bits, width, changed);
    for (int64_t i = 0; i < request.num_masked; ++i) changed[request.masked[i]] = masked;
    for (int64_t i = 0; i < request.num_biases; ++i) changed[request.bias_ids[i]] += request.biases[i];
    for (int64_t i = 0; i < request.num_seen; ++i) {
        float& logit = changed[request.seen_ids[i]];
        logit = penalized(logit, request.seen_counts[i], request);
    }
}

inline int64_t draw(const float* logits, int64_t count, float best, const OctavoSampleRequest& request, float* memory) {
    const DrawRow row = make_draw_row(logits, count, best, request.scale, memory);
    weigh(row);
    if (request.top_k > 0 && request.top_k < count) keep_top_k(row, request.top_k);
    if (request.top_p < 1.0) keep_top_p(row, request.top_p);
    if (request.min_p > 0.0f) drop(row, kLowest, request.min_p);
    return draw_token(row, request.uniform);
}

inline void sample(const SampleArgs& a, int64_t row) {
    const OctavoSampleRequest& request = a.requests[row];
    OctavoSample& sample = a.logprobs.samples[row];
    const int64_t width = a.logprobs.width, count = a.logprobs.count;
    const float* logits = a.logprobs.logits + row * width;
    float* memory = octavo::scratch(divide_up(width, kLanes) * kLanes + draw_row_floats(count));
    int64_t best_id = a.best_ids[row];
    if (changes_logits(request, best_id)) {
        change_logits(logits, width, request, memory);
        logits = memory;
        memory += divide_up(width, kLanes) * kLanes;
        best_id = argmax_of_row(logits, count);
    }
    sample.best = logits[best_id];
    sample.token_id = 0;
    if (!__builtin_isfinite(sample.best)) return;
    sample.token_id = request.scale == 0.0f ? best_id : draw(logits, count, sample.best, request, memory);
    if (request.wants_logprobs != 0) logprobs(a.logprobs, row);
}

}  // namespace
