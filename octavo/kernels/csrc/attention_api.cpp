// The part of the C interface that is attention: how it is cut into tasks.
#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "kernels.h"
#include "octavo_kernels.h"
#include "operation.h"
#include "program.h"

using namespace octavo;

namespace {

constexpr int64_t kTasksPerThread = 4;

// AttentionArgs and what they point into.
struct AttentionTasks {
    int64_t num_tasks;
    AttentionArgs args;
    std::vector<SlicedSequence> sequences;  // and one past the last
    std::vector<float> partials;
    std::vector<std::atomic<int32_t>> num_ended;
};

// Of each KV head: the scores of a slice fit the second-level cache, and threads do not go without.
int64_t queries_per_task(const OctavoBatch& batch, const OctavoAttentionShape& shape) {
    constexpr int64_t kMostQueries = 48;
    int64_t most_rows = 1;
    for (int64_t s = 0; s < batch.num_sequences; ++s)
        most_rows = std::max<int64_t>(most_rows, batch.query_starts[s + 1] - batch.query_starts[s]);
    const int64_t queries = most_rows * (shape.num_heads / shape.num_kv_heads);
    const int64_t heads = std::max<int64_t>(batch.num_sequences * shape.num_kv_heads, 1);
    return std::min(kMostQueries, divide_up(queries, divide_up(pool().num_threads(), heads)));
}

// A block's KV heads lie side by side, so all of them in turn read memory in longer pieces: where their scores fit as well
// and slices alone give every thread several tasks.
int64_t kv_heads_per_task(const OctavoAttentionShape& shape, int64_t queries, int64_t num_slices) {
    constexpr int64_t kMostPairs = 128;
    const bool fit = shape.num_kv_heads * queries <= kMostPairs;
    return fit && (pool().num_threads() == 1 || num_slices >= kTasksPerThread * pool().num_threads()) ? shape.num_kv_heads : 1;
}

// Slices from the first that the first row sees to that of the last row.
void set_slices(SlicedSequence& sequence, int64_t first_position, int64_t last_position, int64_t window) {
    const int64_t first_key = window == 0 ? 0 : std::max<int64_t>(first_position - window + 1, 0);
    sequence.first_slice = first_key / kSlice;
    sequence.num_slices = last_position / kSlice + 1 - sequence.first_slice;
}

AttentionTasks attention_tasks(const float* q, const OctavoBatch& batch, const OctavoAttentionShape& shape, float* out,
                               std::atomic<bool>& bad_index) {
    std::vector<SlicedSequence> sequences(static_cast<size_t>(batch.num_sequences) + 1);
    int64_t num_slices = 0;
    for (int64_t s = 0; s < batch.num_sequences; ++s) {
        const int64_t begin = batch.query_starts[s], end = batch.query_starts[s + 1];
        if (begin == end) continue;
        set_slices(sequences[s], batch.positions[begin], batch.positions[end - 1], shape.window);
        num_slices += sequences[s].num_slices;
    }
    const int64_t queries = queries_per_task(batch, shape), kv_heads = kv_heads_per_task(shape, queries, num_slices);
    int64_t all_slices = 0;
    for (int64_t s = 0; s < batch.num_sequences; ++s) {
        const int64_t num_rows = batch.query_starts[s + 1] - batch.query_starts[s];
        const int64_t lists = divide_up(shape.num_kv_heads, kv_heads) *
                              divide_up(num_rows * (shape.num_heads / shape.num_kv_heads), queries);
        sequences[s + 1].first_list = sequences[s].first_list + lists;
        all_slices += lists * sequences[s].num_slices;
    }
    // A list that is much longer than a thread's share is cut, so that no thread waits long for the last one.
    const int64_t threads = pool().num_threads();
    const int64_t most_slices = threads == 1 ? all_slices : divide_up(all_slices, kTasksPerThread * threads);
    const int64_t sums_size = kv_heads * queries * (divide_up(shape.head_dim, kLanes) * kLanes + 2);
    int64_t num_partials = 0;
    for (int64_t s = 0; s < batch.num_sequences; ++s) {
        SlicedSequence& sequence = sequences[s];
        const int64_t lists = sequences[s + 1].first_list - sequence.first_list;
        const int64_t tasks = divide_up(sequence.num_slices, std::max<int64_t>(most_slices, 1));
        sequence.slices_per_task = divide_up(sequence.num_slices, std::max<int64_t>(tasks, 1));
        sequence.tasks_per_list = divide_up(sequence.num_slices, std::max<int64_t>(sequence.slices_per_task, 1));
        sequence.first_partial = num_partials;
        if (sequence.tasks_per_list > 1) num_partials += lists * sequence.num_slices * sums_size;
        sequences[s + 1].first_task = sequence.first_task + lists * sequence.tasks_per_list;
    }
    const int64_t num_tasks = sequences.back().first_task;
    std::vector<float> partials(static_cast<size_t>(num_partials));
    std::vector<std::atomic<int32_t>> num_ended(static_cast<size_t>(num_partials == 0 ? 0 : sequences.back().first_list));
    const AttentionArgs args{q,        batch, shape, out, queries, kv_heads, sequences.data(), partials.data(),
                             num_ended.data(), &bad_index};
    return {num_tasks, args, std::move(sequences), std::move(partials), std::move(num_ended)};
}

}  // namespace

int32_t octavo_attention(const float* q, const OctavoBatch* batch, const OctavoAttentionShape* given_shape, float* out) {
    const OctavoAttentionShape shape = *given_shape;
    return perform<&Kernels::attention>(batch->num_rows, [=](int64_t, std::atomic<bool>& bad_index) {
        return attention_tasks(q, *batch, shape, out, bad_index);
    });
}
