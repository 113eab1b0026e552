// Every family of operations under every instruction set of this machine, on 1, 2 and 4 threads, which must agree to the bit.
// So must instruction sets of the same arithmetic.
#include <map>
#include <string>

#include "drive.h"

namespace {

struct Family {
    const char* name;
    uint64_t (*drive)();
};

const Family kFamilies[] = {
    {"linears", drive::linears},
    {"quantised linears", drive::quantized_linears},
    {"attention", drive::attention},
    {"row operations", drive::row_operations},
    {"sampling", drive::sampling},
    {"thread pool", drive::thread_pool},
    {"programs", drive::programs},
};

}  // namespace

int main() {
    std::map<std::string, uint64_t> digests;
    for (const char* isa : {"portable", "avx2", "avx512"}) {
        if (octavo_set_isa(isa) != kOctavoOk) continue;
        for (const Family& family : kFamilies) {
            octavo_set_num_threads(1);
            const uint64_t alone = family.drive();
            for (int32_t threads : {2, 4}) {
                octavo_set_num_threads(threads);
                drive::require(family.drive() == alone, family.name);
            }
            const std::string work = std::string(octavo_arithmetic()) + ": " + family.name;
            drive::require(digests.emplace(work, alone).first->second == alone, work.c_str());
            std::printf("%s: %s\n", isa, family.name);
        }
    }
    return 0;
}
