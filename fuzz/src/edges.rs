//! Calls at the edges of what is legal: shapes that all agree, of sizes about as large as any can be, and bounds that
//! are just met, or missed by one.

use kvcache_op::schema::{CacheDims, CacheLayout, StaticCacheDims, StaticCacheLayout};

use crate::call::{Call, Operator};
use crate::operand::{MOST as MOST_BYTES, Operand};
use crate::source::Source;

/// What an edge is looked for of: beyond it there are no such lists of indices.
const MOST: i128 = 1 << 20;

/// The axes of `cache`.
#[derive(Debug, Clone, Copy)]
struct Dims {
    /// Sequences; in dynamic batching 1.
    max_b: usize,
    /// Slots; in static batching of each sequence.
    slots: usize,
    num_layer: usize,
    num_heads: usize,
    head_dim: usize,
}

impl Call {
    /// Gives some dimensions large lengths, whose product about fits in 64 bits, in all shapes and attributes. A legal
    /// call then still is, if [`sizes_fit`](Self::sizes_fit).
    pub fn grow(&mut self, source: &mut Source<'_>) {
        let grown = 1 + source.below(3);
        let mut bits = source.pick(&[64, 63, 65, 62, 61, 60, 59, 57, 54]);
        for i in 1..=grown {
            let some = if i == grown { bits } else { source.below(bits + 1) };
            bits -= some;
            let len = (1_usize << some.min(62)).saturating_add_signed(source.pick(&[0, 0, 0, 1, -1])).max(1);
            match source.below(9) {
                0 => self.set_dims(|dims| dims.slots = dims.slots.max(len)),
                1 => {
                    self.set_dims(|dims| dims.num_layer = dims.num_layer.max(len));
                    self.set_attribute("num_layer", |before| before.max(len as i64));
                }
                2 => self.set_heads(len),
                3 => self.set_head_dim(len),
                4 | 5 => self.set_attribute("num_repeat", |_| len as i64),
                6 => self.set_dims(|dims| dims.max_b = dims.max_b.max(len)),
                _ => self.set_batch(len),
            }
        }
    }

    /// Moves a bound to what it must be at least, or one less or more.
    pub fn tighten(&mut self, source: &mut Source<'_>) {
        let step = source.pick(&[0, -1, -1, 1]);
        let near = |least: i128| (0..=MOST).contains(&least).then(|| (least as usize).saturating_add_signed(step));
        match source.below(11) {
            0..3 => {
                if let Some(slots) = self.used_slots().and_then(near) {
                    self.set_dims(|dims| dims.slots = slots);
                }
            }
            3 if self.operator == Operator::StaticKeyValueCache => {
                let batch = self.operand("current_key").and_then(|key| key.shape.first().copied());
                if let Some(max_b) = batch.and_then(|batch| near(batch as i128)) {
                    self.set_dims(|dims| dims.max_b = max_b);
                }
            }
            3 | 4 => {
                let page_size = i128::from(self.attribute("page_size")).max(1);
                let most = self.lengths("kvstarts").into_iter().max().unwrap_or_default();
                if let Some(columns) = near((most + page_size - 1).div_euclid(page_size)) {
                    self.set_columns(columns);
                }
            }
            5 => {
                let (bound, starts) = source.pick(&[("max_seqlen", "seqstarts"), ("max_kvlen", "kvstarts")]);
                let most = self.lengths(starts).into_iter().max().unwrap_or_default();
                if let (Ok(most), Some(operand)) = (i64::try_from(most), self.operand_mut(bound)) {
                    operand.bytes = most.saturating_add(step as i64).to_le_bytes().to_vec();
                }
            }
            6 => {
                let end = self.operand("kvstarts").and_then(|starts| starts.values().last().copied());
                let width = end.and_then(|end| near(end.into()));
                let mask = self.operand_mut("attn_mask").and_then(|mask| mask.shape.last_mut());
                if let (Some(width), Some(columns)) = (width, mask) {
                    *columns = width;
                    return;
                }
                // Else an axis of one tensor alone.
                let i = source.below(self.operands.len());
                let shape = &mut self.operands[i].shape;
                let axis = source.below(shape.len());
                if let Some(len) = shape.get_mut(axis) {
                    *len = len.saturating_add_signed(step);
                }
            }
            8 => self.place_near(source, step),
            9 => self.place_at_the_end(source, step),
            10 if source.flag() => {
                let layer_idx = self.attribute("num_layer").saturating_add(step as i64);
                self.set_attribute("layer_idx", |_| layer_idx);
            }
            10 => {
                let group = source.below(12) as i64 + 1;
                self.set_attribute("quant_group", |_| group);
                self.set_dims(|_| {});
            }
            _ => {
                let starts = if self.operand("key").is_some() && source.flag() { "kvstarts" } else { "seqstarts" };
                let names: &[_] =
                    if starts == "kvstarts" { &["key", "value"] } else { &["query", "current_key", "current_value"] };
                let end = self.operand(starts).and_then(|starts| starts.values().last().copied());
                let Some(rows) = end.and_then(|end| near(end.into())) else { return };
                // All of them, or one.
                let only = source.one_in(3).then(|| source.pick(names));
                let is_meant = |name| names.contains(&name) && only.is_none_or(|only| name == only);
                let of = self.operands.iter_mut().filter(|operand| is_meant(operand.name));
                of.filter_map(|operand| operand.shape.first_mut()).for_each(|len| *len = rows);
                let mask = self.operand_mut("attn_mask").filter(|_| starts == "seqstarts");
                if let Some(len) = mask.and_then(|mask| mask.shape.iter_mut().rev().nth(1)) {
                    *len = rows;
                }
            }
        }
    }

