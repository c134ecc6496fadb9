/* What a CPU does beside products, where torch takes a dozen calls, or long.
 *
 * Attention of one query row a sequence to its own keys and values in a cache, for which torch has
 * no operation; attention of whole sequences that lie end to end, in bf16; the rounding of rows to
 * 8 bits, before and after a product of integers; norms; and rotary positions, on the way to a
 * cache. And products, which torch's libraries do badly for few rows: in fp32 by AVX2 or AVX512, in
 * bf16 and of 8 bits where AVX512 has them.
 *
 * Numbers are fp32 inside. Each row is computed by itself, so that none depends on what else is in
 * a step.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#if defined(__x86_64__) && defined(__gnu_linux__) && !defined(__clang__) && !defined(ONE_KIND)
#define BEST __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define BEST
#endif
#if defined(__x86_64__) && !defined(ONE_KIND)
#include <immintrin.h>
#define WIDE_KERNELS 1
#else
#define WIDE_KERNELS 0
#endif

enum { MOST_SIZE = 512, LANES = 16 };

INLINE float widened(uint16_t half) {
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

INLINE float number(const void *table, int64_t place, int bf16) {
    return bf16 ? widened(((const uint16_t *)table)[place]) : ((const float *)table)[place];
}

INLINE uint16_t narrowed(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (value != value) return 0x7fc0; /* rounding could make a NaN an infinity */
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

/* e to the power of x <= 0, to 2e-7 of itself (Cephes' expf); NaN stays. */
INLINE float exponential(float x) {
    x = x < -87.0f ? -87.0f : x;
    float whole = rintf(x * 1.44269504f);
    float rest = x - whole * 0.693359375f + whole * 2.12194440e-4f;
    float sum = 1.9875691500e-4f;
    sum = sum * rest + 1.3981999507e-3f;
    sum = sum * rest + 8.3334519073e-3f;
    sum = sum * rest + 4.1665795894e-2f;
    sum = sum * rest + 1.6666665459e-1f;
    sum = sum * rest + 5.0000001201e-1f;
    sum = sum * rest * rest + rest + 1.0f;
    int32_t bits = ((int32_t)whole + 127) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return sum * power;
}

INLINE const float *row_of(const void *table, int64_t place, int bf16, int64_t size, float *room) {
    if (!bf16) return (const float *)table + place;
    const uint16_t *halves = (const uint16_t *)table + place;
#pragma omp simd
    for (int64_t d = 0; d < size; d++) room[d] = widened(halves[d]);
    return room;
}

INLINE void softmax(float *scores, int64_t count) {
    float most = scores[0], sum = 0.0f;
#pragma omp simd reduction(max : most)
    for (int64_t p = 0; p < count; p++) most = scores[p] > most ? scores[p] : most;
#pragma omp simd reduction(+ : sum)
    for (int64_t p = 0; p < count; p++) {
        scores[p] = exponential(scores[p] - most);
        sum += scores[p];
    }
    float share = 1.0f / sum;
#pragma omp simd
    for (int64_t p = 0; p < count; p++) scores[p] *= share;
}

/* No compiler makes products of pairs in bf16 from loops like those above: here they are written
 * out, for AVX512. */
#if WIDE_KERNELS
#define WIDE __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")))
#define INTS __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")))
#define DOTS                                                                                    \
    __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16")))

WIDE INLINE void narrow_all(__m512 value, uint16_t *to) {
    __m512i bits = _mm512_castps_si512(value), one = _mm512_set1_epi32(1);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), one);
    bits = _mm512_add_epi32(_mm512_add_epi32(bits, odd), _mm512_set1_epi32(0x7fff));
    bits = _mm512_srli_epi32(bits, 16);
    __mmask16 none = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    bits = _mm512_mask_mov_epi32(bits, none, _mm512_set1_epi32(0x7fc0));
    _mm256_storeu_si256((__m256i *)to, _mm512_cvtepi32_epi16(bits));
}

/* As narrow_all, in one operation; what is under the least normal number becomes 0. */
DOTS INLINE void narrow_pairs(__m512 value, uint16_t *to) {
    _mm256_storeu_si256((__m256i *)to, (__m256i)_mm512_cvtneps_pbh(value));
}

/* 2 to the power of x, to 3e-6 of itself, which bf16 does not see; NaN stays. */
DOTS INLINE __m512 two_to(__m512 x) {
    __m512 rest = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF), sum = _mm512_set1_ps(0.0135341790f);
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(0.0520114936f));
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(0.241442695f));
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(0.693003833f));
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(1.0000026f));
    return _mm512_scalef_ps(sum, x);
}

enum { TILE = 6, SPAN = 2 * LANES };

/* Two numbers of a key in each lane, 16 keys side by side, (keys / 16, size / 2, 16); keys that
 * there are not are 0. */
INLINE void pack_keys(const uint16_t *keys, int64_t stride, int64_t count, int64_t padded,
                      int64_t size, uint32_t *packed) {
    int64_t half = size / 2;
    for (int64_t key = 0; key < padded; key++) {
        uint32_t *own = packed + key / LANES * half * LANES + key % LANES;
        for (int64_t j = 0; j < half; j++) {
            uint32_t pair = 0;
            if (key < count) memcpy(&pair, keys + key * stride + 2 * j, sizeof pair);
            own[j * LANES] = pair;
        }
    }
}

/* The same number of two values in each lane, (values / 2, size / 16, 16). */
DOTS INLINE void pack_values(const uint16_t *values, int64_t stride, int64_t count, int64_t padded,
                             int64_t size, uint32_t *packed) {
    for (int64_t value = 0; value < padded; value += 2)
        for (int64_t d = 0; d < size; d += LANES, packed += LANES) {
            __m512i first = _mm512_setzero_si512(), second = first;
            const uint16_t *own = values + value * stride + d;
            if (value < count)
                first = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)own));
            if (value + 1 < count)
                second = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(own + stride)));
            _mm512_storeu_si512(packed, _mm512_or_si512(first, _mm512_slli_epi32(second, 16)));
        }
}

/* The pair of numbers at `from`, in all lanes. */
DOTS INLINE __m512bh pair_at(const uint16_t *from) {
    int32_t pair;
    memcpy(&pair, from, sizeof pair);
    return (__m512bh)_mm512_set1_epi32(pair);
}

DOTS INLINE __m512bh pairs_at(const uint32_t *from) {
    return (__m512bh)_mm512_loadu_si512(from);
}

/* Scores of TILE queries and all keys, (TILE, padded). */
DOTS INLINE void score_tile(const uint16_t *const *queries, const uint32_t *keys, int64_t padded,
                            int64_t size, float *scores) {
    int64_t half = size / 2;
    for (int64_t p = 0; p < padded; p += SPAN) {
        const uint32_t *left = keys + p * half, *right = left + half * LANES;
        __m512 sums[TILE][2];
        for (int r = 0; r < TILE; r++) sums[r][0] = sums[r][1] = _mm512_setzero_ps();
        for (int64_t j = 0; j < half; j++) {
            __m512bh first = pairs_at(left + j * LANES), second = pairs_at(right + j * LANES);
            for (int r = 0; r < TILE; r++) {
                __m512bh query = pair_at(queries[r] + 2 * j);
                sums[r][0] = _mm512_dpbf16_ps(sums[r][0], query, first);
                sums[r][1] = _mm512_dpbf16_ps(sums[r][1], query, second);
            }
        }
        for (int r = 0; r < TILE; r++) {
            _mm512_storeu_ps(scores + r * padded + p, sums[r][0]);
            _mm512_storeu_ps(scores + r * padded + p + LANES, sums[r][1]);
        }
    }
}

