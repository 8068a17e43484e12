/* A step of two sequences, stored and given back; then every refusal of the interface itself. */
#include <kvcache.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                              \
    do {                                                                              \
        if (!(condition)) {                                                           \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);           \
            exit(1);                                                                  \
        }                                                                             \
    } while (0)

/* A call that must do what it says. */
static void done(kvcache_error *error)
{
    if (error != NULL) {
        fprintf(stderr, "%s: %s\n", kvcache_error_kind(error), kvcache_error_message(error));
        exit(1);
    }
}

/* A call that must be refused, for this reason and with this word in its text. */
static void refused(kvcache_error *error, const char *kind, const char *word)
{
    CHECK(error != NULL);
    if (strcmp(kvcache_error_kind(error), kind) != 0 || strstr(kvcache_error_message(error), word) == NULL) {
        fprintf(stderr, "expected %s with '%s', got %s: %s\n", kind, word, kvcache_error_kind(error),
                kvcache_error_message(error));
        exit(1);
    }
    kvcache_error_free(error);
}

static const DLDataType FLOAT32 = {kDLFloat, 32, 1};
static const DLDataType INT64 = {kDLInt, 64, 1};
static const DLDataType INT8 = {kDLInt, 8, 1};
static const DLDataType INT4 = {kDLInt, 4, 1};
static const DLDataType FLOAT8 = {10, 8, 1}; /* kDLFloat8_e4m3fn, which older headers have not got */

static DLTensor tensor(void *data, DLDataType dtype, int32_t ndim, int64_t *shape)
{
    DLTensor made = {data, {kDLCPU, 0}, ndim, dtype, shape, NULL, 0};
    return made;
}

enum { MAX_T = 8, HEADS = 2, HEAD_DIM = 4, TOKENS = 3, KEYS = 6, REPEAT = 2 };

/* The caller's own threads: one, which also counts the pieces of work. */
static void one_after_another(void *context, size_t tasks, kvcache_task task, void *argument)
{
    for (size_t i = 0; i < tasks; i++) {
        task(argument, i);
        *(size_t *)context += 1;
    }
}