    /// Whether each tensor that the call uses has a size that a pointer can be moved by. Where one has no elements, but
    /// other lengths that don't fit together, that is not said.
    pub fn sizes_fit(&self) -> Option<bool> {
        let inputs = self.operands.iter().filter(|operand| self.is_used(operand.name));
        let inputs =
            inputs.map(|operand| (operand.element.bits(), operand.shape.iter().map(|&len| len as u128).collect()));
        let t1 = self.operands.iter().find(|operand| ["query", "current_key"].contains(&operand.name));
        let output = self.output_shape().zip(t1).map(|(shape, t1)| (t1.element.bits(), shape));
        let sizes = inputs.chain(output).map(|(bits, shape): (usize, Vec<u128>)| {
            let nonzero = shape.iter().filter(|&&len| len > 0);
            let bytes = nonzero.fold(bits as u128, |bits, &len| bits.saturating_mul(len)).div_ceil(8);
            let fits = bytes <= isize::MAX as u128;
            if shape.contains(&0) && !fits { None } else { Some(fits) }
        });
        let sizes: Vec<Option<bool>> = sizes.collect();
        match sizes.contains(&Some(false)) {
            true => Some(false),
            false => sizes.into_iter().collect::<Option<Vec<_>>>().map(|_| true),
        }
    }

    /// The shape of each output of a legal call.
    pub fn output_shape(&self) -> Option<Vec<u128>> {
        let shape = |name: &str| -> Option<Vec<u128>> {
            Some(self.operand(name)?.shape.iter().map(|&len| len as u128).collect())
        };
        let last = |name: &str| self.operand(name)?.values().last().map(|&value| value.max(0) as u128);
        if self.operand("query").is_some() {
            return shape("query");
        }
        // One, where it is not given.
        let repeat = self.attributes.iter().find(|(name, _)| *name == "num_repeat");
        let repeat = repeat.map_or(1, |&(_, repeat)| repeat.max(0) as u128);
        match (self.operator, &shape("current_key")?[..]) {
            (Operator::StaticKeyValueCache, &[batch, seqlen, num_heads, head_dim]) => {
                Some(vec![batch, last("start_pos")? + seqlen, num_heads * repeat, head_dim])
            }
            (_, &[_, num_heads, head_dim]) => {
                // The last one of those that are there.
                let starts = self.operand("kvstarts").filter(|starts| starts.len() == Some(starts.bytes.len()))?;
                let total = starts.values().last().copied()?.max(0) as u128;
                Some(vec![total, num_heads * repeat, head_dim])
            }
            _ => None,
        }
    }

    /// How many inputs the call uses for which there is no memory.
    pub fn absent(&self) -> usize {
        let used = self.operands.iter().filter(|operand| self.is_used(operand.name));
        used.filter(|operand| operand.len().is_none_or(|len| len > MOST_BYTES)).count()
    }

    /// Places a sequence so that its first current token is `step` slots behind the one that follows another's last.
    fn place_near(&mut self, source: &mut Source<'_>, step: isize) {
        let lengths = self.lengths("seqstarts");
        let (a, b) = (source.below(lengths.len()), source.below(lengths.len()));
        let Some(place) = self.last_slot(b, &lengths).map(|last| last + 1 + step as i128) else { return };
        self.place(a, place);
    }

