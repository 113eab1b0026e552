// The C interface of the native CPU kernels: raw pointers in, an error code out. Python loads it with ctypes.
//
// All tensors are contiguous fp32 unless said. Shapes as in octavo/kernels/interface.py: R rows, S sequences, H query
// heads, G KV heads, D head size, B block size. Nothing here keeps a pointer after it returns, except octavo_interface,
// octavo_isa, octavo_arithmetic and what is recorded.
#pragma once

#include <cstdint>

#define OCTAVO_API extern "C" __attribute__((visibility("default")))

// Results of every call. Where indices are out of range nothing outside the arrays is read or written.
enum OctavoStatus : int32_t {
    kOctavoOk = 0,
    kOctavoUnknownName = 1,
    kOctavoUnsupported = 2,
    kOctavoBadIndex = 3,
};

// What keys and values are held in.
enum OctavoKvType : int32_t {
    kOctavoKvFp32 = 0,
    kOctavoKvFp16 = 1,
    kOctavoKvInt8 = 2,  // with a scale a token and KV head
};

// What a plain weight is held in. Arithmetic is in fp32, to which all convert exactly.
enum OctavoWeightType : int32_t {
    kOctavoWeightFp32 = 0,
    kOctavoWeightFp16 = 1,
    kOctavoWeightBf16 = 2,
};

// How a quantised weight is held (octavo/kernels/quantized.py: FORMATS).
enum OctavoFormat : int32_t {
    kOctavoInt8 = 0,            // groups of 32, scales in fp16
    kOctavoInt8Fine = 1,        // groups of 16, scales in fp32
    kOctavoInt4 = 2,            // groups of 32, scales in fp16
    kOctavoInt4Minima = 3,      // likewise, and minima in fp16
    kOctavoInt4MinimaFp32 = 4,  // groups of 32, scales and minima in fp32
};

// Numbers of rows that only a step knows: of an operation that is recorded.
enum OctavoRows : int64_t {
    kOctavoStepRows = -1,  // those that the step computes
    kOctavoHeadRows = -2,  // those of them that reach the head
};

// The shape of one layer's attention and of its KV memory.
struct OctavoAttentionShape {
    int64_t num_heads;
    int64_t num_kv_heads;
    int64_t head_dim;
    int64_t block_size;
    int64_t num_blocks;
    int64_t window;  // 0: none
    float scale;
    float soft_cap;  // 0: none
};

// KV memory of one layer and where the rows of a step stand in it (BatchLayout).
struct OctavoBatch {
    void* keys;                   // [num_blocks, G, D, B] of kv_type
    void* values;                 // [num_blocks, G, B, D], likewise
    float* key_scales;            // [num_blocks, G, B] where kv_type is kOctavoKvInt8
    float* value_scales;          // likewise
    const int32_t* positions;     // [R]
    const int64_t* slots;         // [R]
    const int32_t* query_starts;  // [S + 1]
    // [S, table_width], table_pitch entries from row to row. Null, for octavo bench: block i of sequence s is number
    // s * table_width + i.
    const int32_t* block_tables;
    int64_t num_rows;
    int64_t num_sequences;
    int64_t table_width;
    int64_t table_pitch;
    int32_t kv_type;  // OctavoKvType
};

// What one row wants of its next token (octavo/kernels/sampling.py: REQUEST). Its logits change in this order: those not
// allowed are masked, then others, biases are added, tokens seen are penalized. Ids are below the width of the logits.
struct OctavoSampleRequest {
    const uint32_t* bits;  // of the ids in order, from the lowest of each word: 0 is not allowed; null: all are
    const int64_t* allowed;  // null: all
    const int64_t* masked;
    const int64_t* bias_ids;
    const float* biases;
    const int64_t* seen_ids;
    const int64_t* seen_counts;  // in the output; 0: in the prompt alone
    int64_t num_allowed;
    int64_t num_masked;
    int64_t num_biases;
    int64_t num_seen;
    double repetition;
    double frequency;
    double presence;
    double uniform;  // in [0, 1), a multiple of 2^-53
    double top_p;
    int64_t top_k;  // 0: all
    float scale;    // 1 / temperature; 0: the best token
    float min_p;
    int64_t wants_logprobs;
};

