//! Legal calls: sequences, where they are in a cache, and what tensors hold.

use half::f16;
use kvcache_op::schema::{CacheDims, StaticCacheDims, StaticCacheLayout, TypeCombination, multi_head_cache_attention};
use kvcache_op::{CacheLayout, CacheMode, ElementType};

use crate::call::{Call, Operator};
use crate::operand::{Numbers, Operand, PATTERN, random_bytes};
use crate::source::{Random, Source};

/// About the most elements of a call's keys.
const ELEMENTS: usize = 6000;

/// About the most products of a call's scores.
const PRODUCTS: usize = 200_000;

/// A sequence of a plan.
#[derive(Debug, Clone)]
pub struct Sequence {
    /// Tokens in the cache.
    pub past: usize,
    /// Tokens of the next call.
    pub current: usize,
    /// The most tokens that it has room for.
    pub capacity: usize,
    /// The slots where it, or each of its pages, begins.
    pub places: Vec<i64>,
    /// Whether it is one of `decoding_batches`.
    pub decoding: bool,
    /// Whether its last current key and value are NaN.
    pub ends_with_nan: bool,
}

/// An operator's attributes, and sequences with their places in a cache.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Of this operator.
    pub operator: Operator,
    /// T1, T2 and T3.
    pub types: TypeCombination,
    layout: CacheLayout,
    mode: CacheMode,
    num_heads: usize,
    head_dim: usize,
    group: usize,
    num_repeat: usize,
    num_layer: usize,
    layer_idx: usize,
    page_size: usize,
    /// Query heads to a key head.
    queries_per_head: usize,
    is_causal: bool,
    is_alibi: bool,
    /// The rank of `attn_mask`, if there is one.
    mask: Option<usize>,
    /// Slots; in static batching of each sequence.
    slots: usize,
    /// Sequences that a cache of static batching has beyond those of the batch.
    more_sequences: usize,
    /// Which numbers tensors hold.
    pub numbers: Numbers,
    random: Random,
    /// The sequences of a batch.
    pub sequences: Vec<Sequence>,
}