INLINE uint16_t first_lanes(int64_t count) {
    return count >= LANES ? 0xffff : count > 0 ? (uint16_t)((1 << count) - 1) : 0;
}

/* A row of scores to weights in bf16 that add up to what is returned; 0 from key `seen` on. */
DOTS INLINE float weigh(const float *scores, int64_t seen, int64_t padded, float scale,
                        uint16_t *to) {
    __m512 highest = _mm512_set1_ps(-INFINITY), sums = _mm512_setzero_ps();
    __m512 factor = _mm512_set1_ps(scale * 1.44269504f); /* 2 to the power is nearer than e */
    for (int64_t p = 0; p < padded; p += LANES) {
        __m512 part = _mm512_loadu_ps(scores + p);
        highest = _mm512_mask_max_ps(highest, first_lanes(seen - p), part, highest);
    }
    __m512 most = _mm512_set1_ps(_mm512_reduce_max_ps(highest));
    for (int64_t p = 0; p < padded; p += LANES) {
        __m512 less = _mm512_sub_ps(_mm512_loadu_ps(scores + p), most); /* of the most none */
        __m512 part = two_to(_mm512_mul_ps(less, factor));
        part = _mm512_maskz_mov_ps(first_lanes(seen - p), part);
        sums = _mm512_add_ps(sums, part);
        narrow_pairs(part, to + p);
    }
    return _mm512_reduce_add_ps(sums);
}

/* Sums of values by TILE rows of weights, each over its sum, 32 numbers from `d` on. */
DOTS INLINE void mix_tile(const uint16_t *weights, const uint32_t *values, const float *sums,
                          int64_t rows, int64_t padded, int64_t size, int64_t d, uint16_t *output,
                          int64_t stride) {
    __m512 mixed[TILE][2];
    for (int r = 0; r < TILE; r++) mixed[r][0] = mixed[r][1] = _mm512_setzero_ps();
    for (int64_t p = 0; p < padded; p += 2) {
        const uint32_t *own = values + p / 2 * size + d;
        __m512bh first = pairs_at(own), second = pairs_at(own + LANES);
        for (int r = 0; r < TILE; r++) {
            __m512bh weight = pair_at(weights + r * padded + p);
            mixed[r][0] = _mm512_dpbf16_ps(mixed[r][0], weight, first);
            mixed[r][1] = _mm512_dpbf16_ps(mixed[r][1], weight, second);
        }
    }
    for (int64_t r = 0; r < TILE; r++) {
        if (r >= rows) break;
        __m512 share = _mm512_set1_ps(1.0f / sums[r]);
        narrow_pairs(_mm512_mul_ps(mixed[r][0], share), output + r * stride + d);
        narrow_pairs(_mm512_mul_ps(mixed[r][1], share), output + r * stride + d + LANES);
    }
}

/* One head of one sequence, its keys and values packed; so many keys are before the first query. */
DOTS INLINE void attend_head(const uint16_t *query, int64_t query_stride, const uint32_t *keys,
                             const uint32_t *values, uint16_t *output, int64_t stride,
                             int64_t count, int64_t before, int64_t padded, int64_t size,
                             float scale, int64_t causal, float *scores, uint16_t *weights) {
    for (int64_t first = 0; first < count; first += TILE) {
        const uint16_t *queries[TILE];
        float sums[TILE];
        int64_t rows = count - first < TILE ? count - first : TILE;
        int64_t last = first + rows;
        int64_t reach = causal ? (before + last + SPAN - 1) / SPAN * SPAN : padded;
        for (int64_t r = 0; r < TILE; r++) /* the last one again for those that there are not */
            queries[r] = query + (r < rows ? first + r : last - 1) * query_stride;
        score_tile(queries, keys, reach, size, scores);
        for (int64_t r = 0; r < TILE; r++) {
            int64_t seen = before + (causal ? (r < rows ? first + r : last - 1) + 1 : count);
            sums[r] = weigh(scores + r * reach, seen, reach, scale, weights + r * reach);
        }
        for (int64_t d = 0; d < size; d += SPAN)
            mix_tile(weights, values, sums, rows, reach, size, d, output + first * stride, stride);
    }
}

DOTS INLINE void attend_sequences(const uint16_t *query, const uint16_t *keys,
                                  const uint16_t *values, uint16_t *output, const int64_t *ends,
                                  int64_t sequences, int64_t before, int64_t heads, int64_t shared,
                                  int64_t size, const int64_t *strides, float scale,
                                  int64_t causal, uint32_t *room, int64_t longest) {
    int64_t start = 0, stride = heads * size, group = heads / shared;
    uint32_t *packed = room, *mixed = packed + longest * size / 2;
    float *scores = (float *)(mixed + longest * size / 2);
    uint16_t *weights = (uint16_t *)(scores + TILE * longest);
    for (int64_t s = 0; s < sequences; start = ends[s++]) {
        int64_t count = ends[s] - start, all = before + count;
        int64_t padded = (all + SPAN - 1) / SPAN * SPAN;
        for (int64_t h = 0; h < shared; h++) {
            pack_keys(keys + start * strides[1] + h * size, strides[1], all, padded, size, packed);
            pack_values(values + start * strides[2] + h * size, strides[2], all, padded, size,
                        mixed);
            for (int64_t head = h * group; head < (h + 1) * group; head++)
                attend_head(query + start * strides[0] + head * size, strides[0], packed, mixed,
                            output + start * stride + head * size, stride, count, before, padded,
                            size, scale, causal, scores, weights);
        }
    }
}

DOTS static void attend_by_dots(const uint16_t *query, const uint16_t *keys,
                                const uint16_t *values, uint16_t *output, const int64_t *ends,
                                int64_t sequences, int64_t before, int64_t heads, int64_t shared,
                                int64_t size, const int64_t *strides, float scale, int64_t causal,
                                uint32_t *room, int64_t longest) {
#define SIZED(width)                                                                          \
    attend_sequences(query, keys, values, output, ends, sequences, before, heads, shared, width, \
                     strides, scale, causal, room, longest)
    if (size == 32) SIZED(32);
    else if (size == 64) SIZED(64);
    else SIZED(size);
}
#endif

#if WIDE_KERNELS
#define FMA __attribute__((target("avx2,fma")))
/* Else the sums would be an array in memory. */
#define EACH(row, count) _Pragma("GCC unroll 12") for (int row = 0; row < (count); row++)

/* Rows at a time with AVX512: WIDE_TILE, or in fp32 FLOAT_TILE, where rows of 4 KB are common:
 * those all want the same eight places of the first cache, and twelve of them evict each other. Up
 * to UNAIDED rows pass over weights so fast that the CPU asks ahead by itself, and asking it as well
 * takes a tenth to a fifth longer; of more, in one tile, AHEAD bytes are. */
enum {
    PANEL = 16,
    HALF = PANEL / 2,
    WIDE_TILE = 12,
    FLOAT_TILE = 8,
    UNAIDED = 4,
    AHEAD = 8 << 10,
    BLOCK_BYTES = 192 << 10
};

FMA INLINE __m256 all(float value) {
    return _mm256_set1_ps(value);
}

