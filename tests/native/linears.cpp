#include "drive.h"

namespace drive {
namespace {

void linear(Digest& digest, int64_t rows, int64_t in, int64_t out, bool with_bias) {
    const Memory<float> x = random_floats(rows * in, 1), weight = random_floats(out * in, 2), bias = random_floats(out, 3);
    Memory<float> packed(divide_up(out, 16) * in * 16), y(rows * out);
    octavo_pack_linear(weight.data(), packed.data(), out, in);
    octavo_linear(x.data(), packed.data(), with_bias ? bias.data() : nullptr, y.data(), rows, in, out);
    float expected = with_bias ? bias.data()[out - 1] : 0.0f;
    for (int64_t k = 0; k < in; ++k) expected += x.data()[k] * weight.data()[(out - 1) * in + k];
    require(y[out - 1] > expected - 1e-3f && y[out - 1] < expected + 1e-3f, "a linear's last output of the first row");
    digest.add(y);
}

}  // namespace

uint64_t linears() {
    Digest digest;
    for (int64_t rows : {1, 2, 5, 7, 40, 200})
        for (int64_t in : {1, 33, 300})
            for (int64_t out : {1, 16, 37, 130}) linear(digest, rows, in, out, rows % 2 == 1);
    return digest.value();
}

}  // namespace drive
