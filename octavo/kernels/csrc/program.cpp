#include "program.h"

namespace octavo {
namespace {

thread_local Program* t_recording = nullptr;

}  // namespace

Program* recording() { return t_recording; }
void record(Program* program) { t_recording = program; }

int32_t run_now(Operation& operation, int64_t num_rows) {
    std::atomic<bool> bad_index{false};
    const Loop loop = operation.cut(num_rows, bad_index);
    pool().run(loop.num_tasks, loop.function, loop.context);
    return bad_index.load() ? kOctavoBadIndex : kOctavoOk;
}

int64_t Program::run(int64_t first, int64_t end, int64_t num_rows, int64_t num_head_rows) {
    std::atomic<bool> bad_index{false};
    for (int64_t i = first; i < end; ++i) {
        const Entry& entry = operations_[static_cast<size_t>(i)];
        const int64_t rows = entry.num_rows == kOctavoStepRows   ? num_rows
                             : entry.num_rows == kOctavoHeadRows ? num_head_rows
                                                                 : entry.num_rows;
        const Loop loop = entry.operation->cut(rows, bad_index);
        pool().run(loop.num_tasks, loop.function, loop.context);
        if (bad_index.load(std::memory_order_relaxed)) return i;
    }
    return -1;
}

}  // namespace octavo
