// Row loops are compiled for several vector widths; the loader picks one. None of them contracts to fused multiply-add,
// so that results do not depend on the host.
#pragma once
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define CORE_VECTORISED __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CORE_VECTORISED
#endif