int main(void)
{
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", KVCACHE_VERSION_MAJOR, KVCACHE_VERSION_MINOR, KVCACHE_VERSION_PATCH);
    CHECK(strcmp(kvcache_version(), version) == 0);
    kvcache_attributes attributes = kvcache_attributes_default();
    CHECK(attributes.num_layer == 1 && attributes.page_size == 128);
    attributes.num_repeat = REPEAT;
    kvcache_operator *op = NULL;
    done(kvcache_create(&attributes, &op));

    /* Sequence 0 has a new token behind 3, sequence 1 begins with 2. */
    static float cache_data[MAX_T][1][2][HEADS][HEAD_DIM];
    static float current[2][TOKENS][HEADS][HEAD_DIM];
    static float out[2][KEYS][HEADS * REPEAT][HEAD_DIM];
    int64_t seqstarts_data[] = {0, 1, 3}, kvstarts_data[] = {0, 4, 6};
    int64_t cachestarts_data[] = {4, 0}, start_pos_data[] = {3, 0};
    int64_t max_seqlen_data = 2, max_kvlen_data = 4;
    for (size_t i = 0; i < sizeof cache_data / sizeof(float); i++)
        (&cache_data[0][0][0][0][0])[i] = (float)i;
    for (size_t i = 0; i < sizeof current / sizeof(float); i++)
        (&current[0][0][0][0])[i] = -(float)i - 1;
    static float before[MAX_T][1][2][HEADS][HEAD_DIM];
    memcpy(before, cache_data, sizeof before);

    int64_t batch1[] = {3}, batch[] = {2};
    int64_t cache_shape[] = {MAX_T, 1, 2, HEADS, HEAD_DIM}, current_shape[] = {TOKENS, HEADS, HEAD_DIM};
    int64_t out_shape[] = {KEYS, HEADS * REPEAT, HEAD_DIM};
    DLTensor seqstarts = tensor(seqstarts_data, INT64, 1, batch1);
    DLTensor kvstarts = tensor(kvstarts_data, INT64, 1, batch1);
    DLTensor cachestarts = tensor(cachestarts_data, INT64, 1, batch);
    DLTensor start_pos = tensor(start_pos_data, INT64, 1, batch);
    DLTensor max_seqlen = tensor(&max_seqlen_data, INT64, 0, NULL);
    DLTensor max_kvlen = tensor(&max_kvlen_data, INT64, 0, NULL);
    DLTensor current_key = tensor(current[0], FLOAT32, 3, current_shape);
    DLTensor current_value = tensor(current[1], FLOAT32, 3, current_shape);
    DLTensor cache = tensor(cache_data, FLOAT32, 5, cache_shape);
    DLTensor key = tensor(out[0], FLOAT32, 3, out_shape);
    DLTensor value = tensor(out[1], FLOAT32, 3, out_shape);
    kvcache_inputs inputs = {
        &current_key, &current_value, {&seqstarts, &kvstarts, &cachestarts, &start_pos, &max_seqlen, &max_kvlen}};

    /* Refusals, before anything is written. */
    int64_t shape[3] = {0, 0, 0};
    kvcache_operator *none = NULL;
    attributes.num_layer = 0;
    refused(kvcache_create(&attributes, &none), "attribute_out_of_range", "num_layer");
    attributes.num_layer = 1;
    CHECK(none == NULL);
    refused(kvcache_create(NULL, &none), "null_pointer", "attributes");
    refused(kvcache_create(&attributes, NULL), "null_pointer", "op");
    refused(kvcache_check(NULL, &inputs, &cache, NULL, shape), "null_pointer", "op");
    refused(kvcache_check(op, NULL, &cache, NULL, shape), "null_pointer", "inputs");
    refused(kvcache_check(op, &inputs, NULL, NULL, shape), "null_pointer", "cache");
    refused(kvcache_run(op, &inputs, &cache, NULL, NULL, &value, NULL), "null_pointer", "key");
    inputs.current_key = NULL;
    refused(kvcache_check(op, &inputs, &cache, NULL, shape), "null_pointer", "current_key");
    inputs.current_key = &current_key;
    kvstarts_data[1] = 3;
    refused(kvcache_run(op, &inputs, &cache, NULL, &key, &value, NULL), "kvlen_mismatch", "batch 0");
    kvstarts_data[1] = 4;
    DLTensor broken = cache;
    broken.device.device_type = (DLDeviceType)2; /* CUDA */
    refused(kvcache_check(op, &inputs, &broken, NULL, shape), "device", "cuda:0");
    broken = cache;
    broken.dtype.code = 1; /* uint16 */
    broken.dtype.bits = 16;
    refused(kvcache_check(op, &inputs, &broken, NULL, shape), "element_type", "cache");
    broken = cache;
    broken.ndim = -1;
    refused(kvcache_check(op, &inputs, &broken, NULL, shape), "invalid_dltensor", "ndim");
    broken = cache;
    int64_t strides[] = {16, 16, 8, 1, 2};
    broken.strides = strides;
    refused(kvcache_check(op, &inputs, &broken, NULL, shape), "not_contiguous", "cache");
    broken = cache;
    broken.byte_offset = 1;
    refused(kvcache_check(op, &inputs, &broken, NULL, shape), "misaligned", "cache");
    refused(kvcache_run(op, &inputs, &cache, NULL, &cache, &value, NULL), "rank_mismatch", "key");
    refused(kvcache_run(op, &inputs, &cache, NULL, &key, &key, NULL), "operands_overlap", "value");
    CHECK(memcmp(before, cache_data, sizeof before) == 0);

    /* The call: alone, in a pool, on threads of its own, and as a layer of a step. */
    done(kvcache_check(op, &inputs, &cache, NULL, NULL));
    done(kvcache_check(op, &inputs, &cache, NULL, shape));
    CHECK(shape[0] == KEYS && shape[1] == HEADS * REPEAT && shape[2] == HEAD_DIM);
    kvcache_workers *pool = NULL, *own = NULL;
    size_t pieces = 0;
    done(kvcache_workers_new(2, &pool));
    refused(kvcache_workers_from(1, NULL, NULL, &own), "null_pointer", "parallel_for");
    done(kvcache_workers_from(3, one_after_another, &pieces, &own));
    kvcache_step *step = NULL;
    done(kvcache_step_begin(op, FLOAT32, &inputs.indices, &cache, NULL, &step));
    for (int64_t layer = -1; layer <= 1; layer += 2)
        refused(kvcache_step_layer(step, layer, &current_key, &current_value, &key, &value, NULL),
                "attribute_out_of_range", "layer_idx");
    const kvcache_workers *all[] = {NULL, pool, own};
    for (size_t turn = 0; turn < 4; turn++) {
        memset(out, 0x5A, sizeof out);
        memcpy(cache_data, before, sizeof before);
        if (turn < 3)
            done(kvcache_run(op, &inputs, &cache, NULL, &key, &value, all[turn]));
        else
            done(kvcache_step_layer(step, 0, &current_key, &current_value, &key, &value, pool));
        static const int slots[KEYS] = {4, 5, 6, 7, 0, 1}, tokens[KEYS] = {-1, -1, -1, 0, 1, 2};
        for (int kv = 0; kv < 2; kv++)
            for (int t = 0; t < KEYS; t++)
                for (int h = 0; h < HEADS * REPEAT; h++)
                    for (int d = 0; d < HEAD_DIM; d++) {
                        float expected = tokens[t] < 0 ? before[slots[t]][0][kv][h / REPEAT][d]
                                                       : current[kv][tokens[t]][h / REPEAT][d];
                        CHECK(out[kv][t][h][d] == expected);
                        CHECK(cache_data[slots[t]][0][kv][h / REPEAT][d] == expected);
                    }
        CHECK(memcmp(cache_data[2], before[2], 5 * sizeof before[2]) == 0);
    }
    kvcache_step_end(step);
    kvcache_workers_free(own);
    kvcache_workers_free(pool);
    kvcache_free(op);

    /* int4 with scales: 2.0 and -2.0 are 8 scales of 1/4, and the codes are at most 7. */
    attributes = kvcache_attributes_default();
    attributes.quant_bit = 4;
    attributes.quant_group = HEAD_DIM;
    done(kvcache_create(&attributes, &op));
    static uint8_t codes[MAX_T * 2 * HEADS * HEAD_DIM / 2];
    static float scale_data[MAX_T][1][2][HEADS][1];
    int64_t scale_shape[] = {MAX_T, 1, 2, HEADS, 1};
    DLTensor packed = tensor(codes, INT4, 5, cache_shape), scale = tensor(scale_data, FLOAT32, 5, scale_shape);
    out_shape[1] = HEADS;
    for (size_t i = 0; i < sizeof current / sizeof(float); i++)
        (&current[0][0][0][0])[i] = i % 4 == 0 ? 2.0f : i % 4 == 1 ? -2.0f : 0.0f;
    refused(kvcache_check(op, &inputs, &packed, NULL, shape), "scale_missing", "scale");
    DLTensor wrong = packed;
    wrong.dtype = INT8;
    refused(kvcache_check(op, &inputs, &wrong, &scale, shape), "illegal_types", "int8");
    done(kvcache_run(op, &inputs, &packed, &scale, &key, &value, NULL));
    CHECK(scale_data[7][0][0][0][0] == 2.0f / 8.0f);
    size_t at = 7 * 2 * HEADS * HEAD_DIM / 2;
    CHECK(codes[at] == 0x87 && codes[at + 1] == 0); /* 7 in the low nibble, -8 in the high one */
    CHECK(out[0][3 * REPEAT / REPEAT][0][0] != 0.0f);
    kvcache_free(op);

    /* float8 with scales: the largest of a group is 448 steps. */
    attributes.quant_type = 1;
    refused(kvcache_create(&attributes, &op), "attribute_out_of_range", "quant_type");
    attributes.quant_bit = 8;
    done(kvcache_create(&attributes, &op));
    static uint8_t floats[MAX_T * 2 * HEADS * HEAD_DIM];
    DLTensor float8 = tensor(floats, FLOAT8, 5, cache_shape);
    done(kvcache_run(op, &inputs, &float8, &scale, &key, &value, NULL));
    CHECK(scale_data[7][0][0][0][0] == 2.0f / 448.0f);
    CHECK(floats[2 * at] == 0x7e && floats[2 * at + 1] == 0xfe && floats[2 * at + 2] == 0);
    kvcache_free(op);

    kvcache_error_free(NULL);
    kvcache_free(NULL);
    kvcache_workers_free(NULL);
    kvcache_step_end(NULL);
    CHECK(strcmp(kvcache_error_kind(NULL), "") == 0 && strcmp(kvcache_error_message(NULL), "") == 0);
    puts("ok");
    return 0;
}
