#include <cmath>

#include "drive.h"

namespace drive {
namespace {

// What requests point to: ids below the count, each once, and bits of all ids of the width.
struct Changes {
    Memory<uint32_t> bits;
    Memory<int64_t> ids;
    Memory<float> biases;
    Memory<int64_t> counts;

    Changes(int64_t count, int64_t width)
        : bits(divide_up(width, 32)), ids(divide_up(count, 3)), biases(ids.count()), counts(ids.count()) {
        Random random(3);
        for (int64_t i = 0; i < bits.count(); ++i) bits[i] = i % 3 == 0 ? ~0u : static_cast<uint32_t>(random.below(1 << 30));
        for (int64_t i = 0; i < ids.count(); ++i) {
            ids[i] = 3 * i;
            biases[i] = random.unit();
            counts[i] = random.below(4);
        }
    }
};

OctavoSampleRequest request_of(Random& random, Changes& changes, int64_t width) {
    OctavoSampleRequest request{};
    request.uniform = static_cast<double>(random.below(1 << 20)) / (1 << 20);
    request.scale = static_cast<float>(random.below(4)) * 3.0f;
    request.top_k = random.below(3) == 0 ? random.below(width + 2) : 0;
    request.top_p = random.below(2) == 0 ? 0.01 + 0.9 * static_cast<double>(random.below(100)) / 100.0 : 1.0;
    request.min_p = random.below(3) == 0 ? 0.1f : 0.0f;
    request.repetition = random.below(2) == 0 ? 1.3 : 1.0;
    request.frequency = 0.5;
    request.presence = -0.25;
    request.wants_logprobs = random.below(2);
    const int64_t count = changes.ids.count();
    if (random.below(4) == 0) request.allowed = changes.ids.data(), request.num_allowed = count;
    if (random.below(3) == 0) request.bits = changes.bits.data();
    if (random.below(4) == 0) request.masked = changes.ids.data(), request.num_masked = count / 2;
    if (random.below(4) == 0) {
        request.bias_ids = changes.ids.data(), request.biases = changes.biases.data();
        request.num_biases = count;
    }
    if (random.below(2) == 0) {
        request.seen_ids = changes.ids.data(), request.seen_counts = changes.counts.data();
        request.num_seen = count;
    }
    return request;
}

// Rows that are peaked, flat, tied, masked and broken.
Memory<float> logits_of(int64_t rows, int64_t width) {
    Memory<float> logits = random_floats(rows * width, 6);
    for (int64_t i = 0; i < logits.count(); ++i) {
        const int64_t kind = i / width % 5;
        if (kind == 1) logits[i] *= 20.0f;
        if (kind == 2) logits[i] = std::round(4.0f * logits[i]);
        if (kind == 3 && i % 3 != 0) logits[i] = -INFINITY;
    }
    if (rows > 4) logits[4 * width] = std::nanf("");
    return logits;
}

void sample(Digest& digest, int64_t rows, int64_t width, int64_t count) {
    const Memory<float> logits = logits_of(rows, width);
    const int64_t num_top = count < 5 ? count : 5;
    Memory<int64_t> best(rows), top_ids(rows * num_top);
    Memory<float> top_logits(rows * num_top);
    Memory<OctavoSample> samples(rows, OctavoSample{});
    octavo_argmax(logits.data(), best.data(), rows, width, count);
    Changes changes(count, width);
    Memory<OctavoSampleRequest> requests(rows);
    Random random(static_cast<uint64_t>(width));
    for (int64_t r = 0; r < rows; ++r) requests[r] = request_of(random, changes, width);
    octavo_sample(logits.data(), best.data(), requests.data(), samples.data(), top_ids.data(), top_logits.data(), rows,
                  width, count, num_top);
    for (int64_t r = 0; r < rows; ++r)
        require(samples[r].token_id >= 0 && samples[r].token_id < count, "a token that may be drawn");
    digest.add(samples);
    octavo_logprobs(logits.data(), samples.data(), top_ids.data(), top_logits.data(), rows, width, count, num_top);
    digest.add(samples);
    digest.add(top_ids);
    digest.add(top_logits);
}

}  // namespace

uint64_t sampling() {
    Digest digest;
    for (int64_t rows : {1, 7, 40})
        for (int64_t width : {1, 15, 16, 255, 256, 257, 1500}) {
            sample(digest, rows, width, width);
            sample(digest, rows, width, divide_up(width, 2));
        }
    return digest.value();
}

}  // namespace drive
