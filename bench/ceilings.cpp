// What the machine can do at most, for comparison: products of whole numbers in registers, as the kernels of each width
// make them. One thread each; compiled by bench/quantized.py. Each returns how many products it made.
#include <immintrin.h>

#include <cstdint>

namespace {

constexpr int kSums = 8;

__m256i add_4bit(__m256i sum, __m256i a, __m256i b) { return _mm256_add_epi16(sum, _mm256_maddubs_epi16(a, b)); }
__m256i add_8bit(__m256i sum, __m256i a, __m256i b) { return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b)); }

template <__m256i (*Add)(__m256i, __m256i, __m256i)>
void multiply(int64_t rounds, __m256i a, __m256i b) {
    __m256i sums[kSums] = {};
    for (int64_t i = 0; i < rounds; ++i)
        for (__m256i& sum : sums) {
            asm volatile("" : "+x"(a), "+x"(b));
            sum = Add(sum, a, b);
        }
    for (__m256i& sum : sums) asm volatile("" : : "x"(sum));
}

}  // namespace

// Products of 4 by 8 bits, summed up in 16 bits.
extern "C" int64_t multiply_4bit(int64_t rounds) {
    multiply<add_4bit>(rounds, _mm256_set1_epi8(3), _mm256_set1_epi8(5));
    return rounds * kSums * 32;
}

// Products of 8 by 16 bits, summed up in 32 bits.
extern "C" int64_t multiply_8bit(int64_t rounds) {
    multiply<add_8bit>(rounds, _mm256_set1_epi16(3), _mm256_set1_epi16(5));
    return rounds * kSums * 16;
}
