//! Calls whose tensors no case can hold: too large for any memory, or in memory of each other.

use kvcache_conformance::backends::cache_attributes;
use kvcache_conformance::random::Unstructured;
use kvcache_conformance::{Call, Tensor};
use kvcache_op::{
    Attributes, ElementType, Error, IndexInputs, Inputs, KeyValueCache, Outputs, Serial, TensorMut, TensorRef,
};

use crate::tally;

/// A tensor as a call describes it. The memory may be another's, or none.
struct Operand {
    name: &'static str,
    element: ElementType,
    shape: Vec<usize>,
    data: *mut u8,
}

/// An address that no system maps: not canonical.
const NOWHERE: usize = 1 << 62;

fn operands(call: &mut Call) -> Vec<Operand> {
    let mut tensors: Vec<_> = call.inputs.iter().map(|(name, tensor)| (*name, tensor)).collect();
    tensors.extend(call.cache.as_ref().map(|cache| ("cache", cache)));
    tensors.extend(call.scale.as_ref().map(|scale| ("scale", scale)));
    let of = |(name, tensor): (&'static str, &Tensor)| Operand {
        name,
        element: tensor.element(),
        shape: tensor.shape().to_vec(),
        data: tensor.bytes().as_ptr().cast_mut(),
    };
    let mut operands: Vec<_> = tensors.into_iter().map(of).collect();
    // What is written, by a pointer that may write.
    let written = [call.cache.as_mut(), call.scale.as_mut()].into_iter().flatten();
    for (operand, tensor) in operands[8..].iter_mut().zip(written) {
        operand.data = tensor.bytes_mut().as_mut_ptr();
    }
    operands
}

impl Operand {
    /// Its bytes, if memory can have so many.
    fn len(&self) -> Option<usize> {
        let bits =
            self.shape.iter().try_fold(self.element.bits() as u128, |bits, &len| bits.checked_mul(len as u128))?;
        usize::try_from(bits.div_ceil(8)).ok().filter(|&len| isize::try_from(len).is_ok())
    }

    fn read(&self) -> TensorRef<'_> {
        // SAFETY: memory of this type and shape, but where `sizes` has made it larger: that is checked only, and checks
        // read no tensor but those of indices, which it leaves alone.
        unsafe { TensorRef::from_raw_parts(self.element, &self.shape[..], self.data) }
    }

    fn write(&self) -> TensorMut<'_> {
        // SAFETY: as for `read`; no reference to the memory is used while a call has it, and a call refuses memory that
        // it has twice.
        unsafe { TensorMut::from_raw_parts(self.element, &self.shape[..], self.data) }
    }
}