/* x times the share of a normal distribution under it. erf is a quotient of polynomials (those of
 * Eigen), to 3e-7 of itself; the smaller operand of a minimum or maximum is the second where one is
 * NaN. */
FMA INLINE __m256 gelu_all(__m256 x) {
    static const float over[] = {-2.72614225801306e-10f, 2.77068142495902e-08f,
                                 -2.10102402082508e-06f, -5.69250639462346e-05f,
                                 -7.34990630326855e-04f, -2.95459980854025e-03f,
                                 -1.60960333262415e-02f};
    static const float under[] = {-1.45660718464996e-05f, -2.13374055278905e-04f,
                                  -1.68282697438203e-03f, -7.37332916720468e-03f,
                                  -1.42647390514189e-02f};
    __m256 z = _mm256_mul_ps(x, all(0.70710678f));
    z = _mm256_max_ps(all(-4.2f), _mm256_min_ps(all(4.2f), z)); /* there the quotient is over 1 */
    __m256 square = _mm256_mul_ps(z, z), top = all(over[0]), bottom = all(under[0]);
    EACH(i, 6) top = _mm256_fmadd_ps(top, square, all(over[i + 1]));
    EACH(i, 4) bottom = _mm256_fmadd_ps(bottom, square, all(under[i + 1]));
    __m256 erf = _mm256_div_ps(_mm256_mul_ps(z, top), bottom), half = _mm256_mul_ps(x, all(0.5f));
    erf = _mm256_max_ps(all(-1.0f), _mm256_min_ps(all(1.0f), erf));
    return _mm256_fmadd_ps(half, erf, half);
}

FMA INLINE void finish(__m256 sum, const float *scales, const float *bias, const float *residual,
                       int gelu, float *to) {
    /* In one operation whatever the compiler does elsewhere: no row is to be rounded otherwise. */
    if (scales)
        sum = _mm256_fmadd_ps(sum, _mm256_loadu_ps(scales), bias ? _mm256_loadu_ps(bias) : all(0));
    else if (bias) sum = _mm256_add_ps(sum, _mm256_loadu_ps(bias));
    if (gelu) sum = gelu_all(sum);
    if (residual) sum = _mm256_add_ps(sum, _mm256_loadu_ps(residual));
    _mm256_storeu_ps(to, sum);
}

/* The sums of a tile, so many rows of 16 outputs, or of as many as there are `lanes`. scales: for
 * each of the outputs; null: 1. */
FMA INLINE void give_tile(int rows, __m256 (*sums)[2], const float *scales, const float *bias,
                          const float *residual, float *output, int64_t outputs, int64_t lanes,
                          int gelu) {
    const float *second = scales ? scales + HALF : NULL;
    if (lanes == PANEL) {
        EACH(r, rows) {
            const float *own = residual ? residual + r * outputs : NULL;
            float *to = output + r * outputs;
            finish(sums[r][0], scales, bias, own, gelu, to);
            finish(sums[r][1], second, bias ? bias + HALF : NULL, own ? own + HALF : NULL, gelu,
                   to + HALF);
        }
        return;
    }
    size_t bytes = (size_t)lanes * sizeof(float);
    float offset[PANEL] = {0}, own[PANEL] = {0}, to[PANEL];
    if (bias) memcpy(offset, bias, bytes);
    EACH(r, rows) {
        if (residual) memcpy(own, residual + r * outputs, bytes);
        finish(sums[r][0], scales, offset, own, gelu, to);
        finish(sums[r][1], second, offset + HALF, own + HALF, gelu, to + HALF);
        memcpy(output + r * outputs, to, bytes);
    }
}

/* So many rows, at most 6, times a panel, whose rows of 16 are `step` apart: 12 of the 16 registers
 * hold sums. Meanwhile what is needed next comes nearer: from `next` on, so many bytes a step.
 * lanes: the outputs. */
FMA INLINE void multiply_tile(int rows, const float *inputs, int64_t stride, const float *panel,
                              int64_t step, const char *next, int64_t pace, const float *bias,
                              const float *residual, float *output, int64_t width,
                              int64_t outputs, int64_t lanes, int gelu) {
    __m256 sums[TILE][2];
    EACH(r, rows) sums[r][0] = sums[r][1] = _mm256_setzero_ps();
    for (int64_t k = 0; k < width; k++) {
        __m256 left = _mm256_loadu_ps(panel + k * step);
        __m256 right = _mm256_loadu_ps(panel + k * step + HALF);
        _mm_prefetch(next + k * pace, _MM_HINT_T1);
        EACH(r, rows) {
            __m256 input = _mm256_broadcast_ss(inputs + r * stride + k);
            sums[r][0] = _mm256_fmadd_ps(input, left, sums[r][0]);
            sums[r][1] = _mm256_fmadd_ps(input, right, sums[r][1]);
        }
    }
    give_tile(rows, sums, NULL, bias, residual, output, outputs, lanes, gelu);
}

FMA INLINE void multiply_rows(int64_t rows, const float *inputs, int64_t stride,
                              const float *panel, int64_t step, const void *next, int64_t pace,
                              const float *bias, const float *residual, float *output,
                              int64_t width, int64_t outputs, int64_t lanes, int gelu) {
#define ROWS(count)                                                                             \
    case count:                                                                                 \
        multiply_tile(count, inputs, stride, panel, step, next, pace, bias, residual, output,   \
                      width, outputs, lanes, gelu);                                             \
        break;
    switch (rows) { ROWS(1) ROWS(2) ROWS(3) ROWS(4) ROWS(5) ROWS(6) }
}

/* sum += x * y, pairs of 16 bits added up. Written out: where the compiler is free to, it computes
 * all products first, and has no register left for their sums. */
#define ADD_WORDS(sum, x, y)                                                                    \
    do {                                                                                        \
        __m256i product;                                                                        \
        __asm__("vpmaddwd %2, %3, %1\n\tvpaddd %1, %0, %0"                                      \
                : "+x"(sum), "=&x"(product)                                                     \
                : "x"(x), "x"(y));                                                              \
    } while (0)

/* 16 weights in pairs: codes of 16 bits, or of 8. */
FMA INLINE __m256i words_at(const char *from, int bytes) {
    if (bytes == 2) return _mm256_loadu_si256((const __m256i *)from);
    return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)from));
}

/* As multiply_tile, of codes in pairs. sizes: what a code of each row is worth. */
FMA INLINE void words_tile(int rows, const int32_t *inputs, int64_t words, const char *panel,
                           int bytes, const char *next, int64_t pace, const float *sizes,
                           const float *scales, const float *bias, const float *residual,
                           float *output, int64_t outputs, int64_t lanes, int gelu) {
    __m256i sums[TILE][2];
    __m256 scaled[TILE][2];
    EACH(r, rows) sums[r][0] = sums[r][1] = _mm256_setzero_si256();
    for (int64_t k = 0; k < words; k++, panel += 2 * PANEL * bytes) {
        __m256i left = words_at(panel, bytes), right = words_at(panel + PANEL * bytes, bytes);
        _mm_prefetch(next + k * pace, _MM_HINT_T1);
        EACH(r, rows) {
            __m256i input = _mm256_set1_epi32(inputs[r * words + k]);
            ADD_WORDS(sums[r][0], input, left);
            ADD_WORDS(sums[r][1], input, right);
        }
    }
    EACH(r, rows) EACH(c, 2)
        scaled[r][c] = _mm256_mul_ps(_mm256_cvtepi32_ps(sums[r][c]), all(sizes[r]));
    give_tile(rows, scaled, scales, bias, residual, output, outputs, lanes, gelu);
}