// What came of it (octavo/kernels/sampling.py: SAMPLE). Where `best` is not finite no token can be drawn, and nothing
// else is filled in. The last three: of rows that want logprobs, unless `raw_best` is not finite.
struct OctavoSample {
    int64_t token_id;
    float best;       // the greatest logit that may be drawn, as changed
    float raw_best;   // the greatest of all raw logits
    int64_t units;    // sum of e^(raw logit - raw_best) over all logits, in units of 2^-40
    int64_t rank;     // 1: the best
    double raw_logit;
};

// SHA-256 of this file as the library was built from it, in hexadecimal digits.
OCTAVO_API const char* octavo_interface();
// Choose the instruction set by name, or the best one that this machine has where name is null.
OCTAVO_API int32_t octavo_set_isa(const char* name);
// The name of the chosen instruction set.
OCTAVO_API const char* octavo_isa();
// What of its arithmetic the bits of results depend on: instruction sets of which this is equal give equal bits.
OCTAVO_API const char* octavo_arithmetic();
// Threads that share one call, the calling one included.
OCTAVO_API void octavo_set_num_threads(int32_t count);
OCTAVO_API int32_t octavo_num_threads();

// For octavo bench: one thread's loop at a machine's limit each (ceilings.cpp). They return the sum of the memory's
// words, so that they are read; and the operations done, with a result that must be computed.
OCTAVO_API int64_t octavo_ceiling_read(const void* memory, int64_t num_bytes);
OCTAVO_API int64_t octavo_ceiling_fma(int64_t rounds, float* result);
OCTAVO_API int64_t octavo_ceiling_dot(int64_t rounds, int64_t* result);
// What a linear on a quantised weight computes, out of registers: the products of a group and its multiply-adds. Returns the
// number of products.
OCTAVO_API int64_t octavo_ceiling_quantized(int32_t format, int64_t rounds);

// weight [out, in] of an OctavoWeightType -> packed [ceil(out / 16), in, 16] of the same, padded with zeros.
OCTAVO_API void octavo_pack_linear(const void* weight, int32_t weight_type, void* packed, int64_t out_features,
                                   int64_t in_features);
// y [R, out] = x [R, in] @ weight.T + bias; bias may be null.
OCTAVO_API void octavo_linear(const float* x, const void* packed, int32_t weight_type, const float* bias, float* y,
                              int64_t num_rows, int64_t in_features, int64_t out_features);
// out [R, width] = table[indices] * scale, from a table that is such a packed weight.
OCTAVO_API int32_t octavo_gather_packed(const void* packed, int32_t weight_type, int64_t table_rows,
                                        const int64_t* indices, float* out, int64_t num_rows, int64_t width, float scale);
// A weight of out x in numbers (octavo/kernels/quantized.py: QuantizedWeight; minima null where the format has none) ->
// packed, [ceil(out / 16), in / group, block] as impl/quantized_formats.h says, padded with zeros.
OCTAVO_API void octavo_pack_quantized(const uint8_t* numbers, const uint8_t* scales, const uint8_t* minima,
                                      int32_t format, uint8_t* packed, int64_t out_features, int64_t in_features);
// quantized [R, width] = rows of x [R, in] as the format's linear takes them; width = 2 in / group + in * bytes of an
// activation's number / 4 floats.
OCTAVO_API void octavo_quantize_rows(const float* x, float* quantized, int32_t format, int64_t num_rows,
                                     int64_t in_features);
// y [R, out], y_pitch floats from row to row, = x @ weight.T + bias, from the quantised rows of x and a weight packed as
// impl/quantized_formats.h says; bias may be null.
OCTAVO_API void octavo_linear_quantized(const float* quantized, const uint8_t* packed, int32_t format, const float* bias,
                                        float* y, int64_t y_pitch, int64_t num_rows, int64_t in_features,
                                        int64_t out_features);
