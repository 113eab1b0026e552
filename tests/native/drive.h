// Drives the native kernels through their C interface alone, without Python, for the sanitizers: memory of exactly the
// size that the interface names, numbers that repeat, and a digest of all results.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <memory>

#include "octavo_kernels.h"

namespace drive {

// `count` elements on the heap, not one more, so that a step past them is seen.
template <typename T>
class Memory {
public:
    explicit Memory(int64_t count, T value = T{}) : count_(count), data_(new T[static_cast<size_t>(count)]) {
        for (int64_t i = 0; i < count; ++i) data_[i] = value;
    }
    T* data() { return data_.get(); }
    const T* data() const { return data_.get(); }
    T& operator[](int64_t i) { return data_[i]; }
    int64_t count() const { return count_; }

private:
    int64_t count_;
    std::unique_ptr<T[]> data_;
};

// The same numbers for the same seed, whatever the machine.
class Random {
public:
    explicit Random(uint64_t seed) : state_(seed * 2654435761u + 1) {}
    uint64_t next() {
        state_ = state_ * 6364136223846793005u + 1442695040888963407u;
        return state_ >> 33;
    }
    int64_t below(int64_t end) { return static_cast<int64_t>(next() % static_cast<uint64_t>(end)); }
    // In -1 .. 1.
    float unit() { return static_cast<float>(next() % 2001) / 1000.0f - 1.0f; }

private:
    uint64_t state_;
};

inline Memory<float> random_floats(int64_t count, uint64_t seed) {
    Memory<float> memory(count);
    Random random(seed);
    for (int64_t i = 0; i < count; ++i) memory[i] = random.unit();
    return memory;
}

inline void require(bool condition, const char* what) {
    if (condition) return;
    std::fprintf(stderr, "not so: %s\n", what);
    std::exit(1);
}

// FNV-1a over the bits of results.
class Digest {
public:
    template <typename T>
    void add(const Memory<T>& memory) {
        const unsigned char* bytes = reinterpret_cast<const unsigned char*>(memory.data());
        for (size_t i = 0; i < static_cast<size_t>(memory.count()) * sizeof(T); ++i) value_ = (value_ ^ bytes[i]) * 1099511628211u;
    }
    uint64_t value() const { return value_; }

private:
    uint64_t value_ = 14695981039346656037u;
};

inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Each drives one family of operations and returns the digest of what they gave.
uint64_t linears();
uint64_t quantized_linears();
uint64_t attention();
uint64_t row_operations();
uint64_t sampling();
uint64_t thread_pool();
uint64_t programs();

}  // namespace drive