FMA INLINE void words_rows(int64_t rows, const int32_t *inputs, int64_t words, const char *panel,
                           int bytes, const char *next, int64_t pace, const float *sizes,
                           const float *scales, const float *bias, const float *residual,
                           float *output, int64_t outputs, int64_t lanes, int gelu) {
#define WORDS_OF(count)                                                                         \
    case count:                                                                                 \
        words_tile(count, inputs, words, panel, bytes, next, pace, sizes, scales, bias,         \
                   residual, output, outputs, lanes, gelu);                                     \
        break;
    switch (rows) {
        WORDS_OF(1) WORDS_OF(2) WORDS_OF(3) WORDS_OF(4) WORDS_OF(5) WORDS_OF(6)
    }
}

/* What is multiplied: floats, or codes of 16 bits by codes of 16 or 8, in panels of 16 outputs
 * (AVX2); or by AVX512, in panels of 32, pairs in bf16, floats, or codes of 8 bits. */
enum kind { NARROW, PAIRS, FLOATS, CODES, WORDS };

/* A product, in as many parts as there are threads; each thread takes the next that is left.
 * words: so many of 32 bits has a row of inputs. bf16: whether residual and output are that.
 * sizes: of the rows whose inputs are codes; zeros: what an output's sum is for a row of code 0,
 * 128. bytes: of WORDS' weights, each. */
struct product {
    enum kind kind;
    const void *inputs, *panels;
    const float *scales, *bias, *sizes;
    const int32_t *zeros;
    const void *residual;
    void *output;
    int64_t bf16, words, rows, width, outputs, gelu, bytes, parts, taken;
};

INLINE int is_narrow(const struct product *all) {
    return all->kind == NARROW || all->kind == WORDS;
}

INLINE int64_t tile_of(const struct product *all) {
    return is_narrow(all) ? TILE : all->kind == FLOATS ? FLOAT_TILE : WIDE_TILE;
}

/* The sums of so many rows, at most WIDE_TILE, and a panel: 24 of the 32 registers, stored at the
 * end. `multiply` takes four bytes of a row in all lanes, and as many of each output. lines: of the
 * cache, that are asked for ahead at each step. */
#define SUM_UP(rows, lines, multiply)                                                          \
    do {                                                                                        \
        __m512i all[WIDE_TILE][2];                                                              \
        EACH(r, rows) all[r][0] = all[r][1] = _mm512_setzero_si512();                           \
        for (int64_t k = 0; k < words; k++) {                                                   \
            __m512i left = _mm512_loadu_si512(panel + k * SPAN);                                \
            __m512i right = _mm512_loadu_si512(panel + k * SPAN + LANES);                       \
            if (lines > 0) _mm_prefetch(next + k * pace, _MM_HINT_T1);                          \
            if (lines == 2) _mm_prefetch(next + k * pace + 64, _MM_HINT_T1);                    \
            EACH(r, rows) {                                                                     \
                __m512i input = _mm512_set1_epi32((int32_t)inputs[r * words + k]);              \
                all[r][0] = multiply(all[r][0], input, left);                                   \
                all[r][1] = multiply(all[r][1], input, right);                                  \
            }                                                                                   \
        }                                                                                       \
        EACH(r, rows) EACH(c, 2) _mm512_storeu_si512(sums + r * SPAN + c * LANES, all[r][c]);   \
    } while (0)
typedef void sums_of(int64_t rows, int64_t lines, const uint32_t *inputs, int64_t words,
                     const uint32_t *panel, const char *next, int64_t pace, int32_t *sums);
/* Each number of rows by code of its own. */
#define SUM_ROWS(count, multiply)                                                              \
    case count:                                                                                 \
        if (lines == 2) SUM_UP(count, (count > UNAIDED ? 2 : 0), multiply);                     \
        else SUM_UP(count, 1, multiply);                                                        \
        break;
#define SUMS_OF(name, kind, multiply)                                                          \
    kind static void name(int64_t rows, int64_t lines, const uint32_t *inputs, int64_t words,   \
                          const uint32_t *panel, const char *next, int64_t pace,                \
                          int32_t *sums) {                                                      \
        switch (rows) {                                                                         \
            SUM_ROWS(1, multiply) SUM_ROWS(2, multiply) SUM_ROWS(3, multiply)                   \
            SUM_ROWS(4, multiply) SUM_ROWS(5, multiply) SUM_ROWS(6, multiply)                   \
            SUM_ROWS(7, multiply) SUM_ROWS(8, multiply) SUM_ROWS(9, multiply)                   \
            SUM_ROWS(10, multiply) SUM_ROWS(11, multiply) SUM_ROWS(12, multiply)                \
        }                                                                                       \
    }

DOTS INLINE __m512i add_pairs(__m512i sum, __m512i inputs, __m512i weights) {
    return (__m512i)_mm512_dpbf16_ps((__m512)sum, (__m512bh)inputs, (__m512bh)weights);
}

WIDE INLINE __m512i add_floats(__m512i sum, __m512i inputs, __m512i weights) {
    return (__m512i)_mm512_fmadd_ps((__m512)inputs, (__m512)weights, (__m512)sum);
}

SUMS_OF(sum_pairs, DOTS, add_pairs)
SUMS_OF(sum_floats, WIDE, add_floats)
SUMS_OF(sum_codes, INTS, _mm512_dpbusd_epi32)

/* As gelu_all, 4e-5 off at most, as much as bf16 is at 0.02: a polynomial and no division take half
 * the time. At the left end the share is just below 0, so that what is far out becomes 0. */
WIDE INLINE __m512 gelu_shortened(__m512 x) {
    static const float shares[] = {3.5694319e-11f,  -3.75405129e-09f, 1.74084818e-07f,
                                   -4.72487e-06f,   8.42930385e-05f,  -0.00105499267f,
                                   0.00964302849f,  -0.0660764277f,   0.3987616f};
    __m512 end = _mm512_set1_ps(4.4f), sum = _mm512_set1_ps(shares[0]);
    __m512 z = _mm512_max_ps(_mm512_sub_ps(_mm512_setzero_ps(), end), _mm512_min_ps(end, x));
    __m512 square = _mm512_mul_ps(z, z);
    EACH(i, 8) sum = _mm512_fmadd_ps(sum, square, _mm512_set1_ps(shares[i + 1]));
    sum = _mm512_fmadd_ps(sum, z, _mm512_set1_ps(0.5f));
    return _mm512_mul_ps(x, _mm512_max_ps(_mm512_setzero_ps(), sum));
}

/* A row's 16 sums in fp32, with its scale and the bias. */
WIDE INLINE __m512 sum_at(const struct product *all, const int32_t *sums, int64_t row, __m512 scales,
                          __m512i zeros, __m512 offsets) {
    __m512i own = _mm512_loadu_si512(sums);
    __m512 sum = (__m512)own;
    if (all->sizes) {
        __m512 size = _mm512_mul_ps(_mm512_set1_ps(all->sizes[row]), scales);
        sum = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(own, zeros)), size);
    }
    return _mm512_add_ps(sum, offsets);
}

/* Sums of a tile, (rows, 32), to outputs in fp32 or bf16, from `row` and `first` on. `each` is done
 * with a row's 16 sums, those of `there`, for outputs from `place` on. */
