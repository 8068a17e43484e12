//! A call as data, and what the operators make of it.

use half::f16;
use kvcache_op::schema::TypeCombination;
use kvcache_op::{
    AttentionAttributes, AttentionBackend, AttentionCall, AttentionInputs, Attributes, Backend,
    CacheAttentionAttributes, CacheAttentionInputs, ElementType, Error, IndexInputs, Inputs, KeyValueCache,
    MultiHeadAttention, MultiHeadCacheAttention, Outputs, Serial, StaticAttributes, StaticInputs, StaticKeyValueCache,
    TensorMut, TensorRef, Workers,
};

use crate::operand::{MOST, Memory, Operand};

/// The operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    KeyValueCache,
    StaticKeyValueCache,
    MultiHeadAttention,
    MultiHeadCacheAttention,
}

/// A call of an operator, legal or not.
#[derive(Debug, Clone)]
pub struct Call {
    /// The operator.
    pub operator: Operator,
    /// Attributes by name.
    pub attributes: Vec<(&'static str, i64)>,
    /// Inputs by name; what is not among them is not given.
    pub operands: Vec<Operand>,
    /// A tensor whose memory is part of another one's; one of the two is written.
    pub overlap: Option<Overlap>,
}

/// The memory of a tensor inside that of an input.
#[derive(Debug, Clone, Copy)]
pub struct Overlap {
    /// An input, whose bytes are then there, or an output.
    pub name: &'static str,
    /// The input around it.
    pub of: &'static str,
    /// Where it begins, in bytes.
    pub offset: usize,
}

/// On what a call is run.
#[derive(Clone, Copy)]
pub struct How<'w> {
    /// The kernel that stores and loads.
    pub backend: Backend,
    /// The kernel that attends.
    pub attention: AttentionBackend,
    /// The threads.
    pub workers: &'w dyn Workers,
    /// Whether the call is made as that of a layer of a step.
    pub by_layers: bool,
    /// Where outputs begin, in bytes behind a cache line.
    pub offset: usize,
}

impl How<'_> {
    /// On the references, on this thread.
    pub const REFERENCE: Self = Self {
        backend: Backend::Reference,
        attention: AttentionBackend::Reference,
        workers: &Serial,
        by_layers: false,
        offset: 0,
    };
}

/// What has become of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// An error, by its kind.
    Refused(&'static str),
    /// It is legal, but of tensors that are too large to be there.
    Unrun,
    /// It has been run.
    Done(After),
}

/// What a call leaves behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct After {
    /// The outputs.
    pub outputs: Vec<Vec<u8>>,
    /// The cache, if the operator has one.
    pub cache: Option<Vec<u8>>,
    /// The scale, if it is given.
    pub scale: Option<Vec<u8>>,
}

impl After {
    /// The same with one NaN for all: their bits are the hardware's.
    pub fn with_one_nan(mut self, types: TypeCombination) -> Self {
        let TypeCombination { t1, t2, t3, .. } = types;
        self.outputs.iter_mut().for_each(|output| make_one_nan(t1, output));
        self.cache.iter_mut().for_each(|cache| make_one_nan(t2, cache));
        self.scale.iter_mut().zip(t3).for_each(|(scale, t3)| make_one_nan(t3, scale));
        self
    }
}

fn make_one_nan(element: ElementType, bytes: &mut [u8]) {
    match element {
        ElementType::Float32 => {
            let nans = bytes.as_chunks_mut().0.iter_mut().filter(|x| f32::from_le_bytes(**x).is_nan());
            nans.for_each(|x| *x = f32::NAN.to_le_bytes());
        }
        ElementType::Float16 => {
            let nans = bytes.as_chunks_mut().0.iter_mut().filter(|x| f16::from_le_bytes(**x).is_nan());
            nans.for_each(|x| *x = f16::NAN.to_le_bytes());
        }
        _ => {}
    }
}

/// What an output holds before it is written.
const UNTOUCHED: u8 = 0xa5;

/// The memory of a call's inputs.
pub struct Bound {
    inputs: Vec<Memory>,
    /// That of an output which an input lies in.
    output: Option<Memory>,
}

impl Bound {
    /// New memory.
    pub fn new(call: &Call) -> Self {
        let inputs = call.operands.iter().map(|operand| Memory::new(operand.clone(), 0)).collect();
        let around = call.overlap.and_then(|overlap| call.output(overlap.of));
        let mut bound = Self { inputs, output: around.map(|operand| Memory::new(operand, 0)) };
        if let Some(overlap) = call.overlap
            && let Some(mut inside) =
                call.operand(overlap.name).and_then(|operand| bound.inside(overlap, operand.clone()))
            && let Some(place) = bound.inputs.iter_mut().find(|memory| memory.operand.name == overlap.name)
        {
            // What is not used holds anything.
            if call.is_used(overlap.name) {
                inside.fill();
            }
            *place = inside;
        }
        bound
    }

