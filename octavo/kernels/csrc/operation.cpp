#include "operation.h"

#include <pthread.h>

#include <cstdlib>

namespace octavo {
namespace {

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

}  // namespace

ThreadPool& pool() { return *g_pool; }

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
