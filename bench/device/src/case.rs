//! What is timed.

use kvcache_op::schema::TypeCombination;
use kvcache_op::{Attributes, CacheLayout, ElementType};

/// Heads of a cache, as models of eight billion parameters have them.
pub const NUM_HEADS: usize = 8;
pub const HEAD_DIM: usize = 128;
const GROUP: usize = 8;
const PAGE_SIZE: usize = 128;

/// Calls of sequences that are all alike.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    pub types: TypeCombination,
    pub layout: CacheLayout,
    pub batch: usize,
    /// Past and current tokens of each sequence.
    pub past: usize,
    pub current: usize,
    pub num_repeat: usize,
    /// Query heads that attend, or none: then the call is one of `KeyValueCache`.
    pub query_heads: usize,
}

impl Case {
    pub fn name(&self) -> String {
        let Self { types: TypeCombination { t1, t2, t3, .. }, batch, past, current, num_repeat, query_heads, .. } =
            *self;
        let types: Vec<_> = [Some(t1), Some(t2), t3].into_iter().flatten().map(ElementType::name).collect();
        let kind = if past == 0 { "prefill" } else { "decode" };
        let kvlen = past + current;
        let attention = if query_heads > 0 { "attention-" } else { "" };
        format!(
            "{attention}{kind}-B{batch}-kvlen{kvlen}-R{num_repeat}-layout{}-{}",
            self.layout.code(),
            types.join("-")
        )
    }

    pub fn attributes(&self) -> Attributes {
        Attributes {
            num_repeat: self.num_repeat as i64,
            quant_bit: self.types.quant_bit,
            quant_group: GROUP as i64,
            cache_mode: 1,
            cache_layout: self.layout.code(),
            page_size: PAGE_SIZE as i64,
            ..Attributes::default()
        }
    }

    pub fn max_p(&self) -> usize {
        (self.past + self.current).div_ceil(PAGE_SIZE)
    }

    pub fn max_t(&self) -> usize {
        self.batch * self.max_p() * PAGE_SIZE
    }

    /// The page table: the pages of the cache in an order that leads all over it.
    pub fn cachestarts(&self) -> Vec<i64> {
        let count = self.batch * self.max_p();
        // A step without a common factor visits each page once.
        let step = (count * 5 / 8..=count).find(|&step| gcd(step, count) == 1).unwrap_or(1);
        (0..count).map(|i| ((i * step) % count * PAGE_SIZE) as i64).collect()
    }

    fn groups(&self) -> usize {
        HEAD_DIM / GROUP
    }

    pub fn scale_inner(&self) -> Option<usize> {
        self.types.t3.map(|_| self.groups())
    }

    /// Bytes of a token in `current_key` and `current_value` together.
    fn value_bytes(&self) -> usize {
        self.types.t1.byte_len(2 * NUM_HEADS * HEAD_DIM)
    }

    pub fn cache_bytes(&self) -> usize {
        let scales = self.types.t3.map_or(0, |t3| t3.byte_len(2 * NUM_HEADS * self.groups()));
        self.types.t2.byte_len(2 * NUM_HEADS * HEAD_DIM) + scales
    }

    /// What a call reads and writes; of attention, keys and values.
    pub fn moved(&self) -> usize {
        let (kvlen, cached, values) = (self.past + self.current, self.cache_bytes(), self.value_bytes());
        let stored = self.current * (values + cached);
        let loaded = kvlen * (cached + self.num_repeat * values);
        self.batch * if self.query_heads > 0 { kvlen * cached } else { stored + loaded }
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Every case: all types of a large decode, a small one and a prefill; float16 at all sizes; layouts and repeats once.
/// Then attention.
pub fn all() -> Vec<Case> {
    let types = |quant_bit, t2| {
        let half = ElementType::Float16;
        TypeCombination { quant_bit, t1: half, t2, t3: (quant_bit > 0).then_some(half) }
    };
    let half = types(0, ElementType::Float16);
    let (layout, query_heads) = (CacheLayout::LayerMajor, 0);
    let decode = |types, batch, kvlen: usize| Case {
        types,
        layout,
        batch,
        past: kvlen - 1,
        current: 1,
        num_repeat: 1,
        query_heads,
    };
    let prefill = |types, batch, current| Case { past: 0, current, ..decode(types, batch, 1) };
    // One token: two launches with next to nothing to do, below which no call comes.
    let mut cases = vec![prefill(half, 1, 1)];
    for batch in [1, 4, 16, 64, 256] {
        cases.extend([1 << 10, 4 << 10, 8 << 10, 32 << 10].map(|kvlen| decode(half, batch, kvlen)));
    }
    for types in TypeCombination::LEGAL.into_iter().filter(|types| *types != half) {
        cases.extend([decode(types, 1, 1 << 10), decode(types, 64, 4 << 10), prefill(types, 8, 2 << 10)]);
    }
    cases.extend([prefill(half, 1, 512), prefill(half, 8, 2 << 10), prefill(half, 4, 16 << 10)]);
    cases.extend(CacheLayout::ALL.map(|layout| Case { layout, ..decode(half, 64, 4 << 10) }));
    cases.extend([4, 8].map(|num_repeat| Case { num_repeat, ..decode(half, 64, 4 << 10) }));

    let attends = |case| Case { layout: CacheLayout::HeadMajor, query_heads: 4 * NUM_HEADS, ..case };
    for batch in [1, 8, 64] {
        cases.extend([1 << 10, 4 << 10, 32 << 10].map(|kvlen| attends(decode(half, batch, kvlen))));
    }
    for types in [types(8, ElementType::Int8), types(4, ElementType::Int4)] {
        cases.extend([(64, 4 << 10), (1, 1 << 10)].map(|(batch, kvlen)| attends(decode(types, batch, kvlen))));
    }
    cases.extend(CacheLayout::ALL.map(|layout| Case { layout, ..attends(decode(half, 64, 4 << 10)) }));
    cases.extend([512, 2048, 4096].map(|current| attends(prefill(half, 1, current))));
    cases.dedup_by_key(|case| case.name());
    cases
}