    fn inside(&self, overlap: Overlap, operand: Operand) -> Option<Memory> {
        let around = self.output.as_ref().filter(|output| output.operand.name == overlap.of);
        Memory::inside(operand, around.or_else(|| self.find(overlap.of))?, overlap.offset)
    }

    fn find(&self, name: &str) -> Option<&Memory> {
        self.inputs.iter().find(|memory| memory.operand.name == name)
    }

    fn get(&self, name: &str) -> &Memory {
        self.find(name).unwrap_or_else(|| unreachable!("{name} is always given"))
    }

    fn read(&self, name: &str) -> TensorRef<'_> {
        self.get(name).read()
    }

    fn element(&self, name: &str) -> ElementType {
        self.get(name).operand.element
    }

    fn cache(&self) -> (TensorMut<'_>, Option<TensorMut<'_>>) {
        (self.get("cache").write(), self.find("scale").map(Memory::write))
    }

    fn is_whole(&self) -> bool {
        self.inputs.iter().all(Memory::is_whole)
    }

    fn indices(&self) -> IndexInputs<'_> {
        IndexInputs {
            seqstarts: self.read("seqstarts"),
            kvstarts: self.read("kvstarts"),
            cachestarts: self.read("cachestarts"),
            start_pos: self.read("start_pos"),
            max_seqlen: self.read("max_seqlen"),
            max_kvlen: self.read("max_kvlen"),
        }
    }

    fn inputs(&self) -> Inputs<'_> {
        let (current_key, current_value) = (self.read("current_key"), self.read("current_value"));
        Inputs { current_key, current_value, indices: self.indices() }
    }

    /// What is in a tensor now, if it is given.
    pub fn bytes(&self, name: &str) -> Option<Vec<u8>> {
        self.find(name).map(Memory::bytes)
    }
}

impl Call {
    /// An attribute; 0 if the operator has none of this name.
    pub fn attribute(&self, name: &str) -> i64 {
        self.attributes.iter().find(|(other, _)| *other == name).map_or(0, |&(_, value)| value)
    }

    /// An input, if it is given.
    pub fn operand(&self, name: &str) -> Option<&Operand> {
        self.operands.iter().find(|operand| operand.name == name)
    }

    /// Whether the tensors of indices are no larger than memory can be given to: all but one that no legal call can
    /// have beside the others, which is refused by its shape before it is read.
    pub fn is_testable(&self) -> bool {
        let large = |operand: &&Operand| operand.len().is_some_and(|len| len > 1 << 16);
        let indices = self.operands.iter().filter(|operand| operand.element == ElementType::Int64);
        let large: Vec<_> = indices.filter(large).collect();
        large.len() < 2 && large.iter().all(|operand| operand.name != "cachestarts")
    }

    /// Whether the call may touch a tensor: without quantization it neither reads nor writes a scale, and without
    /// attention no mask.
    pub fn is_used(&self, name: &str) -> bool {
        match name {
            "scale" => self.attribute("quant_bit") != 0,
            "attn_mask" => matches!(self.operator, Operator::MultiHeadAttention | Operator::MultiHeadCacheAttention),
            _ => true,
        }
    }

    /// Whether a tensor that is written, and used, has memory of another one.
    pub fn writes_overlap(&self) -> bool {
        let written = |name| name == "cache" || name == "scale";
        let fits = |overlap: &Overlap| {
            let [inner, outer] = [overlap.name, overlap.of].map(|name| self.operand(name).and_then(Operand::len));
            // What is large has no memory, and what is empty none to share.
            let end = inner.filter(|&len| len > 0).and_then(|len| len.checked_add(overlap.offset));
            end.zip(outer).is_some_and(|(end, outer)| end <= outer && outer <= MOST)
        };
        self.overlap.filter(fits).is_some_and(|overlap| {
            self.is_used(overlap.name) && self.is_used(overlap.of) && (written(overlap.name) || written(overlap.of))
        })
    }

    /// Whether an input that is used lies in an output.
    fn fits(&self, Overlap { name, of, offset }: Overlap) -> bool {
        let len = |operand: &Operand| operand.len().filter(|&len| len > 0);
        let end = self.operand(name).and_then(len).and_then(|len| len.checked_add(offset));
        let around = self.output(of).and_then(|output| len(&output));
        self.is_used(name) && end.zip(around).is_some_and(|(end, len)| end <= len && len <= MOST)
    }

