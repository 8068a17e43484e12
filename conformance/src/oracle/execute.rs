//! Makes a call by its plan.

use kvcache_schema::{ElementType, STATIC_SCALES};

use crate::case::NanRule;
use crate::oracle::arithmetic::{Group, Steps, read, read_code, write, write_code};
use crate::oracle::call::{Call, Heads, Inputs, Load, Place, Plan, SharedAttributes};
use crate::oracle::decisions::{
    Behavior, HeadAxes, Keeps, LoadsFrom, Order, Outside, Repeats, Scales, Shares, StoredScale,
};
use crate::run::CallResult;
use crate::tensor::Tensor;

/// `cache` and `scale`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "described above")]
pub struct State {
    pub cache: Tensor,
    pub scale: Option<Tensor>,
}

impl State {
    /// Whether a call left this state. A call without a cache has left none.
    pub(crate) fn is_of(&self, made: &CallResult, nan: NanRule) -> bool {
        made.cache.as_ref().is_none_or(|cache| nan.are_alike(&self.cache, cache))
            && match (&self.scale, &made.scale) {
                (Some(scale), Some(made)) => nan.are_alike(scale, made),
                (scale, made) => scale.is_none() && made.is_none(),
            }
    }

    pub(crate) fn is(&self, other: &Self, nan: NanRule) -> bool {
        nan.are_alike(&self.cache, &other.cache)
            && self.scale.iter().zip(&other.scale).all(|(scale, other)| nan.are_alike(scale, other))
    }
}

/// The call reached outside of the cache, and ended there.
pub(super) struct OutsideOfCache;

/// Makes a legal call: gives its outputs and the state after it.
pub(super) fn execute<A, I: Inputs<A>>(
    call: &Call<'_, A, I>,
    behavior: &Behavior,
) -> Result<(Vec<Tensor>, State), OutsideOfCache> {
    let plan = &I::plan(call, behavior);
    if plan.rows_outside && !matches!(behavior.outside, Outside::Flat | Outside::Skipped) {
        return Err(OutsideOfCache);
    }
    let before = State { cache: call.cache.clone(), scale: call.scale.cloned() };
    let (mut attributes, current, t1) = (I::shared(call.attributes), call.inputs.current(), call.types.t1);
    if attributes.quant_type == STATIC_SCALES {
        attributes.quant_group = plan.head_dim.max(1) as i64;
    }
    let mut run = Run { attributes, current, t1, plan, behavior, before: &before, after: before.clone() };
    let output = || Tensor::zeros(t1, plan.output_shape.clone()).unwrap_or_else(|| empty(t1));
    let mut outputs = vec![output(), output()];
    let sequences = &plan.sequences;
    for (b, sequence) in sequences.iter().enumerate() {
        sequence.stores.iter().try_for_each(|&(row, place)| run.store(row, place))?;
        let loaded = match behavior.order {
            Order::BySequence => b..b + 1,
            // Behind the last store.
            _ if b + 1 == sequences.len() => 0..b + 1,
            _ => continue,
        };
        let mut loads = sequences[loaded].iter().flat_map(|sequence| &sequence.loads);
        loads.try_for_each(|load| run.load(load, &mut outputs))?;
    }
    let after = run.after;
    Ok((outputs, if behavior.keeps == Keeps::Both { after } else { before }))
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
}

impl<'a> Run<'a> {
    /// Stores the key and value of a current token.
    fn store(&mut self, row: usize, place: Place) -> Result<(), OutsideOfCache> {
        let parts = if self.behavior.stores_nothing { 0..0 } else { 0..2 };
        for (kv, h) in parts.flat_map(|kv| (0..self.plan.num_heads).map(move |h| (kv, h))) {
            self.store_head([kv, row, h], place)?;
        }
        Ok(())
    }

