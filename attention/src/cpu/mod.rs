//! The fast CPU kernel: a streaming softmax over blocks of keys, read where they are.
//!
//! # The order of sums
//! All is float32. Of a query with `head_dim` elements, and the keys t = 0, 1, ... of its sequence that it sees:
//! 1. A product is the sum over `head_dim` in [`PARTS`](generic::qk_panels::PARTS) partial sums: element d is added to
//!    number `d % PARTS` by fused multiply-adds, from the first element to the last. Partial sums are added by halves:
//!    number i and number `i + PARTS / 2`, and so on until one is left. The score is `product * scale`, or with a mask
//!    or ALiBi a fused multiply-add of the two and the bias, which is a fused multiply-add of slope, distance and the
//!    mask's number. With a soft cap, the bias is added to `tanh(product * scale * (1 / softcap)) * softcap`, rounded
//!    after each operation. Integer codes of a quantized cache are summed by groups: fused multiply-adds of query and
//!    code from the first element of a group to its last; that sum times the group's scale is added to the sum of the
//!    earlier groups by a fused multiply-add. A scale that is infinite makes the score NaN; so may queries so large
//!    (above 10^35) that the sum of a group is beyond float32 before it is scaled.
//! 2. Keys are taken by blocks of [`BLOCK`](generic::rows::BLOCK), the first of which begins at key 0 of the sequence.
//!    A block raises the running maximum to the largest of its scores; earlier sums are multiplied with
//!    `exp(old maximum - new maximum)`. The weight of a key is `exp(score - maximum)`.
//! 3. Weights are added in [`SUMS`](generic::softmax::SUMS) partial sums, key t to number `t % SUMS`; weighted
//!    values by fused multiply-adds, from the first key to the last. Where groups of integer codes are whole times 16,
//!    the weight is multiplied with the scale of a key's group, and that with its codes.
//! 4. Blocks are summed by KV splits of [`KV_SPLIT`](schedule::KV_SPLIT) keys, the first of which begins at key 0. Each
//!    split has a maximum and sums of its own. They are merged into the sums of the earlier splits, in order: both are
//!    multiplied with `exp(own maximum - larger maximum)` and added.
//! 5. In the end the head's sink, if there is one, is merged in as one more split, of one key with a value of 0, unless
//!    the query has seen no key. Then the partial sums of weights are added by halves, and each sum of weighted values
//!    is divided by that. A zero is +0, NaN is one NaN.
//! 6. The mass of a key, where it is asked for, is a sum over the queries of its sequence, in order, of the key's
//!    weight with the final maximum, divided by that sum of weights.
//!
//! A key that the query does not see enters nothing, whatever its numbers: its score is -inf, its weight is 0 and its
//! value is not added. So the result depends on the rows that the query sees, in the order of the sequence, and on
//! nothing else: not on which queries are computed together, nor on who computes which split. How many lanes a register
//! has decides nothing either, so all instruction sets with fused multiply-adds give the same bits.
//!
//! # Three ways to a product
//! Few queries, as in decoding, are multiplied with floats where they are: the elements of a row are in the lanes of a
//! register, which are the partial sums, and are added across lanes in the end
//! ([`qk_rows`](generic::qk_rows)). Nothing is transposed, so less waits for memory. Many queries, as in
//! prefill, are multiplied with a panel of keys, transposed: keys are in the lanes, and the partial sums come one after
//! the other ([`qk_panels`](generic::qk_panels)), which takes fewer instructions once the panel is there. Integer codes
//! are transposed as words of four or eight codes, which costs little, and become float32 in registers, or for many
//! queries in the panel ([`qk_codes`](generic::qk_codes)): a scale is used once a group, and not once an element.
//!
//! # Rows
//! Rows of float32, of float16 and of integer codes are used where they are. A value of float8, or of integer codes in
//! other groups, is the product of code and scale in float32, which nothing rounds further: with AVX-512, at most four
//! queries that share a key head make it in registers ([`dispatch`]). Scales are first converted into memory, a
//! block's at once. All else, to the same bits, is converted or dequantized by the cache's own functions
//! ([`RowLoader`](kvcache_kernels::RowLoader)), a few rows at a time, into memory that stays in the first-level cache.
//!
//! # The files
//! Each file imports only from those below it. From the top: `kernel` (a call on the caller's threads); `mass` (of
//! keys, once weights are final) and `task` (a thread's work: query rows over KV splits); `schedule` (queries and KV
//! splits to tasks); `prefill` (many query rows of one key head over one block of keys); `decode` (a few rows);
//! `integers` (a block of integer codes); `block_rows` (a block's rows and memory); `attention_args` (a call's operands
//! and functions), `read` (how rows become numbers) and `source` (where they are); `dispatch` (which functions);
//! `x86_64`, `neon` and `portable`; `generic` (the functions over any vector registers).

mod attention_args;
mod block_rows;
mod decode;
mod dispatch;
mod generic;
mod integers;
mod kernel;
mod mass;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
mod prefill;
mod read;
mod schedule;
mod scratch;
mod source;
mod task;
#[cfg(target_arch = "x86_64")]
mod x86_64;

pub use kernel::AttentionCpu;
