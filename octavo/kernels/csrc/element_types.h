// Numbers of 16 bits as memory holds them; arithmetic is always in fp32, to which both convert exactly.
#pragma once

#include <cstdint>

namespace octavo {

// IEEE 754 binary16.
struct Half {
    uint16_t bits;
};

// The upper half of an fp32 number.
struct BFloat16 {
    uint16_t bits;
};

}  // namespace octavo
