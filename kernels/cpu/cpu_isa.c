/* Which instruction set to use: what CPUID and the operating system offer, or what TALLY_ISA names. */
#include "kernels/cpu/cpu_backend.h"

#include <stdlib.h>
#include <string.h>
#if defined(TALLY_X86)
#include <cpuid.h>
#endif

static const char *const names[CPU_ISA_COUNT] = {"plain", "avx2", "avx512"};

const char *cpu_isa_name(enum cpu_isa isa) { return (unsigned)isa < CPU_ISA_COUNT ? names[isa] : "unknown"; }

#if defined(TALLY_X86)
/* clang 14's __builtin_cpu_supports does not know it. AVX's registers are asked for with the other features. */
static bool has_f16c(void) {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

/* __builtin_cpu_supports also asks whether the operating system saves the registers. */
bool cpu_isa_available(enum cpu_isa isa) {
#if defined(TALLY_X86)
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2") && has_f16c();
    if (isa == CPU_ISA_AVX2) return avx2;
    if (isa == CPU_ISA_AVX512)
        return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni");
#endif
    return isa == CPU_ISA_PLAIN;
}

static enum status isa_named(enum cpu_isa *isa, const char *name, struct err *err) {
    for (int i = 0; i < CPU_ISA_COUNT; i++) {
        if (strcmp(name, names[i]) != 0) continue;
        if (!cpu_isa_available((enum cpu_isa)i))
            return err_set_param(err, STATUS_UNSUPPORTED, "TALLY_ISA", "choose instruction set: TALLY_ISA: this CPU has no %s",
                                 name);
        *isa = (enum cpu_isa)i;
        return STATUS_OK;
    }
    return err_set_param(err, STATUS_INVALID, "TALLY_ISA",
                         "choose instruction set: TALLY_ISA: '%.32s' is none of plain, avx2, avx512", name);
}

enum status cpu_isa_choose(enum cpu_isa *isa, struct err *err) {
    const char *name = getenv("TALLY_ISA");
    if (name && *name) return isa_named(isa, name, err);
    int best = CPU_ISA_COUNT - 1;
    while (!cpu_isa_available((enum cpu_isa)best)) best--;
    *isa = (enum cpu_isa)best;
    return STATUS_OK;
}
