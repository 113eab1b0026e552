#include "thread_pool.h"

#include <chrono>
#include <system_error>

namespace octavo {
namespace {

// Longer than the pause between two operations of a step, shorter than anyone minds a busy core.
constexpr auto kSpinTime = std::chrono::microseconds(50);

void cpu_pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

}  // namespace

void ThreadPool::run(int64_t num_tasks, Function function, const void* context) {
    if (num_tasks == 1 || num_threads() == 1) {
        for (int64_t task = 0; task < num_tasks; ++task) function(context, task);
        return;
    }
    std::lock_guard<std::mutex> one_at_a_time(run_mutex_);
    start_missing_workers();
    function_ = function;
    context_ = context;
    num_tasks_ = num_tasks;
    next_task_.store(0, std::memory_order_relaxed);
    const uint64_t generation = generation_of(state_.load(std::memory_order_relaxed)) + 1;
    // Sequentially consistent, as is the sleepers' check: either they see the open loop or we see them asleep.
    state_.store(generation << 33 | kOpen, std::memory_order_seq_cst);
    wake_sleepers();
    run_tasks();
    state_.fetch_and(~kOpen, std::memory_order_acq_rel);
    for (int64_t spins = 0; (state_.load(std::memory_order_acquire) & kCountMask) != 0; ++spins) {
        // A worker that lost its core may need ours.
        if (spins < 20000) cpu_pause();
        else std::this_thread::yield();
    }
}

void ThreadPool::set_num_threads(int32_t count) {
    std::lock_guard<std::mutex> between_runs(run_mutex_);
    num_threads_.store(count < 1 ? 1 : count, std::memory_order_relaxed);
}

void ThreadPool::run_tasks() {
    for (;;) {
        const int64_t task = next_task_.fetch_add(1, std::memory_order_relaxed);
        if (task >= num_tasks_) return;
        function_(context_, task);
    }
}

void ThreadPool::start_missing_workers() {
    while (static_cast<int32_t>(workers_.size()) < num_threads() - 1) {
        const int32_t index = static_cast<int32_t>(workers_.size());
        try {
            workers_.emplace_back([this, index] { work(index); });
        } catch (const std::system_error&) {  // the machine gives no more threads: go on with those that there are
            num_threads_.store(index + 1, std::memory_order_relaxed);
        }
    }
}

void ThreadPool::wake_sleepers() {
    if (num_sleepers_.load(std::memory_order_seq_cst) == 0) return;
    // Holding the mutex once keeps the signal from falling between a sleeper's check and its wait.
    { std::lock_guard<std::mutex> lock(sleep_mutex_); }
    wake_.notify_all();
}

bool ThreadPool::try_join(int32_t index, uint64_t& last_generation) {
    uint64_t state = state_.load(std::memory_order_seq_cst);
    while ((state & kOpen) != 0 && generation_of(state) != last_generation && index < num_threads() - 1) {
        if (state_.compare_exchange_weak(state, state + 1, std::memory_order_seq_cst)) {
            last_generation = generation_of(state);
            return true;
        }
    }
    return false;
}

void ThreadPool::work(int32_t index) {
    uint64_t last_generation = 0;
    auto idle_since = std::chrono::steady_clock::now();
    for (int64_t spins = 1;; ++spins) {
        bool joined = try_join(index, last_generation);
        if (!joined && spins % 64 == 0 && std::chrono::steady_clock::now() - idle_since > kSpinTime) {
            std::unique_lock<std::mutex> lock(sleep_mutex_);
            num_sleepers_.fetch_add(1, std::memory_order_seq_cst);
            wake_.wait(lock, [&] { return joined = try_join(index, last_generation); });
            num_sleepers_.fetch_sub(1, std::memory_order_seq_cst);
        }
        if (!joined) {
            cpu_pause();
            continue;
        }
        run_tasks();
        state_.fetch_sub(1, std::memory_order_release);
        idle_since = std::chrono::steady_clock::now();
    }
}

}  // namespace octavo
