// Small computations of decoding on CPUs that take longer as many calls of PyTorch; one thread.
//
// Every kernel takes pointers to tensors, its sizes, and a number. The .inc files, where they are, are
// compiled once for each kind of x86 processor, and the names of kernels end with it; elsewhere once.

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#define INLINE static inline __attribute__((always_inline))

// A tensor by its pointer. An empty one has no memory: null, to which C++ allows no offset and no copy of 0 bytes.
template <typename T = char> INLINE T *tensor(void *p)
{
    alignas(64) static char nothing[64];
    return (T *)(p ? p : nothing);
}

struct bfloat16 {
    uint16_t bits; // the upper half of those of a float
};

struct half {
    uint16_t bits; // of IEEE 754's 16
};

// Strides are in numbers, not bytes; the last dimension of everything has stride 1.
struct AttentionShape {
    int64_t rows, heads, queries, keys, width, value_width; // rows: queries of all samples
    int64_t q_batch, q_head, q_row;
    int64_t k_batch, k_head, k_row;
    int64_t v_batch, v_head, v_row;
    int64_t visible_batch, visible_query;
    int64_t bias_batch, bias_head, bias_query;
    int64_t scale_batch, scale_query;
    int64_t map, centered;
};

// Strides are in bytes in the next two.
struct PutShape {
    int64_t rows, heads, queries, bytes; // of a row
    int64_t from_row, from_head;
    int64_t to_batch, to_head, to_row;
};

struct TakeShape {
    int64_t trees, heads, entries, room, bytes; // of a row
    int64_t from_tree, from_head, from_entry;
};

struct SelectShape {
    int64_t rows, sentences, beams, symbols, count;
};

struct LinearShape {
    int64_t rows, inputs, outputs, groups; // groups: 4 bytes of a row of weights each, the last one padded
    int64_t rectified;
};

// Of a search, its part in a step of the layers.
struct StepShape {
    int64_t rows;
    AttentionShape own, memory;
};

struct LayersShape {
    int64_t rows, width, inner; // of states, and of the feed-forward network inside
    int64_t groups, inner_groups; // of weights that read states, and of those that read what is inside
    int64_t normed_before, centered; // norms before sublayers, or behind sums; LayerNorm, or RMSNorm
    int64_t layers, searches;
};

extern "C" int kernels_version() { return 9; }

#ifdef __x86_64__

#if !defined(__GNUC__) || defined(__clang__)
#error "what follows is written for GCC; without it PyTorch computes what these kernels would"
#endif

#pragma GCC push_options
#pragma GCC target("arch=x86-64-v4,prefer-vector-width=512")
#define NAMED(name) name##_avx512
#define LANES 16
#define AVX // and that it is there: GCC does not say so itself inside of a pragma
#define AVX512
namespace avx512 {
#include "vectors.inc"
#include "attention.inc"
#include "linear.inc"
#include "layer.inc"
#include "select.inc"
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
#include "linear.inc"
#include "layer.inc"
#include "select.inc"
}
#undef AVX
#undef LANES
#undef NAMED
#pragma GCC pop_options

#endif

#define NAMED(name) name##_any
#define LANES 4
namespace any {
#include "vectors.inc"
#include "attention.inc"
#include "select.inc"
}
