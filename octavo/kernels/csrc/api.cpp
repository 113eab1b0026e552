// The C interface: choose an instruction set, cut each call into tasks, hand them to the pool.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels.h"
#include "octavo_kernels.h"
#include "thread_pool.h"
#include <pthread.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace octavo {
namespace {

struct Isa {
    const Kernels* kernels;
    bool (*supported)();
};

#if defined(__x86_64__)
bool has_avx2() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    const bool has_f16c = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
    return has_f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
#endif

// Best first.
const Isa kIsas[] = {
#if defined(__x86_64__)
    {&kAvx2Kernels, has_avx2},
#endif
    {&kPortableKernels, [] { return true; }},
};

const Kernels* best_kernels() {
    for (const Isa& isa : kIsas)
        if (isa.supported()) return isa.kernels;
    return &kPortableKernels;
}

const Kernels* g_kernels = best_kernels();

void renew_pool();

ThreadPool* make_pool() {
    pthread_atfork(nullptr, nullptr, renew_pool);
    return new ThreadPool;
}

// Never destroyed: its threads may outlive static destructors.
ThreadPool* g_pool = make_pool();

// A forked child has none of its parent's threads, and locks that they held stay locked in it: it begins anew.
void renew_pool() {
    const int32_t num_threads = g_pool->num_threads();
    g_pool = new ThreadPool;
    g_pool->set_num_threads(num_threads);
}

ThreadPool& pool() { return *g_pool; }

// Work below this (in elements touched or multiply-adds) is not worth waking a thread.
constexpr int64_t kSerialWork = 16384;

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Items for each task, so that tasks are worth a claim and every thread finds several.
int64_t items_per_task(int64_t num_items, int64_t work_per_item) {
    const int64_t worth_it = divide_up(kSerialWork, std::max<int64_t>(work_per_item, 1));
    return std::max(worth_it, divide_up(num_items, int64_t{8} * pool().num_threads()));
}

template <typename Args, void (*Kernels::*Member)(const Args&, int64_t)>
void run(int64_t num_tasks, const Args& args) {
    pool().run(num_tasks, [](const void* context, int64_t task) {
        (g_kernels->*Member)(*static_cast<const Args*>(context), task);
    }, &args);
}

int32_t status_of(const std::atomic<bool>& bad_index) { return bad_index.load() ? kOctavoBadIndex : kOctavoOk; }

}  // namespace

float* scratch(int64_t count) {
    struct Buffer {
        float* data = nullptr;
        int64_t size = 0;
        ~Buffer() { std::free(data); }
    };
    static thread_local Buffer buffer;
    if (buffer.size < count) {
        std::free(buffer.data);
        buffer.size = divide_up(count, 4096) * 4096;
        buffer.data = static_cast<float*>(std::aligned_alloc(64, static_cast<size_t>(buffer.size) * sizeof(float)));
        if (buffer.data == nullptr) std::abort();
    }
    return buffer.data;
}

}  // namespace octavo

using namespace octavo;

int32_t octavo_set_isa(const char* name) {
    if (name == nullptr) {
        g_kernels = best_kernels();
        return kOctavoOk;
    }
    for (const Isa& isa : kIsas) {
        if (std::strcmp(isa.kernels->name, name) != 0) continue;
        if (!isa.supported()) return kOctavoUnsupported;
        g_kernels = isa.kernels;
        return kOctavoOk;
    }
    return kOctavoUnknownName;
}

const char* octavo_isa() { return g_kernels->name; }
void octavo_set_num_threads(int32_t count) { pool().set_num_threads(count); }
int32_t octavo_num_threads() { return pool().num_threads(); }

void octavo_pack_linear(const float* weight, float* packed, int64_t out_features, int64_t in_features) {
    for (int64_t panel = 0; panel * kLanes < out_features; ++panel) {
        float* to = packed + panel * in_features * kLanes;
        const int64_t lanes = std::min(kLanes, out_features - panel * kLanes);
        for (int64_t k = 0; k < in_features; ++k)
            for (int64_t lane = 0; lane < kLanes; ++lane)
                to[k * kLanes + lane] = lane < lanes ? weight[(panel * kLanes + lane) * in_features + k] : 0.0f;
    }
}

