/* A whole program for docs/c.md: two sequences, in eight slots and pages of two. */
#include <kvcache.h>

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_T = 8, HEADS = 1, HEAD_DIM = 2, TOKENS = 3, KEYS = 4 };

static DLTensor tensor(void *data, uint8_t code, uint8_t bits, int32_t ndim, int64_t *shape)
{
    DLTensor made = {data, {kDLCPU, 0}, ndim, {code, bits, 1}, shape, NULL, 0};
    return made;
}

static void must(kvcache_error *error)
{
    if (error == NULL)
        return;
    fprintf(stderr, "%s: %s\n", kvcache_error_kind(error), kvcache_error_message(error));
    kvcache_error_free(error);
    exit(1);
}

int main(void)
{
    kvcache_attributes attributes = kvcache_attributes_default();
    attributes.cache_mode = 1;
    attributes.page_size = 2;
    kvcache_operator *op = NULL;
    must(kvcache_create(&attributes, &op));

    /* Sequence 0 has two new tokens. Sequence 1 has one in the cache, at slot 2, and one new. */
    float cache_data[MAX_T][1][2][HEADS][HEAD_DIM] = {{{{{0}}}}};
    cache_data[2][0][0][0][0] = 10;
    float current[TOKENS][HEADS][HEAD_DIM] = {{{1, 1}}, {{2, 2}}, {{11, 11}}};
    float key_data[KEYS][HEADS][HEAD_DIM], value_data[KEYS][HEADS][HEAD_DIM];
    int64_t seqstarts_data[] = {0, 2, 3}, kvstarts_data[] = {0, 2, 4}, start_pos_data[] = {0, 1};
    int64_t pages[2][1] = {{6}, {2}}, max_seqlen_data = 2, max_kvlen_data = 2;

    int64_t starts_shape[] = {3}, batch_shape[] = {2}, pages_shape[] = {2, 1};
    int64_t current_shape[] = {TOKENS, HEADS, HEAD_DIM}, out_shape[] = {KEYS, HEADS, HEAD_DIM};
    int64_t cache_shape[] = {MAX_T, 1, 2, HEADS, HEAD_DIM};
    DLTensor seqstarts = tensor(seqstarts_data, kDLInt, 64, 1, starts_shape);
    DLTensor kvstarts = tensor(kvstarts_data, kDLInt, 64, 1, starts_shape);
    DLTensor cachestarts = tensor(pages, kDLInt, 64, 2, pages_shape);
    DLTensor start_pos = tensor(start_pos_data, kDLInt, 64, 1, batch_shape);
    DLTensor max_seqlen = tensor(&max_seqlen_data, kDLInt, 64, 0, NULL);
    DLTensor max_kvlen = tensor(&max_kvlen_data, kDLInt, 64, 0, NULL);
    DLTensor current_key = tensor(current, kDLFloat, 32, 3, current_shape);
    DLTensor cache = tensor(cache_data, kDLFloat, 32, 5, cache_shape);
    DLTensor key = tensor(key_data, kDLFloat, 32, 3, out_shape);
    DLTensor value = tensor(value_data, kDLFloat, 32, 3, out_shape);
    kvcache_inputs inputs = {&current_key, &current_key,
                             {&seqstarts, &kvstarts, &cachestarts, &start_pos, &max_seqlen, &max_kvlen}};

    int64_t shape[3];
    must(kvcache_check(op, &inputs, &cache, NULL, shape)); /* writes nothing but the outputs' shape */
    assert(shape[0] == KEYS && shape[1] == HEADS && shape[2] == HEAD_DIM);
    must(kvcache_run(op, &inputs, &cache, NULL, &key, &value, NULL)); /* NULL: on this thread */

    for (int i = 0; i < KEYS; i++)
        printf("%g%c", (double)key_data[i][0][0], i + 1 < KEYS ? ' ' : '\n');
    assert(key_data[1][0][0] == 2 && key_data[2][0][0] == 10 && key_data[3][0][0] == 11);
    assert(cache_data[7][0][0][0][0] == 2); /* slot 7: token 1 of sequence 0 */

    /* A refused call has written nothing. */
    pages[0][0] = 7;
    kvcache_error *error = kvcache_run(op, &inputs, &cache, NULL, &key, &value, NULL);
    assert(error != NULL);
    printf("%s\n", kvcache_error_kind(error));
    kvcache_error_free(error);
    kvcache_free(op);
    return 0;
}
