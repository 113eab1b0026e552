// The C interface: each call says how its operation is cut into tasks. A cutter may outlive the call that made it: it
// captures by value, but for an OctavoBatch, whose address it keeps.
#include <algorithm>
#include <atomic>

#include "isa.h"
#include "kernels.h"
#include "octavo_kernels.h"
#include "operation.h"
#include "program.h"

using namespace octavo;

namespace {

using BadIndex = std::atomic<bool>;

template <typename Number>
void pack_linear(const Number* weight, Number* packed, int64_t out_features, int64_t in_features) {
    for (int64_t panel = 0; panel * kLanes < out_features; ++panel) {
        Number* to = packed + panel * in_features * kLanes;
        const int64_t lanes = std::min(kLanes, out_features - panel * kLanes);
        for (int64_t k = 0; k < in_features; ++k)
            for (int64_t lane = 0; lane < kLanes; ++lane)
                to[k * kLanes + lane] = lane < lanes ? weight[(panel * kLanes + lane) * in_features + k] : Number{0};
    }
}

}  // namespace

const char* octavo_interface() { return OCTAVO_INTERFACE; }
int32_t octavo_set_isa(const char* name) { return set_isa(name); }
const char* octavo_isa() { return kernels().name; }
const char* octavo_arithmetic() { return kernels().arithmetic; }
void octavo_set_num_threads(int32_t count) { pool().set_num_threads(count); }
int32_t octavo_num_threads() { return pool().num_threads(); }

void octavo_pack_linear(const void* weight, int32_t weight_type, void* packed, int64_t out_features, int64_t in_features) {
    if (weight_type == kOctavoWeightFp32)
        pack_linear(static_cast<const uint32_t*>(weight), static_cast<uint32_t*>(packed), out_features, in_features);
    else
        pack_linear(static_cast<const uint16_t*>(weight), static_cast<uint16_t*>(packed), out_features, in_features);
}

void octavo_linear(const float* x, const void* packed, int32_t weight_type, const float* bias, float* y, int64_t num_rows,
                   int64_t in_features, int64_t out_features) {
    perform<&Kernels::linear>(num_rows, [=](int64_t num_rows, BadIndex&) -> Tasks<LinearArgs> {
        // A block of rows that fits the second-level cache beside the panels; panels in fours, which one row takes at
        // once.
        constexpr int64_t kRowsPerTask = 192, kPanelsAtOnce = 4;
        const int64_t rows = std::min(num_rows, kRowsPerTask);
        const int64_t num_panels = divide_up(out_features, kLanes);
        const int64_t panels =
            divide_up(items_per_task(num_panels, rows * in_features * kLanes), kPanelsAtOnce) * kPanelsAtOnce;
        const int64_t groups = divide_up(num_panels, panels);
        return {groups * divide_up(num_rows, kRowsPerTask),
                {x, packed, weight_type, bias, y, num_rows, in_features, out_features, kRowsPerTask, panels, groups}};
    });
}

int32_t octavo_gather_packed(const void* packed, int32_t weight_type, int64_t table_rows, const int64_t* indices,
                             float* out, int64_t num_rows, int64_t width, float scale) {
    return perform<&Kernels::gather_packed>(
        num_rows, [=](int64_t num_rows, BadIndex& bad_index) -> Tasks<PackedGatherArgs> {
            const int64_t rows = items_per_task(num_rows, width * 4);
            return {divide_up(num_rows, rows),
                    {packed, weight_type, table_rows, indices, out, num_rows, width, scale, rows, &bad_index}};
        });
}

int32_t octavo_gather_rows(const float* table, int64_t table_rows, const int64_t* indices, float* out, int64_t num_rows,
                           int64_t width, float scale) {
    return perform<&Kernels::gather_rows>(num_rows, [=](int64_t num_rows, BadIndex& bad_index) -> Tasks<GatherArgs> {
        const int64_t rows = items_per_task(num_rows, width);
        return {divide_up(num_rows, rows), {table, table_rows, indices, out, num_rows, width, scale, rows, &bad_index}};
    });
}

void octavo_norm(const float* x, const float* weight, float* out, int64_t num_rows, int64_t width, float eps) {
    perform_rows<&Kernels::norm>(num_rows, width, [=](int64_t num_rows, int64_t rows_per_task, BadIndex&) -> NormArgs {
        return {x, weight, out, num_rows, width, eps, rows_per_task};
    });
}

void octavo_norm_heads(float* qkv, const float* q_weight, const float* k_weight, int64_t num_rows,
                       const OctavoAttentionShape* given_shape, float eps) {
    const OctavoAttentionShape shape = *given_shape;
    perform_rows<&Kernels::norm_heads>(
        num_rows, (shape.num_heads + shape.num_kv_heads) * shape.head_dim,
        [=](int64_t num_rows, int64_t rows_per_task, BadIndex&) -> NormHeadsArgs {
            return {qkv, q_weight, k_weight, num_rows, shape, eps, rows_per_task};
        });
}

int32_t octavo_rotate_and_write_kv(const float* qkv, const float* cos, const float* sin, int64_t rope_rows,
                                   const OctavoBatch* batch, const OctavoAttentionShape* given_shape, float* q) {
    const OctavoAttentionShape shape = *given_shape;
    return perform_rows<&Kernels::rotate_and_write_kv>(
        batch->num_rows, (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim,
        [=](int64_t, int64_t rows_per_task, BadIndex& bad_index) -> RotateArgs {
            return {qkv, cos, sin, rope_rows, *batch, shape, q, rows_per_task, &bad_index};
        });
}

void octavo_argmax(const float* x, int64_t* out, int64_t num_rows, int64_t width, int64_t count) {
    perform_rows<&Kernels::argmax>(num_rows, count, [=](int64_t num_rows, int64_t rows_per_task, BadIndex&) -> ArgmaxArgs {
        return {x, out, num_rows, width, count, rows_per_task};
    });
}

void octavo_gate(const float* x, float* out, int64_t num_rows, int64_t width, int32_t activation) {
    perform_rows<&Kernels::gate>(num_rows, width * 4, [=](int64_t num_rows, int64_t rows_per_task, BadIndex&) -> GateArgs {
        return {x, out, num_rows, width, activation, rows_per_task};
    });
}

void octavo_add(float* x, const float* y, int64_t num_rows, int64_t width) {
    perform_rows<&Kernels::add>(num_rows, width, [=](int64_t num_rows, int64_t rows_per_task, BadIndex&) -> AddArgs {
        return {x, y, num_rows, width, rows_per_task};
    });
}

OctavoProgram* octavo_program_create() { return reinterpret_cast<OctavoProgram*>(new Program); }
void octavo_program_destroy(OctavoProgram* program) { delete reinterpret_cast<Program*>(program); }
void octavo_record(OctavoProgram* program) { record(reinterpret_cast<Program*>(program)); }
int64_t octavo_program_size(OctavoProgram* program) { return reinterpret_cast<Program*>(program)->size(); }

int64_t octavo_program_run(OctavoProgram* program, int64_t first, int64_t end, int64_t num_rows, int64_t num_head_rows) {
    return reinterpret_cast<Program*>(program)->run(first, end, num_rows, num_head_rows);
}
