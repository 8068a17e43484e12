//! Makes a call by its plan.

use std::cell::RefCell;
use std::collections::HashMap;

use kvcache_schema::ElementType;

use crate::case::Outputs;
use crate::oracle::arithmetic::{Group, Shares, Steps};
use crate::oracle::behavior::{Behavior, CurrentTokens, Outside, Pass};
use crate::oracle::inputs::{Call, Inputs, SharedAttributes};
use crate::oracle::plan::{Load, Place, Plan, Rows, Sequence, Store};
use crate::tensor::Tensor;

/// `cache` and `scale`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct State {
    pub(super) cache: Tensor,
    pub(super) scale: Option<Tensor>,
}

/// The call reached outside of the cache, and ended there.
pub(super) struct OutsideOfCache;

/// Makes a legal call: gives its outputs and the state after it.
pub(super) fn execute<A, I: Inputs<A>>(
    call: &Call<'_, A, I>,
    plan: &Plan,
    behavior: &Behavior,
) -> Result<(Outputs, State), OutsideOfCache> {
    let before = State { cache: call.cache.clone(), scale: call.scale.cloned() };
    if plan.rows_outside && !matches!(behavior.outside, Outside::Flat | Outside::Skipped | Outside::Clamped) {
        return Err(OutsideOfCache);
    }
    let mut run = Run {
        attributes: I::shared(call.attributes),
        current: call.inputs.current(),
        t1: call.types.t1,
        plan,
        behavior,
        before: &before,
        after: before.clone(),
        amaxes: RefCell::default(),
    };
    if behavior.clears {
        run.after.cache.bytes_mut().fill(0);
        run.after.scale.iter_mut().for_each(|scale| scale.bytes_mut().fill(0));
    }
    let zeros = || Tensor::zeros(call.types.t1, plan.output_shape.clone()).unwrap_or_else(|| empty(call.types.t1));
    let mut outputs = [zeros(), zeros()];
    run.clear(&plan.cleared_first);
    let mut stored = false;
    for pass in (behavior.order)(plan.sequences.len()) {
        if matches!(pass, Pass::Load(_)) && !stored {
            run.clear(&plan.cleared_last);
            stored = true;
        }
        match pass {
            Pass::Store(b) => run.store(&plan.sequences[b])?,
            Pass::Load(b) => run.load(&plan.sequences[b], &mut outputs)?,
        }
    }
    if behavior.repeats_elements {
        let num_repeat = run.attributes.num_repeat as usize;
        outputs.iter_mut().for_each(|output| repeat_elements(output, num_repeat, plan.head_dim));
    }
    let mut state = run.after;
    if !behavior.keeps.cache {
        state.cache = before.cache;
    }
    if !behavior.keeps.scale {
        state.scale = before.scale;
    }
    let [key, value] = outputs;
    Ok((Outputs { key, value }, state))
}

/// Makes of each `num_repeat` equal heads of an output the elements of one, each `num_repeat` times.
fn repeat_elements(output: &mut Tensor, num_repeat: usize, head_dim: usize) {
    let size = output.element().bits() / 8;
    for heads in output.bytes_mut().chunks_exact_mut((size * num_repeat * head_dim).max(1)) {
        let head = heads[..size * head_dim].to_vec();
        for (element, repeated) in head.chunks_exact(size).zip(heads.chunks_exact_mut(size * num_repeat)) {
            repeated.chunks_exact_mut(size).for_each(|one| one.copy_from_slice(element));
        }
    }
}

/// A tensor without elements, in place of one whose size no memory has.
pub(super) fn empty(element: ElementType) -> Tensor {
    let Some(empty) = Tensor::zeros(element, vec![0, 0, 0]) else { unreachable!("no bytes fit in memory") };
    empty
}

struct Run<'a> {
    attributes: SharedAttributes,
    current: [&'a Tensor; 2],
    t1: ElementType,
    plan: &'a Plan,
    behavior: &'a Behavior,
    before: &'a State,
    after: State,
    /// The largest magnitudes of values that share a scale with those of other groups, by what these have in common.
    amaxes: RefCell<HashMap<[usize; 4], f64>>,
}

/// Of which row the scales are that are stored for a current token, and where.
#[derive(Clone, Copy)]
struct ScaleSource {
    row: usize,
    place: Place,
}

impl<'a> Run<'a> {
    /// Clears keys and values of the layer in these slots, as far as the cache has them.
    fn clear(&mut self, places: &[Place]) {
        let (layer, element) = (self.attributes.layer_idx as usize, self.after.cache.element());
        for &place in places.iter().filter(|place| self.plan.cache.contains(**place)) {
            for key_or_value in 0..2 {
                for h in 0..self.plan.num_heads {
                    let Ok(row) = usize::try_from(self.plan.cache.row(place, layer, key_or_value, h)) else { continue };
                    let head = head_bytes(element, row, self.plan.head_dim);
                    if let Some(head) = self.after.cache.bytes_mut().get_mut(head) {
                        head.fill(0);
                    }
                }
            }
        }
    }

