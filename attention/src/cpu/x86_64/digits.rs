//! QK scores of integer codes by the instructions that add four products of bytes (AVX512-VNNI).
//! Products with codes, which are bytes that have no sign once a constant is added, are summed exactly, digit by digit.

use std::arch::x86_64::*;

use kvcache_simd::{Avx512, Function};

use super::super::generic::digits::{DIGITS, Digits, HEAD, SCALE};
use super::super::generic::int_codes::Word;
use super::super::generic::qk_codes::{CodeScores, QkCodes};
use super::super::generic::rows::{BLOCK, Cursor, Next};

/// Registers are of so many float32.
const LANES: usize = 16;

/// What the largest element of a group becomes: rounded up it has three digits from -128 to 127, too.
const LARGEST: f32 = 8_355_700.0;

/// How large a group's largest element is, unless it is 0: its scale, and what that is divided by, are normal numbers.
const SIZES: std::ops::Range<f32> = 1e-30..1e30;

/// Writes the digits of a query for codes of BITS, unless a group's largest element is too large or small.
///
/// # Safety
/// AVX-512 F, BW, DQ, VL and VNNI are supported. The query and the heads of its groups can be written.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(crate) unsafe fn write_digits<const BITS: usize>(digits: &Digits) {
    let &Digits { query, head_dim, group, heads } = digits;
    let mut representable = true;
    for (i, first) in (0..head_dim).step_by(group).enumerate() {
        let (mut largest, mut finite) = (_mm512_setzero_ps(), 0xffff);
        // SAFETY: a group is whole registers of the query, and has a head.
        unsafe {
            for at in (first..first + group).step_by(LANES) {
                let x = _mm512_abs_ps(_mm512_loadu_ps(query.add(at)));
                finite &= _mm512_cmp_ps_mask::<_CMP_LT_OQ>(x, _mm512_set1_ps(SIZES.end));
                largest = _mm512_max_ps(largest, x);
            }
            let largest = _mm512_reduce_max_ps(largest);
            representable &= finite == 0xffff && (largest == 0.0 || largest >= SIZES.start);
            heads.add(HEAD * i + SCALE).write(largest);
        }
    }
    if !representable {
        // SAFETY: there is a group.
        return unsafe { heads.add(SCALE).write(f32::NAN) };
    }
    // A digit d is a byte of `x + OFFSET`, whose bits are those of d and 128 more.
    let offset = _mm512_set1_epi32(0x0080_8080);
    // Of four numbers the lowest digits, the second and the third ones.
    let by_digit = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    // A byte holds an even element and the one after it.
    let even_odd = _mm512_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
    for (i, first) in (0..head_dim).step_by(group).enumerate() {
        // SAFETY: as above.
        unsafe {
            let head = heads.add(HEAD * i);
            let largest = head.add(SCALE).read();
            let factor = _mm512_set1_ps(if largest == 0.0 { 0.0 } else { LARGEST / largest });
            let mut sums = _mm512_setzero_si512();
            for at in (first..first + group).step_by(LANES) {
                let to = query.add(at);
                let mut x = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(to), factor));
                if BITS == 4 {
                    x = _mm512_permutexvar_epi32(even_odd, x);
                }
                let x = _mm512_shuffle_epi8(_mm512_xor_si512(_mm512_add_epi32(x, offset), offset), by_digit);
                sums = _mm512_dpbusd_epi32(sums, _mm512_set1_epi8(1), x);
                _mm512_storeu_si512(to.cast(), x);
            }
            // Four sums, of every fourth lane: what the constant adds to the products of a group, negative.
            let sums = _mm256_add_epi32(_mm512_castsi512_si256(sums), _mm512_extracti64x4_epi64::<1>(sums));
            let sums = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256::<1>(sums));
            let sums = _mm_sub_epi32(_mm_setzero_si128(), _mm_slli_epi32::<7>(sums));
            _mm_storeu_si128(head.cast(), if BITS == 8 { sums } else { _mm_srai_epi32::<4>(sums) });
            head.add(SCALE).write(largest / LARGEST);
        }
    }
}

/// Multiplies each query with each key, whose codes of BITS are words. The sum of a group is that of exact products with
/// digits; those of the lower two digits become float32, to which that of the highest is added by a fused multiply-add
/// with 65536; times the query's scale, and then as in [`QkCodes`], which multiplies queries that have no digits.
///
/// # Safety
/// AVX-512 F, BW, DQ, VL and VNNI are supported; digits are written. The rest is as for [`QkCodes`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c,popcnt")]
pub(crate) unsafe fn qk_digits<const BITS: usize>(products: &CodeScores<'_>) {
    let mut query = 0;
    // SAFETY: the queries from `query` on are there, with their digits.
    unsafe {
        let has_digits = |q: usize| {
            let heads = products.query.add(q * products.query_step + products.heads);
            q < products.queries && !heads.add(SCALE).read().is_nan()
        };
        while query < products.queries {
            if !has_digits(query) {
                let next = if query == 0 { products.next } else { Next::NONE };
                let (from, to) = (products.query.add(query * products.query_step), products.scores.add(query * BLOCK));
                let one = CodeScores { query: from, queries: 1, scores: to, next, ..*products };
                <QkCodes<Word<BITS>> as Function<Avx512<false>>>::run(&one);
                query += 1;
                continue;
            }
            let count = (1..4).find(|&i| !has_digits(query + i)).unwrap_or(4);
            match count {
                1 => queries::<BITS, 1, 4>(products, query),
                2 => queries::<BITS, 2, 4>(products, query),
                3 => queries::<BITS, 3, 2>(products, query),
                _ => queries::<BITS, 4, 2>(products, query),
            }
            query += count;
        }
    }
}