impl Plan {
    /// A plan of an operator, for `calls` calls that append to its sequences.
    pub fn new(source: &mut Source<'_>, operator: Operator, calls: usize) -> Self {
        let attends = matches!(operator, Operator::MultiHeadAttention | Operator::MultiHeadCacheAttention);
        let combinations: Vec<_> = multi_head_cache_attention::combinations().collect();
        let types = source.pick(if attends { &combinations } else { &TypeCombination::LEGAL });
        let mut group = source.pick(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 24, 32, 64, 128, 136]);
        if types.quant_bit == 4 {
            group += group % 2;
        }
        let head_dim = match (types.t3, source.below(18)) {
            // None, and as many as kernels do by pieces.
            (_, 17) if !attends => {
                2 * group * {
                    let most = source.pick(&[100, 3000]);
                    source.below(most / group + 1)
                }
            }
            (Some(_), groups) => group * (groups + 1).min((288 / group).max(1)),
            (None, len) => (len + 1) * source.pick(&[1, 3, 8, 16]),
        };
        let head_dim = if attends { head_dim.max(group) } else { head_dim };
        let is_long = head_dim > 600;
        let num_layer = 1 + if is_long { 0 } else { source.below(3) };
        let mut plan = Self {
            operator,
            types,
            layout: source.pick(&CacheLayout::ALL),
            mode: source.pick(&CacheMode::ALL),
            num_heads: if attends { 1 + source.below(3) } else { source.below(if is_long { 2 } else { 5 }) },
            head_dim,
            group,
            num_repeat: 1 + source.below(4),
            num_layer,
            layer_idx: source.below(num_layer),
            page_size: 1 + source.below(9),
            queries_per_head: 1 + source.below(4),
            is_causal: !source.flag(),
            is_alibi: source.one_in(4),
            mask: source.pick(&[None, None, Some(2), Some(3)]),
            slots: 0,
            more_sequences: source.below(3),
            numbers: match (attends, source.below(4)) {
                (true, _) => Numbers::Moderate,
                (false, 3) => Numbers::Any,
                (false, _) => Numbers::Finite,
            },
            random: source.random(),
            sequences: Vec::new(),
        };
        // Few tokens of long rows, or many of short ones: an input that is slow takes the place of a hundred others.
        let row = (plan.num_heads * plan.head_dim).max(1);
        let mut room = (ELEMENTS / row).clamp(8, 600);
        let mut products = PRODUCTS / (row * plan.queries_per_head);
        // More keys than attention goes through at once, of rows that are short enough.
        let is_far = attends && row * plan.queries_per_head <= 160 && source.one_in(8);
        for b in 0..source.below(5) {
            let current = if source.one_in(8) { source.below(40) } else { source.below(6) };
            let past = match source.below(8) {
                0 => source.below(600),
                // All keys are about as many as whole blocks of them.
                1 => (16 * (1 + source.below(18)) + source.below(3)).saturating_sub(current + 1),
                _ => source.below(9),
            };
            let past = past.min(room);
            let current = current.min((room - past).max(4));
            room = room.saturating_sub(past + current);
            let (past, current) = if attends {
                let current = current.min(products / (past + 1)).max(current.min(1));
                let past = past.min((products / current.max(1)).max(2));
                products = products.saturating_sub(current * (past + current));
                (past, current)
            } else {
                (past, current)
            };
            let (past, current) =
                if is_far && b == 0 { (1000 + source.below(1200), 1 + source.below(2)) } else { (past, current) };
            let more = if calls > 1 { source.below(6) * (calls - 1) } else { 0 };
            let alike = if operator == Operator::StaticKeyValueCache { plan.sequences.first().cloned() } else { None };
            plan.sequences.push(alike.unwrap_or(Sequence {
                past,
                current,
                capacity: past + current + more,
                places: Vec::new(),
                decoding: source.flag(),
                ends_with_nan: attends && source.one_in(4),
            }));
            plan.sequences[b].capacity += source.below(2);
        }
        plan.sequences.sort_by_key(|sequence| !sequence.decoding);
        match (operator, plan.mode) {
            (Operator::StaticKeyValueCache, _) => {
                plan.slots = plan.sequences.iter().map(|sequence| sequence.capacity).max().unwrap_or(source.below(3));
            }
            (_, CacheMode::Offset) => plan.place_whole(source),
            (_, CacheMode::Paged) => plan.place_pages(source),
        }
        plan
    }

    /// Disjoint places with gaps, in any order. What only reads may be where another sequence is.
    fn place_whole(&mut self, source: &mut Source<'_>) {
        let mut order: Vec<usize> = (0..self.sequences.len()).collect();
        self.random.of(&[1]).shuffle(&mut order);
        for b in order {
            let start = self.slots + source.below(3);
            let end = start + self.sequences[b].capacity;
            self.sequences[b].places = vec![start as i64];
            self.slots = end;
            let stores = self.sequences[b].capacity > self.sequences[b].past;
            if self.operator == Operator::KeyValueCache && !stores && source.flag() {
                // It may begin anywhere.
                let inside = source.below(start + 1);
                self.sequences[b].places = vec![inside as i64];
            }
        }
        self.slots += source.below(3);
    }

    /// Disjoint pages in any order, not aligned, with entries that are no slots behind the last. Sequences may have the
    /// same pages as the first one in their common past.
    fn place_pages(&mut self, source: &mut Source<'_>) {
        let page_size = self.page_size;
        let pages: usize = self.sequences.iter().map(|sequence| sequence.capacity.div_ceil(page_size)).sum();
        let shift = source.below(3);
        let gap = source.below(2);
        let mut starts: Vec<i64> = (0..pages).map(|page| (shift + page * (page_size + gap)) as i64).collect();
        self.slots = shift + pages * (page_size + gap) + source.below(2);
        self.random.of(&[2]).shuffle(&mut starts);
        let columns = self.sequences.iter().map(|sequence| sequence.capacity.div_ceil(page_size)).max();
        let columns = columns.unwrap_or_default() + source.below(2);
        for b in 0..self.sequences.len() {
            let used = self.sequences[b].capacity.div_ceil(page_size);
            let mut places = starts.split_off(starts.len() - used);
            let common = self.sequences[0].past.min(self.sequences[b].past) / page_size;
            let shared = if source.flag() { source.below(common + 1) } else { 0 };
            if b > 0 {
                places[..shared].copy_from_slice(&self.sequences[0].places[..shared]);
            }
            places.resize(columns, source.pick(&[-1, i64::MIN, i64::MAX]));
            self.sequences[b].places = places;
        }
    }

    /// What calls of this plan are, for the tally.
    pub fn kinds(&self) -> [String; 2] {
        let Self { operator, types: TypeCombination { quant_bit, t1, t2, t3 }, .. } = self;
        let t3 = t3.map_or("none", ElementType::name);
        let place = match operator {
            Operator::KeyValueCache | Operator::MultiHeadCacheAttention => {
                format!("{operator:?} {:?} {:?}", self.mode, self.layout)
            }
            Operator::StaticKeyValueCache => format!("{operator:?} {}", self.layout.code() % 2),
            Operator::MultiHeadAttention => format!("{operator:?}"),
        };
        [format!("{operator:?} {quant_bit} {t1} {t2} {t3}"), place]
    }

    /// The sequences grow by what has been stored, and go on by `current` tokens each, or as many as fit.
    pub fn go_on(&mut self, source: &mut Source<'_>) {
        let alike = source.below(6);
        for sequence in &mut self.sequences {
            sequence.past += sequence.current;
            let current = if self.operator == Operator::StaticKeyValueCache { alike } else { source.below(6) };
            sequence.current = current.min(sequence.capacity - sequence.past);
        }
    }

    /// The shape of the current keys and values.
    fn head_shape(&self, tokens: usize) -> Vec<usize> {
        match self.operator {
            Operator::StaticKeyValueCache => {
                let seqlen = self.sequences.first().map_or(0, |sequence| sequence.current);
                vec![self.sequences.len(), seqlen, self.num_heads, self.head_dim]
            }
            _ => vec![tokens, self.num_heads, self.head_dim],
        }
    }

    /// The call of some of the sequences, in this order.
    pub fn call(&self, which: &[usize]) -> Call {
        let operands = match self.operator {
            Operator::StaticKeyValueCache => self.static_operands(),
            Operator::MultiHeadAttention => self.attention_operands(which),
            Operator::KeyValueCache => self.cache_operands(which),
            Operator::MultiHeadCacheAttention => {
                let mut operands = self.attention_operands(which);
                operands.retain(|operand| !["key", "value"].contains(&operand.name));
                for operand in self.cache_operands(which) {
                    if operands.iter().all(|other| other.name != operand.name) {
                        operands.push(operand);
                    }
                }
                operands
            }
        };
        Call { operator: self.operator, attributes: self.attributes(), operands, overlap: None }
    }

    /// The call of all sequences.
    pub fn call_of_all(&self) -> Call {
        self.call(&(0..self.sequences.len()).collect::<Vec<_>>())
    }

    fn attributes(&self) -> Vec<(&'static str, i64)> {
        let attention = [
            ("num_heads", self.num_heads * self.queries_per_head),
            ("head_dim", self.head_dim),
            ("is_causal", usize::from(self.is_causal)),
            ("is_alibi", usize::from(self.is_alibi)),
            ("num_kv_heads", if self.queries_per_head == 1 { 0 } else { self.num_heads }),
        ];
        let cache = [
            ("num_layer", self.num_layer),
            ("layer_idx", self.layer_idx),
            ("quant_bit", self.types.quant_bit as usize),
            ("quant_group", self.group),
            ("cache_layout", self.layout.code() as usize),
        ];
        let attributes: Vec<(&str, usize)> = match self.operator {
            Operator::KeyValueCache => {
                let more = [
                    ("num_repeat", self.num_repeat),
                    ("cache_mode", self.mode.code() as usize),
                    ("page_size", self.page_size),
                ];
                cache.into_iter().chain(more).collect()
            }
            Operator::StaticKeyValueCache => {
                let layout = ("cache_layout", self.layout.code() as usize % 2);
                cache[..4].iter().copied().chain([layout, ("num_repeat", self.num_repeat)]).collect()
            }
            Operator::MultiHeadAttention => attention.to_vec(),
            Operator::MultiHeadCacheAttention => {
                let mode = [("cache_mode", self.mode.code() as usize), ("page_size", self.page_size)];
                attention.into_iter().chain(cache).chain(mode).collect()
            }
        };
        attributes.into_iter().map(|(name, value)| (name, value as i64)).collect()
    }

    /// The rows of a tensor: those of each sequence follow from it and from positions in it alone.
    fn rows(&self, name: &'static str, which: &[usize], heads: usize, all: bool) -> Operand {
        let element = self.types.t1;
        let mut bytes = Vec::new();
        let mut tokens = 0;
        for &b in which {
            let sequence = &self.sequences[b];
            let positions = if all { 0 } else { sequence.past }..sequence.past + sequence.current;
            tokens += positions.len();
            for t in positions {
                let kind = usize::from(name == "query") + 2 * usize::from(name.ends_with("key"));
                let mut random = self.random.of(&[8, kind, b, t]);
                let mut row = random_bytes(element, heads * self.head_dim, self.numbers, &mut random);
                let last = sequence.current > 0 && t + 1 == sequence.past + sequence.current;
                if sequence.ends_with_nan && last && name != "query" {
                    let nan = number(element, f32::NAN);
                    let at = random.below(heads) * self.head_dim * nan.len();
                    row[at..at + nan.len()].copy_from_slice(&nan);
                }
                bytes.extend(row);
            }
        }
        let mut shape = self.head_shape(tokens);
        if self.operator != Operator::StaticKeyValueCache {
            shape[1] = heads;
        }
        Operand { name, element, shape, bytes }
    }

    /// `cache`, and `scale` if there is one, as they are before the first call.
    fn state(&self) -> Vec<Operand> {
        let shape = |inner| match self.operator {
            Operator::StaticKeyValueCache => {
                let max_b = self.sequences.len() + self.more_sequences;
                let layout = StaticCacheLayout::ALL[self.layout.code() as usize % 2];
                let (num_layer, num_heads, max_s) = (self.num_layer, self.num_heads, self.slots);
                layout.shape(StaticCacheDims { max_b, max_s, num_layer, num_heads, inner }).to_vec()
            }
            _ => {
                let (num_layer, num_heads, max_t) = (self.num_layer, self.num_heads, self.slots);
                self.layout.shape(CacheDims { max_t, num_layer, num_heads, inner }).to_vec()
            }
        };
        let Self { types, numbers, .. } = *self;
        let cache = Operand::random("cache", types.t2, shape(self.head_dim), numbers, &mut self.random.of(&[3]));
        let scale = types.t3.map(|t3| {
            let mut random = self.random.of(&[4]);
            let mut scale = Operand::random("scale", t3, shape(self.head_dim / self.group), numbers, &mut random);
            if numbers == Numbers::Moderate {
                // Times a code of int8, a moderate number.
                let len = scale.shape.iter().product::<usize>().min(PATTERN);
                scale.bytes = (0..len).flat_map(|_| number(t3, random.below(9) as f32 / 1024.0)).collect();
            }
            scale
        });
        std::iter::once(cache).chain(scale).collect()
    }

    fn static_operands(&self) -> Vec<Operand> {
        let which: Vec<_> = (0..self.sequences.len()).collect();
        let start_pos = self.sequences.first().map_or(0, |sequence| sequence.past) as i64;
        let mut operands =
            ["current_key", "current_value"].map(|name| self.rows(name, &which, self.num_heads, false)).to_vec();
        operands.push(self.single("start_pos", start_pos));
        operands.extend(self.state());
        operands
    }

    fn cache_operands(&self, which: &[usize]) -> Vec<Operand> {
        let mut operands =
            ["current_key", "current_value"].map(|name| self.rows(name, which, self.num_heads, false)).to_vec();
        operands.extend(self.starts(which));
        let places: Vec<i64> = which.iter().flat_map(|&b| self.sequences[b].places.iter().copied()).collect();
        let shape = match self.mode {
            CacheMode::Offset => vec![which.len()],
            CacheMode::Paged => vec![which.len(), places.len().checked_div(which.len()).unwrap_or(1)],
        };
        operands.push(Operand::index("cachestarts", shape, &places));
        let start_pos: Vec<i64> = which.iter().map(|&b| self.sequences[b].past as i64).collect();
        operands.push(Operand::index("start_pos", vec![which.len()], &start_pos));
        operands.extend(self.state());
        operands
    }

    fn attention_operands(&self, which: &[usize]) -> Vec<Operand> {
        let mut operands = vec![
            self.rows("query", which, self.num_heads * self.queries_per_head, false),
            self.rows("key", which, self.num_heads, true),
            self.rows("value", which, self.num_heads, true),
        ];
        operands.extend(self.starts(which));
        let decoding = which.iter().filter(|&&b| self.sequences[b].decoding).count();
        operands.push(self.single("decoding_batches", decoding as i64));
        operands.extend(self.mask.map(|rank| self.attn_mask(which, rank)));
        operands
    }

    /// `seqstarts`, `kvstarts` and their bounds.
    fn starts(&self, which: &[usize]) -> Vec<Operand> {
        let lengths = |all: bool| -> Vec<usize> {
            let of = |sequence: &Sequence| sequence.current + if all { sequence.past } else { 0 };
            which.iter().map(|&b| of(&self.sequences[b])).collect()
        };
        let starts = |name, lengths: &[usize]| {
            let ends = lengths.iter().scan(0, |end, len| {
                *end += len;
                Some(*end as i64)
            });
            let starts: Vec<_> = std::iter::once(0).chain(ends).collect();
            Operand::index(name, vec![starts.len()], &starts)
        };
        let most = |lengths: &[usize]| lengths.iter().max().map_or(0, |&most| most as i64);
        let (seqlens, kvlens) = (lengths(false), lengths(true));
        vec![
            starts("seqstarts", &seqlens),
            starts("kvstarts", &kvlens),
            self.single("max_seqlen", most(&seqlens) + self.random.of(&[5]).below(2) as i64),
            self.single("max_kvlen", most(&kvlens)),
        ]
    }

    /// A scalar, or a tensor of one number.
    fn single(&self, name: &'static str, value: i64) -> Operand {
        let shape = vec![1; self.random.of(&[6, name.len()]).below(2)];
        Operand::index(name, shape, &[value])
    }

    /// A mask with NaN wherever nobody may read, and with padding.
    fn attn_mask(&self, which: &[usize], rank: usize) -> Operand {
        let element = self.types.t1;
        let planes = if rank == 3 { self.num_heads * self.queries_per_head } else { 1 };
        let ends = |b: &usize| self.sequences[*b].past + self.sequences[*b].current;
        let tokens: usize = which.iter().map(|&b| self.sequences[b].current).sum();
        let width = which.iter().map(ends).sum::<usize>() + self.more_sequences;
        let mut values = vec![f32::NAN; planes * tokens * width];
        for plane in 0..planes {
            let (mut row, mut column) = (0, 0);
            for b in which {
                let end = ends(b);
                for t in self.sequences[*b].past..end {
                    let mut random = self.random.of(&[7, plane, *b, t]);
                    // Some see no early key, or only late ones.
                    let hidden = [0, 0, 0, 0, random.below(end + 1), end - random.below(end + 1).min(9)];
                    let hidden = hidden[random.below(hidden.len())];
                    let seen = &mut values[(plane * tokens + row) * width + column..][..end];
                    for (key, value) in seen.iter_mut().enumerate() {
                        *value = match random.below(6) {
                            _ if key < hidden => f32::NEG_INFINITY,
                            0 => f32::NEG_INFINITY,
                            step => step as f32 / 4.0 - 1.0,
                        };
                    }
                    row += 1;
                }
                column += end;
            }
        }
        let shape = [if rank == 3 { vec![planes] } else { Vec::new() }, vec![tokens, width]].concat();
        let bytes = values.into_iter().flat_map(|value| number(element, value)).collect();
        Operand { name: "attn_mask", element, shape, bytes }
    }

    /// Whether the queries of a sequence see only keys up to their own.
    pub fn is_masked(&self, sequence: &Sequence) -> bool {
        sequence.current > 1 && (self.is_alibi || self.is_causal && !sequence.decoding)
    }

    /// The rows of an output's bytes that belong to each of some sequences of a call, one after the other.
    pub fn split_rows<'o>(&self, which: &[usize], mut output: &'o [u8]) -> Vec<&'o [u8]> {
        let row = self.num_heads * self.queries_per_head * self.head_dim * self.types.t1.bits() / 8;
        which
            .iter()
            .map(|&b| {
                let (own, rest) = output.split_at(self.sequences[b].current * row);
                output = rest;
                own
            })
            .collect()
    }
}

/// A number as an element of a type of floats.
pub fn number(element: ElementType, x: f32) -> Vec<u8> {
    match element {
        ElementType::Float16 => f16::from_f32(x).to_le_bytes().to_vec(),
        _ => x.to_le_bytes().to_vec(),
    }
}
