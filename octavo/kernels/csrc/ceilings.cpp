// What this machine can do at most with the instruction set in use, for octavo bench: loops that do one thing and nothing
// else. One thread each; the caller starts as many as it wants. Nothing of Octavo computes with these.
#include <cstdint>
#include <cstring>

#include "isa.h"
#include "octavo_kernels.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

// Independent chains: more than the latency of a multiply-add times what a core starts in a cycle.
constexpr int kChains = 12;
// Floats of the compiler's vectors and bytes of a round of dot products: what fits into sixteen small registers.
constexpr int kFloats = 48, kBytes = 256;
// Registers of dot products: of sixteen, half are for what is on the way.
constexpr int kDotChains = 8;
// Of sixteen outputs and 32 inputs.
constexpr int64_t kGroupProducts = 16 * 32;

int64_t sum_words(const int64_t* words, int64_t count) {
    int64_t sums[16] = {};
    for (int64_t i = 0; i + 16 <= count; i += 16)
        for (int j = 0; j < 16; ++j) sums[j] += words[i + j];
    int64_t total = 0;
    for (int64_t sum : sums) total += sum;
    return total;
}

float multiply_add_portable(int64_t rounds) {
    float sums[kFloats] = {};
    for (int64_t r = 0; r < rounds; ++r)
        for (float& sum : sums) sum = sum * 0.5f + 1.0f;
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
__attribute__((target("avx2,fma"))) float multiply_add_avx2(int64_t rounds) {
    __m256 sums[kChains];
    for (__m256& sum : sums) sum = _mm256_setzero_ps();
    const __m256 half = _mm256_set1_ps(0.5f), one = _mm256_set1_ps(1.0f);
    for (int64_t r = 0; r < rounds; ++r)
        for (__m256& sum : sums) sum = _mm256_fmadd_ps(sum, half, one);
    float total = 0;
    for (const __m256& sum : sums) total += _mm256_cvtss_f32(sum);
    return total;
}

// Unsigned by signed bytes, pairs into 16 bits, pairs of those into 32, added up: what an 8-bit dot product takes.
__attribute__((target("avx2"))) int64_t dot_avx2(int64_t rounds) {
    __m256i sums[kDotChains];
    for (int c = 0; c < kDotChains; ++c) sums[c] = _mm256_set1_epi8(static_cast<char>(c));
    const __m256i b = _mm256_set1_epi8(3), ones = _mm256_set1_epi16(1);
    for (int64_t r = 0; r < rounds; ++r)
        for (__m256i& sum : sums) {
            const __m256i pairs = _mm256_maddubs_epi16(sum, b);  // of what changes, so that it stays in the loop
            sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
        }
    int64_t total = 0;
    for (const __m256i& sum : sums) total += _mm256_extract_epi32(sum, 0);
    return total;
}

__attribute__((target("avx512f"))) float multiply_add_avx512(int64_t rounds) {
    __m512 sums[kChains];
    for (__m512& sum : sums) sum = _mm512_setzero_ps();
    const __m512 half = _mm512_set1_ps(0.5f), one = _mm512_set1_ps(1.0f);
    for (int64_t r = 0; r < rounds; ++r)
        for (__m512& sum : sums) sum = _mm512_fmadd_ps(sum, half, one);
    float total = 0;
    for (const __m512& sum : sums) total += _mm512_cvtss_f32(sum);
    return total;
}

__attribute__((target("avx512f,avx512vnni"))) int64_t dot_avx512(int64_t rounds) {
    __m512i sums[kChains];
    for (__m512i& sum : sums) sum = _mm512_setzero_si512();
    const __m512i a = _mm512_set1_epi8(5), b = _mm512_set1_epi8(3);
    for (int64_t r = 0; r < rounds; ++r)
        for (__m512i& sum : sums) sum = _mm512_dpbusd_epi32(sum, a, b);
    int64_t total = 0;
    for (const __m512i& sum : sums) total += _mm512_cvtsi512_si32(sum);
    return total;
}

// A group of sixteen outputs and 32 inputs, for several rows at once: its products, then, in fp32, what a sum takes from them:
// the product of two scales, a multiply-add, and another one where there are minima. Products come as `Products` makes them.
template <bool HasMinima, void (*Products)(__m256i (&)[2], __m256i&, __m256i&)>
__attribute__((target("avx2,fma"))) int64_t groups_avx2(int64_t rounds) {
    constexpr int kRows = 2;
    __m256i a = _mm256_set1_epi8(5), b = _mm256_set1_epi8(3);
    __m256 scale = _mm256_set1_ps(0.5f), minimum = scale, sums[kRows][2] = {};
    for (int64_t r = 0; r < rounds; ++r)
#pragma GCC unroll 32
        for (__m256(&sum)[2] : sums) {
            __m256i products[2] = {};
            Products(products, a, b);
#pragma GCC unroll 32
            for (int half = 0; half < 2; ++half) {
                __asm__ volatile("" : "+x"(scale), "+x"(minimum));
                sum[half] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(products[half]), _mm256_mul_ps(scale, minimum), sum[half]);
                if (HasMinima) sum[half] = _mm256_fmadd_ps(minimum, scale, sum[half]);
            }
        }
#pragma GCC unroll 32
    for (__m256(&sum)[2] : sums) __asm__ volatile("" : : "x"(sum[0]), "x"(sum[1]));
    return rounds * kRows;
}

