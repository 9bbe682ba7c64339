/* What memory allows: loops over rows of 16 floats whose places are known. */
#include <stdint.h>
#include <string.h>

enum { DIM = 16, WIDE = 3 * DIM, AHEAD = 64 };

void gather(const float *table, float *batch, const int64_t *slots, int64_t num) {
    for (int64_t i = 0; i < num; i++) {
        if (i + AHEAD < num) __builtin_prefetch(table + slots[i + AHEAD] * DIM, 0, 3);
        memcpy(batch + i * DIM, table + slots[i] * DIM, DIM * sizeof(float));
    }
}

void step(float *table, const float *grads, const int64_t *slots, int64_t num) {
    for (int64_t i = 0; i < num; i++) {
        if (i + AHEAD < num) __builtin_prefetch(table + slots[i + AHEAD] * DIM, 1, 3);
        float *row = table + slots[i] * DIM;
        for (int j = 0; j < DIM; j++) row[j] -= 0.01f * grads[i * DIM + j];
    }
}

/* As step, of rows that hold two states beside their values, as Adam's do. */
void step_wide(float *table, const float *grads, const int64_t *slots, int64_t num) {
    for (int64_t i = 0; i < num; i++) {
        if (i + AHEAD < num) {
            const float *next = table + slots[i + AHEAD] * WIDE;
            for (int line = 0; line < WIDE; line += DIM) __builtin_prefetch(next + line, 1, 3);
        }
        float *row = table + slots[i] * WIDE;
        const float *grad = grads + i * DIM;
        for (int j = 0; j < DIM; j++) {
            row[DIM + j] += 0.1f * (grad[j] - row[DIM + j]);
            row[2 * DIM + j] += 0.01f * (grad[j] * grad[j] - row[2 * DIM + j]);
            row[j] -= 0.01f * row[DIM + j];
        }
    }
}
