// What an instruction set offers: one function an operation, each computing one task of a parallel loop.
#pragma once

#include <atomic>
#include <cstdint>

#include "octavo_kernels.h"

namespace octavo {

// Outputs in a panel of packed weights, and tokens in a tile of attention.
constexpr int64_t kLanes = 16;
// Positions that attention takes for themselves, a multiple of kLanes: part of what a row's bits depend on.
constexpr int64_t kSlice = 256;

struct LinearArgs {
    const float* x;
    const void* packed;
    int32_t weight_type;
    const float* bias;
    float* y;
    int64_t num_rows, in_features, out_features;
    // A task is rows_per_task rows by panels_per_task panels; tasks run over the panels first.
    int64_t rows_per_task, panels_per_task, num_panel_groups;
};

struct QuantizeArgs {
    const float* x;
    float* out;
    int32_t format;
    int64_t num_rows, in_features;
    int64_t rows_per_task;
};

struct QuantizedLinearArgs {
    const float* rows;  // as quantize_rows leaves them
    const uint8_t* packed;
    int32_t format;
    const float* bias;
    float* y;
    int64_t y_pitch;  // from row to row
    int64_t num_rows, in_features, out_features;
    // A task is rows_per_task rows by panels_per_task panels; tasks run over the panels first.
    int64_t rows_per_task, panels_per_task, num_panel_groups;
};

struct QuantizedGatherArgs {
    const uint8_t* packed;
    int32_t format;
    int64_t table_rows;
    const int64_t* indices;
    float* out;
    int64_t count, width;
    float scale;
    int64_t rows_per_task;
    std::atomic<bool>* bad_index;
};

struct PackedGatherArgs {
    const void* packed;
    int32_t weight_type;
    int64_t table_rows;
    const int64_t* indices;
    float* out;
    int64_t count, width;
    float scale;
    int64_t rows_per_task;
    std::atomic<bool>* bad_index;
};

struct GatherArgs {
    const float* table;
    int64_t table_rows;
    const int64_t* indices;
    float* out;
    int64_t count, width;
    float scale;
    int64_t rows_per_task;
    std::atomic<bool>* bad_index;
};

struct NormArgs {
    const float* x;
    const float* weight;
    float* out;
    int64_t num_rows, width;
    float eps;
    int64_t rows_per_task;
};

struct NormHeadsArgs {
    float* qkv;
    const float* q_weight;
    const float* k_weight;
    int64_t num_rows;
    OctavoAttentionShape shape;
    float eps;
    int64_t rows_per_task;
};

struct RotateArgs {
    const float* qkv;
    const float* cos;
    const float* sin;
    int64_t rope_rows;
    OctavoBatch batch;
    OctavoAttentionShape shape;
    float* q;
    int64_t rows_per_task;
    std::atomic<bool>* bad_index;
};

// How the attention of one sequence is cut: the (row, head) pairs of a KV head, row first, by queries_per_task and the KV
// heads by kv_heads_per_task into lists, KV heads first; each list into tasks of slices_per_task slices.
struct SlicedSequence {
    int64_t first_task, first_list;
    int64_t tasks_per_list, slices_per_task;
    int64_t first_slice, num_slices;  // that at least one row sees
    int64_t first_partial;            // of its partial sums, where lists have several tasks
};

struct AttentionArgs {
    const float* q;
    OctavoBatch batch;
    OctavoAttentionShape shape;
    float* out;
    int64_t queries_per_task, kv_heads_per_task;
    const SlicedSequence* sequences;  // [num_sequences]
    float* partials;
    std::atomic<int32_t>* num_ended;  // tasks of each list
    std::atomic<bool>* bad_index;
};

struct GateArgs {
    const float* x;
    float* out;
    int64_t num_rows, width;
    int32_t activation;
    int64_t rows_per_task;
};

struct AddArgs {
    float* x;
    const float* y;
    int64_t num_rows, width;
    int64_t rows_per_task;
};

struct ArgmaxArgs {
    const float* x;
    int64_t* out;
    int64_t num_rows, width, count;
    int64_t rows_per_task;
};

struct LogprobArgs {
    const float* logits;
    OctavoSample* samples;
    int64_t* top_ids;
    float* top_logits;
    int64_t num_rows, width, count, num_top;
};

struct SampleArgs {
    LogprobArgs logprobs;
    const int64_t* best_ids;
    const OctavoSampleRequest* requests;
};

struct Kernels {
    const char* name;
    const char* arithmetic;  // instruction sets of the same give the same bits
    void (*linear)(const LinearArgs&, int64_t task);
    void (*gather_packed)(const PackedGatherArgs&, int64_t task);
    void (*quantize_rows)(const QuantizeArgs&, int64_t task);
    void (*linear_quantized)(const QuantizedLinearArgs&, int64_t task);
    void (*gather_quantized)(const QuantizedGatherArgs&, int64_t task);
    void (*gather_rows)(const GatherArgs&, int64_t task);
    void (*norm)(const NormArgs&, int64_t task);
    void (*norm_heads)(const NormHeadsArgs&, int64_t task);
    void (*rotate_and_write_kv)(const RotateArgs&, int64_t task);
    void (*attention)(const AttentionArgs&, int64_t task);
    void (*argmax)(const ArgmaxArgs&, int64_t task);
    void (*gate)(const GateArgs&, int64_t task);
    void (*add)(const AddArgs&, int64_t task);
    void (*sample)(const SampleArgs&, int64_t row);
    void (*logprobs)(const LogprobArgs&, int64_t row);
};

// One definition an instruction set, in isa/<name>.cpp. Each is compiled with flags of its own.
extern const Kernels kPortableKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
#endif

// At least `count` floats for the calling thread, 64-byte aligned, valid until its next call of scratch().
// Defined outside the instruction-set files, so that no library template is compiled with their flags.
float* scratch(int64_t count);
// Likewise outside.
void sort_ascending(uint64_t* keys, int64_t count);

}  // namespace octavo
