// All operations for the instruction set whose isa/*.h was included before. Each including file compiles its own copy;
// everything stays in unnamed namespaces, so that the linker cannot merge code built for different machines.
#include <atomic>
#include <cstdint>
#include <cstring>

#include "../kernels.h"

namespace {
using octavo::AddArgs;
using octavo::ArgmaxArgs;
using octavo::AttentionArgs;
using octavo::GateArgs;
using octavo::GatherArgs;
using octavo::LinearArgs;
using octavo::LogprobArgs;
using octavo::NormArgs;
using octavo::NormHeadsArgs;
using octavo::PackedGatherArgs;
using octavo::QuantizeArgs;
using octavo::QuantizedGatherArgs;
using octavo::QuantizedLinearArgs;
using octavo::RotateArgs;
using octavo::SampleArgs;
using octavo::SlicedSequence;
}  // namespace

#include "math.h"
#include "micro.h"

#include "argmax.h"
#include "linear.h"
#include "quantized_formats.h"
#include "quantize.h"
#include "linear_quantized.h"
#include "rotate.h"
#include "rows.h"
#include "exact_sums.h"
#include "draw.h"
#include "logprobs.h"
#include "sample.h"
#include "slices.h"

#define OCTAVO_DEFINE_KERNELS(variable, isa_name)                                                                  \
    namespace octavo {                                                                                            \
    extern const Kernels variable;                                                                                 \
    const Kernels variable = {isa_name, kArithmetic, linear, gather_packed, quantize_rows, linear_quantized,         \
                              gather_quantized, gather_rows, norm, norm_heads, rotate_and_write_kv, attention, argmax, \
                              gate, add_rows, sample, logprobs};                                                     \
    }
