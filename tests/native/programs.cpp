// A step recorded once and run for other numbers of rows, as octavo/kernels/recording.py does.
#include "drive.h"

namespace drive {

uint64_t programs() {
    constexpr int64_t kMostRows = 50, kWidth = 64, kOut = 37, kTableRows = 9;
    const Memory<float> table = random_floats(kTableRows * kWidth, 1), norm = random_floats(kWidth, 2);
    const Memory<float> weight = random_floats(kOut * kWidth, 3);
    Memory<float> packed(divide_up(kOut, 16) * kWidth * 16);
    octavo_pack_linear(weight.data(), kOctavoWeightFp32, packed.data(), kOut, kWidth);
    Memory<int64_t> ids(kMostRows), head_rows(kMostRows), best(kMostRows);
    Memory<float> x(kMostRows * kWidth), normed(kMostRows * kWidth), hidden(kMostRows * kWidth), logits(kMostRows * kOut);

    OctavoProgram* program = octavo_program_create();
    octavo_record(program);
    octavo_gather_rows(table.data(), kTableRows, ids.data(), x.data(), kOctavoStepRows, kWidth, 1.0f);
    octavo_norm(x.data(), norm.data(), normed.data(), kOctavoStepRows, kWidth, 1e-6f);
    octavo_add(x.data(), normed.data(), kOctavoStepRows, kWidth);
    octavo_gather_rows(x.data(), kMostRows, head_rows.data(), hidden.data(), kOctavoHeadRows, kWidth, 1.0f);
    octavo_linear(hidden.data(), packed.data(), kOctavoWeightFp32, nullptr, logits.data(), kOctavoHeadRows, kWidth, kOut);
    octavo_argmax(logits.data(), best.data(), kOctavoHeadRows, kOut, kOut);
    octavo_record(nullptr);
    // [gather] all rows, [norm, add], [gather] some of them, [linear], [argmax]
    require(octavo_program_size(program) == 5, "operations are kept, not run; those of single rows are chained");

    Digest digest;
    Random random(5);
    for (int64_t rows : {int64_t{1}, int64_t{7}, kMostRows}) {
        for (int64_t r = 0; r < rows; ++r) ids[r] = random.below(kTableRows);
        for (int64_t r = 0; r < divide_up(rows, 2); ++r) head_rows[r] = random.below(rows);
        require(octavo_program_run(program, 0, 5, rows, divide_up(rows, 2)) == -1, "a step runs to its end");
        digest.add(logits);
        digest.add(best);
    }
    ids[0] = kTableRows;
    require(octavo_program_run(program, 0, 5, 1, 1) == 0, "the operation that met an index out of range is named");
    octavo_program_destroy(program);
    return digest.value();
}

}  // namespace drive
