// Loops from several calling threads at once, short ones, ones after a sleep, with sizes that change meanwhile.
#include <chrono>
#include <thread>
#include <vector>

#include "drive.h"

#if !defined(__SANITIZE_THREAD__)
#include <sys/wait.h>
#include <unistd.h>
#endif

namespace drive {
namespace {

Memory<float> add(int64_t rows, uint64_t seed) {
    Memory<float> x = random_floats(rows * 1000, seed);
    const Memory<float> y = random_floats(rows * 1000, seed + 1);
    octavo_add(x.data(), y.data(), rows, 1000);
    return x;
}

void call_from_several_threads(Digest& digest) {
    std::vector<std::thread> callers;
    std::vector<Memory<float>> results;
    for (int i = 0; i < 4; ++i) results.emplace_back(0);
    for (size_t i = 0; i < results.size(); ++i)
        callers.emplace_back([&results, i] {
            for (int turn = 0; turn < 20; ++turn) results[i] = add(60, i);
        });
    for (std::thread& caller : callers) caller.join();
    for (const Memory<float>& result : results) digest.add(result);
}

void change_sizes(Digest& digest) {
    const int32_t before = octavo_num_threads();
    for (int turn = 0; turn < 60; ++turn) {
        octavo_set_num_threads(1 + turn % 5);
        // Longer than workers spin: they must be woken.
        if (turn % 20 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
        digest.add(add(40, 3));
    }
    octavo_set_num_threads(before);
}

// A sanitizer of threads does not follow threads that are started after a fork.
void fork_a_child() {
#if !defined(__SANITIZE_THREAD__)
    add(60, 1);
    const pid_t child = fork();
    if (child == 0) {
        add(60, 1);
        _exit(0);
    }
    int status = -1;
    require(waitpid(child, &status, 0) == child && status == 0, "a forked child has threads of its own");
#endif
}

}  // namespace

uint64_t thread_pool() {
    Digest digest;
    call_from_several_threads(digest);
    change_sizes(digest);
    fork_a_child();
    return digest.value();
}

}  // namespace drive
