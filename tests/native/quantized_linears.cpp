#include "drive.h"

namespace drive {
namespace {

struct Format {
    int32_t number;
    int64_t group, bits, scale_bytes;
    bool has_minima;
};

const Format kFormats[] = {
    {kOctavoInt8, 32, 8, 2, false},       {kOctavoInt8Fine, 16, 8, 4, false},    {kOctavoInt4, 32, 4, 2, false},
    {kOctavoInt4Minima, 32, 4, 2, true}, {kOctavoInt4MinimaFp32, 32, 4, 4, true},
};

// Scales between 0.5 and 1, in fp16 or fp32.
Memory<uint8_t> random_scales(const Format& format, int64_t count, Random& random) {
    Memory<uint8_t> scales(count * format.scale_bytes);
    for (int64_t i = 0; i < count; ++i) {
        const uint32_t mantissa = static_cast<uint32_t>(random.next());
        const uint16_t half = static_cast<uint16_t>(0x3800u | (mantissa & 0x03ffu));
        const uint32_t single = 0x3f000000u | (mantissa & 0x007fffffu);
        if (format.scale_bytes == 2) std::memcpy(scales.data() + i * 2, &half, 2);
        else std::memcpy(scales.data() + i * 4, &single, 4);
    }
    return scales;
}

void linear(Digest& digest, const Format& format, int64_t rows, int64_t in, int64_t out) {
    Random random(7);
    const int64_t groups = out * in / format.group;
    Memory<uint8_t> numbers(out * in * format.bits / 8);
    for (int64_t i = 0; i < numbers.count(); ++i) numbers[i] = static_cast<uint8_t>(random.next());
    const Memory<uint8_t> scales = random_scales(format, groups, random), minima = random_scales(format, groups, random);
    const int64_t block = 16 * (format.group * format.bits / 8 + format.scale_bytes * (format.has_minima ? 2 : 1));
    Memory<uint8_t> packed(divide_up(out, 16) * (in / format.group) * block);
    octavo_pack_quantized(numbers.data(), scales.data(), format.has_minima ? minima.data() : nullptr, format.number,
                          packed.data(), out, in);

    const Memory<float> x = random_floats(rows * in, 1), bias = random_floats(out, 3);
    const int64_t width = 2 * in / format.group + in * (format.bits == 8 ? 2 : 1) / 4;
    Memory<float> quantized(rows * width), y(rows * (out + 3));
    octavo_quantize_rows(x.data(), quantized.data(), format.number, rows, in);
    octavo_linear_quantized(quantized.data(), packed.data(), format.number, bias.data(), y.data(), out + 3, rows, in, out);
    digest.add(y);

    Memory<int64_t> indices(rows);
    for (int64_t r = 0; r < rows; ++r) indices[r] = random.below(out);
    Memory<float> gathered(rows * in);
    require(octavo_gather_quantized(packed.data(), format.number, out, indices.data(), gathered.data(), rows, in, 2.0f) ==
                kOctavoOk,
            "rows of a quantised table");
    digest.add(gathered);
    indices[rows - 1] = out;
    require(octavo_gather_quantized(packed.data(), format.number, out, indices.data(), gathered.data(), rows, in, 2.0f) ==
                kOctavoBadIndex,
            "a row past a quantised table is refused");
}

}  // namespace

uint64_t quantized_linears() {
    Digest digest;
    for (const Format& format : kFormats)
        for (int64_t rows : {1, 3, 9, 150})
            for (int64_t in : {32, 96})
                for (int64_t out : {1, 16, 45}) linear(digest, format, rows, in, out);
    return digest.value();
}

}  // namespace drive
