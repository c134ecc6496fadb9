/* What a step of few rows does beside its products, on a CPU, where torch takes a dozen calls.
 *
 * Attention of one query row a sequence to its own keys and values in a cache, for which torch has
 * no operation; and the rounding of rows to 8 bits, before and after a product of integers.
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

enum { MOST_SIZE = 512 };

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
