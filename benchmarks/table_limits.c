/* What memory allows: loops over rows of 16 floats whose places are known. */
#include <stdint.h>
#include <string.h>

enum { DIM = 16, AHEAD = 48 };

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