    /// Places a sequence, mostly the shortest, so that it ends `step` slots behind the cache's end.
    fn place_at_the_end(&mut self, source: &mut Source<'_>, step: isize) {
        let lengths = self.lengths("kvstarts");
        let shortest = (0..lengths.len()).min_by_key(|&b| lengths[b]).unwrap_or_default();
        let b = if source.flag() { source.below(lengths.len()) } else { shortest };
        let mut slots = None;
        self.set_dims(|dims| slots = i128::try_from(dims.slots).ok());
        let first = self.operand("start_pos").and_then(|start_pos| start_pos.values().get(b).copied());
        if let (Some(slots), Some(&kvlen), Some(first)) = (slots, lengths.get(b), first) {
            self.place(b, slots - kvlen + i128::from(first) - step as i128);
        }
    }

    /// The slot of a sequence's last current token.
    fn last_slot(&self, b: usize, seqlens: &[i128]) -> Option<i128> {
        let token = i128::from(*self.operand("start_pos")?.values().get(b)?) + seqlens.get(b)? - 1;
        let (entry, skip) = self.entry(b, token)?;
        Some(i128::from(*self.operand("cachestarts")?.values().get(entry)?) + skip)
    }

    /// Which entry of `cachestarts` says where a token is, and how far behind it.
    fn entry(&self, b: usize, token: i128) -> Option<(usize, i128)> {
        let Some(columns) = self.operand("cachestarts")?.shape.get(1) else { return Some((b, token)) };
        let page_size = i128::from(self.attribute("page_size")).max(1);
        let page = usize::try_from(token.div_euclid(page_size)).ok()?;
        Some((b.checked_mul(*columns)?.checked_add(page)?, token.rem_euclid(page_size)))
    }

    /// Has the first current token of a sequence be in a slot.
    fn place(&mut self, b: usize, slot: i128) {
        let first = self.operand("start_pos").and_then(|start_pos| start_pos.values().get(b).copied());
        let Some((entry, skip)) = first.and_then(|first| self.entry(b, i128::from(first))) else { return };
        let table = self.operand_mut("cachestarts").map(|table| table.bytes.as_chunks_mut::<8>().0);
        if let (Some(value), Ok(start)) = (table.and_then(|table| table.get_mut(entry)), i64::try_from(slot - skip)) {
            *value = start.to_le_bytes();
        }
    }

    fn operand_mut(&mut self, name: &str) -> Option<&mut Operand> {
        self.operands.iter_mut().find(|operand| operand.name == name)
    }

    /// Gives an attribute another value, if the operator has it.
    fn set_attribute(&mut self, name: &str, value: impl Fn(i64) -> i64) {
        let of_name = self.attributes.iter_mut().find(|(other, _)| *other == name);
        if let Some((_, old)) = of_name {
            *old = value(*old);
        }
    }

    /// The lengths of sequences.
    fn lengths(&self, starts: &str) -> Vec<i128> {
        let values = self.operand(starts).map(Operand::values).unwrap_or_default();
        values.windows(2).map(|pair| i128::from(pair[1]) - i128::from(pair[0])).collect()
    }

    /// The slots that a cache needs for all tokens; in static batching for those of a sequence.
    fn used_slots(&self) -> Option<i128> {
        if self.operator == Operator::StaticKeyValueCache {
            let start_pos = *self.operand("start_pos")?.values().first()?;
            return Some(i128::from(start_pos) + *self.operand("current_key")?.shape.get(1)? as i128);
        }
        let places = self.operand("cachestarts")?;
        let (values, columns) = (places.values(), places.shape.get(1).copied());
        let page_size = i128::from(self.attribute("page_size")).max(1);
        let ends = self.lengths("kvstarts").into_iter().enumerate().flat_map(|(b, kvlen)| match columns {
            None => values.get(b).map(|&start| i128::from(start) + kvlen).into_iter().collect::<Vec<_>>(),
            Some(columns) => {
                let row = values.get(b.saturating_mul(columns)..).unwrap_or_default().iter().take(columns);
                let used = (0..).map(|page| (kvlen - page * page_size).min(page_size)).take_while(|&used| used > 0);
                row.zip(used).map(|(&start, used)| i128::from(start) + used).collect()
            }
        });
        ends.max()
    }

