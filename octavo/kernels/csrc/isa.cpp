#include "isa.h"

#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace octavo {
namespace {

struct Isa {
    const Kernels* kernels;
    bool (*supported)();
};

#if defined(__x86_64__)
bool has_avx2() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    const bool has_f16c = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
    return has_f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

// The system must keep the wide registers too, which __builtin_cpu_supports asks it.
bool has_avx512() {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni");
}
#endif

// Best first.
const Isa kIsas[] = {
#if defined(__x86_64__)
    {&kAvx512Kernels, has_avx512},
    {&kAvx2Kernels, has_avx2},
#endif
    {&kPortableKernels, [] { return true; }},
};

const Kernels* best_kernels() {
    for (const Isa& isa : kIsas)
        if (isa.supported()) return isa.kernels;
    return &kPortableKernels;
}

const Kernels* g_kernels = best_kernels();

}  // namespace

const Kernels& kernels() { return *g_kernels; }

int32_t set_isa(const char* name) {
    if (name == nullptr) {
        g_kernels = best_kernels();
        return kOctavoOk;
    }
    for (const Isa& isa : kIsas) {
        if (std::strcmp(isa.kernels->name, name) != 0) continue;
        if (!isa.supported()) return kOctavoUnsupported;
        g_kernels = isa.kernels;
        return kOctavoOk;
    }
    return kOctavoUnknownName;
}

}  // namespace octavo
