// What a call of the C interface is: an operation that knows how to cut itself into tasks for a number of rows. It is
// said once, as a function from rows to tasks, so that it can run at once or be kept and run at every step.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <utility>

#include "isa.h"
#include "kernels.h"
#include "thread_pool.h"

namespace octavo {

// The process's pool of threads; a forked child gets one of its own.
ThreadPool& pool();

// A parallel loop: function(context, 0 .. num_tasks - 1), in any order, on any thread.
struct Loop {
    int64_t num_tasks;
    ThreadPool::Function function;
    const void* context;
};

// What a cutter returns: the arguments of a kernel and how many tasks they make.
template <typename Args>
struct Tasks {
    int64_t num_tasks;
    Args args;
};

class Operation {
public:
    virtual ~Operation() = default;
    // Valid until the next call. A task that meets an index out of range sets `bad_index`.
    virtual Loop cut(int64_t num_rows, std::atomic<bool>& bad_index) = 0;
};

// `Kernel`: which of Kernels runs a task. `Cutter`: (num_rows, bad_index) -> Tasks of its arguments.
template <auto Kernel, typename Cutter>
class KernelOperation final : public Operation {
public:
    explicit KernelOperation(Cutter cutter) : cutter_(std::move(cutter)) {}

    Loop cut(int64_t num_rows, std::atomic<bool>& bad_index) override {
        tasks_ = cutter_(num_rows, bad_index);
        return {tasks_.num_tasks, run_task, &tasks_};
    }

private:
    using TasksOfCutter = decltype(std::declval<Cutter&>()(int64_t{}, std::declval<std::atomic<bool>&>()));

    static void run_task(const void* tasks, int64_t task) {
        (kernels().*Kernel)(static_cast<const TasksOfCutter*>(tasks)->args, task);
    }

    Cutter cutter_;
    TasksOfCutter tasks_{};
};

// Work below this (in elements touched or multiply-adds) is not worth waking a thread.
constexpr int64_t kSerialWork = 16384;

inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The fewest items that are worth a claim.
inline int64_t fewest_items(int64_t work_per_item) {
    return divide_up(kSerialWork, std::max<int64_t>(work_per_item, 1));
}

// Items for each task, so that tasks are worth a claim and every thread finds several.
inline int64_t items_per_task(int64_t num_items, int64_t work_per_item) {
    return std::max(fewest_items(work_per_item), divide_up(num_items, int64_t{8} * pool().num_threads()));
}

}  // namespace octavo
