// A step recorded once: operations that run one after the other in a single call, on as many rows as each step brings.
//
//     recording    octavo_norm(x, ...) octavo_linear(...) ...  ->  [norm, quantize][linear][rotate][attention] ... [argmax]
//     each step    octavo_program_run(rows, head rows): cut, run, wait for all tasks; then the next operation
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "octavo_kernels.h"
#include "operation.h"
#include "row_chain.h"

namespace octavo {

class Program {
public:
    void add(std::unique_ptr<Operation> operation, int64_t num_rows) {
        operations_.push_back({std::move(operation), num_rows});
        chain_ = nullptr;
    }
    // To the chain that was added to last, if it has as many rows and nobody has asked for the size since.
    void add(std::unique_ptr<RowOperation> operation, int64_t num_rows) {
        if (chain_ == nullptr || operations_.back().num_rows != num_rows) {
            auto chain = std::make_unique<RowChain>();
            RowChain* const newest = chain.get();
            add(std::move(chain), num_rows);
            chain_ = newest;
        }
        chain_->add(std::move(operation));
    }
    // Operations so far, a chain being one. What is added from now on comes after them.
    int64_t size() {
        chain_ = nullptr;
        return static_cast<int64_t>(operations_.size());
    }
    // Run operations first .. end - 1. Returns the number of the one that met an index out of range, where it stops, or -1.
    int64_t run(int64_t first, int64_t end, int64_t num_rows, int64_t num_head_rows);

private:
    struct Entry {
        std::unique_ptr<Operation> operation;
        int64_t num_rows;  // or an OctavoRows
    };
    std::vector<Entry> operations_;
    RowChain* chain_ = nullptr;  // the last of them, while it may grow
};

// The program to which the operations of this thread go instead of being run, or null.
Program* recording();
void record(Program* program);

// An OctavoStatus.
int32_t run_now(Operation& operation, int64_t num_rows);

// Run the operation now, or keep it if this thread is recording; an OctavoStatus. See KernelOperation.
template <auto Kernel, typename Cutter>
int32_t perform(int64_t num_rows, Cutter cutter) {
    if (recording() != nullptr) {
        recording()->add(std::make_unique<KernelOperation<Kernel, Cutter>>(std::move(cutter)), num_rows);
        return kOctavoOk;
    }
    KernelOperation<Kernel, Cutter> operation(std::move(cutter));
    return run_now(operation, num_rows);
}

// Likewise of an operation that treats each row alone; `work_per_row` in elements touched or multiply-adds. See
// RowKernelOperation.
template <auto Kernel, typename Cutter>
int32_t perform_rows(int64_t num_rows, int64_t work_per_row, Cutter cutter) {
    auto operation = std::make_unique<RowKernelOperation<Kernel, Cutter>>(work_per_row, std::move(cutter));
    if (recording() != nullptr) {
        recording()->add(std::move(operation), num_rows);
        return kOctavoOk;
    }
    RowChain chain;
    chain.add(std::move(operation));
    return run_now(chain, num_rows);
}

}  // namespace octavo
