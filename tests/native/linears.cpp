#include "drive.h"

namespace drive {
namespace {

// The upper halves of fp32 numbers: bf16, and as fp16 other finite numbers.
Memory<uint16_t> upper_halves(const Memory<float>& numbers) {
    Memory<uint16_t> halves(numbers.count());
    for (int64_t i = 0; i < numbers.count(); ++i) {
        uint32_t bits;
        std::memcpy(&bits, numbers.data() + i, sizeof bits);
        halves[i] = static_cast<uint16_t>(bits >> 16);
    }
    return halves;
}

template <typename Number>
void linear_of(Digest& digest, const Memory<Number>& weight, int32_t type, int64_t rows, int64_t in, int64_t out) {
    const Memory<float> x = random_floats(rows * in, 1), bias = random_floats(out, 3);
    Memory<Number> packed(divide_up(out, 16) * in * 16);
    Memory<float> y(rows * out), gathered(in);
    octavo_pack_linear(weight.data(), type, packed.data(), out, in);
    octavo_linear(x.data(), packed.data(), type, rows % 2 == 1 ? bias.data() : nullptr, y.data(), rows, in, out);
    digest.add(y);
    Memory<int64_t> index(1, out - 1);
    require(octavo_gather_packed(packed.data(), type, out, index.data(), gathered.data(), 1, in, 1.0f) == kOctavoOk,
            "a row of a packed table");
    digest.add(gathered);
    index[0] = out;
    require(octavo_gather_packed(packed.data(), type, out, index.data(), gathered.data(), 1, in, 1.0f) == kOctavoBadIndex,
            "a row past a packed table is refused");
}

void linear(Digest& digest, int64_t rows, int64_t in, int64_t out) {
    const Memory<float> weight = random_floats(out * in, 2);
    const Memory<uint16_t> halves = upper_halves(weight);
    linear_of(digest, weight, kOctavoWeightFp32, rows, in, out);
    linear_of(digest, halves, kOctavoWeightFp16, rows, in, out);
    linear_of(digest, halves, kOctavoWeightBf16, rows, in, out);
}

}  // namespace

uint64_t linears() {
    Digest digest;
    for (int64_t rows : {1, 2, 5, 7, 40, 200})
        for (int64_t in : {1, 33, 300, 2100})
            for (int64_t out : {1, 16, 37, 130}) linear(digest, rows, in, out);
    return digest.value();
}

}  // namespace drive
