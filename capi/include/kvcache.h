/*
 * The operator dynamic_batching.KeyValueCache: stores the current keys and values of a ragged batch in a cache, and
 * returns all keys and values of every sequence.
 *
 * Generated from the sources of kvcache-capi; do not edit.
 *
 * Every function that can fail returns a kvcache_error, or NULL if it has done its work; free an error with
 * kvcache_error_free. A function that fails has written nothing to cache, scale, key or value. Tensors are borrowed:
 * the library keeps no pointer to them beyond a call, except as kvcache_step_begin says. They are in host memory,
 * contiguous in row-major order; int4 elements are packed, element 2i in the low nibble of byte i.
 *
 * Link with -lkvcache, or what `pkg-config --cflags --libs kvcache` prints. Where the system does not look for
 * libraries, as in $HOME/.local/lib, a program finds the shared one by -Wl,-rpath,DIRECTORY when it is linked, or by
 * LD_LIBRARY_PATH when it runs.
 */

#ifndef KVCACHE_H_
#define KVCACHE_H_

#include <stddef.h>
#include <stdint.h>

/*
 * A borrowed tensor as DLPack 1 declares it: by <dlpack/dlpack.h> where there is one, and otherwise here. Include a copy
 * of it that has another name before this header.
 */
#ifdef __has_include
#if __has_include(<dlpack/dlpack.h>)
#include <dlpack/dlpack.h>
#endif
#endif
#ifndef DLPACK_DLPACK_H_
#ifdef __cplusplus
typedef enum : int32_t {
#else
typedef enum {
#endif
  kDLCPU = 1
} DLDeviceType;

typedef struct {
  DLDeviceType device_type;
  int32_t device_id;
} DLDevice;

typedef enum { kDLInt = 0, kDLUInt = 1, kDLFloat = 2, kDLBfloat = 4, kDLFloat8_e4m3fn = 10 } DLDataTypeCode;

typedef struct {
  uint8_t code;   /* a DLDataTypeCode */
  uint8_t bits;   /* of a lane */
  uint16_t lanes; /* 1 */
} DLDataType;

typedef struct {
  void *data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t *shape;       /* of ndim numbers */
  int64_t *strides;     /* in elements; NULL is row-major order */
  uint64_t byte_offset; /* from data to the first element */
} DLTensor;
#endif

/* The version of this header; kvcache_version() gives the library's. */
#define KVCACHE_VERSION_MAJOR 0
#define KVCACHE_VERSION_MINOR 1
#define KVCACHE_VERSION_PATCH 0

/// Why a function failed.
typedef struct kvcache_error kvcache_error;

/// The operator with checked attributes. Nothing in it changes: several threads may use it at once.
typedef struct kvcache_operator kvcache_operator;

/// The calls of all layers of one step: indices, cache and scale have been checked. One thread at a time uses it.
typedef struct kvcache_step kvcache_step;

/// The threads that calls use. Several calls may use it at once.
typedef struct kvcache_workers kvcache_workers;

/// The attributes of the operator, as its specification names them.
typedef struct kvcache_attributes {
  /// Layers that share the cache (L).
  int64_t num_layer;
  /// The layer that a call stores to and loads from.
  int64_t layer_idx;
  /// Bits of a quantized cache element: 8 or 4; 0 is no quantization.
  int64_t quant_bit;
  /// Neighbors along head_dim that share one scale.
  int64_t quant_group;
  /// How often each cache head is repeated in key and value.
  int64_t num_repeat;
  /// 0: cachestarts holds the first slot of each sequence; 1: its pages' first slots.
  int64_t cache_mode;
  /// The shape of cache, MaxT being its slots: 0 (MaxT, L, 2, H, Dh), 1 (L, MaxT, 2, H, Dh), 2 (L, 2, MaxT, H, Dh),
  /// 3 (L, 2, H, MaxT, Dh); the axis of 2 has keys, then values. Its type is T1 or float, or int8 and int4 where
  /// quant_bit is 8 and 4. The shape of scale, float16 or float32, has Dh / quant_group in the place of Dh.
  int64_t cache_layout;
  /// Tokens in a page, in cache_mode 1.
  int64_t page_size;
  /// What the elements of a quantized cache are: 0 integers, 1 float8e4m3fn, where quant_bit is 8, 2 float8e4m3fn
  /// with static scales: scale then has the shape (L, 2, H), each of which may be 1, and is only read.
  int64_t quant_type;
  /// 1: keys are multiplied by a Hadamard matrix before they are quantized, and once more when they are loaded; 0:
  /// not.
  int64_t quant_rotation;
} kvcache_attributes;

/// The inputs of type int64: the lengths, positions and slots of the B sequences of a batch. They are the same for
/// every layer of a step.
typedef struct kvcache_indices {
  /// Shape (B + 1).
  const DLTensor *seqstarts;
  /// Shape (B + 1).
  const DLTensor *kvstarts;
  /// Shape (B) or, in cache_mode 1, (B, MaxP).
  const DLTensor *cachestarts;
  /// Shape (B).
  const DLTensor *start_pos;
  /// A scalar or of shape (1).
  const DLTensor *max_seqlen;
  /// A scalar or of shape (1).
  const DLTensor *max_kvlen;
} kvcache_indices;

/// The operator's inputs that are only read.
typedef struct kvcache_inputs {
  /// T1 (float32, float16 or int8), shape (`seqstarts[B]`, H, Dh).
  const DLTensor *current_key;
  /// T1, shape (`seqstarts[B]`, H, Dh).
  const DLTensor *current_value;
  /// The lengths, positions and slots of the sequences.
  struct kvcache_indices indices;
} kvcache_inputs;

/// A piece of work: `task(argument, i)` does part i. It does not throw or unwind.
typedef void (*kvcache_task)(void *argument, size_t index);

/// Calls task(argument, i) once for each i of 0 .. tasks - 1, on as many threads at once as it can, and returns when
/// all have ended. `context` is what kvcache_workers_from was given. NULL is none, and refused.
typedef void (*kvcache_parallel_for)(void *context, size_t tasks, kvcache_task task, void *argument);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/// The attributes' defaults.
struct kvcache_attributes kvcache_attributes_default(void);

/// The stable name of the rule that is broken, such as "kvlen_mismatch"; "null_pointer" and "threads" are this
/// interface's own, and "panic" is a defect of the library. It lives as long as the error. An empty text for NULL.
///
/// The caller must ensure:
/// `error` is NULL or an error that has not been freed.
const char *kvcache_error_kind(const struct kvcache_error *error);

/// One line that names the input, what the call has and what is expected, in UTF-8. It lives as long as the error. An
/// empty text for NULL.
///
/// The caller must ensure:
/// `error` is NULL or an error that has not been freed.
const char *kvcache_error_message(const struct kvcache_error *error);

/// Frees an error; NULL is none.
///
/// The caller must ensure:
/// `error` is NULL or an error that has not been freed; it is not used again.
void kvcache_error_free(struct kvcache_error *error);

/// Makes the operator with these attributes; free it with kvcache_free.
///
/// The caller must ensure:
/// `attributes` is NULL or valid for reads, `op` NULL or valid for writes.
struct kvcache_error *kvcache_create(const struct kvcache_attributes *attributes,
                                     struct kvcache_operator **op);

/// Frees an operator; NULL is none.
///
/// The caller must ensure:
/// `op` is NULL or an operator that has not been freed; nobody uses it, now or later.
void kvcache_free(struct kvcache_operator *op);

/// Checks a call without running it, and returns the shape of its outputs: (`kvstarts[B]`, H * num_repeat, Dh). Nothing
/// is written but `shape`, which may be NULL. `scale` is NULL where quant_bit is 0.
///
/// The caller must ensure:
/// `op` is an operator, `inputs` is NULL or valid, `shape` NULL or valid for writes of 3 numbers; every tensor
/// describes memory as it says.
struct kvcache_error *kvcache_check(const struct kvcache_operator *op,
                                    const struct kvcache_inputs *inputs,
                                    const DLTensor *cache,
                                    const DLTensor *scale,
                                    int64_t *shape);

/// Stores the current tokens into `cache` (and `scale`, which is NULL where quant_bit is 0), then writes all tokens of
/// all sequences to `key` and `value`: T1, shape (`kvstarts[B]`, H * num_repeat, Dh). `workers` may be NULL: the
/// calling thread does it all.
///
/// Calls on one cache may run at once if none writes slots of a layer that another one reads or writes.
///
/// The caller must ensure:
/// `op` is an operator, `inputs` is NULL or valid, `workers` is NULL or has not been freed; every tensor describes
/// memory as it says, and during the call nobody else writes what it reads, or accesses what it writes.
struct kvcache_error *kvcache_run(const struct kvcache_operator *op,
                                  const struct kvcache_inputs *inputs,
                                  const DLTensor *cache,
                                  const DLTensor *scale,
                                  const DLTensor *key,
                                  const DLTensor *value,
                                  const struct kvcache_workers *workers);

/// Checks what the calls of all layers of one step have in common: indices, cache and scale (NULL where quant_bit is
/// 0); `t1` is the type of each layer's current_key and current_value. Nothing is written but `step`; the operator's
/// layer_idx is not used. End the step with kvcache_step_end.
///
/// Until then the library keeps the addresses of the indices' elements, of the cache's and of the scale's memory, not
/// the DLTensor structures. Nobody writes the indices meanwhile.
///
/// The caller must ensure:
/// `op` is an operator, `indices` and `step` are NULL or valid; every tensor describes memory as it says, which stays
/// valid until the step has ended.
struct kvcache_error *kvcache_step_begin(const struct kvcache_operator *op,
                                         DLDataType t1,
                                         const struct kvcache_indices *indices,
                                         const DLTensor *cache,
                                         const DLTensor *scale,
                                         struct kvcache_step **step);

/// Returns the shape of each layer's key and value: (`kvstarts[B]`, H * num_repeat, Dh).
///
/// The caller must ensure:
/// `step` is NULL or has not ended, `shape` NULL or valid for writes of 3 numbers.
struct kvcache_error *kvcache_step_shape(const struct kvcache_step *step, int64_t *shape);

/// The call of one layer, as kvcache_run: layers can be called in any order, repeatedly, one at a time.
///
/// The caller must ensure:
/// `step` is NULL or has not ended and is used by no other thread; otherwise as for kvcache_run.
struct kvcache_error *kvcache_step_layer(struct kvcache_step *step,
                                         int64_t layer_idx,
                                         const DLTensor *current_key,
                                         const DLTensor *current_value,
                                         const DLTensor *key,
                                         const DLTensor *value,
                                         const struct kvcache_workers *workers);

/// Ends a step; NULL is none.
///
/// The caller must ensure:
/// `step` is NULL or has not ended; nobody uses it, now or later.
void kvcache_step_end(struct kvcache_step *step);

/// The library's version, as in "0.1.0"; it lives as long as the library.
const char *kvcache_version(void);

/// Makes a pool of `threads` threads, or as many as the machine runs at once if it is 0; free it with
/// kvcache_workers_free. After a fork the child makes one of its own: it has none of its parent's threads.
///
/// The caller must ensure:
/// `workers` is NULL or valid for writes.
struct kvcache_error *kvcache_workers_new(size_t threads, struct kvcache_workers **workers);

/// Makes workers of the caller's own `threads` threads (0 counts as 1); free them with kvcache_workers_free.
///
/// The caller must ensure:
/// `workers` is NULL or valid for writes. Until they are freed, `parallel_for` does as its type says, and can be called
/// with `context` from any thread and from several at once.
struct kvcache_error *kvcache_workers_from(size_t threads,
                                           kvcache_parallel_for parallel_for,
                                           void *context,
                                           struct kvcache_workers **workers);

/// Frees workers; NULL is none. A pool's threads end.
///
/// The caller must ensure:
/// `workers` is NULL or has not been freed; no call uses it, now or later.
void kvcache_workers_free(struct kvcache_workers *workers);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* KVCACHE_H_ */