#define FINISHED(name, kind, each)                                                             \
    kind static void name(const struct product *all, const int32_t *sums, int64_t rows,         \
                          int64_t row, int64_t first) {                                         \
        for (int64_t d = first; d < first + SPAN; d += LANES, sums += LANES) {                  \
            __mmask16 there = first_lanes(all->outputs - d);                                    \
            __m512 offsets = _mm512_setzero_ps(), scales = offsets;                             \
            __m512i zeros = _mm512_setzero_si512();                                             \
            if (all->bias) offsets = _mm512_maskz_loadu_ps(there, all->bias + d);               \
            if (all->sizes) {                                                                   \
                scales = _mm512_loadu_ps(all->scales + d);                                      \
                zeros = _mm512_loadu_si512(all->zeros + d);                                     \
            }                                                                                   \
            for (int64_t r = 0; r < rows; r++)                                                  \
                each(all, sum_at(all, sums + r * SPAN, row + r, scales, zeros, offsets), there, \
                     (row + r) * all->outputs + d);                                             \
        }                                                                                       \
    }

WIDE INLINE void give_floats(const struct product *all, __m512 sum, __mmask16 there,
                             int64_t place) {
    if (all->gelu) {
        __m256 halves[2] = {_mm512_castps512_ps256(sum), _mm512_extractf32x8_ps(sum, 1)};
        sum = _mm512_castps256_ps512(gelu_all(halves[0]));
        sum = _mm512_insertf32x8(sum, gelu_all(halves[1]), 1);
    }
    const float *residual = (const float *)all->residual + place;
    if (all->residual) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(there, residual));
    _mm512_mask_storeu_ps((float *)all->output + place, there, sum);
}

#define GIVE_PAIRS(name, kind, narrow)                                                         \
    kind INLINE void name(const struct product *all, __m512 sum, __mmask16 there,               \
                          int64_t place) {                                                      \
        uint16_t output[LANES];                                                                 \
        if (all->gelu) sum = gelu_shortened(sum);                                               \
        if (all->residual) {                                                                    \
            const uint16_t *residual = (const uint16_t *)all->residual + place;                 \
            __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(there, residual));    \
            sum = _mm512_add_ps(sum, (__m512)_mm512_slli_epi32(wide, 16));                      \
        }                                                                                       \
        narrow(sum, output);                                                                    \
        _mm256_mask_storeu_epi16((uint16_t *)all->output + place, there,                        \
                                 _mm256_loadu_si256((const __m256i *)output));                  \
    }

GIVE_PAIRS(give_pairs, WIDE, narrow_all)
GIVE_PAIRS(give_pairs_at_once, DOTS, narrow_pairs)
FINISHED(finish_floats, WIDE, give_floats)
FINISHED(finish_pairs, WIDE, give_pairs)
FINISHED(finish_pairs_at_once, DOTS, give_pairs_at_once)

/* As multiply_part, by AVX512. Meanwhile the next panel comes nearer, spread over the tiles; of one
 * tile what is next, since the panels are read through. */
static void wide_part(const struct product *all, int64_t top, int64_t bottom, int64_t left,
                      int64_t right) {
    int64_t words = all->words, rows = bottom - top, tile = tile_of(all);
    int64_t most = BLOCK_BYTES / (4 * words) / tile * tile;
    if (most < 4 * tile) most = 4 * tile;
    int64_t blocks = (rows + most - 1) / most;
    int32_t sums[WIDE_TILE * SPAN];
    sums_of *sum_up = all->kind == PAIRS    ? sum_pairs
                      : all->kind == FLOATS ? sum_floats
                                            : sum_codes;
    void (*finish_tile)(const struct product *, const int32_t *, int64_t, int64_t, int64_t) =
        !all->bf16                             ? finish_floats
        : __builtin_cpu_supports("avx512bf16") ? finish_pairs_at_once
                                               : finish_pairs;
    for (int64_t b = 0; b < blocks; b++) {
        int64_t start = rows * b / blocks, count = rows * (b + 1) / blocks - start;
        int64_t tiles = (count + tile - 1) / tile, pace = SPAN * 4 / tiles;
        for (int64_t n = left; n < right; n += SPAN) {
            const uint32_t *panel = (const uint32_t *)all->panels + n * words;
            for (int64_t t = 0; t < tiles; t++) {
                int64_t first = count * t / tiles, own = count * (t + 1) / tiles - first;
                int64_t row = top + start + first, lines = tiles == 1 ? 2 : 1;
                const uint32_t *inputs = (const uint32_t *)all->inputs + row * words;
                const char *next = (const char *)(panel + SPAN * words) + t * pace * words;
                if (tiles == 1) next = (const char *)panel + AHEAD;
                sum_up(own, lines, inputs, words, panel, next, pace, sums);
                finish_tile(all, sums, own, row, n);
            }
        }
    }
}

/* Rows from `top` to `bottom`, outputs from `left` to `right`, in blocks of rows that stay in a
 * core's cache while the panels pass by; as even as can be. */
FMA INLINE void multiply_part(const struct product *all, int64_t top, int64_t bottom, int64_t left,
                              int64_t right) {
    int64_t words = all->words, outputs = all->outputs, rows = bottom - top;
    /* Of the weights that a step reads. */
    int64_t step = PANEL * (all->kind == NARROW ? (int64_t)sizeof(float) : 2 * all->bytes);
    int64_t most = BLOCK_BYTES / (4 * words) / TILE * TILE;
    if (most < 4 * TILE) most = 4 * TILE;
    int64_t blocks = (rows + most - 1) / most;
    for (int64_t b = 0; b < blocks; b++) {
        int64_t start = rows * b / blocks, count = rows * (b + 1) / blocks - start;
        int64_t tiles = (count + TILE - 1) / TILE, pace = tiles < step ? step / tiles : 1;
        for (int64_t n = left; n < right; n += PANEL) {
            for (int64_t t = 0; t < tiles; t++) {
                int64_t first = count * t / tiles, own = count * (t + 1) / tiles - first;
                int64_t lanes = outputs - n < PANEL ? outputs - n : PANEL;
                int64_t row = top + start + first, to = row * outputs + n;
                const int32_t *from = (const int32_t *)all->inputs + row * words;
                const char *panel = (const char *)all->panels + n / PANEL * step * words;
                const float *offset = all->bias ? all->bias + n : NULL;
                const float *more = all->residual ? (const float *)all->residual + to : NULL;
                float *output = (float *)all->output + to;
                /* The next panel, spread over this one's tiles: memory is slower than products. */
                const char *next = panel + (step + t * pace % step) * words;
#define PRODUCT(gelu)                                                                          \
    multiply_rows(own, (const float *)from, words, (const float *)panel, PANEL, next, pace,    \
                  offset, more, output, words, outputs, lanes, gelu)
#define WORDS_PRODUCT(bytes, gelu)                                                             \
    words_rows(own, from, words, panel, bytes, next, pace, all->sizes + row, all->scales + n,  \
               offset, more, output, outputs, lanes, gelu)
                if (all->kind == NARROW && all->gelu) PRODUCT(1);
                else if (all->kind == NARROW) PRODUCT(0);
                else if (all->bytes == 1 && all->gelu) WORDS_PRODUCT(1, 1);
                else if (all->bytes == 1) WORDS_PRODUCT(1, 0);
                else if (all->gelu) WORDS_PRODUCT(2, 1);
                else WORDS_PRODUCT(2, 0);
            }
        }
    }
}

