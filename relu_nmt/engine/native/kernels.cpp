// Affine maps and layers of decoding on CPUs, which take longer as many calls of PyTorch. Each uses one thread.
//
// A kernel takes a struct of arguments.inc and a number. The other .inc files are compiled once for each kind of
// x86 processor, and the names of kernels end with that kind. Other processors have no kernels.

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#define INLINE static inline __attribute__((always_inline))

// Return the address of a tensor as a pointer to its elements. An empty tensor has address null, but C++ defines
// neither null plus an offset nor a copy of 0 bytes from null.
template <typename T = char> INLINE T *tensor(void *p)
{
    alignas(64) static char nothing[64];
    return (T *)(p ? p : nothing);
}

template <typename T = char> INLINE const T *tensor(const void *p) { return tensor<T>((void *)p); }

struct bfloat16 {
    uint16_t bits; // the upper half of a float's bits
};

struct half {
    uint16_t bits; // IEEE 754 binary16
};

// Define the structs of the arguments.
static_assert(sizeof(void *) == sizeof(int64_t), "Python fills every field with 8 bytes");
#define CONSTANT(name, value) constexpr int64_t name = value;
#define STRUCT(name) struct name {
#define POINTER(type, name) type *name;
#define SIZE(name) int64_t name;
#define NESTED(type, name) type name;
#define END };
#include "arguments.inc"

// Return the table as text, one line for each entry, so that Python can compare it with its own.
#define CONSTANT(name, value) "CONSTANT(" #name ", " #value ")\n"
#define STRUCT(name) "STRUCT(" #name ")\n"
#define POINTER(type, name) "POINTER(" #type ", " #name ")\n"
#define SIZE(name) "SIZE(" #name ")\n"
#define NESTED(type, name) "NESTED(" #type ", " #name ")\n"
#define END "END\n"
extern "C" const char *kernels_arguments()
{
    return
#include "arguments.inc"
        ;
}

#ifdef __x86_64__

#if !defined(__GNUC__) || defined(__clang__)
#error "the kernels need GCC; without them PyTorch computes the same"
#endif

#pragma GCC push_options
#pragma GCC target("arch=x86-64-v4,prefer-vector-width=512")
#define NAMED(name) name##_avx512
#define LANES 16
#define AVX512 // GCC does not define its own macros inside of a pragma
namespace avx512 {
#include "vectors.inc"
#include "attention.inc"
#include "search.inc"
#include "linear.inc"
#include "layer.inc"
}
#undef AVX512
#undef LANES
#undef NAMED
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("arch=x86-64-v3")
#define NAMED(name) name##_avx2
#define LANES 8
namespace avx2 {
#include "vectors.inc"
#include "attention.inc"
#include "search.inc"
#include "linear.inc"
#include "layer.inc"
}
#undef LANES
#undef NAMED
#pragma GCC pop_options

#endif
