// The instruction set in use: chosen once when the library is loaded, or by name.
#pragma once

#include "kernels.h"

namespace octavo {

// The chosen one. Not to be changed while an operation runs.
const Kernels& kernels();

// Choose by name, or the best one that this machine has where name is null; an OctavoStatus.
int32_t set_isa(const char* name);

}  // namespace octavo