    /// Stores the head of `current_key` (0) or `current_value` (1), of a row.
    fn store_head(&mut self, head: [usize; 3], place: Place) -> Result<(), OutsideOfCache> {
        let (behavior, head_dim, [kv, _, h]) = (self.behavior, self.plan.head_dim, head);
        let layer = behavior.stored_layer.of(self.attributes.layer_idx);
        let Some(codes) = self.head(&self.plan.cache, place, layer, kv, h)? else { return Ok(()) };
        let (current, first) = (self.current[kv], self.current_head(head) * head_dim);
        let (t1, t2) = (self.t1, self.after.cache.element());
        let codes = codes * head_dim * t2.bits() / 8..(codes + 1) * head_dim * t2.bits() / 8;
        if self.attributes.quant_bit == 0 {
            let from = (t1, &current.bytes()[t1.align() * first..]);
            let to = (t2, &mut self.after.cache.bytes_mut()[codes]);
            move_head(behavior, from, to, head_dim);
            return Ok(());
        }
        let layer = if behavior.scales == Scales::FirstLayer { 0 } else { layer };
        let Some(scales) = self.head(&self.plan.scale, place, layer, kv, h)? else { return Ok(()) };
        let (group, groups) = (self.group(), self.groups());
        if self.attributes.quant_type == STATIC_SCALES {
            let Some(scale) = &self.before.scale else { unreachable!("a legal call with quantization has a scale") };
            let scale = read(behavior.conversion, group.t3, scale.bytes(), scales);
            for d in 0..head_dim {
                let x = read(behavior.conversion, t1, current.bytes(), first + d);
                let code = group.static_code(x, scale);
                write_code(behavior, t2, &mut self.after.cache.bytes_mut()[codes.clone()], d, head_dim, code);
            }
            return Ok(());
        }
        let steps = self.steps(head);
        if let Some(scale) = self.after.scale.as_mut().filter(|_| behavior.stored_scale != StoredScale::Old) {
            for (g, steps) in steps.iter().enumerate() {
                let x = group.stored_scale(steps);
                write(behavior.conversion, group.t3, scale.bytes_mut(), scales * groups + g, x);
            }
        }
        let stored = &mut self.after.cache.bytes_mut()[codes];
        for d in 0..head_dim {
            let x = read(behavior.conversion, t1, current.bytes(), first + d);
            let steps = &steps[behavior.group.of(d, self.attributes.quant_group as usize, groups)];
            let code = group.code(x, steps);
            write_code(behavior, t2, stored, d, head_dim, code);
        }
        Ok(())
    }

    fn steps(&self, [source, row, h]: [usize; 3]) -> Vec<Steps> {
        let (behavior, groups, shares) = (self.behavior, self.groups(), self.behavior.shares);
        let heads = if shares == Shares::Token { 0..self.plan.num_heads } else { h..h + 1 };
        let of_all = matches!(shares, Shares::Head | Shares::Token);
        let mut members = vec![Vec::new(); groups];
        for h in heads {
            let first = self.current_head([source, row, h]) * self.plan.head_dim;
            for d in 0..self.plan.head_dim {
                let x = read(behavior.conversion, self.t1, self.current[source].bytes(), first + d);
                let g = behavior.group.of(d, self.attributes.quant_group as usize, groups);
                members[if of_all { 0 } else { g }].push(x);
            }
        }
        let group = self.group();
        (0..groups).map(|g| group.steps(&members[if of_all { 0 } else { g }])).collect()
    }

    fn load(&self, load: &Load, outputs: &mut [Tensor]) -> Result<(), OutsideOfCache> {
        let [outer @ .., heads, _] = &self.plan.output_shape[..] else {
            unreachable!("outputs have three axes or four")
        };
        let rows: usize = outer.iter().product();
        for (i, output) in outputs.iter_mut().enumerate() {
            for output_head in 0..*heads {
                let at = match self.behavior.output_heads {
                    HeadAxes::TokensFirst => load.row * heads + output_head,
                    HeadAxes::HeadsFirst => output_head * rows + load.row,
                };
                let num_repeat = self.attributes.num_repeat as usize;
                let h = match self.behavior.repeats {
                    Repeats::Beside => output_head / num_repeat,
                    Repeats::Interleaved => output_head % self.plan.num_heads,
                };
                self.load_head(load, self.behavior.outputs.source(i), h, at * self.plan.head_dim, output)?;
            }
        }
        Ok(())
    }