    /// Stores the keys and values of a sequence's current tokens.
    fn store(&mut self, Sequence { stores, .. }: &Sequence) -> Result<(), OutsideOfCache> {
        let num_layer = self.attributes.num_layer as usize;
        for store in stores {
            let scale = ScaleSource {
                row: (self.behavior.scale_source_row)(store.row, stores[0].row),
                place: (self.behavior.scale_place)(store.place, stores[0].place),
            };
            for layer in (self.behavior.layers_stored)(self.attributes.layer_idx as usize, num_layer) {
                for key_or_value in 0..2 {
                    for h in 0..self.plan.num_heads {
                        self.store_head(store, scale, layer, key_or_value, h)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn store_head(
        &mut self,
        store: &Store,
        scale: ScaleSource,
        layer: usize,
        key_or_value: usize,
        h: usize,
    ) -> Result<(), OutsideOfCache> {
        let (behavior, head_dim) = (self.behavior, self.plan.head_dim);
        let arithmetic = &behavior.arithmetic;
        let Some(source) = behavior.stored[key_or_value] else { return Ok(()) };
        let Some(codes) = self.head(&self.plan.cache, store.place, layer, behavior.kv[key_or_value], h)? else {
            return Ok(());
        };
        let (current, first) = (self.current[source], self.current_head(source, store.row, h) * head_dim);
        let elements = (behavior.stored_elements)(head_dim);
        let t2 = self.after.cache.element();
        let codes = head_bytes(t2, codes, head_dim);
        if self.attributes.quant_bit == 0 {
            let copies = self.copies(t2);
            let head = &mut self.after.cache.bytes_mut()[codes];
            if copies {
                let bytes = elements * t2.bits() / 8;
                head[..bytes].copy_from_slice(&current.bytes()[self.t1.align() * first..][..bytes]);
                if t2 == ElementType::Int8 {
                    return Ok(());
                }
            }
            for d in 0..elements {
                let x = arithmetic.read(self.t1, current.bytes(), first + d);
                let becomes = (arithmetic.current)(self.t1, x);
                if !copies || becomes.to_bits() != x.to_bits() {
                    arithmetic.write(t2, head, d, becomes);
                }
            }
            return Ok(());
        }
        let (quant_bit, group) = (self.attributes.quant_bit, self.group());
        let scale_layer = (behavior.scale_layer)(layer);
        let of_kv = behavior.scale_kv[key_or_value];
        let Some(scales) = self.head(&self.plan.scale, scale.place, scale_layer, of_kv, h)? else { return Ok(()) };
        let groups = self.groups();
        let of = if behavior.step_source[key_or_value] == key_or_value {
            source
        } else {
            behavior.step_source[key_or_value]
        };
        let steps: Vec<_> = (0..groups).map(|g| self.steps(of, store.row, h, g, scales * groups + g)).collect();
        for (g, steps) in steps.iter().enumerate() {
            let stored = match (behavior.scale_source[key_or_value], scale.row, (behavior.scale_source_head)(h)) {
                own if own == (key_or_value, store.row, h) => (arithmetic.stored_scale)(&group, steps),
                (other, row, h) => {
                    let steps = self.steps(other, row, h, g, scales * groups + g);
                    (arithmetic.stored_scale)(&group, &steps)
                }
            };
            if let Some(scale) = self.after.scale.as_mut().filter(|_| behavior.stores_scale[key_or_value]) {
                arithmetic.write(group.t3, scale.bytes_mut(), scales * groups + g, stored);
            }
        }
        for d in 0..elements {
            let x = (arithmetic.current)(self.t1, arithmetic.read(self.t1, current.bytes(), first + d));
            let code = group.code(x, &steps[(arithmetic.group)(d, self.quant_group(), groups)]);
            arithmetic.write_code(quant_bit, &mut self.after.cache.bytes_mut()[codes.clone()], d, head_dim, code);
        }
        Ok(())
    }

    /// Loads the keys and values of a sequence's tokens.
    fn load(&self, Sequence { loads, .. }: &Sequence, outputs: &mut [Tensor; 2]) -> Result<(), OutsideOfCache> {
        let heads = self.plan.output_shape[self.plan.output_shape.len() - 2];
        let rows = self.plan.output_shape[..self.plan.output_shape.len() - 2].iter().product();
        for load in loads {
            let scale = (self.behavior.loaded_scale_place)(load.place, loads[0].place);
            for (output, key_or_value) in outputs.iter_mut().zip(self.behavior.outputs) {
                for output_head in 0..heads {
                    let first = (self.behavior.output_head)(load.row, output_head, rows, heads) * self.plan.head_dim;
                    self.load_head(load, scale, key_or_value, output_head, first, output)?;
                }
            }
        }
        Ok(())
    }

    /// Loads a head, its scales from `scale_place`, into the elements of `output` from `first` on.
    fn load_head(
        &self,
        load: &Load,
        scale_place: Place,
        key_or_value: usize,
        output_head: usize,
        first: usize,
        output: &mut Tensor,
    ) -> Result<(), OutsideOfCache> {
        let (arithmetic, head_dim) = (&self.behavior.arithmetic, self.plan.head_dim);
        let num_repeat = self.attributes.num_repeat as usize;
        let Some(h) = (self.behavior.cache_head)(key_or_value, output_head, self.plan.num_heads, num_repeat) else {
            return Ok(());
        };
        let size = self.t1.align();
        if let (CurrentTokens::Inputs, Some(row)) = (self.behavior.current_tokens, load.current) {
            let from = self.current_head(key_or_value, row, h) * head_dim;
            let tokens = self.current[key_or_value].bytes();
            // Two mistakes together may take a head that the current tokens do not have.
            let head = tokens.get(size * from..size * (from + head_dim)).ok_or(OutsideOfCache)?;
            output.bytes_mut()[size * first..][..size * head_dim].copy_from_slice(head);
            return Ok(());
        }
        let layer = (self.behavior.layer_loaded)(self.attributes.layer_idx as usize);
        let Some(codes) = self.head(&self.plan.cache, load.place, layer, self.behavior.kv[key_or_value], h)? else {
            return Ok(());
        };
        let cache = if self.behavior.sources.cache { &self.after.cache } else { &self.before.cache };
        let elements = (self.behavior.loaded_elements)(head_dim);
        let t2 = cache.element();
        let head = &cache.bytes()[head_bytes(t2, codes, head_dim)];
        if self.attributes.quant_bit == 0 {
            if self.copies(t2) {
                let bytes = size * elements;
                output.bytes_mut()[size * first..][..bytes].copy_from_slice(&head[..bytes]);
                if t2 == ElementType::Int8 {
                    return Ok(());
                }
            }
            for d in 0..elements {
                let x = arithmetic.read(t2, head, d);
                let becomes = (arithmetic.output)(self.t1, x);
                if !self.copies(t2) || becomes.to_bits() != x.to_bits() {
                    arithmetic.write(self.t1, output.bytes_mut(), first + d, becomes);
                }
            }
            return Ok(());
        }
        let (quant_bit, group, groups) = (self.attributes.quant_bit, self.group(), self.groups());
        let (of_layer, of_head) = ((self.behavior.loaded_scale_layer)(layer), (self.behavior.loaded_scale_head)(h));
        let of_kv = self.behavior.loaded_scale_kv[key_or_value];
        let Some(scales) = self.head(&self.plan.scale, scale_place, of_layer, of_kv, of_head)? else {
            return Ok(());
        };
        let from = if self.behavior.sources.scale { &self.after.scale } else { &self.before.scale };
        let scale = |g: usize| match (self.behavior.current_tokens, load.current, from) {
            (CurrentTokens::UnroundedScale | CurrentTokens::UnroundedProduct, Some(row), _) => {
                self.steps(key_or_value, row, h, g, scales * groups + g).step
            }
            (_, _, Some(scale)) => arithmetic.read(group.t3, scale.bytes(), scales * groups + g),
            (_, _, None) => unreachable!("a legal call with quantization has a scale"),
        };
        let scales: Vec<_> = (0..groups).map(scale).collect();
        for d in 0..elements {
            let scale = scales[(arithmetic.loaded_group)(d, self.quant_group(), groups)];
            let code = arithmetic.read_code(quant_bit, head, d, head_dim);
            let value = match (self.behavior.current_tokens, load.current) {
                (CurrentTokens::UnroundedProduct, Some(_)) => f64::from(code) * scale,
                _ => group.value(code, scale),
            };
            arithmetic.write(self.t1, output.bytes_mut(), first + d, (arithmetic.output)(self.t1, value));
        }
        Ok(())
    }

    /// The step and scale of group `g` of head `h` of a current token, and the scale number `scale`, which it replaces.
    fn steps(&self, key_or_value: usize, row: usize, h: usize, g: usize, scale: usize) -> Steps {
        let arithmetic = &self.behavior.arithmetic;
        let shares = arithmetic.shares_scale;
        let compute = || self.group().amax(&self.sharing(shares, key_or_value, row, h, g));
        let amax = if shares == Shares::GROUP {
            compute()
        } else {
            let same = |is_same: bool, index: usize| if is_same { index } else { 0 };
            let key = [
                same(shares.key_or_value, key_or_value),
                same(shares.row, row),
                same(shares.head, h),
                same(shares.group, g),
            ];
            let known = self.amaxes.borrow().get(&key).copied();
            known.unwrap_or_else(|| *self.amaxes.borrow_mut().entry(key).or_insert_with(compute))
        };
        let group = self.group();
        let old = self.before.scale.as_ref().map_or(0.0, |before| arithmetic.read(group.t3, before.bytes(), scale));
        group.steps(amax, old)
    }

    /// The values that share a scale with those of a group.
    fn sharing(&self, shares: Shares, key_or_value: usize, row: usize, head: usize, group: usize) -> Vec<f64> {
        let arithmetic = &self.behavior.arithmetic;
        let Plan { num_heads, head_dim, .. } = *self.plan;
        let range = |is_same: bool, index: usize, len: usize| if is_same { index..index + 1 } else { 0..len };
        let is_member = |d: &usize| {
            let own = || (arithmetic.group)(*d, self.quant_group(), self.groups());
            !shares.group || own() == group || shares.groups_before && own() < group
        };
        let rows = match shares.rows_before {
            true => 0..row + 1,
            false => range(shares.row, row, self.rows()),
        };
        let mut values = Vec::new();
        for key_or_value in range(shares.key_or_value, key_or_value, 2) {
            let bytes = self.current[key_or_value].bytes();
            for row in rows.clone() {
                for head in range(shares.head, head, num_heads) {
                    let first = self.current_head(key_or_value, row, head) * head_dim;
                    let read = |d| (arithmetic.current)(self.t1, arithmetic.read(self.t1, bytes, first + d));
                    values.extend((0..head_dim).filter(is_member).map(read));
                }
            }
        }
        values
    }

    /// The number of a head in `rows`; none if the place or the layer is outside of the cache and accesses there are
    /// skipped.
    fn head(
        &self,
        rows: &Rows,
        place: Place,
        layer: usize,
        kv: usize,
        h: usize,
    ) -> Result<Option<usize>, OutsideOfCache> {
        let layer = match self.behavior.outside {
            Outside::Wrapped => layer % rows.layer.len.max(1),
            Outside::Clamped => layer.min(rows.layer.len.saturating_sub(1)),
            _ if layer < rows.layer.len => layer,
            Outside::Flat => layer,
            Outside::Skipped => return Ok(None),
            Outside::Fails | Outside::FromEnd => return Err(OutsideOfCache),
        };
        let row = |place| usize::try_from(rows.row(place, layer, kv, h)).ok().filter(|&row| row < rows.len());
        let place = match self.behavior.outside {
            _ if rows.contains(place) => place,
            Outside::Flat => place,
            Outside::FromEnd if place.slot < 0 => Place { slot: place.slot + rows.slot.len as i64, ..place },
            Outside::Wrapped if rows.slot.len > 0 => {
                Place { slot: place.slot.rem_euclid(rows.slot.len as i64), ..place }
            }
            Outside::Clamped if rows.slot.len > 0 => {
                Place { slot: place.slot.clamp(0, rows.slot.len as i64 - 1), ..place }
            }
            Outside::Skipped => return Ok(None),
            Outside::Wrapped | Outside::Clamped | Outside::Fails | Outside::FromEnd => return Err(OutsideOfCache),
        };
        if self.behavior.outside != Outside::Flat && !rows.contains(place) {
            return Err(OutsideOfCache);
        }
        row(place).map(Some).ok_or(OutsideOfCache)
    }

    /// Whether elements of the cache are copies of those of T1.
    fn copies(&self, t2: ElementType) -> bool {
        self.t1 == t2 && (self.behavior.arithmetic.copies_bits || t2 == ElementType::Int8)
    }

    fn group(&self) -> Group<'a> {
        let (behavior, t3) = (self.behavior, self.before.scale.as_ref().map_or(self.t1, Tensor::element));
        Group { arithmetic: &behavior.arithmetic, t1: self.t1, t3, quant_bit: self.attributes.quant_bit }
    }

    /// The number of a token's head in `current_key` or `current_value`.
    fn current_head(&self, key_or_value: usize, row: usize, h: usize) -> usize {
        (self.behavior.current_head)(key_or_value, row, h, self.rows(), self.plan.num_heads)
    }

    /// The current tokens of the call.
    fn rows(&self) -> usize {
        self.current[0].bytes().len() / (self.t1.align() * self.plan.num_heads * self.plan.head_dim).max(1)
    }

    fn quant_group(&self) -> usize {
        self.attributes.quant_group as usize
    }

    /// The groups of a head.
    fn groups(&self) -> usize {
        self.plan.head_dim / self.quant_group()
    }
}

/// The bytes of head number `row`.
fn head_bytes(element: ElementType, row: usize, head_dim: usize) -> std::ops::Range<usize> {
    let bytes = head_dim * element.bits() / 8;
    row * bytes..(row + 1) * bytes
}