    /// An output of a legal call, if it has this name and the operator one of it.
    pub fn output(&self, name: &str) -> Option<Operand> {
        let attends = matches!(self.operator, Operator::MultiHeadAttention | Operator::MultiHeadCacheAttention);
        let names: &[_] = if attends { &["attn_output"] } else { &["key", "value"] };
        let name = names.iter().find(|other| **other == name)?;
        let t1 = self.operand(if attends { "query" } else { "current_key" })?.element;
        let shape = self.output_shape()?.into_iter().map(usize::try_from).collect::<Result<_, _>>().ok()?;
        Some(Operand { name, element: t1, shape, bytes: vec![UNTOUCHED] })
    }

    /// Checks the call and, if it is legal and of a size for it, runs it on new memory.
    pub fn run(&self, how: How<'_>) -> Ended {
        let bound = &Bound::new(self);
        let before = [bound.bytes("cache"), bound.bytes("scale")];
        let ended = match self.operator {
            Operator::KeyValueCache => self.run_cache(bound, how),
            Operator::StaticKeyValueCache => self.run_static(bound, how),
            Operator::MultiHeadAttention => self.run_attention(bound, how),
            Operator::MultiHeadCacheAttention => self.run_cache_attention(bound, how),
        };
        let ended = ended.unwrap_or_else(|error| {
            assert!(!error.to_string().is_empty() && !error.kind().is_empty());
            Ended::Refused(error.kind())
        });
        if !matches!(ended, Ended::Done(_)) {
            assert_eq!([bound.bytes("cache"), bound.bytes("scale")], before, "a call that is not run has written");
        }
        ended
    }

    fn set<A: Default>(&self, set: impl Fn(&mut A, &str, i64) -> bool) -> A {
        let mut attributes = A::default();
        for &(name, value) in &self.attributes {
            assert!(set(&mut attributes, name, value), "{name}");
        }
        attributes
    }

    /// The layer, and attributes: by layers those of the first one, if the layer has a number.
    fn of_layer<A: Default>(&self, set: impl Fn(&mut A, &str, i64) -> bool, how: How<'_>) -> (usize, A) {
        let layer_idx = self.attribute("layer_idx");
        let is_first = |name: &str| how.by_layers && layer_idx >= 0 && name == "layer_idx";
        let attributes = self.set(|all, name, value| set(all, name, if is_first(name) { 0 } else { value }));
        (layer_idx as usize, attributes)
    }

    fn run_cache(&self, bound: &Bound, how: How<'_>) -> Result<Ended, Error> {
        let (layer_idx, attributes) = self.of_layer(Attributes::set, how);
        let op = KeyValueCache::new(attributes)?.with_backend(how.backend);
        let inputs = bound.inputs();
        let (cache, scale) = bound.cache();
        let t1 = bound.element("current_key");
        if how.by_layers {
            let mut layers = op.check_layers(t1, &inputs.indices, cache, scale)?;
            let call = layers.layer(layer_idx, &inputs.current_key, &inputs.current_value)?;
            let shape = call.output_shape();
            return self.outputs(bound, t1, &shape, how, |key, value| call.run(Outputs { key, value }, how.workers));
        }
        let call = op.check(&inputs, cache, scale)?;
        let shape = call.output_shape();
        self.outputs(bound, t1, &shape, how, |key, value| call.run(Outputs { key, value }, how.workers))
    }

    fn run_static(&self, bound: &Bound, how: How<'_>) -> Result<Ended, Error> {
        let (layer_idx, attributes) = self.of_layer(StaticAttributes::set, how);
        let op = StaticKeyValueCache::new(attributes)?.with_backend(how.backend);
        let inputs = StaticInputs {
            current_key: bound.read("current_key"),
            current_value: bound.read("current_value"),
            start_pos: bound.read("start_pos"),
        };
        let (cache, scale) = bound.cache();
        let t1 = bound.element("current_key");
        let current = &bound.get("current_key").operand.shape;
        if let (true, &[batch, seqlen, ..]) = (how.by_layers, &current[..]) {
            let mut layers = op.check_layers(t1, [batch, seqlen], &inputs.start_pos, cache, scale)?;
            let call = layers.layer(layer_idx, &inputs.current_key, &inputs.current_value)?;
            let shape = call.output_shape();
            return self.outputs(bound, t1, &shape, how, |key, value| call.run(Outputs { key, value }, how.workers));
        }
        let call = op.check(&inputs, cache, scale)?;
        let shape = call.output_shape();
        self.outputs(bound, t1, &shape, how, |key, value| call.run(Outputs { key, value }, how.workers))
    }

