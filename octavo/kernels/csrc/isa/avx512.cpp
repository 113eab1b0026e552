// Compiled with the flags of has_avx512 (isa.cpp); entered only where the machine has all of these.
#include "avx512.h"
#include "avx512_integers.h"
#include "../impl/kernels.inl"

OCTAVO_DEFINE_KERNELS(kAvx512Kernels, "avx512")