__attribute__((target("avx2"), always_inline)) inline void products_4bit_avx2(__m256i (&sums)[2], __m256i& a, __m256i& b) {
#pragma GCC unroll 32
    for (int i = 0; i < 16; ++i) {
        __asm__ volatile("" : "+x"(a), "+x"(b));
        sums[i % 2] = _mm256_add_epi16(sums[i % 2], _mm256_maddubs_epi16(a, b));
    }
#pragma GCC unroll 32
    for (__m256i& sum : sums) sum = _mm256_madd_epi16(sum, _mm256_set1_epi16(1));
}

__attribute__((target("avx2"), always_inline)) inline void products_8bit_avx2(__m256i (&sums)[2], __m256i& a, __m256i& b) {
#pragma GCC unroll 32
    for (int i = 0; i < 32; ++i) {
        __asm__ volatile("" : "+x"(a), "+x"(b));
        sums[i % 2] = _mm256_add_epi32(sums[i % 2], _mm256_madd_epi16(a, b));
    }
}

// As groups_avx2; Instructions of products in a group.
template <bool HasMinima, int Instructions>
__attribute__((target("avx512f,avx512vnni"))) int64_t groups_avx512(int64_t rounds) {
    constexpr int kRows = 8;
    __m512i a = _mm512_set1_epi8(5), b = _mm512_set1_epi8(3);
    __m512 scale = _mm512_set1_ps(0.5f), minimum = scale, sums[kRows] = {};
    for (int64_t r = 0; r < rounds; ++r) {
        __m512i products[kRows] = {};
#pragma GCC unroll 32
        for (int i = 0; i < Instructions; ++i)
#pragma GCC unroll 32
            for (__m512i& product : products) {
                __asm__ volatile("" : "+v"(a), "+v"(b));
                product = Instructions == 8 ? _mm512_dpbusd_epi32(product, a, b) : _mm512_dpwssd_epi32(product, a, b);
            }
#pragma GCC unroll 32
        for (int row = 0; row < kRows; ++row) {
            __asm__ volatile("" : "+v"(scale), "+v"(minimum));
            sums[row] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(products[row]), _mm512_mul_ps(scale, minimum), sums[row]);
            if (HasMinima) sums[row] = _mm512_fmadd_ps(minimum, scale, sums[row]);
        }
    }
#pragma GCC unroll 32
    for (__m512& sum : sums) __asm__ volatile("" : : "v"(sum));
    return rounds * kRows;
}
#endif

// Products of bytes and nothing else, where there is no better measure of a group.
int64_t groups_portable(int64_t rounds) {
    volatile int64_t result = dot_portable(rounds);
    static_cast<void>(result);
    return rounds * kBytes / kGroupProducts;
}

// Loops of an instruction set, and how many operations a round of each makes.
struct Loops {
    const char* isa;
    float (*multiply_add)(int64_t rounds);
    int64_t multiply_add_operations;
    int64_t (*dot)(int64_t rounds);
    int64_t dot_operations;
    // Groups of a row with weights of 4 bits, of 4 bits with minima, and of 8 bits: each returns how many it did.
    int64_t (*groups4)(int64_t rounds);
    int64_t (*groups4_minima)(int64_t rounds);
    int64_t (*groups8)(int64_t rounds);
};

const Loops kLoops[] = {
#if defined(__x86_64__)
    {"avx512", multiply_add_avx512, 2 * kChains * 16, dot_avx512, 2 * kChains * 64, groups_avx512<false, 8>,
     groups_avx512<true, 8>, groups_avx512<false, 16>},
    {"avx2", multiply_add_avx2, 2 * kChains * 8, dot_avx2, 2 * kDotChains * 32, groups_avx2<false, products_4bit_avx2>,
     groups_avx2<true, products_4bit_avx2>, groups_avx2<false, products_8bit_avx2>},
#endif
    {"portable", multiply_add_portable, 2 * kFloats, dot_portable, 2 * kBytes, groups_portable, groups_portable,
     groups_portable},
};

// Of the instruction set in use.
const Loops& loops() {
    const Loops* loops = kLoops;
    while (std::strcmp(loops->isa, octavo::kernels().name) != 0) ++loops;
    return *loops;
}

}  // namespace

int64_t octavo_ceiling_read(const void* memory, int64_t num_bytes) {
    return sum_words(static_cast<const int64_t*>(memory), num_bytes / 8);
}

int64_t octavo_ceiling_fma(int64_t rounds, float* result) {
    *result = loops().multiply_add(rounds);
    return rounds * loops().multiply_add_operations;
}

int64_t octavo_ceiling_dot(int64_t rounds, int64_t* result) {
    *result = loops().dot(rounds);
    return rounds * loops().dot_operations;
}

int64_t octavo_ceiling_quantized(int32_t format, int64_t rounds) {
    const Loops& l = loops();
    const bool is_8bit = format == kOctavoInt8 || format == kOctavoInt8Fine;
    return kGroupProducts * (is_8bit ? l.groups8 : format == kOctavoInt4 ? l.groups4 : l.groups4_minima)(rounds);
}
