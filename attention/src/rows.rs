//! Rows of keys and values as float32, wherever they are: each is what `KeyValueCache` would give, rounded to T1, or
//! the product of a code and its scale, which is not.

use kvcache_kernels::quantize::HeadCodec;
use kvcache_kernels::{Addressing, CacheBytes, Quant, SharedSlice, float_type, read_floats};
use kvcache_schema::ElementType;
use kvcache_simd::Float;

use crate::problem::{AttentionProblem, Keys};

/// The keys and values of a call.
pub(crate) struct Rows<'a> {
    source: Source<'a>,
    num_kv_heads: usize,
    t1: ElementType,
    /// The memory of the row that is being read.
    cells: Vec<u8>,
    scales: Vec<u8>,
}

enum Source<'a> {
    /// `key` and `value`, T1, shape (`kvstarts[B]`, Hk, Dh).
    Packed([&'a [u8]; 2]),
    /// One layer of a cache.
    Cache {
        cache: SharedSlice<'a, u8>,
        scale: SharedSlice<'a, u8>,
        layer: CacheBytes,
        addressing: Addressing<'a>,
        t2: ElementType,
        quant: Option<Quant>,
    },
}

/// A row of a key head or of a value head.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    /// 0 for keys and 1 for values.
    pub(crate) kv: usize,
    /// The sequence.
    pub(crate) b: usize,
    /// The first of the sequence's rows, where they are packed.
    pub(crate) start: usize,
    /// The token, counted in the sequence.
    pub(crate) t: usize,
    /// The key head.
    pub(crate) h: usize,
}

impl<'a> Rows<'a> {
    /// The keys and values of a problem.
    pub(crate) fn new(problem: &'a AttentionProblem<'_>) -> Self {
        let geometry = problem.geometry();
        let t1_head = geometry.head_dim * problem.t1_bytes();
        let (source, cells, scales) = match problem.keys() {
            Keys::Packed { pointers, .. } => {
                let len = problem.total_kvlen() * geometry.num_kv_heads * t1_head;
                // SAFETY: assume_checked: both are valid for reads of their shape, and nobody writes them.
                (Source::Packed(pointers.map(|data| unsafe { bytes(data, len) })), t1_head, 0)
            }
            Keys::Cache(stored) => {
                let geometry = stored.geometry();
                let layer = CacheBytes::new(geometry);
                let cache_len = geometry.t2.byte_len(geometry.cache_len);
                let scale_len = geometry.quant.map_or(0, |quant| quant.t3.byte_len(quant.scale_len));
                let pointers = stored.pointers();
                // SAFETY: `Stores::assume_checked`: cache and scale are valid for reads and writes of their shape, and
                // nobody else writes the slots that a call loads, which are the only ones that are read here.
                let [cache, scale] = [(pointers.cache, cache_len), (pointers.scale, scale_len)]
                    .map(|(data, len)| unsafe { SharedSlice::from_raw_parts(data, len) });
                let source = Source::Cache {
                    cache,
                    scale,
                    layer,
                    addressing: stored.indices().addressing,
                    t2: geometry.t2,
                    quant: geometry.quant,
                };
                (source, layer.cache.head_len, layer.scale.head_len)
            }
        };
        Self {
            source,
            num_kv_heads: geometry.num_kv_heads,
            t1: geometry.t1,
            cells: vec![0; cells],
            scales: vec![0; scales],
        }
    }

    /// Reads a row of `head_dim` values.
    pub(crate) fn read(&mut self, row: Row, values: &mut [f32]) {
        let Row { kv, b, start, t, h } = row;
        let Self { source, num_kv_heads, t1, cells, scales } = self;
        match source {
            Source::Packed(rows) => {
                let len = cells.len();
                read_floats(*t1, &rows[kv][((start + t) * *num_kv_heads + h) * len..][..len], values);
            }
            Source::Cache { cache, scale, layer, addressing, t2, quant } => {
                let (cache_at, scale_at) = layer.head(addressing.slot(b, t), kv, h);
                cache.read(cache_at, cells);
                scale.read(scale_at, scales);
                match quant {
                    None => {
                        read_floats(*t2, cells, values);
                        float_type!(*t1, T => <T as Float>::round_slice(values));
                    }
                    Some(quant) => dequantize(*quant, cells, scales, values),
                }
            }
        }
    }
}

/// The values of a head of codes: products of float32.
fn dequantize(quant: Quant, codes: &[u8], scales: &[u8], values: &mut [f32]) {
    let codec = HeadCodec { bits: quant.bits, group: quant.group };
    let mut of_float32 = vec![0.0; values.len() / quant.group];
    read_floats(quant.t3, scales, &mut of_float32);
    codec.decode(codes, &of_float32, values);
}

/// The bytes at `data`, which may be any address if `len` is 0.
///
/// # Safety
/// Unless `len` is 0, `data` is valid for reads of `len` initialized bytes, which nobody writes for the lifetime.
pub(crate) unsafe fn bytes<'a>(data: *const u8, len: usize) -> &'a [u8] {
    match len {
        0 => &[],
        // SAFETY: see `# Safety`.
        len => unsafe { std::slice::from_raw_parts(data, len) },
    }
}