/* Of many rows, each part has some; of few, some of the panels. */
FMA static void multiply_parts(void *shared) {
    struct product *all = shared;
    int64_t rows = all->rows, parts = all->parts, outputs = all->outputs;
    int narrow = is_narrow(all);
    int64_t side = narrow ? PANEL : SPAN, panels = (outputs + side - 1) / side;
    int by_rows = rows >= 2 * tile_of(all) * parts;
    for (;;) {
        int64_t part = __atomic_fetch_add(&all->taken, 1, __ATOMIC_RELAXED);
        if (part >= parts) return;
        int64_t top = by_rows ? rows * part / parts : 0, left = by_rows ? 0 : panels * part / parts;
        int64_t bottom = by_rows ? rows * (part + 1) / parts : rows;
        int64_t right = by_rows ? outputs : panels * (part + 1) / parts * side;
        if (right > outputs) right = outputs;
        if (narrow) multiply_part(all, top, bottom, left * side, right);
        else wide_part(all, top, bottom, left * side, right);
    }
}

/* A row of scores to weights that add up to 1; 0 from key `seen` on. */
FMA INLINE void weigh_floats(float *scores, int64_t seen, int64_t limit, float scale) {
#pragma omp simd
    for (int64_t p = 0; p < seen; p++) scores[p] *= scale;
    softmax(scores, seen);
    for (int64_t p = seen; p < limit; p++) scores[p] = 0.0f;
}

/* As attend_sequences, in fp32. */
FMA static void attend_floats(const float *query, const float *keys, const float *values,
                              float *output, const int64_t *ends, int64_t sequences,
                              int64_t before, int64_t heads, int64_t shared, int64_t size,
                              const int64_t *strides, float scale, int64_t causal, float *room,
                              int64_t longest) {
    int64_t start = 0, stride = heads * size, group = heads / shared;
    float *packed = room, *scores = room + longest * size;
    for (int64_t s = 0; s < sequences; start = ends[s++]) {
        int64_t count = ends[s] - start, all_keys = before + count;
        int64_t padded = (all_keys + PANEL - 1) / PANEL * PANEL;
        for (int64_t head = 0; head < heads; head++) {
            const float *own = keys + start * strides[1] + head / group * size;
            const float *mixed = values + start * strides[2] + head / group * size;
            if (head % group == 0)
                for (int64_t p = 0; p < padded; p++)
                    for (int64_t d = 0; d < size; d++)
                        packed[(p / PANEL * size + d) * PANEL + p % PANEL] =
                            p < all_keys ? own[p * strides[1] + d] : 0.0f;
            for (int64_t first = 0; first < count; first += TILE) {
                int64_t rows = count - first < TILE ? count - first : TILE;
                int64_t limit = causal ? before + first + rows : all_keys;
                int64_t reach = (limit + PANEL - 1) / PANEL * PANEL, row = start + first;
                for (int64_t p = 0; p < reach; p += PANEL)
                    multiply_rows(rows, query + row * strides[0] + head * size, strides[0],
                                  packed + p * size, PANEL, packed, 0, NULL, NULL, scores + p,
                                  size, reach, PANEL, 0);
                for (int64_t r = 0; r < rows; r++)
                    weigh_floats(scores + r * reach, causal ? before + first + r + 1 : all_keys,
                                 limit, scale);
                for (int64_t d = 0; d < size; d += PANEL)
                    multiply_rows(rows, scores, reach, mixed + d, strides[2], mixed, 0, NULL, NULL,
                                  output + row * stride + head * size + d, limit, stride, PANEL,
                                  0);
            }
        }
    }
}
#endif

/* Whether this machine, and the build of this file, have products by AVX2 (NARROW), and the machine
 * nothing wider. */
int64_t condensery_has_panels(void) {
#if WIDE_KERNELS
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           !__builtin_cpu_supports("avx512f");
#else
    return 0;
#endif
}

/* Whether this machine, and the build of this file, have products in fp32 by AVX512 (FLOATS). */
int64_t condensery_has_floats(void) {
#if WIDE_KERNELS
    return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
#else
    return 0;
#endif
}

typedef void (*parallel_of)(void (*)(void *), void *, unsigned, unsigned);

/* output = inputs * weight^T + bias, then GELU (bf16: to 4e-5) or + residual; fp32, or all but the
 * bias bf16.
 * inputs: (rows, width). kind, and panels, the weight, filled up with 0:
 *   0, NARROW (condensery_has_panels, or AVX512 as well): 16 outputs side by side in fp32,
 *      (outputs / 16, width, 16);
 *   1, PAIRS (condensery_has_dots): bf16, pairs of 32 outputs, (outputs / 32, width / 2, 32, 2);
 *   2, FLOATS (condensery_has_floats): 32 outputs in fp32, (outputs / 32, width, 32).
 * bias: (outputs,), residual: (rows, outputs); either may be null. output: (rows, outputs). A row's sums are in the same order
 * whatever rows are beside it. parallel: the GOMP_parallel of torch's own OpenMP, which runs it on
 * so many threads, or on fewer; null: on this one. */
void condensery_multiply(int64_t kind, const void *inputs, const void *panels,
                         const float *bias, const void *residual, void *output, int64_t rows,
                         int64_t width, int64_t outputs, int64_t gelu, int64_t threads,
                         parallel_of parallel) {
#if WIDE_KERNELS
    int64_t bf16 = kind == PAIRS;
    struct product all = {.kind = kind, .inputs = inputs, .panels = panels, .bias = bias,
                          .residual = residual, .output = output, .bf16 = bf16,
                          .words = bf16 ? width / 2 : width, .rows = rows, .width = width,
                          .outputs = outputs, .gelu = gelu, .parts = threads};
    if (parallel && threads > 1) parallel(multiply_parts, &all, (unsigned)threads, 0);
    else multiply_parts(&all);
#else
    (void)kind, (void)inputs, (void)panels, (void)bias, (void)residual, (void)output, (void)rows;
     (void)width, (void)outputs, (void)gelu, (void)threads, (void)parallel;
#endif
}

/* Whether this machine, and the build of this file, have products of codes. */
int64_t condensery_has_ints(void) {
#if WIDE_KERNELS
    return condensery_has_floats() && __builtin_cpu_supports("avx512vnni");
#else
    return 0;
#endif
}

/* Whether this machine, and the build of this file, have attention of whole sequences and products
 * in bf16. */
int64_t condensery_has_dots(void) {
#if WIDE_KERNELS
    return condensery_has_ints() && __builtin_cpu_supports("avx512bf16");
#else
    return 0;
#endif
}

/* Attention within sequences that lie end to end, in bf16 (condensery_has_dots) or in fp32
 * (condensery_has_panels or _floats). query: (rows, heads, size), keys and values: (rows, shared,
 * size), rows so many numbers apart as strides has of the three; output: (rows, heads, size).
 * ends: where each sequence ends. before: of one sequence alone, so many of its keys are before its
 * first query. size: a multiple of 32. longest: the most keys of a sequence, rounded up to a
 * multiple of 32. room: for longest * (size + 9) numbers of 32 bits. */
