// Compiled for the baseline of the architecture.
#include "portable.h"
#include "portable_integers.h"
#include "../impl/kernels.inl"

OCTAVO_DEFINE_KERNELS(kPortableKernels, "portable")
