/* What a CPU does beside products, where torch takes a dozen calls, or long.
 *
 * Attention of one query row a sequence to its own keys and values in a cache, for which torch has
 * no operation; the rounding of rows to 8 bits, before and after a product of integers; and the
 * softmax of rows in bf16.
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

enum { MOST_SIZE = 512, MOST_SCORES = 1024, LANES = 16 };

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

/* The compiler makes half of AVX512 from loops like those above: here it is written out. */
#if defined(__x86_64__)
#include <immintrin.h>
#define WIDE __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))

WIDE INLINE __m512 widened_all(const uint16_t *from) {
    __m512i bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
}

WIDE INLINE void narrow_all(__m512 value, uint16_t *to) {
    __m512i bits = _mm512_castps_si512(value), one = _mm512_set1_epi32(1);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), one);
    bits = _mm512_add_epi32(_mm512_add_epi32(bits, odd), _mm512_set1_epi32(0x7fff));
    bits = _mm512_srli_epi32(bits, 16);
    __mmask16 none = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    bits = _mm512_mask_mov_epi32(bits, none, _mm512_set1_epi32(0x7fc0));
    _mm256_storeu_si256((__m256i *)to, _mm512_cvtepi32_epi16(bits));
}

/* As `exponential`; the smaller operand of a minimum or maximum is the second where one is NaN. */
WIDE INLINE __m512 exponential_all(__m512 x) {
    x = _mm512_max_ps(_mm512_set1_ps(-87.0f), x);
    __m512 whole = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 8);
    __m512 rest = _mm512_fnmadd_ps(whole, _mm512_set1_ps(0.693359375f), x);
    rest = _mm512_fmadd_ps(whole, _mm512_set1_ps(2.12194440e-4f), rest);
    __m512 sum = _mm512_set1_ps(1.9875691500e-4f);
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(1.3981999507e-3f));
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(8.3334519073e-3f));
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(4.1665795894e-2f));
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(1.6666665459e-1f));
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(5.0000001201e-1f));
    sum = _mm512_fmadd_ps(_mm512_mul_ps(sum, rest), rest, rest);
    sum = _mm512_add_ps(sum, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(sum, whole);
}

WIDE static void softmax_all(uint16_t *scores, int64_t rows, int64_t length) {
    float room[MOST_SCORES] __attribute__((aligned(64)));
    for (int64_t row = 0; row < rows; row++, scores += length) {
        __m512 highest = widened_all(scores), sums = _mm512_setzero_ps();
        for (int64_t p = 0; p < length; p += LANES) {
            __m512 part = widened_all(scores + p);
            _mm512_store_ps(room + p, part);
            highest = _mm512_max_ps(part, highest);
        }
        __m512 most = _mm512_set1_ps(_mm512_reduce_max_ps(highest));
        for (int64_t p = 0; p < length; p += LANES) {
            __m512 part = exponential_all(_mm512_sub_ps(_mm512_load_ps(room + p), most));
            _mm512_store_ps(room + p, part);
            sums = _mm512_add_ps(sums, part);
        }
        __m512 share = _mm512_set1_ps(1.0f / _mm512_reduce_add_ps(sums));
        for (int64_t p = 0; p < length; p += LANES)
            narrow_all(_mm512_mul_ps(_mm512_load_ps(room + p), share), scores + p);
    }
}
#endif

/* In place, of each row of (rows, length) in bf16; length: a multiple of 16, at most 1024.
 * Returns whether this machine can. */
int64_t condensery_softmax(uint16_t *scores, int64_t rows, int64_t length) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl")) {
        softmax_all(scores, rows, length);
        return 1;
    }
#endif
    (void)scores, (void)rows, (void)length;
    return 0;
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

INLINE void round_all(int bf16, const void *inputs, uint8_t *codes, float *sizes, int64_t rows,
                      int64_t width) {
    for (int64_t row = 0; row < rows; row++) {
        int64_t first = row * width;
        float most = 1e-12f, none = 0.0f;
#pragma omp simd reduction(max : most) reduction(+ : none)
        for (int64_t d = 0; d < width; d++) {
            float value = number(inputs, first + d, bf16);
            float size = value < 0.0f ? -value : value;
            most = size > most ? size : most;
            none += 0.0f * value; /* NaN where the row has one, or an infinity */
        }
        int right = none == 0.0f;
        float factor = right ? 127.0f / most : 0.0f;
        sizes[row] = right ? most : NAN;
#pragma omp simd
        for (int64_t d = 0; d < width; d++) {
            float value = right ? number(inputs, first + d, bf16) : 0.0f;
            codes[first + d] = (uint8_t)(int32_t)(value * factor + 128.5f);
        }
    }
}

/* Rows of numbers to codes of 1 to 255, 128 for 0, and the size of each row's largest; rows that
 * hold a NaN or an infinity have the size NaN. inputs: (rows, width), fp32 or bf16. */
BEST void condensery_round(int64_t bf16, const void *inputs, uint8_t *codes, float *sizes,
                           int64_t rows, int64_t width) {
    if (bf16) round_all(1, inputs, codes, sizes, rows, width);
    else round_all(0, inputs, codes, sizes, rows, width);
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