// out [R, width] = table[indices] * scale, from a table that is such a packed weight.
OCTAVO_API int32_t octavo_gather_quantized(const uint8_t* packed, int32_t format, int64_t table_rows,
                                           const int64_t* indices, float* out, int64_t num_rows, int64_t width,
                                           float scale);
// out [R, width] = table[indices] * scale.
OCTAVO_API int32_t octavo_gather_rows(const float* table, int64_t table_rows, const int64_t* indices, float* out,
                                      int64_t num_rows, int64_t width, float scale);
// out [R, width] = RMS norm of x [R, width] with weight [width].
OCTAVO_API void octavo_norm(const float* x, const float* weight, float* out, int64_t num_rows, int64_t width, float eps);
// In place: RMS norm of the query and key heads of qkv [R, H + 2G, D].
OCTAVO_API void octavo_norm_heads(float* qkv, const float* q_weight, const float* k_weight, int64_t num_rows,
                                  const OctavoAttentionShape* shape, float eps);
// q [R, H, D] = rotated queries of qkv [R, H + 2G, D]; rotated keys and values go to their slots.
// cos, sin: [rope_rows, D / 2].
OCTAVO_API int32_t octavo_rotate_and_write_kv(const float* qkv, const float* cos, const float* sin, int64_t rope_rows,
                                              const OctavoBatch* batch, const OctavoAttentionShape* shape, float* q);
// out [R, H, D] = attention of rotated queries q [R, H, D].
OCTAVO_API int32_t octavo_attention(const float* q, const OctavoBatch* batch, const OctavoAttentionShape* shape,
                                    float* out);
// out [R, width] = activation(x[:, :width]) * x[:, width:]; activation 0: silu, 1: gelu (tanh approximation).
OCTAVO_API void octavo_gate(const float* x, float* out, int64_t num_rows, int64_t width, int32_t activation);
// out [R] = index of the greatest of the first `count` numbers of each row of x [R, width]: the first of equals, a NaN
// before all.
OCTAVO_API void octavo_argmax(const float* x, int64_t* out, int64_t num_rows, int64_t width, int64_t count);
// One token for each row of logits [R, width], of the first `count` logits, as octavo/runner/drawing.py says.
// best_ids [R]: octavo_argmax of the row. top_ids, top_logits [R, num_top]: of rows that want logprobs the best raw logits
// of the first `count`, best first.
OCTAVO_API void octavo_sample(const float* logits, const int64_t* best_ids, const OctavoSampleRequest* requests,
                              OctavoSample* samples, int64_t* top_ids, float* top_logits, int64_t num_rows,
                              int64_t width, int64_t count, int64_t num_top);
// The logprobs of known tokens, samples[r].token_id.
OCTAVO_API void octavo_logprobs(const float* logits, OctavoSample* samples, int64_t* top_ids, float* top_logits,
                                int64_t num_rows, int64_t width, int64_t count, int64_t num_top);
// x [R, width] += y [R, width].
OCTAVO_API void octavo_add(float* x, const float* y, int64_t num_rows, int64_t width);

// A step recorded once, run in one call. All pointers that its operations were given stay valid as long as it is run, an
// OctavoBatch itself included, whose fields are read anew at each run.
struct OctavoProgram;
OCTAVO_API OctavoProgram* octavo_program_create();
OCTAVO_API void octavo_program_destroy(OctavoProgram* program);
// From now on the operations that this thread calls are added to the program instead of being run; null: run again.
OCTAVO_API void octavo_record(OctavoProgram* program);
// Operations so far. Those that treat each row alone and follow one another are one (row_chain.h), unless the size was
// asked for between them.
OCTAVO_API int64_t octavo_program_size(OctavoProgram* program);
// Run operations first .. end - 1. Returns the number of one that met an index out of range, where it stopped, or -1.
OCTAVO_API int64_t octavo_program_run(OctavoProgram* program, int64_t first, int64_t end, int64_t num_rows,
                                      int64_t num_head_rows);
