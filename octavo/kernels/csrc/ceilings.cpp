// What this machine can do at most, for octavo bench: loops that do one thing and nothing else. One thread each; the
// caller starts as many as it wants. Nothing of Octavo computes with these.
#include <cmath>
#include <cstdint>

#include "octavo_kernels.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

// Independent chains: more than the latency of a multiply-add times what a core starts in a cycle.
constexpr int kChains = 12;
constexpr int kLanes = 8;
// Bytes of a round of dot products: eight registers, so that their sums and what is on the way fit into sixteen.
constexpr int kBytes = 256;

int64_t sum_words(const int64_t* words, int64_t count) {
    int64_t sums[16] = {};
    for (int64_t i = 0; i + 16 <= count; i += 16)
        for (int j = 0; j < 16; ++j) sums[j] += words[i + j];
    int64_t total = 0;
    for (int64_t sum : sums) total += sum;
    return total;
}

float fma_portable(int64_t rounds) {
    float sums[kChains * kLanes] = {};
    for (int64_t r = 0; r < rounds; ++r)
        for (float& sum : sums) sum = std::fma(sum, 0.5f, 1.0f);
    float total = 0;
    for (float sum : sums) total += sum;
    return total;
}

int64_t dot_portable(int64_t rounds) {
    int8_t a[kBytes], b[kBytes];
    for (int i = 0; i < kBytes; ++i) a[i] = b[i] = static_cast<int8_t>(i);
    int64_t total = 0;
    for (int64_t r = 0; r < rounds; ++r) {
        __asm__ volatile("" : : "r"(a), "r"(b) : "memory");  // they may have changed: compute it again
        int32_t sum = 0;
        for (int i = 0; i < kBytes; ++i) sum += a[i] * b[i];
        total += sum;
    }
    return total;
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) float fma_avx2(int64_t rounds) {
    __m256 sums[kChains];
    for (__m256& sum : sums) sum = _mm256_setzero_ps();
    const __m256 half = _mm256_set1_ps(0.5f), one = _mm256_set1_ps(1.0f);
    for (int64_t r = 0; r < rounds; ++r)
        for (int c = 0; c < kChains; ++c) sums[c] = _mm256_fmadd_ps(sums[c], half, one);
    float total = 0;
    for (const __m256& sum : sums) total += _mm256_cvtss_f32(sum);
    return total;
}

// Unsigned by signed bytes, pairs into 16 bits, pairs of those into 32, added up: what an 8-bit dot product takes.
__attribute__((target("avx2"))) int64_t dot_avx2(int64_t rounds) {
    __m256i sums[kBytes / 32];
    for (int c = 0; c < kBytes / 32; ++c) sums[c] = _mm256_set1_epi8(static_cast<char>(c));
    const __m256i b = _mm256_set1_epi8(3), ones = _mm256_set1_epi16(1);
    for (int64_t r = 0; r < rounds; ++r)
        for (int c = 0; c < kBytes / 32; ++c) {
            const __m256i pairs = _mm256_maddubs_epi16(sums[c], b);  // of what changes, so that it stays in the loop
            sums[c] = _mm256_add_epi32(sums[c], _mm256_madd_epi16(pairs, ones));
        }
    int64_t total = 0;
    for (const __m256i& sum : sums) total += _mm256_extract_epi32(sum, 0);
    return total;
}

bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
float fma(int64_t rounds) { return has_avx2() ? fma_avx2(rounds) : fma_portable(rounds); }
int64_t dot(int64_t rounds) { return has_avx2() ? dot_avx2(rounds) : dot_portable(rounds); }
#else
float fma(int64_t rounds) { return fma_portable(rounds); }
int64_t dot(int64_t rounds) { return dot_portable(rounds); }
#endif

}  // namespace

int64_t octavo_ceiling_read(const void* memory, int64_t num_bytes) {
    return sum_words(static_cast<const int64_t*>(memory), num_bytes / 8);
}

int64_t octavo_ceiling_fma(int64_t rounds, float* result) {
    *result = fma(rounds);
    return 2 * rounds * kChains * kLanes;
}

int64_t octavo_ceiling_dot(int64_t rounds, int64_t* result) {
    *result = dot(rounds);
    return 2 * rounds * kBytes;
}
