// What the machine can do at most, for comparison: products of whole numbers in registers, as the kernels of each width
// make them. One thread each; compiled by bench/quantized.py. Each returns how many products it made.
#include <immintrin.h>

#include <cstdint>

namespace {

constexpr int kSums = 8;

#if defined(__AVX512VNNI__)
using Register = __m512i;
Register same(int8_t x) { return _mm512_set1_epi8(x); }
Register add_4bit(Register sum, Register a, Register b) { return _mm512_dpbusd_epi32(sum, a, b); }
Register add_8bit(Register sum, Register a, Register b) { return _mm512_dpwssd_epi32(sum, a, b); }
#else
using Register = __m256i;
Register same(int8_t x) { return _mm256_set1_epi8(x); }
Register add_4bit(Register sum, Register a, Register b) { return _mm256_add_epi16(sum, _mm256_maddubs_epi16(a, b)); }
Register add_8bit(Register sum, Register a, Register b) { return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b)); }
#endif

template <Register (*Add)(Register, Register, Register)>
void multiply(int64_t rounds) {
    Register a = same(3), b = same(5), sums[kSums] = {};
    for (int64_t i = 0; i < rounds; ++i)
        for (Register& sum : sums) {
            asm volatile("" : "+x"(a), "+x"(b));
            sum = Add(sum, a, b);
        }
    for (Register& sum : sums) asm volatile("" : : "x"(sum));
}

}  // namespace

// Products of 4 by 8 bits, summed up in 16 bits, or in 32 with AVX-512.
extern "C" int64_t multiply_4bit(int64_t rounds) {
    multiply<add_4bit>(rounds);
    return rounds * kSums * static_cast<int64_t>(sizeof(Register));
}

// Products of 8 by 16 bits, summed up in 32 bits.
extern "C" int64_t multiply_8bit(int64_t rounds) {
    multiply<add_8bit>(rounds);
    return rounds * kSums * static_cast<int64_t>(sizeof(Register) / 2);
}
