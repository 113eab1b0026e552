// The part of the C interface that turns logits into tokens: a task is a row.
#include <algorithm>
#include <atomic>

#include "kernels.h"
#include "octavo_kernels.h"
#include "program.h"

using namespace octavo;

namespace octavo {

void sort_ascending(uint64_t* keys, int64_t count) { std::sort(keys, keys + count); }

}  // namespace octavo

void octavo_sample(const float* logits, const int64_t* best_ids, const OctavoSampleRequest* requests,
                   OctavoSample* samples, int64_t* top_ids, float* top_logits, int64_t num_rows, int64_t width,
                   int64_t count, int64_t num_top) {
    perform<&Kernels::sample>(num_rows, [=](int64_t num_rows, std::atomic<bool>&) -> Tasks<SampleArgs> {
        const LogprobArgs logprobs{logits, samples, top_ids, top_logits, num_rows, width, count, num_top};
        return {num_rows, {logprobs, best_ids, requests}};
    });
}

void octavo_logprobs(const float* logits, OctavoSample* samples, int64_t* top_ids, float* top_logits, int64_t num_rows,
                     int64_t width, int64_t count, int64_t num_top) {
    perform<&Kernels::logprobs>(num_rows, [=](int64_t num_rows, std::atomic<bool>&) -> Tasks<LogprobArgs> {
        return {num_rows, {logits, samples, top_ids, top_logits, num_rows, width, count, num_top}};
    });
}
