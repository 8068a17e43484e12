//! Makes a call by its plan.

use std::cell::RefCell;

use kvcache_schema::ElementType;

use crate::case::NanRule;
use crate::oracle::call::{Call, Inputs, SharedAttributes};
use crate::oracle::decisions::{Behavior, CurrentTokens, HeadAxes, Keeps, LoadsFrom, Order, Outside, Repeats, Scales};
use crate::oracle::heads::{CurrentHead, OutsideOfCache, Run, State, Stop};
use crate::oracle::numbers::{read, read_code, write, write_code};
use crate::oracle::plan::{Load, Place, Plan, Sequence};
use crate::result::{CallResult, Outcome};
use crate::tensor::Tensor;

/// Makes a legal call: gives its outputs and the state after it. With `made`, what a call did, it ends where that left
/// another state.
pub(super) fn execute<A, I: Inputs<A>>(
    call: &Call<'_, A, I>,
    plan: &Plan,
    behavior: &Behavior,
    made: Option<(&CallResult, NanRule)>,
) -> Result<([Tensor; 2], State), Stop> {
    let before = State { cache: call.cache.clone(), scale: call.scale.cloned() };
    if plan.rows_outside && !matches!(behavior.outside, Outside::Flat | Outside::Skipped | Outside::Clamped) {
        return Err(Stop::OutsideOfCache);
    }
    let (attributes, current, t1) = (I::shared(call.attributes), call.inputs.current(), call.types.t1);
    let (after, amaxes) = (before.clone(), RefCell::default());
    let mut run = Run { attributes, current, t1, plan, behavior, before: &before, after, amaxes };
    let zeros = || Tensor::zeros(t1, plan.output_shape.clone()).unwrap_or_else(|| empty(t1));
    let mut outputs = [zeros(), zeros()];
    let (all, first, but_last) = (&plan.sequences[..], plan.sequences.len().min(1), plan.sequences.len().max(1) - 1);
    let sequences = match behavior.order {
        Order::StoresFirst | Order::BySequence => all,
        Order::FirstSequence => &all[..first],
        Order::LastMissing => &all[..but_last],
    };
    if behavior.order == Order::BySequence {
        for sequence in all {
            run.store(sequence)?;
            run.load(sequence, &mut outputs)?;
        }
    } else {
        sequences.iter().try_for_each(|sequence| run.store(sequence))?;
        let is_done = |(made, nan): (&CallResult, _)| match made.outcome {
            Outcome::Done(_) if behavior.keeps == Keeps::Both => run.after.is_of(made, nan),
            _ => true,
        };
        if !made.is_none_or(is_done) {
            return Err(Stop::Contradicted);
        }
        sequences.iter().try_for_each(|sequence| run.load(sequence, &mut outputs))?;
    }
    if behavior.repeats == Repeats::OfElements {
        let num_repeat = attributes.num_repeat as usize;
        outputs.iter_mut().for_each(|output| repeat_elements(output, num_repeat, plan.head_dim));
    }
    let mut state = run.after;
    if behavior.keeps == Keeps::Neither {
        state.cache = before.cache;
    }
    if behavior.keeps != Keeps::Both {
        state.scale = before.scale;
    }
    Ok((outputs, state))
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

impl<'a> Run<'a> {
    /// Stores the keys and values of a sequence's current tokens.
    fn store(&mut self, Sequence { stores, .. }: &Sequence) -> Result<(), OutsideOfCache> {
        let SharedAttributes { layer_idx, num_layer, .. } = self.attributes;
        for &(row, place) in stores {
            for layer in self.behavior.stored_layers.of(layer_idx as usize, num_layer as usize) {
                for kv in 0..2 {
                    let Some(source) = self.behavior.stored.source(kv) else { continue };
                    for h in 0..self.plan.num_heads {
                        let head = CurrentHead { source, row, h };
                        self.store_head(kv, head, place, layer)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn store_head(&mut self, kv: usize, head: CurrentHead, place: Place, layer: usize) -> Result<(), OutsideOfCache> {
        let (behavior, head_dim, h) = (self.behavior, self.plan.head_dim, head.h);
        let axis = behavior.key_value_axis.of(kv);
        let Some(codes) = self.head(&self.plan.cache, place, layer, axis, h)? else { return Ok(()) };
        let (current, first) = (self.current[head.source], self.current_head(head) * head_dim);
        let elements = behavior.stored_elements.count(head_dim, behavior.n);
        let t2 = self.after.cache.element();
        let codes = self.head_bytes(t2, codes);
        if self.attributes.quant_bit == 0 {
            let copies = self.copies(t2);
            let stored = &mut self.after.cache.bytes_mut()[codes];
            let from = &current.bytes()[self.t1.align() * first..];
            move_head(behavior, (self.t1, from, 0), (t2, stored, 0), elements, copies, |x| {
                behavior.current.of(self.t1, x)
            });
            return Ok(());
        }
        let (group, groups) = (self.group(), self.groups());
        let scale_layer = match behavior.scales {
            Scales::FirstLayer => 0,
            _ => layer,
        };
        let scale_axis = if behavior.scales == Scales::ValueOverKey { 0 } else { axis };
        let Some(scales) = self.head(&self.plan.scale, place, scale_layer, scale_axis, h)? else {
            return Ok(());
        };
        let steps_of = |run: &Self, head| (0..groups).map(|g| run.steps(head, g, scales * groups + g)).collect();
        // The head whose step codes are made with, and that whose scale is stored.
        let coded = if behavior.scales == Scales::KeyForValue { CurrentHead { source: 0, ..head } } else { head };
        let stored = CurrentHead { h: if behavior.scales == Scales::FirstHeadStored { 0 } else { h }, ..coded };
        let steps: Vec<_> = steps_of(self, coded);
        let of_stored = if stored == coded { steps.clone() } else { steps_of(self, stored) };
        if let Some(scale) = self.after.scale.as_mut()
            && !(behavior.scales == Scales::ValuesNotStored && kv == 1)
        {
            for (g, steps) in of_stored.iter().enumerate() {
                let x = group.stored_scale(steps);
                write(behavior.conversion, group.t3, scale.bytes_mut(), scales * groups + g, x);
            }
        }
        let stored = &mut self.after.cache.bytes_mut()[codes];
        for d in 0..elements {
            let x = read(behavior.conversion, self.t1, current.bytes(), first + d);
            let steps = &steps[behavior.group.of(d, self.attributes.quant_group as usize, groups)];
            let code = group.code(behavior.current.of(self.t1, x), steps);
            write_code(behavior, self.attributes.quant_bit, stored, d, head_dim, code);
        }
        Ok(())
    }

    /// Loads the keys and values of a sequence's tokens.
    fn load(&self, Sequence { loads, .. }: &Sequence, outputs: &mut [Tensor; 2]) -> Result<(), OutsideOfCache> {
        let [outer @ .., heads, _] = &self.plan.output_shape[..] else {
            unreachable!("outputs have three axes or four")
        };
        let rows: usize = outer.iter().product();
        for load in loads {
            let scale = match self.behavior.scales {
                Scales::NextSlotLoaded => Place { slot: load.place.slot + 1, ..load.place },
                Scales::FirstTokenLoaded => loads[0].place,
                _ => load.place,
            };
            for (i, output) in outputs.iter_mut().enumerate() {
                for output_head in 0..*heads {
                    let at = match self.behavior.output_heads {
                        HeadAxes::TokensFirst => load.row * heads + output_head,
                        _ => output_head * rows + load.row,
                    };
                    let first = at * self.plan.head_dim;
                    self.load_head(load, scale, self.behavior.outputs.source(i), output_head, first, output)?;
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
        kv: usize,
        output_head: usize,
        first: usize,
        output: &mut Tensor,
    ) -> Result<(), OutsideOfCache> {
        let (behavior, head_dim) = (self.behavior, self.plan.head_dim);
        let num_repeat = self.attributes.num_repeat as usize;
        let Some(h) = behavior.repeats.cache_head(kv, output_head, self.plan.num_heads, num_repeat) else {
            return Ok(());
        };
        let size = self.t1.align();
        if let (CurrentTokens::Inputs, Some(row)) = (behavior.current_tokens, load.current) {
            let from = self.current_head(CurrentHead { source: kv, row, h }) * head_dim;
            let head = self.current[kv].bytes().get(size * from..size * (from + head_dim)).ok_or(OutsideOfCache)?;
            output.bytes_mut()[size * first..][..size * head_dim].copy_from_slice(head);
            return Ok(());
        }
        let SharedAttributes { layer_idx, quant_bit, quant_group, .. } = self.attributes;
        let layer = behavior.loaded_layer.of(layer_idx as usize, 0).start;
        let axis = behavior.key_value_axis.of(kv);
        let Some(codes) = self.head(&self.plan.cache, load.place, layer, axis, h)? else { return Ok(()) };
        let cache = if behavior.loads_from == LoadsFrom::Before { &self.before.cache } else { &self.after.cache };
        let elements = behavior.loaded_elements.count(head_dim, behavior.n);
        let t2 = cache.element();
        let head = &cache.bytes()[self.head_bytes(t2, codes)];
        let changed = |x| behavior.output.of(self.t1, x);
        if quant_bit == 0 {
            let to = (self.t1, output.bytes_mut(), first);
            move_head(behavior, (t2, head, 0), to, elements, self.copies(t2), changed);
            return Ok(());
        }
        let (group, groups) = (self.group(), self.groups());
        let (scale_layer, scale_axis, scale_head) = match behavior.scales {
            Scales::FirstLayer | Scales::FirstLayerLoaded => (0, axis, h),
            Scales::KeyLoadedForValue | Scales::ValueOverKey => (layer, 0, h),
            Scales::FirstHeadLoaded => (layer, axis, 0),
            _ => (layer, axis, h),
        };
        let Some(scales) = self.head(&self.plan.scale, scale_place, scale_layer, scale_axis, scale_head)? else {
            return Ok(());
        };
        let from = if behavior.loads_from == LoadsFrom::After { &self.after.scale } else { &self.before.scale };
        let unrounded =
            matches!(behavior.current_tokens, CurrentTokens::UnroundedScale | CurrentTokens::UnroundedProduct);
        let scale = |g: usize| match (load.current.filter(|_| unrounded), from) {
            (Some(row), _) => self.steps(CurrentHead { source: kv, row, h }, g, scales * groups + g).step,
            (None, Some(scale)) => read(behavior.conversion, group.t3, scale.bytes(), scales * groups + g),
            (None, None) => unreachable!("a legal call with quantization has a scale"),
        };
        let scales: Vec<_> = (0..groups).map(scale).collect();
        for d in 0..elements {
            let scale = scales[behavior.loaded_group.of(d, quant_group as usize, groups)];
            let code = read_code(behavior, quant_bit, head, d, head_dim);
            let value = match (behavior.current_tokens, load.current) {
                (CurrentTokens::UnroundedProduct, Some(_)) => code * scale,
                _ => group.value(code, scale),
            };
            write(behavior.conversion, self.t1, output.bytes_mut(), first + d, changed(value));
        }
        Ok(())
    }
}

/// Moves the first elements of a head between tensors of these types: bytes are copied, numbers converted, and those
/// that `changed` changes written anew.
fn move_head(
    behavior: &Behavior,
    (from_type, from, from_first): (ElementType, &[u8], usize),
    (to_type, to, to_first): (ElementType, &mut [u8], usize),
    elements: usize,
    copies: bool,
    changed: impl Fn(f64) -> f64,
) {
    if copies {
        let size = to_type.align();
        to[size * to_first..][..size * elements].copy_from_slice(&from[size * from_first..][..size * elements]);
        if to_type == ElementType::Int8 {
            return;
        }
    }
    for d in 0..elements {
        let x = read(behavior.conversion, from_type, from, from_first + d);
        let becomes = changed(x);
        if !copies || becomes.to_bits() != x.to_bits() {
            write(behavior.conversion, to_type, to, to_first + d, becomes);
        }
    }
}

impl Repeats {
    /// The cache head of an output head of `key` (0) or `value` (1); without one the output head stays zero.
    fn cache_head(self, kv: usize, output_head: usize, num_heads: usize, num_repeat: usize) -> Option<usize> {
        let (own, repetition) = (output_head / num_repeat, output_head % num_repeat);
        match (self, kv) {
            (Self::FirstAlone, _) => (repetition == 0).then_some(own),
            (Self::LastMissing, _) => (num_repeat == 1 || repetition < num_repeat - 1).then_some(own),
            (Self::Interleaved, _) | (Self::InterleavedKeys, 0) | (Self::InterleavedValues, 1) => {
                Some(output_head % num_heads)
            }
            (Self::Ignored, _) => Some(output_head),
            (Self::Beside | Self::OfElements | Self::InterleavedKeys | Self::InterleavedValues, _) => Some(own),
        }
    }

    /// How many heads the outputs have.
    pub(super) fn output_heads(self, num_heads: usize, num_repeat: usize) -> usize {
        if self == Self::Ignored { num_heads } else { num_heads * num_repeat }
    }
}