    /// Gives a page table other columns: the first ones, or more.
    fn set_columns(&mut self, columns: usize) {
        let Some(table) = self.operand_mut("cachestarts") else { return };
        let (values, &[batch, before]) = (table.values(), &table.shape[..]) else { return };
        let entry = |b: usize, page: usize| {
            let value = (page < before).then(|| values.get(b * before + page).copied()).flatten();
            value.unwrap_or(-1)
        };
        if batch.saturating_mul(columns.max(1)) <= MOST as usize {
            let entries = (0..batch).flat_map(|b| (0..columns).map(move |page| (b, page)));
            table.bytes = entries.flat_map(|(b, page)| entry(b, page).to_le_bytes()).collect();
            table.shape[1] = columns;
        }
    }

    /// Changes axes of `cache`, and of `scale`, if their ranks are right.
    fn set_dims(&mut self, change: impl FnOnce(&mut Dims)) {
        let (code, group) = (self.attribute("cache_layout"), self.attribute("quant_group").max(1) as usize);
        let Some(cache) = self.operand("cache") else { return };
        let shapes = if self.operator == Operator::StaticKeyValueCache {
            let (Some(layout), Ok(shape)) = (StaticCacheLayout::from_code(code), cache.shape[..].try_into()) else {
                return;
            };
            let StaticCacheDims { max_b, max_s, num_layer, num_heads, inner } = layout.dims(shape);
            let mut dims = Dims { max_b, slots: max_s, num_layer, num_heads, head_dim: inner };
            change(&mut dims);
            let Dims { max_b, slots, num_layer, num_heads, head_dim } = dims;
            [head_dim, head_dim / group].map(|inner| {
                layout.shape(StaticCacheDims { max_b, max_s: slots, num_layer, num_heads, inner }).to_vec()
            })
        } else {
            let (Some(layout), Ok(shape)) = (CacheLayout::from_code(code), cache.shape[..].try_into()) else { return };
            let CacheDims { max_t, num_layer, num_heads, inner } = layout.dims(shape);
            let mut dims = Dims { max_b: 1, slots: max_t, num_layer, num_heads, head_dim: inner };
            change(&mut dims);
            let Dims { slots, num_layer, num_heads, head_dim, .. } = dims;
            [head_dim, head_dim / group]
                .map(|inner| layout.shape(CacheDims { max_t: slots, num_layer, num_heads, inner }).to_vec())
        };
        for (name, shape) in ["cache", "scale"].into_iter().zip(shapes) {
            if let Some(operand) = self.operand_mut(name) {
                operand.shape = shape;
            }
        }
    }

    /// Gives keys, and queries in proportion, another number of heads.
    fn set_heads(&mut self, num_kv_heads: usize) {
        let kv = self.attribute("num_kv_heads").max(0);
        let ratio = if kv > 0 { (self.attribute("num_heads") / kv).max(1) as usize } else { 1 };
        let Some(num_heads) = num_kv_heads.checked_mul(ratio).filter(|&heads| i64::try_from(heads).is_ok()) else {
            return;
        };
        self.set_attribute("num_heads", |_| num_heads as i64);
        self.set_attribute("num_kv_heads", |before| if before > 0 { num_kv_heads as i64 } else { before });
        self.set_dims(|dims| dims.num_heads = num_kv_heads);
        for operand in &mut self.operands {
            let heads = match operand.name {
                "query" => num_heads,
                "current_key" | "current_value" | "key" | "value" => num_kv_heads,
                "attn_mask" if operand.shape.len() == 3 => {
                    operand.shape[0] = num_heads;
                    continue;
                }
                _ => continue,
            };
            if let Some(len) = operand.shape.iter_mut().rev().nth(1) {
                *len = heads;
            }
        }
    }

    /// Gives heads another length, which groups divide.
    fn set_head_dim(&mut self, len: usize) {
        let group = if self.attribute("quant_bit") == 0 { 1 } else { self.attribute("quant_group").max(1) as usize };
        let head_dim = len.next_multiple_of(group);
        self.set_attribute("head_dim", |_| head_dim as i64);
        self.set_dims(|dims| dims.head_dim = head_dim);
        let names = ["query", "current_key", "current_value", "key", "value"];
        let of = self.operands.iter_mut().filter(|operand| names.contains(&operand.name));
        of.filter_map(|operand| operand.shape.last_mut()).for_each(|len| *len = head_dim);
    }

    /// Gives a batch of static batching more sequences, for which the cache has room.
    fn set_batch(&mut self, batch: usize) {
        if self.operator != Operator::StaticKeyValueCache {
            return;
        }
        self.set_dims(|dims| dims.max_b = dims.max_b.max(batch));
        let of = self.operands.iter_mut().filter(|operand| operand.name.starts_with("current_"));
        of.filter_map(|operand| operand.shape.first_mut()).for_each(|len| *len = batch);
    }
}
