// Operations that treat each row alone, done one after the other on a few rows at a time: what one leaves in the cache the
// next finds there, and threads wait for each other once and not after each.
//
//     task 0   rows 0 .. 4:  add, norm, quantize        task 1   rows 5 .. 9:  add, norm, quantize        ...
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "operation.h"

namespace octavo {

// One of a chain: a row of it needs that row of what came before, and no other.
class RowOperation {
public:
    virtual ~RowOperation() = default;
    virtual int64_t work_per_row() const = 0;
    // Task t is rows t * rows_per_task up to the next task's or `num_rows`. Valid until the next call.
    virtual Loop cut(int64_t num_rows, int64_t rows_per_task, std::atomic<bool>& bad_index) = 0;
};

// `Cutter`: (num_rows, rows_per_task, bad_index) -> arguments of the kernel.
template <auto Kernel, typename Cutter>
class RowKernelOperation final : public RowOperation {
public:
    RowKernelOperation(int64_t work_per_row, Cutter cutter) : work_per_row_(work_per_row), cutter_(std::move(cutter)) {}

    int64_t work_per_row() const override { return work_per_row_; }
    Loop cut(int64_t num_rows, int64_t rows_per_task, std::atomic<bool>& bad_index) override {
        args_ = cutter_(num_rows, rows_per_task, bad_index);
        return {divide_up(num_rows, rows_per_task), run_task, &args_};
    }

private:
    using Args = decltype(std::declval<Cutter&>()(int64_t{}, int64_t{}, std::declval<std::atomic<bool>&>()));

    static void run_task(const void* args, int64_t task) { (kernels().*Kernel)(*static_cast<const Args*>(args), task); }

    int64_t work_per_row_;
    Cutter cutter_;
    Args args_{};
};

class RowChain final : public Operation {
public:
    void add(std::unique_ptr<RowOperation> operation) { operations_.push_back(std::move(operation)); }

    Loop cut(int64_t num_rows, std::atomic<bool>& bad_index) override {
        int64_t work_per_row = 0;
        for (const auto& operation : operations_) work_per_row += operation->work_per_row();
        const int64_t rows_per_task = fewest_items(work_per_row);
        loops_.clear();
        for (const auto& operation : operations_) loops_.push_back(operation->cut(num_rows, rows_per_task, bad_index));
        return {divide_up(num_rows, rows_per_task), run_task, this};
    }

private:
    static void run_task(const void* chain, int64_t task) {
        for (const Loop& loop : static_cast<const RowChain*>(chain)->loops_) loop.function(loop.context, task);
    }

    std::vector<std::unique_ptr<RowOperation>> operations_;
    std::vector<Loop> loops_;
};

}  // namespace octavo
