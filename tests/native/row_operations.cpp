#include <cmath>

#include "drive.h"

namespace drive {
namespace {

void gather(Digest& digest, int64_t rows, int64_t width) {
    const int64_t table_rows = 11;
    const Memory<float> table = random_floats(table_rows * width, 1);
    Memory<int64_t> indices(rows);
    Random random(2);
    for (int64_t r = 0; r < rows; ++r) indices[r] = random.below(table_rows);
    Memory<float> out(rows * width);
    require(octavo_gather_rows(table.data(), table_rows, indices.data(), out.data(), rows, width, 3.0f) == kOctavoOk, "rows");
    digest.add(out);
    for (int64_t wrong : {int64_t{-1}, table_rows, INT64_MAX, INT64_MIN}) {
        indices[0] = wrong;
        require(octavo_gather_rows(table.data(), table_rows, indices.data(), out.data(), rows, width, 3.0f) ==
                    kOctavoBadIndex,
                "a row outside the table is refused");
    }
}

void argmax(Digest& digest, int64_t rows, int64_t width) {
    Memory<float> x = random_floats(rows * width, 4);
    Memory<int64_t> best(rows);
    for (int64_t count : {width, divide_up(width, 2)}) {
        octavo_argmax(x.data(), best.data(), rows, width, count);
        digest.add(best);
    }
    x[width - 1] = std::nanf("");
    octavo_argmax(x.data(), best.data(), rows, width, width);
    require(best[0] == width - 1, "a NaN comes before all");
}

void each_row(Digest& digest, int64_t rows, int64_t width) {
    Memory<float> x = random_floats(rows * width, 5);
    const Memory<float> weight = random_floats(width, 6), y = random_floats(rows * width, 7);
    Memory<float> normed(rows * width);
    octavo_norm(x.data(), weight.data(), normed.data(), rows, width, 1e-6f);
    digest.add(normed);
    const Memory<float> both = random_floats(rows * 2 * width, 8);
    for (int32_t activation : {0, 1}) {
        octavo_gate(both.data(), normed.data(), rows, width, activation);
        digest.add(normed);
    }
    octavo_add(x.data(), y.data(), rows, width);
    digest.add(x);
}

void norm_heads(Digest& digest, int64_t rows, int64_t head_dim) {
    const OctavoAttentionShape shape{6, 2, head_dim, 0, 0, 0, 1.0f, 0.0f};
    Memory<float> qkv = random_floats(rows * 10 * head_dim, 9);
    const Memory<float> q_weight = random_floats(head_dim, 1), k_weight = random_floats(head_dim, 2);
    octavo_norm_heads(qkv.data(), q_weight.data(), k_weight.data(), rows, &shape, 1e-6f);
    digest.add(qkv);
}

}  // namespace

uint64_t row_operations() {
    Digest digest;
    for (int64_t rows : {1, 3, 70})
        for (int64_t width : {1, 16, 84, 700}) {
            gather(digest, rows, width);
            argmax(digest, rows, width);
            each_row(digest, rows, width);
        }
    for (int64_t head_dim : {2, 64, 84}) norm_heads(digest, 5, head_dim);
    return digest.value();
}

}  // namespace drive