/// Q queries with all keys, N registers of them at once.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c,popcnt")]
unsafe fn queries<const BITS: usize, const Q: usize, const N: usize>(products: &CodeScores<'_>, query: usize) {
    let (mut key, end) = (0, products.keys);
    // The first queries prefetch.
    let next = if query == 0 { products.next } else { Next::NONE };
    let steps = end.div_ceil(N * LANES) * products.head_dim * BITS / 32;
    let (mut cursor, lines) = next.prefetches(end, steps);
    // SAFETY: the keys from `key` on are there.
    unsafe {
        while end - key >= N * LANES {
            tile::<BITS, Q, N>(products, query, key, (&mut cursor, lines));
            key += N * LANES;
        }
        while key < end {
            tile::<BITS, Q, 1>(products, query, key, (&mut cursor, lines));
            key += LANES;
        }
    }
}

/// Q queries with N registers of keys.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c,popcnt")]
unsafe fn tile<const BITS: usize, const Q: usize, const N: usize>(
    products: &CodeScores<'_>,
    query: usize,
    key: usize,
    (cursor, lines): (&mut Cursor<'_>, usize),
) {
    let &CodeScores { query_step, head_dim, group, heads, .. } = products;
    // The highest bit of each code.
    let sign = _mm512_set1_epi8(if BITS == 8 { 0x80u8 } else { 0x88 } as i8);
    let low = _mm512_set1_epi8(15);
    // SAFETY: Q queries from `query` on and N registers of keys from `key` on are there; a group is whole words.
    unsafe {
        let mut digits = products.query.add(query * query_step).cast::<i32>();
        let mut heads = digits.add(heads);
        let mut words = products.panel.add(key);
        let scores = products.scores.add(query * BLOCK + key);
        let mut scales = products.scales.add(key);
        let mut totals = [[_mm512_setzero_ps(); N]; Q];
        for _ in 0..head_dim / group {
            let mut sums = [[[_mm512_setzero_si512(); N]; Q]; DIGITS];
            for (d, sums) in sums.iter_mut().enumerate() {
                for (q, sums) in sums.iter_mut().enumerate() {
                    *sums = [_mm512_set1_epi32(*heads.add(q * query_step + d)); N];
                }
            }
            for _ in 0..group * BITS / 32 {
                cursor.advance(lines);
                let mut codes = [_mm512_setzero_si512(); N];
                for (n, codes) in codes.iter_mut().enumerate() {
                    *codes = _mm512_xor_si512(_mm512_loadu_si512(words.add(n * LANES).cast()), sign);
                }
                words = words.add(BLOCK);
                for half in 0..8 / BITS {
                    let mut bytes = codes;
                    if BITS == 4 {
                        for bytes in &mut bytes {
                            let shifted = if half == 0 { *bytes } else { _mm512_srli_epi32::<4>(*bytes) };
                            *bytes = _mm512_and_si512(shifted, low);
                        }
                    }
                    for (d, sums) in sums.iter_mut().enumerate() {
                        for (q, sums) in sums.iter_mut().enumerate() {
                            let digit = _mm512_set1_epi32(*digits.add(q * query_step + d));
                            for (sum, &bytes) in sums.iter_mut().zip(&bytes) {
                                *sum = _mm512_dpbusd_epi32(*sum, bytes, digit);
                            }
                        }
                    }
                    digits = digits.add(4);
                }
            }
            for (q, totals) in totals.iter_mut().enumerate() {
                let query_scale = _mm512_set1_ps(heads.add(q * query_step + SCALE).cast::<f32>().read());
                for (n, total) in totals.iter_mut().enumerate() {
                    let [low, middle, high] = [0, 1, 2].map(|d| sums[d][q][n]);
                    let low = _mm512_cvtepi32_ps(_mm512_add_epi32(low, _mm512_slli_epi32::<8>(middle)));
                    let sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(high), _mm512_set1_ps(65_536.0), low);
                    let scale = _mm512_loadu_ps(scales.add(n * LANES));
                    *total = _mm512_fmadd_ps(_mm512_mul_ps(sum, query_scale), scale, *total);
                }
            }
            heads = heads.add(HEAD);
            scales = scales.add(BLOCK);
        }
        for (q, totals) in totals.iter().enumerate() {
            for (n, &total) in totals.iter().enumerate() {
                _mm512_storeu_ps(scores.add(q * BLOCK + n * LANES), total);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use kvcache_simd::Simd;

    use super::*;

    const HEAD_DIM: usize = 64;
    const GROUP: usize = 32;
    const GROUPS: usize = HEAD_DIM / GROUP;
    const STEP: usize = HEAD_DIM + HEAD * GROUPS;
    const KEYS: usize = 48;

    /// Numbers from -1 to 1.
    fn number(i: usize) -> f32 {
        (i as f32 * 12.9898).sin()
    }

    /// Whole numbers of so many digits.
    fn whole(group: &[f32]) -> (Vec<i64>, f32) {
        let largest = group.iter().fold(0.0, |largest: f32, x| largest.max(x.abs()));
        let factor = if largest == 0.0 { 0.0 } else { LARGEST / largest };
        (group.iter().map(|x| (x * factor).round_ties_even() as i64).collect(), largest / LARGEST)
    }

    /// The score of a key, in the order that [`qk_digits`] states.
    fn score(query: &[f32], codes: &[i64], scales: &[f32]) -> f32 {
        let groups = query.chunks(GROUP).zip(codes.chunks(GROUP)).zip(scales);
        groups.fold(0.0, |total, ((query, codes), &scale)| {
            let (mut whole, query_scale) = whole(query);
            let mut sums = [0; DIGITS];
            for sum in &mut sums {
                let digits = whole.iter_mut().map(|x| {
                    let digit = (*x + 128).rem_euclid(256) - 128;
                    *x = (*x - digit) / 256;
                    digit
                });
                *sum = digits.zip(codes).map(|(digit, code)| digit * code).sum::<i64>();
            }
            assert!(whole.iter().all(|&x| x == 0), "no digit is left");
            let [low, middle, high] = sums;
            let sum = (high as f32).mul_add(65_536.0, (low + 256 * middle) as f32);
            (sum * query_scale).mul_add(scale, total)
        })
    }

    /// Queries that have digits, the largest ones among them, and three that have none.
    fn scores_are_exact<const BITS: usize>() {
        if !is_x86_feature_detected!("avx512vnni") {
            return;
        }
        let factors = [1.0, f32::INFINITY, 2e30, 0.0, 1e-29, 3.7, 1e-38, 1e29, 5.0];
        let mut queries: Vec<f32> = (0..factors.len() * STEP).map(|i| number(i) * factors[i / STEP]).collect();
        queries[5 * STEP..][..GROUP].fill(0.0);
        let floats = queries.clone();
        let span = 1 << BITS;
        let code = |key: usize, d: usize| ((key * 131 + d * 31) % span) as i64 - span as i64 / 2;
        let mut panel = vec![0u32; HEAD_DIM * BITS / 32 * BLOCK];
        for key in 0..KEYS {
            for d in 0..HEAD_DIM {
                let (word, at) = (d * BITS / 32, d * BITS % 32);
                panel[word * BLOCK + key] |= (code(key, d) as u32 & (span as u32 - 1)) << at;
            }
        }
        let scales: Vec<f32> = (0..GROUPS * BLOCK).map(|i| number(i).abs() + 0.1).collect();
        let [mut scores, mut float_scores] = [(); 2].map(|()| vec![0.0; factors.len() * BLOCK]);
        let products = |query: *const f32, scores: *mut f32| CodeScores {
            query,
            query_step: STEP,
            queries: factors.len(),
            head_dim: HEAD_DIM,
            heads: HEAD_DIM,
            group: GROUP,
            panel: panel.as_ptr().cast(),
            keys: KEYS,
            scales: scales.as_ptr(),
            scores,
            next: Next::NONE,
        };
        // SAFETY: the instructions are supported; the lengths are those that the functions ask for.
        unsafe {
            for query in queries.chunks_mut(STEP) {
                let (query, heads) = (query.as_mut_ptr(), query[HEAD_DIM..].as_mut_ptr());
                write_digits::<BITS>(&Digits { query, head_dim: HEAD_DIM, group: GROUP, heads });
            }
            qk_digits::<BITS>(&products(queries.as_ptr(), scores.as_mut_ptr()));
            Avx512::<false>::outlined::<QkCodes<Word<BITS>>>()(&products(floats.as_ptr(), float_scores.as_mut_ptr()));
        }
        for (q, &factor) in factors.iter().enumerate() {
            for key in 0..KEYS {
                let codes: Vec<i64> = (0..HEAD_DIM).map(|d| code(key, d)).collect();
                let scales: Vec<f32> = (0..GROUPS).map(|group| scales[group * BLOCK + key]).collect();
                let expected = if SIZES.contains(&factor) || factor == 0.0 {
                    score(&floats[q * STEP..][..HEAD_DIM], &codes, &scales)
                } else {
                    float_scores[q * BLOCK + key]
                };
                let got = scores[q * BLOCK + key];
                assert!(got == expected || got.is_nan() && expected.is_nan(), "{q}, {key}: {got}, not {expected}");
            }
        }
    }

    #[test]
    fn sums_of_digits_are_exact() {
        scores_are_exact::<8>();
        scores_are_exact::<4>();
    }
}