void octavo_linear(const float* x, const float* packed, const float* bias, float* y, int64_t num_rows,
                   int64_t in_features, int64_t out_features) {
    // A block of rows that fits the second-level cache beside the panels; panels in fours, which one row takes at once.
    constexpr int64_t kRowsPerTask = 192, kPanelsAtOnce = 4;
    const int64_t rows = std::min(num_rows, kRowsPerTask);
    const int64_t num_panels = divide_up(out_features, kLanes);
    const int64_t panels = divide_up(items_per_task(num_panels, rows * in_features * kLanes), kPanelsAtOnce) * kPanelsAtOnce;
    const int64_t groups = divide_up(num_panels, panels);
    const LinearArgs args{x, packed, bias, y, num_rows, in_features, out_features, kRowsPerTask, panels, groups};
    run<LinearArgs, &Kernels::linear>(groups * divide_up(num_rows, kRowsPerTask), args);
}

int32_t octavo_gather_rows(const float* table, int64_t table_rows, const int64_t* indices, float* out, int64_t count,
                           int64_t width, float scale) {
    std::atomic<bool> bad_index{false};
    const int64_t rows = items_per_task(count, width);
    run<GatherArgs, &Kernels::gather_rows>(
        divide_up(count, rows), {table, table_rows, indices, out, count, width, scale, rows, &bad_index});
    return status_of(bad_index);
}

void octavo_norm(const float* x, const float* weight, float* out, int64_t num_rows, int64_t width, float eps) {
    const int64_t rows = items_per_task(num_rows, width);
    run<NormArgs, &Kernels::norm>(divide_up(num_rows, rows), {x, weight, out, num_rows, width, eps, rows});
}

void octavo_norm_heads(float* qkv, const float* q_weight, const float* k_weight, int64_t num_rows,
                       const OctavoAttentionShape* shape, float eps) {
    const int64_t rows = items_per_task(num_rows, (shape->num_heads + shape->num_kv_heads) * shape->head_dim);
    run<NormHeadsArgs, &Kernels::norm_heads>(divide_up(num_rows, rows),
                                             {qkv, q_weight, k_weight, num_rows, *shape, eps, rows});
}

int32_t octavo_rotate_and_write_kv(const float* qkv, const float* cos, const float* sin, int64_t rope_rows,
                                   const OctavoBatch* batch, const OctavoAttentionShape* shape, float* q) {
    std::atomic<bool> bad_index{false};
    const int64_t rows = items_per_task(batch->num_rows, (shape->num_heads + 2 * shape->num_kv_heads) * shape->head_dim);
    run<RotateArgs, &Kernels::rotate_and_write_kv>(
        divide_up(batch->num_rows, rows), {qkv, cos, sin, rope_rows, *batch, *shape, q, rows, &bad_index});
    return status_of(bad_index);
}

int32_t octavo_attention(const float* q, const OctavoBatch* batch, const OctavoAttentionShape* shape, float* out) {
    // Pairs of a task: their scores fit the second-level cache if they can, and threads do not go without.
    constexpr int64_t kScoreFloats = 65536, kFewestQueries = 6, kMostQueries = 48;
    const int64_t group = shape->num_heads / shape->num_kv_heads;
    int64_t longest = 1, most_rows = 1;
    for (int64_t s = 0; s < batch->num_sequences; ++s) {
        const int64_t begin = batch->query_starts[s], end = batch->query_starts[s + 1];
        if (begin == end) continue;
        longest = std::max<int64_t>(longest, batch->positions[end - 1] + 1);
        most_rows = std::max(most_rows, end - begin);
    }
    int64_t queries = std::min(std::max(kScoreFloats / longest, kFewestQueries), kMostQueries);
    const int64_t lists = batch->num_sequences * shape->num_kv_heads;
    queries = std::min(queries, divide_up(most_rows * group, divide_up(pool().num_threads(), std::max<int64_t>(lists, 1))));

    std::vector<int64_t> first_tasks(static_cast<size_t>(batch->num_sequences) + 1, 0);
    for (int64_t s = 0; s < batch->num_sequences; ++s) {
        const int64_t pairs = (batch->query_starts[s + 1] - batch->query_starts[s]) * group;
        first_tasks[s + 1] = first_tasks[s] + shape->num_kv_heads * divide_up(pairs, queries);
    }
    std::atomic<bool> bad_index{false};
    run<AttentionArgs, &Kernels::attention>(first_tasks.back(),
                                            {q, *batch, *shape, out, queries, first_tasks.data(), &bad_index});
    return status_of(bad_index);
}

void octavo_gate(const float* x, float* out, int64_t num_rows, int64_t width, int32_t activation) {
    const int64_t rows = items_per_task(num_rows, width * 4);
    run<GateArgs, &Kernels::gate>(divide_up(num_rows, rows), {x, out, num_rows, width, activation, rows});
}

void octavo_add(float* x, const float* y, int64_t count) {
    const int64_t elements = items_per_task(count, 1);
    run<AddArgs, &Kernels::add>(divide_up(count, elements), {x, y, count, elements});
}
