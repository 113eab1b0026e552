// A persistent pool of threads that runs one parallel loop at a time; the caller takes part.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace octavo {

// Tasks are claimed one by one from a shared counter, so a thread that lost its core to another process holds up at
// most the task that it is in. A worker that is asleep or late is never waited for: it may join a loop only while the
// loop is open, and the caller closes it when no task is left.
class ThreadPool {
public:
    using Function = void (*)(const void* context, int64_t task);

    // Run function(context, 0 .. num_tasks - 1). Calls from several threads take turns.
    void run(int64_t num_tasks, Function function, const void* context);
    // Threads that take part from the next run() on, the caller included; at least 1.
    void set_num_threads(int32_t count);
    int32_t num_threads() const { return num_threads_.load(std::memory_order_relaxed); }

private:
    void work(int32_t index);
    bool try_join(int32_t index, uint64_t& last_generation);
    void run_tasks();
    void start_missing_workers();
    void wake_sleepers();

    // state_: the loop's generation, whether it is open, and how many workers are in it.
    static constexpr uint64_t kOpen = uint64_t{1} << 32;
    static constexpr uint64_t kCountMask = kOpen - 1;
    static uint64_t generation_of(uint64_t state) { return state >> 33; }

    std::mutex run_mutex_;
    std::vector<std::thread> workers_;
    std::atomic<int32_t> num_threads_{1};

    Function function_ = nullptr;
    const void* context_ = nullptr;
    int64_t num_tasks_ = 0;
    alignas(64) std::atomic<int64_t> next_task_{0};
    alignas(64) std::atomic<uint64_t> state_{0};

    std::mutex sleep_mutex_;
    std::condition_variable wake_;
    std::atomic<int32_t> num_sleepers_{0};
};

}  // namespace octavo
