// Exponentials of logits and their sums, the same bits on every machine: each operation rounds once (math.h's exp may
// fuse two), and sums are of whole numbers, in units of 2^-40 (octavo/runner/drawing.py).
#pragma once

namespace {

// e^-29 is less than half a unit.
constexpr float kLowest = -29.0f;
// So many numbers of 2^20 a lane are exact in fp32.
constexpr int64_t kSumBlock = kLanes * 16;

// Adding and taking away 1.5 * 2^23 rounds to a whole number.
inline F16 to_whole(F16 x) { return sub(add(x, set1(12582912.0f)), set1(12582912.0f)); }
inline F16 mul_add(F16 a, F16 b, F16 c) { return add(mul(a, b), c); }

// e^x for x in -29 .. 0
inline F16 exp_rounded(F16 x) {
    const F16 n = to_whole(mul(x, set1(1.44269504f)));
    F16 r = mul_add(n, set1(-0.693359375f), x);
    r = mul_add(n, set1(2.12194440e-4f), r);
    F16 p = set1(1.9875691500e-4f);
    p = mul_add(p, r, set1(1.3981999507e-3f));
    p = mul_add(p, r, set1(8.3334519073e-3f));
    p = mul_add(p, r, set1(4.1665795894e-2f));
    p = mul_add(p, r, set1(1.6666665459e-1f));
    p = mul_add(p, r, set1(5.0000001201e-1f));
    p = add(mul_add(p, mul(r, r), r), set1(1.0f));
    return mul(p, pow2(n));
}

inline float distance(float logit, float best, float scale) { return (logit - best) * scale; }
// e^((logit - best) * scale); of what lies below kLowest, e^kLowest.
inline F16 relative_weights(F16 logits, F16 best, F16 scale) {
    return exp_rounded(max(mul(sub(logits, best), scale), set1(kLowest)));
}

inline int64_t in_units(float weight) { return __builtin_llrint(static_cast<double>(weight) * 0x1p40); }

// The sum of at most kSumBlock weights in 0 .. 1, each rounded to units. The upper and lower 20 bits of a weight are
// summed apart, as whole numbers in fp32.
class ExactSum {
public:
    void count(F16 weights) {
        const F16 scaled = mul(weights, set1(0x1p20f)), upper = to_whole(scaled);
        upper_ = add(upper_, upper);
        lower_ = add(lower_, to_whole(mul(sub(scaled, upper), set1(0x1p20f))));
    }
    int64_t units() const {
        alignas(64) float upper[kLanes], lower[kLanes];
        store(upper, upper_);
        store(lower, lower_);
        int64_t units = 0;
        for (int64_t i = 0; i < kLanes; ++i) units += static_cast<int64_t>(upper[i]) * (1 << 20) + static_cast<int64_t>(lower[i]);
        return units;
    }

private:
    F16 upper_ = set1(0.0f), lower_ = set1(0.0f);
};

// The first `count` lanes; those after them are -inf.
inline F16 load_logits(const float* p, int64_t count) {
    return count >= kLanes ? load(p) : keep_lanes(load_first(p, count), 0, count, set1(-__builtin_inff()));
}

}  // namespace