void condensery_attend_packed(int64_t bf16, const void *query, const void *keys,
                              const void *values, void *output, const int64_t *ends,
                              int64_t sequences, int64_t before, int64_t heads, int64_t shared,
                              int64_t size, const int64_t *strides, float scale, int64_t causal,
                              void *room, int64_t longest) {
#if WIDE_KERNELS
    if (bf16)
        attend_by_dots(query, keys, values, output, ends, sequences, before, heads, shared, size,
                       strides, scale, causal, room, longest);
    else
        attend_floats(query, keys, values, output, ends, sequences, before, heads, shared, size,
                      strides, scale, causal, room, longest);
#else
    (void)bf16, (void)query, (void)keys, (void)values, (void)output, (void)ends, (void)sequences;
    (void)before, (void)heads, (void)shared, (void)size, (void)strides, (void)scale, (void)causal;
    (void)room, (void)longest;
#endif
}

/* Positions outermost: a position's keys of all heads lie side by side. */
INLINE void attend_row(int bf16, const float *query, const void *keys, const void *values,
                       float *mixed, const int64_t *places, int64_t count, int64_t shared,
                       int64_t group, int64_t size, float *scores) {
    float room[MOST_SIZE];
    for (int64_t p = 0; p < count; p++)
        for (int64_t s = 0; s < shared; s++) {
            const float *key = row_of(keys, (places[p] * shared + s) * size, bf16, size, room);
            for (int64_t head = s * group; head < (s + 1) * group; head++) {
                const float *own = query + head * size;
                float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
                for (int64_t d = 0; d < size; d++) sum += own[d] * key[d];
                scores[head * count + p] = sum;
            }
        }
    for (int64_t head = 0; head < shared * group; head++) softmax(scores + head * count, count);
    memset(mixed, 0, (size_t)(shared * group * size) * sizeof *mixed);
    for (int64_t p = 0; p < count; p++)
        for (int64_t s = 0; s < shared; s++) {
            const float *value = row_of(values, (places[p] * shared + s) * size, bf16, size, room);
            for (int64_t head = s * group; head < (s + 1) * group; head++) {
                float weight = scores[head * count + p], *own = mixed + head * size;
#pragma omp simd
                for (int64_t d = 0; d < size; d++) own[d] += weight * value[d];
            }
        }
}

INLINE void attend_all(int bf16, const void *query, const void *keys, const void *values,
                       void *output, const int64_t *places, const int64_t *ends, int64_t rows,
                       int64_t heads, int64_t shared, int64_t size, float scale, float *room) {
    int64_t width = heads * size;
    float *own = room, *mixed = room + width, *scores = room + 2 * width;
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t d = 0; d < width; d++)
            own[d] = scale * number(query, row * width + d, bf16);
        attend_row(bf16, own, keys, values, mixed, places + ends[row], ends[row + 1] - ends[row],
                   shared, heads / shared, size, scores);
        for (int64_t d = 0; d < width; d++) {
            if (bf16) ((uint16_t *)output)[row * width + d] = narrowed(mixed[d]);
            else ((float *)output)[row * width + d] = mixed[d];
        }
    }
}

/* query, output: (rows, heads, size). keys, values: (positions, shared, size). places: of each
 * row's keys, row after row; ends: where each row's begin, and the end, (rows + 1). size: at most
 * 512. room: for heads times the most keys of a row, and twice heads * size, numbers. query, keys,
 * values and output are fp32, or all bf16. */
BEST void condensery_attend(int64_t bf16, const void *query, const void *keys, const void *values,
                            void *output, const int64_t *places, const int64_t *ends,
                            int64_t rows, int64_t heads, int64_t shared, int64_t size, float scale,
                            float *room) {
#define OF(kind, width)                                                                         \
    attend_all(kind, query, keys, values, output, places, ends, rows, heads, shared, width,      \
               scale, room)
    /* Sizes that models have, known to the compiler. */
    if (bf16) {
        if (size == 64) OF(1, 64);
        else if (size == 128) OF(1, 128);
        else OF(1, size);
    } else {
        if (size == 64) OF(0, 64);
        else if (size == 128) OF(0, 128);
        else OF(0, size);
    }
}

/* The size of a row's largest number, at least 1e-12; NaN where it has one, or an infinity. */
INLINE float largest(int bf16, const void *inputs, int64_t first, const float *factors,
                     int64_t width) {
    float most = 1e-12f, none = 0.0f;
#pragma omp simd reduction(max : most) reduction(+ : none)
    for (int64_t d = 0; d < width; d++) {
        float value = number(inputs, first + d, bf16) * (factors ? factors[d] : 1.0f);
        float size = value < 0.0f ? -value : value;
        most = size > most ? size : most;
        none += 0.0f * value;
    }
    return none == 0.0f ? most : NAN;
}

INLINE void round_all(int bf16, const void *inputs, const float *factors, uint8_t *codes,
                      float *sizes, int64_t rows, int64_t width) {
    for (int64_t row = 0; row < rows; row++) {
        int64_t first = row * width;
        float most = largest(bf16, inputs, first, factors, width);
        int right = most == most;
        float factor = right ? 127.0f / most : 0.0f;
        sizes[row] = most;
#pragma omp simd
        for (int64_t d = 0; d < width; d++) {
            float value = right ? number(inputs, first + d, bf16) : 0.0f;
            value *= factors ? factors[d] : 1.0f;
            codes[first + d] = (uint8_t)(int32_t)(value * factor + 128.5f);
        }
    }
}

/* Rows of numbers to codes of 1 to 255, 128 for 0, and the size of each row's largest; rows that
 * hold a NaN or an infinity have the size NaN. inputs: (rows, width), fp32 or bf16. factors: of
 * each input, before it is rounded, (width); or null. */
BEST void condensery_round(int64_t bf16, const void *inputs, const float *factors, uint8_t *codes,
                           float *sizes, int64_t rows, int64_t width) {
#define ROUND(kind, own) round_all(kind, inputs, own, codes, sizes, rows, width)
    if (bf16 && factors) ROUND(1, factors);
    else if (bf16) ROUND(1, NULL);
    else if (factors) ROUND(0, factors);
    else ROUND(0, NULL);
}

/* output = inputs * weight^T + bias, both rounded to 8 bits, then GELU or + residual, as there:
 * inputs and factors as for condensery_round. inputs: (rows, width), residual, or null, and output: (rows,
 * outputs), fp32 or bf16. panels: signed codes of the weight, four of 32 outputs side by side,
 * (outputs / 32, width / 4, 32, 4), filled up with 0, as are scales, what a code is worth over 127,
 * and zeros, 128 times the sum of an output's codes. bias: fp32, or null. room: for
 * rows * (width + 4) bytes. parallel: as for condensery_multiply. */
void condensery_multiply_codes(int64_t bf16, const void *inputs, const float *factors,
                               const void *panels, const float *scales, const int32_t *zeros,
                               const float *bias, const void *residual, void *output,
                               int64_t rows, int64_t width, int64_t outputs, int64_t gelu,
                               int64_t threads, parallel_of parallel, void *room) {
#if WIDE_KERNELS
    float *sizes = room;
    uint8_t *codes = (uint8_t *)(sizes + rows);
    condensery_round(bf16, inputs, factors, codes, sizes, rows, width);
    struct product all = {.kind = CODES, .inputs = codes, .panels = panels, .scales = scales,
                          .bias = bias, .sizes = sizes, .zeros = zeros, .residual = residual,
                          .output = output, .bf16 = bf16, .words = width / 4, .rows = rows,
                          .width = width, .outputs = outputs, .gelu = gelu, .parts = threads};
    if (parallel && threads > 1) parallel(multiply_parts, &all, (unsigned)threads, 0);
    else multiply_parts(&all);
#else
    (void)bf16, (void)inputs, (void)factors, (void)panels, (void)scales, (void)zeros, (void)bias;
    (void)residual, (void)output, (void)rows, (void)width, (void)outputs, (void)gelu, (void)threads;
    (void)parallel, (void)room;
#endif
}

