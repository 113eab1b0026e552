// The part of the C interface that is about quantised weights.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "kernels.h"
#include "octavo_kernels.h"
#include "operation.h"
#include "program.h"

using namespace octavo;

void octavo_pack_quantized(const uint8_t* numbers, const uint8_t* scales, const uint8_t* minima, int32_t format,
                           uint8_t* packed, int64_t out_features, int64_t in_features) {
    const bool is_4bit = format >= kOctavoInt4;
    const int64_t group = format == kOctavoInt8Fine ? 16 : 32;
    const int64_t group_bytes = is_4bit ? group / 2 : group, unit = is_4bit ? 4 : 2;
    const int64_t scale_bytes = format == kOctavoInt8Fine || format == kOctavoInt4MinimaFp32 ? 4 : 2;
    const int64_t num_groups = in_features / group, num_panels = divide_up(out_features, kLanes);
    const int64_t block_bytes = kLanes * (group_bytes + scale_bytes * (minima == nullptr ? 1 : 2));
    std::memset(packed, 0, static_cast<size_t>(num_panels * num_groups * block_bytes));
    for (int64_t row = 0; row < out_features; ++row) {
        const int64_t lane = row % kLanes;
        uint8_t* block = packed + row / kLanes * num_groups * block_bytes;
        for (int64_t g = row * num_groups; g < (row + 1) * num_groups; ++g, block += block_bytes) {
            for (int64_t i = 0; i < group_bytes; i += unit)
                std::memcpy(block + i * kLanes + lane * unit, numbers + g * group_bytes + i, static_cast<size_t>(unit));
            uint8_t* values = block + kLanes * group_bytes + lane * scale_bytes;
            std::memcpy(values, scales + g * scale_bytes, static_cast<size_t>(scale_bytes));
            if (minima == nullptr) continue;
            std::memcpy(values + kLanes * scale_bytes, minima + g * scale_bytes, static_cast<size_t>(scale_bytes));
        }
    }
}

void octavo_quantize_rows(const float* x, float* quantized, int32_t format, int64_t num_rows, int64_t in_features) {
    perform_rows<&Kernels::quantize_rows>(
        num_rows, in_features * 4, [=](int64_t num_rows, int64_t rows_per_task, std::atomic<bool>&) -> QuantizeArgs {
            return {x, quantized, format, num_rows, in_features, rows_per_task};
        });
}

void octavo_linear_quantized(const float* quantized, const uint8_t* packed, int32_t format, const float* bias, float* y,
                             int64_t y_pitch, int64_t num_rows, int64_t in_features, int64_t out_features) {
    perform<&Kernels::linear_quantized>(
        num_rows, [=](int64_t num_rows, std::atomic<bool>&) -> Tasks<QuantizedLinearArgs> {
            constexpr int64_t kRowsPerTask = 128;  // their numbers fit the second-level cache beside a panel
            const int64_t rows = std::min(num_rows, kRowsPerTask);
            const int64_t num_panels = divide_up(out_features, kLanes);
            const int64_t panels = items_per_task(num_panels, rows * in_features * kLanes / 4);
            const int64_t groups = divide_up(num_panels, panels);
            return {groups * divide_up(num_rows, kRowsPerTask),
                    {quantized, packed, format, bias, y, y_pitch, num_rows, in_features, out_features, kRowsPerTask,
                     panels, groups}};
        });
}

int32_t octavo_gather_quantized(const uint8_t* packed, int32_t format, int64_t table_rows, const int64_t* indices,
                                float* out, int64_t num_rows, int64_t width, float scale) {
    return perform<&Kernels::gather_quantized>(
        num_rows, [=](int64_t num_rows, std::atomic<bool>& bad_index) -> Tasks<QuantizedGatherArgs> {
            const int64_t rows = items_per_task(num_rows, width);
            return {divide_up(num_rows, rows),
                    {packed, format, table_rows, indices, out, num_rows, width, scale, rows, &bad_index}};
        });
}
