// Compiled with -mavx2 -mfma -mf16c; entered only where the machine has all three.
#include "avx2.h"
#include "avx2_integers.h"
#include "../impl/kernels.inl"

OCTAVO_DEFINE_KERNELS(kAvx2Kernels, "avx2")