/// Checks a call, and has `then` do what it wants with one that is accepted.
fn check<T>(
    attributes: &Attributes,
    operands: &[Operand],
    then: impl FnOnce(kvcache_op::Call<'_>) -> Result<T, Error>,
) -> Result<T, Error> {
    let op = KeyValueCache::new(attributes.clone())?;
    let find = |name: &str| operands.iter().find(|operand| operand.name == name);
    let read = |name: &str| find(name).map(Operand::read).unwrap_or_else(|| unreachable!("{name} is always given"));
    let inputs = Inputs {
        current_key: read("current_key"),
        current_value: read("current_value"),
        indices: IndexInputs {
            seqstarts: read("seqstarts"),
            kvstarts: read("kvstarts"),
            cachestarts: read("cachestarts"),
            start_pos: read("start_pos"),
            max_seqlen: read("max_seqlen"),
            max_kvlen: read("max_kvlen"),
        },
    };
    let [cache, scale] = ["cache", "scale"].map(|name| find(name).map(Operand::write));
    let cache = cache.unwrap_or_else(|| unreachable!("a cache is always given"));
    then(op.check(&inputs, cache, scale)?)
}

/// Dimensions whose product about fits in 64 bits, in one shape or in all that have them: a check does not overflow,
/// and accepts nothing that memory cannot have.
pub fn sizes(mut call: Call, entropy: &mut Unstructured) {
    let mut operands = operands(&mut call);
    for _ in 0..entropy.within(1, 3) {
        let bits = entropy.pick(&[62, 61, 60, 59, 57, 54, 32, 31, 20, 63]);
        let len = (1_usize << bits).wrapping_add_signed(entropy.pick(&[0, 0, 1, -1]));
        if entropy.one_in(4) {
            let name = entropy.pick(&["num_repeat", "num_layer", "quant_group", "page_size"]);
            call.attributes.insert(name, len as i64);
        }
        let at = entropy.below(operands.len());
        let axis = entropy.below(operands[at].shape.len());
        let Some(&before) = operands[at].shape.get(axis) else { continue };
        let all = entropy.one_in(2);
        for (i, operand) in operands.iter_mut().enumerate() {
            // Indices are read.
            if operand.element != ElementType::Int64 && (all || i == at) {
                operand.shape.iter_mut().filter(|len| **len == before).for_each(|changed| *changed = len);
                operand.data = std::ptr::without_provenance_mut(NOWHERE);
            }
        }
    }
    let is_used = |operand: &Operand| operand.name != "scale" || call.attributes["quant_bit"] != 0;
    let checked = check(&cache_attributes(&call.attributes), &operands, |call| Ok(call.output_shape()));
    tally::count(checked.is_ok());
    if let Ok(shape) = checked {
        let output =
            Operand { name: "key", element: operands[0].element, shape: shape.to_vec(), data: operands[0].data };
        for operand in operands.iter().chain([&output]).filter(|operand| is_used(operand)) {
            assert!(operand.len().is_some(), "{} of {:?} is accepted", operand.name, operand.shape);
        }
    }
}

/// A tensor in the memory of another one, one of which is written: the call is refused, and nothing is written.
pub fn overlaps(mut call: Call, entropy: &mut Unstructured) {
    let before = (call.cache.clone(), call.scale.clone());
    let mut operands = operands(&mut call);
    let (inner, outer) = (entropy.below(operands.len() + 1), entropy.below(operands.len()));
    let len = |at: usize| operands.get(at).and_then(Operand::len).unwrap_or(0);
    let is_written = |at: usize| at >= 8;
    let is_scale_unused = |at: usize| at == 9 && call.attributes["quant_bit"] == 0;
    let (attributes, offset) = (cache_attributes(&call.attributes), entropy.below(3) * 8);
    let refused = if inner == operands.len() {
        // An output.
        let room = len(outer);
        let ran = check(&attributes, &operands, |checked| {
            let shape = checked.output_shape().to_vec();
            let key = Operand { name: "key", shape, data: operands[outer].data, ..copy(&operands[0]) };
            if key.len().is_none_or(|len| len == 0 || len > room) || is_scale_unused(outer) {
                return Ok(true);
            }
            let mut value = vec![0_u64; key.len().unwrap_or(0).div_ceil(8)];
            let value =
                Operand { name: "value", shape: key.shape.clone(), data: value.as_mut_ptr().cast(), ..copy(&key) };
            Ok(checked.run(Outputs { key: key.write(), value: value.write() }, &Serial).is_err())
        });
        ran.unwrap_or(true)
    } else {
        let fits = len(inner) > 0 && len(inner).checked_add(offset).is_some_and(|end| end <= len(outer));
        let applies = inner != outer && fits && (is_written(inner) || is_written(outer));
        if !applies || is_scale_unused(inner) || is_scale_unused(outer) {
            return;
        }
        // Indices keep what they say.
        if operands[inner].element == ElementType::Int64 {
            return;
        }
        operands[inner].data = operands[outer].data.wrapping_add(offset);
        check(&attributes, &operands, |_| Ok(())).is_err()
    };
    tally::count(!refused);
    assert!(refused, "memory that is written is another tensor's, and that is accepted");
    drop(operands);
    assert!((&call.cache, &call.scale) == (&before.0, &before.1), "a call that is refused has written");
}

fn copy(operand: &Operand) -> Operand {
    Operand { shape: operand.shape.clone(), ..*operand }
}
