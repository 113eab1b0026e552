// What the machine can do at most, for comparison: reading memory, and products of whole numbers in registers. One
// thread each; compiled by bench/quantized.py.
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

// Reads `count` bytes (a multiple of 128), `passes` times.
extern "C" int64_t read_memory(const uint8_t* p, size_t count, int passes) {
    __m256i sums[4] = {};
    for (int pass = 0; pass < passes; ++pass)
        for (size_t i = 0; i < count; i += 128)
            for (size_t j = 0; j < 4; ++j)
                sums[j] = _mm256_xor_si256(sums[j], _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + i + 32 * j)));
    return _mm256_extract_epi64(_mm256_xor_si256(_mm256_xor_si256(sums[0], sums[1]), _mm256_xor_si256(sums[2], sums[3])), 0);
}

// 8 * 32 products of 4 by 8 bits a round, summed up in 16 bits.
extern "C" int64_t multiply_4bit(int64_t rounds) {
    __m256i sums[8] = {}, a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(5);
    for (int64_t i = 0; i < rounds; ++i)
        for (__m256i& sum : sums) {
            asm volatile("" : "+x"(a), "+x"(b));
            sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(a, b));
        }
    int64_t total = 0;
    for (const __m256i& sum : sums) total += _mm256_extract_epi64(sum, 0);
    return total;
}

// 8 * 16 products of 8 by 16 bits a round, summed up in 32 bits.
extern "C" int64_t multiply_8bit(int64_t rounds) {
    __m256i sums[8] = {}, a = _mm256_set1_epi16(3), b = _mm256_set1_epi16(5);
    for (int64_t i = 0; i < rounds; ++i)
        for (__m256i& sum : sums) {
            asm volatile("" : "+x"(a), "+x"(b));
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
        }
    int64_t total = 0;
    for (const __m256i& sum : sums) total += _mm256_extract_epi64(sum, 0);
    return total;
}
