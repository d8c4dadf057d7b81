// Which tiers exist in this build, which of them this machine can run, and which is taken.
#include <cstring>
#include <string>
#include <vector>

#include "kernels.hpp"
#include "tokens.hpp"

namespace surge {

extern const Kernels kScalarKernels;
extern const TokenKernels kScalarTokens;
#if defined(SURGE_X86)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
extern const TokenKernels kAvx2Tokens;
extern const TokenKernels kAvx512Tokens;
#endif
#if defined(SURGE_NEON)
extern const Kernels kNeonKernels;
extern const TokenKernels kNeonTokens;
#endif

namespace {

std::vector<const Kernels*> runnable() {
    std::vector<const Kernels*> tiers;
#if defined(SURGE_X86)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512vpopcntdq") && __builtin_cpu_supports("avx512vnni"))
        tiers.push_back(&kAvx512Kernels);
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
        __builtin_cpu_supports("f16c"))
        tiers.push_back(&kAvx2Kernels);
#endif
#if defined(SURGE_NEON)
    tiers.push_back(&kNeonKernels);
#endif
    tiers.push_back(&kScalarKernels);
    return tiers;
}

}  // namespace

const Kernels* find_kernels(const char* name) {
    static const std::vector<const Kernels*> tiers = runnable();
    if (!name || !*name || std::strcmp(name, "auto") == 0) return tiers.front();
    for (const Kernels* tier : tiers)
        if (std::strcmp(tier->name, name) == 0) return tier;
    return nullptr;
}

const TokenKernels& token_kernels(const Kernels& tier) {
#if defined(SURGE_X86)
    if (&tier == &kAvx512Kernels) return kAvx512Tokens;
    if (&tier == &kAvx2Kernels) return kAvx2Tokens;
#endif
#if defined(SURGE_NEON)
    if (&tier == &kNeonKernels) return kNeonTokens;
#endif
    return (void)tier, kScalarTokens;
}

const char* kernel_names() {
    static const std::string names = [] {
        std::string text;
        for (const Kernels* tier : runnable())
            text += (text.empty() ? "" : ",") + std::string(tier->name);
        return text;
    }();
    return names.c_str();
}

}  // namespace surge
