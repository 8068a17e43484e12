/* MultiHeadCacheAttention in ONNX Runtime's C interface. It takes the library and attention.onnx, the model that
 * attention.py writes, and prints "1 1". Compiled and run by hand with ONNX Runtime 1.32:
 *
 *     cc -std=c11 attention.c -I onnxruntime/include -L onnxruntime/lib -lonnxruntime -o attention
 *     LD_LIBRARY_PATH=onnxruntime/lib ./attention libkvcache_ort.so attention.onnx
 */
#include <onnxruntime_c_api.h>

#include <stdio.h>
#include <stdlib.h>

enum { TOKENS = 3, HEADS = 32, KV_HEADS = 8, HEAD_DIM = 64, MAX_T = 1024, INPUTS = 11 };

static const OrtApi *ort;
static OrtMemoryInfo *host;

static void must(OrtStatus *status)
{
    if (status == NULL)
        return;
    fprintf(stderr, "%s\n", ort->GetErrorMessage(status));
    exit(1);
}

/* A tensor over memory of this program: nothing is copied. */
static OrtValue *tensor(void *data, ONNXTensorElementDataType type, size_t rank, const int64_t *shape)
{
    size_t bytes = type == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64 ? 8 : 4;
    OrtValue *made = NULL;
    for (size_t i = 0; i < rank; i++)
        bytes *= (size_t)shape[i];
    must(ort->CreateTensorWithDataAsOrtValue(host, data, bytes, shape, rank, type, &made));
    return made;
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: %s libkvcache_ort.so attention.onnx\n", argv[0]);
        return 2;
    }
    ort = OrtGetApiBase()->GetApi(ORT_API_VERSION);
    if (ort == NULL) {
        fprintf(stderr, "ONNX Runtime is older than the header\n");
        return 1;
    }
    OrtEnv *env = NULL;
    OrtSessionOptions *options = NULL;
    OrtSession *session = NULL;
    must(ort->CreateEnv(ORT_LOGGING_LEVEL_WARNING, "kvcache", &env));
    must(ort->CreateSessionOptions(&options));
    must(ort->RegisterCustomOpsLibrary_V2(options, argv[1])); /* once for these options */
    must(ort->CreateSession(env, argv[2], options, &session));
    must(ort->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &host));

    /* The cache, (MaxT, L, 2, Hk, Dh), is allocated once; each run writes it in place. */
    float *cache = calloc((size_t)MAX_T * 2 * KV_HEADS * HEAD_DIM, sizeof *cache);
    static float query[TOKENS * HEADS * HEAD_DIM], current[TOKENS * KV_HEADS * HEAD_DIM];
    for (size_t i = 0; i < sizeof query / sizeof *query; i++)
        query[i] = 1;
    for (size_t i = 0; i < sizeof current / sizeof *current; i++)
        current[i] = 1;

    /* A prompt of 2 tokens in slots from 0; the 11th token of a sequence whose slots begin at 512. */
    int64_t seqstarts[] = {0, 2, 3}, kvstarts[] = {0, 2, 13}, cachestarts[] = {0, 512}, start_pos[] = {0, 10};
    int64_t decoding_batches = 0, max_seqlen = 2, max_kvlen = 11;
    const int64_t of_query[] = {TOKENS, HEADS, HEAD_DIM}, of_current[] = {TOKENS, KV_HEADS, HEAD_DIM};
    const int64_t of_cache[] = {MAX_T, 1, 2, KV_HEADS, HEAD_DIM}, one[] = {1}, batch[] = {2}, starts[] = {3};
    const ONNXTensorElementDataType f32 = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
    const ONNXTensorElementDataType i64 = ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64;
    const char *names[INPUTS] = {"query", "current_key", "current_value", "seqstarts", "kvstarts", "cachestarts",
                                 "start_pos", "decoding_batches", "max_seqlen", "max_kvlen", "cache"};
    OrtValue *inputs[INPUTS] = {
        tensor(query, f32, 3, of_query),        tensor(current, f32, 3, of_current),
        tensor(current, f32, 3, of_current),    tensor(seqstarts, i64, 1, starts),
        tensor(kvstarts, i64, 1, starts),       tensor(cachestarts, i64, 1, batch),
        tensor(start_pos, i64, 1, batch),       tensor(&decoding_batches, i64, 1, one),
        tensor(&max_seqlen, i64, 1, one),       tensor(&max_kvlen, i64, 1, one),
        tensor(cache, f32, 5, of_cache),
    };
    const char *output_names[] = {"attn_output"};
    OrtValue *output = NULL;
    must(ort->Run(session, NULL, names, (const OrtValue *const *)inputs, INPUTS, output_names, 1, &output));

    float *attended = NULL;
    must(ort->GetTensorMutableData(output, (void **)&attended));
    printf("%g %g\n", (double)attended[0], (double)cache[(size_t)522 * 2 * KV_HEADS * HEAD_DIM]);

    ort->ReleaseValue(output);
    for (int i = 0; i < INPUTS; i++)
        ort->ReleaseValue(inputs[i]);
    ort->ReleaseMemoryInfo(host);
    ort->ReleaseSession(session);
    ort->ReleaseSessionOptions(options);
    ort->ReleaseEnv(env);
    free(cache);
    return 0;
}
