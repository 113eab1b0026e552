// A step recorded once: operations that run one after the other in a single call, on as many rows as each step brings.
//
//     recording    octavo_norm(x, ...) octavo_linear(...) ...  ->  [norm][linear][rotate][attention] ... [argmax]
//     each step    octavo_program_run(rows, head rows): cut, run, wait for all tasks; then the next operation
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "octavo_kernels.h"
#include "operation.h"

namespace octavo {

class Program {
public:
    void add(std::unique_ptr<Operation> operation, int64_t num_rows) {
        operations_.push_back({std::move(operation), num_rows});
    }
    int64_t size() const { return static_cast<int64_t>(operations_.size()); }
    // Run operations first .. end - 1. Returns the number of the one that met an index out of range, where it stops, or -1.
    int64_t run(int64_t first, int64_t end, int64_t num_rows, int64_t num_head_rows);

private:
    struct Entry {
        std::unique_ptr<Operation> operation;
        int64_t num_rows;  // or an OctavoRows
    };
    std::vector<Entry> operations_;
};

// The program to which the operations of this thread go instead of being run, or null.
Program* recording();
void record(Program* program);

// Run the operation now, or keep it if this thread is recording; an OctavoStatus. See KernelOperation.
template <auto Kernel, typename Cutter>
int32_t perform(int64_t num_rows, Cutter cutter) {
    if (recording() != nullptr) {
        recording()->add(std::make_unique<KernelOperation<Kernel, Cutter>>(std::move(cutter)), num_rows);
        return kOctavoOk;
    }
    KernelOperation<Kernel, Cutter> operation(std::move(cutter));
    std::atomic<bool> bad_index{false};
    const Loop loop = operation.cut(num_rows, bad_index);
    pool().run(loop.num_tasks, loop.function, loop.context);
    return bad_index.load() ? kOctavoBadIndex : kOctavoOk;
}

}  // namespace octavo