    fn run_attention(&self, bound: &Bound, how: How<'_>) -> Result<Ended, Error> {
        let op = MultiHeadAttention::new(self.set(AttentionAttributes::set))?.with_backend(how.attention);
        let inputs = AttentionInputs {
            query: bound.read("query"),
            key: bound.read("key"),
            value: bound.read("value"),
            seqstarts: bound.read("seqstarts"),
            kvstarts: bound.read("kvstarts"),
            decoding_batches: bound.read("decoding_batches"),
            max_seqlen: bound.read("max_seqlen"),
            max_kvlen: bound.read("max_kvlen"),
            attn_mask: bound.find("attn_mask").map(Memory::read),
        };
        self.attend(bound, op.check(&inputs)?, bound.element("query"), how)
    }

    fn run_cache_attention(&self, bound: &Bound, how: How<'_>) -> Result<Ended, Error> {
        let (layer_idx, attributes) = self.of_layer(CacheAttentionAttributes::set, how);
        let op = MultiHeadCacheAttention::new(attributes)?.with_backends(how.attention, how.backend);
        let inputs = CacheAttentionInputs {
            query: bound.read("query"),
            stored: bound.inputs(),
            decoding_batches: bound.read("decoding_batches"),
            attn_mask: bound.find("attn_mask").map(Memory::read),
        };
        let (cache, scale) = bound.cache();
        let t1 = bound.element("query");
        if how.by_layers {
            let (stored, mask) = (&inputs.stored, inputs.attn_mask.as_ref());
            let mut layers = op.check_layers(t1, &stored.indices, &inputs.decoding_batches, mask, cache, scale)?;
            let call = layers.layer(layer_idx, &inputs.query, &stored.current_key, &stored.current_value)?;
            return self.attend(bound, call, t1, how);
        }
        self.attend(bound, op.check(&inputs, cache, scale)?, t1, how)
    }

    /// Runs a call that has `key` and `value`.
    fn outputs(
        &self,
        bound: &Bound,
        t1: ElementType,
        shape: &[usize],
        how: How<'_>,
        run: impl FnOnce(TensorMut<'_>, TensorMut<'_>) -> Result<(), Error>,
    ) -> Result<Ended, Error> {
        self.run_on(bound, ["key", "value"], t1, shape, how, |[key, value]| run(key.write(), value.write()))
    }

    /// Runs a call that has `attn_output`.
    fn attend(&self, bound: &Bound, call: AttentionCall<'_>, t1: ElementType, how: How<'_>) -> Result<Ended, Error> {
        let shape = call.output_shape();
        self.run_on(bound, ["attn_output"], t1, &shape, how, |[output]| call.run(output.write(), how.workers))
    }

    /// Runs a call with outputs of this shape, if all tensors are there.
    fn run_on<const N: usize>(
        &self,
        bound: &Bound,
        names: [&'static str; N],
        t1: ElementType,
        shape: &[usize],
        how: How<'_>,
        run: impl FnOnce(&[Memory; N]) -> Result<(), Error>,
    ) -> Result<Ended, Error> {
        if let Some(expected) = self.output_shape() {
            // Before anything is written.
            assert!(
                shape.iter().map(|&len| len as u128).eq(expected.iter().copied()),
                "outputs of {shape:?}, expected {expected:?}"
            );
        }
        let mut overlaps = false;
        let outputs = names.map(|name| {
            let operand = Operand { name, element: t1, shape: shape.to_vec(), bytes: vec![UNTOUCHED] };
            assert!(operand.len().is_some(), "an output whose size overflows: {operand:?}");
            let overlap = self.overlap.filter(|overlap| overlap.name == name);
            let inside = overlap.and_then(|overlap| bound.inside(overlap, operand.clone()));
            overlaps |= inside.is_some() && overlap.is_some_and(|overlap| self.is_used(overlap.of));
            let around = bound.output.as_ref().filter(|output| output.operand.name == name);
            let around = around.and_then(|output| Memory::inside(operand.clone(), output, 0));
            overlaps |= around.is_some() && self.overlap.is_some_and(|overlap| self.fits(overlap));
            let inside = inside.or(around);
            inside.unwrap_or_else(|| Memory::new(operand, how.offset))
        });
        if !bound.is_whole() || !outputs.iter().all(Memory::is_whole) {
            return Ok(Ended::Unrun);
        }
        run(&outputs)?;
        assert!(!overlaps, "an output inside of an input is accepted: {:?}", self.overlap);
        let outputs = outputs.iter().map(Memory::bytes).collect();
        Ok(Ended::Done(After { outputs, cache: bound.bytes("cache"), scale: bound.bytes("scale") }))
    }
}