/* Rows of numbers, (rows, width), to codes of 16 bits, (rows, 2 * words), at most `steps` from 0;
 * sizes: what a code of each row is worth, NaN where it holds a NaN or an infinity. */
BEST static void round_words(const float *inputs, int16_t *codes, float *sizes, int64_t rows,
                             int64_t width, int64_t words, float steps) {
    for (int64_t row = 0; row < rows; row++) {
        const float *own = inputs + row * width;
        float most = largest(0, own, 0, NULL, width);
        int right = most == most;
        float factor = right ? steps / most : 0.0f;
        int16_t *to = codes + 2 * row * words;
        sizes[row] = most / steps;
        to[2 * words - 1] = 0; /* of an odd width */
#pragma omp simd
        for (int64_t d = 0; d < width; d++) {
            float value = (right ? own[d] : 0.0f) * factor;
            to[d] = (int16_t)(int32_t)(value + (value < 0.0f ? -0.5f : 0.5f));
        }
    }
}

/* As condensery_multiply_codes, by AVX2 (condensery_has_panels), in fp32: inputs rounded by row to
 * `steps` on either side of 0. panels: codes of the weight, of 2 bytes or 1, pairs of 16 outputs
 * side by side, (outputs / 16, words, 16, 2), words = width / 2, filled up with 0, as are scales,
 * what a code is worth. The sizes of an output's codes together, times steps, are below 2^31.
 * room: for rows * 4 * (words + 1) bytes. */
void condensery_multiply_words(const float *inputs, const void *panels, int64_t bytes,
                               const float *scales, const float *bias, const float *residual,
                               float *output, int64_t rows, int64_t width, int64_t outputs,
                               int64_t gelu, int64_t steps, int64_t threads,
                               parallel_of parallel, void *room) {
#if WIDE_KERNELS
    int64_t words = (width + 1) / 2;
    float *sizes = room;
    int16_t *codes = (int16_t *)(sizes + rows);
    round_words(inputs, codes, sizes, rows, width, words, (float)steps);
    struct product all = {.kind = WORDS, .inputs = codes, .panels = panels, .scales = scales,
                          .bias = bias, .sizes = sizes, .residual = residual, .output = output,
                          .words = words, .rows = rows, .width = width, .outputs = outputs,
                          .gelu = gelu, .bytes = bytes, .parts = threads};
    if (parallel && threads > 1) parallel(multiply_parts, &all, (unsigned)threads, 0);
    else multiply_parts(&all);
#else
    (void)inputs, (void)panels, (void)bytes, (void)scales, (void)bias, (void)residual;
    (void)output, (void)rows, (void)width, (void)outputs, (void)gelu, (void)steps, (void)threads;
    (void)parallel, (void)room;
#endif
}

/* output = product * sizes + bias, (rows, width), each row with its own size; bias may be null. */
BEST void condensery_scale(int64_t bf16, const float *product, const float *sizes,
                           const float *bias, void *output, int64_t rows, int64_t width) {
    for (int64_t row = 0; row < rows; row++) {
        const float *own = product + row * width;
        float size = sizes[row];
        if (bf16) {
            uint16_t *halves = (uint16_t *)output + row * width;
#pragma omp simd
            for (int64_t d = 0; d < width; d++)
                halves[d] = narrowed(own[d] * size + (bias ? bias[d] : 0.0f));
        } else {
            float *floats = (float *)output + row * width;
#pragma omp simd
            for (int64_t d = 0; d < width; d++) floats[d] = own[d] * size + (bias ? bias[d] : 0.0f);
        }
    }
}

INLINE void put(void *table, int64_t place, float value, int bf16) {
    if (bf16) ((uint16_t *)table)[place] = narrowed(value);
    else ((float *)table)[place] = value;
}

INLINE void normalise_all(int bf16, const void *inputs, const void *weight, void *output,
                          int64_t rows, int64_t width, float eps) {
    for (int64_t first = 0; first < rows * width; first += width) {
        float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
        for (int64_t d = 0; d < width; d++) {
            float value = number(inputs, first + d, bf16);
            sum += value * value;
        }
        float factor = 1.0f / sqrtf(sum / (float)width + eps);
#pragma omp simd
        for (int64_t d = 0; d < width; d++)
            put(output, first + d,
                number(inputs, first + d, bf16) * factor * number(weight, d, bf16), bf16);
    }
}

/* Rows over the root of their mean square, times weight, (width): (rows, width), fp32 or bf16. */
BEST void condensery_rms_norm(int64_t bf16, const void *inputs, const void *weight, void *output,
                              int64_t rows, int64_t width, float eps) {
    if (bf16) normalise_all(1, inputs, weight, output, rows, width, eps);
    else normalise_all(0, inputs, weight, output, rows, width, eps);
}

/* A head turned by its position: pairs are half a head apart. */
INLINE void turn(int bf16, void *row, int64_t first, const void *cosine, const void *sine,
                 int64_t angles, int64_t half) {
#pragma omp simd
    for (int64_t d = 0; d < half; d++) {
        float x = number(row, first + d, bf16), y = number(row, first + half + d, bf16);
        float left = x * number(cosine, angles + d, bf16) - y * number(sine, angles + d, bf16);
        float right = y * number(cosine, angles + half + d, bf16) +
                      x * number(sine, angles + half + d, bf16);
        put(row, first + d, left, bf16);
        put(row, first + half + d, right, bf16);
    }
}

INLINE void rotate_all(int bf16, void *query, void *key, const void *value, const void *cosine,
                       const void *sine, void *keys, void *values, const int64_t *places,
                       int64_t rows, int64_t heads, int64_t shared, int64_t size) {
    size_t bytes = (size_t)(shared * size) * (bf16 ? 2 : 4);
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t head = 0; head < heads; head++)
            turn(bf16, query, (row * heads + head) * size, cosine, sine, row * size, size / 2);
        for (int64_t head = 0; head < shared; head++)
            turn(bf16, key, (row * shared + head) * size, cosine, sine, row * size, size / 2);
        size_t from = (size_t)row * bytes, to = (size_t)places[row] * bytes;
        memcpy((char *)keys + to, (const char *)key + from, bytes);
        memcpy((char *)values + to, (const char *)value + from, bytes);
    }
}

/* Turn queries and keys by their positions, in place, and put keys and values in a cache. query:
 * (rows, heads, size); key, value: (rows, shared, size); cosine, sine: (rows, size); keys, values:
 * (positions, shared, size); places: of the rows. size: even. fp32, or all bf16. */
BEST void condensery_rotate(int64_t bf16, void *query, void *key, const void *value,
                            const void *cosine, const void *sine, void *keys, void *values,
                            const int64_t *places, int64_t rows, int64_t heads, int64_t shared,
                            int64_t size) {
    if (bf16)
        rotate_all(1, query, key, value, cosine, sine, keys, values, places, rows, heads, shared,
                   size);
    else
        rotate_all(0, query, key, value, cosine, sine, keys, values, places, rows, heads, shared,
                   size);
}