    /// Loads a head into the elements of `output` from `first` on.
    fn load_head(
        &self,
        load: &Load,
        kv: usize,
        h: usize,
        first: usize,
        output: &mut Tensor,
    ) -> Result<(), OutsideOfCache> {
        let (behavior, head_dim, t1) = (self.behavior, self.plan.head_dim, self.t1);
        let size = t1.align();
        if let (true, Some(row)) = (behavior.current_from_inputs, load.current) {
            let from = self.current_head([kv, row, h]) * head_dim;
            let head = self.current[kv].bytes().get(size * from..size * (from + head_dim)).ok_or(OutsideOfCache)?;
            output.bytes_mut()[size * first..][..size * head_dim].copy_from_slice(head);
            return Ok(());
        }
        let SharedAttributes { layer_idx, quant_bit, quant_group, .. } = self.attributes;
        let layer = behavior.loaded_layer.of(layer_idx);
        let Some(codes) = self.head(&self.plan.cache, load.place, layer, kv, h)? else { return Ok(()) };
        let cache = if behavior.loads_from == LoadsFrom::Before { &self.before.cache } else { &self.after.cache };
        let t2 = cache.element();
        let head = &cache.bytes()[codes * head_dim * t2.bits() / 8..(codes + 1) * head_dim * t2.bits() / 8];
        if quant_bit == 0 {
            let to = (t1, &mut output.bytes_mut()[size * first..]);
            move_head(behavior, (t2, head), to, head_dim);
            return Ok(());
        }
        let layer = if behavior.scales == Scales::FirstLayer { 0 } else { layer };
        let Some(scales) = self.head(&self.plan.scale, load.place, layer, kv, h)? else { return Ok(()) };
        let (group, groups) = (self.group(), self.groups());
        let from = if behavior.loads_from == LoadsFrom::After { &self.after.scale } else { &self.before.scale };
        let Some(from) = from else { unreachable!("a legal call with quantization has a scale") };
        for d in 0..head_dim {
            let g = behavior.loaded_group.of(d, quant_group as usize, groups);
            let scale = read(behavior.conversion, group.t3, from.bytes(), scales * groups + g);
            let value = group.value(read_code(behavior, t2, head, d, head_dim), scale);
            write(behavior.conversion, t1, output.bytes_mut(), first + d, value);
        }
        Ok(())
    }

    /// The number of the head of a key (0) or value (1); none if the place is outside of the cache and accesses there
    /// are skipped.
    fn head(
        &self,
        heads: &Heads,
        place: Place,
        layer: usize,
        kv: usize,
        h: usize,
    ) -> Result<Option<usize>, OutsideOfCache> {
        let ([sequence, slot], len) = (place, heads.lens[1] as i64);
        let place = match self.behavior.outside {
            _ if heads.contains(place) => place,
            Outside::Skipped => return Ok(None),
            Outside::Flat => place,
            Outside::FromEnd if (-len..0).contains(&slot) => [sequence, slot + len],
            Outside::FromEnd | Outside::Fails => return Err(OutsideOfCache),
        };
        heads.number(place, layer, kv, h).map(Some).ok_or(OutsideOfCache)
    }

    fn group(&self) -> Group<'a> {
        let t3 = self.before.scale.as_ref().map_or(self.t1, Tensor::element);
        let t2 = self.before.cache.element();
        Group { behavior: self.behavior, t1: self.t1, t2, t3, quant_bit: self.attributes.quant_bit }
    }

    /// The number of a head in `current_key` (0) or `current_value` (1), of a row.
    fn current_head(&self, [source, row, h]: [usize; 3]) -> usize {
        let outer = &self.current[source].shape()[..self.plan.output_shape.len() - 2];
        match self.behavior.current_heads {
            HeadAxes::TokensFirst => row * self.plan.num_heads + h,
            HeadAxes::HeadsFirst => h * outer.iter().product::<usize>() + row,
        }
    }

    fn groups(&self) -> usize {
        self.plan.head_dim / self.attributes.quant_group as usize
    }
}

/// Moves a head between tensors of these types: bytes are copied, numbers converted.
fn move_head(
    behavior: &Behavior,
    (from_type, from): (ElementType, &[u8]),
    (to_type, to): (ElementType, &mut [u8]),
    head_dim: usize,
) {
    if from_type == to_type {
        let bytes = to_type.align() * head_dim;
        return to[..bytes].copy_from_slice(&from[..bytes]);
    }
    for d in 0..head_dim {
        write(behavior.conversion, to_type, to, d, read(behavior.conversion, from_type, from, d));
    }
}
