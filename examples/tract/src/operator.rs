//! The operator in tract's typed graph, on tract's tensors.

use half::f16;
use kvcache_op::schema::{Attributes, INPUTS, NAME};
use kvcache_op::{Element, ElementType, IndexInputs, Inputs, KeyValueCache, Outputs, Rayon, TensorMut, TensorRef};
use tract_onnx::tract_hir::internal::*;

#[derive(Debug, Clone, Hash, PartialEq, Eq)]
pub(crate) struct KeyValueCacheOp {
    pub(crate) attributes: Attributes,
    /// The length of `key` and `value`, which only a call's `kvstarts` tells.
    pub(crate) tokens: TDim,
}

impl KeyValueCacheOp {
    fn call<T: Datum + Element>(&self, values: &[TValue]) -> TractResult<TVec<TValue>> {
        let op = KeyValueCache::new(self.attributes.clone())?;
        let input = |index: usize| read(INPUTS[index], &values[index]);
        let inputs = Inputs {
            current_key: input(0)?,
            current_value: input(1)?,
            indices: IndexInputs {
                seqstarts: input(2)?,
                kvstarts: input(3)?,
                cachestarts: input(4)?,
                start_pos: input(5)?,
                max_seqlen: input(6)?,
                max_kvlen: input(7)?,
            },
        };
        // SAFETY: only nodes of this operator write to cache and scale, and each only slots of its own layer; the
        // program does not read them while a model runs, see `register`.
        let cache = unsafe { in_place(INPUTS[8], &values[8]) }?;
        // SAFETY: as for the cache.
        let scale = values.get(9).map(|scale| unsafe { in_place(INPUTS[9], scale) }).transpose()?;
        let call = op.check(&inputs, cache, scale)?;
        let shape = call.output_shape().to_vec();
        // SAFETY: `run` writes every element of both, or fails.
        let (mut key, mut value) =
            unsafe { (Tensor::uninitialized::<T>(&shape)?, Tensor::uninitialized::<T>(&shape)?) };
        call.run(Outputs { key: output::<T>(&mut key)?, value: output::<T>(&mut value)? }, &Rayon)?;
        Ok(tvec!(key.into_tvalue(), value.into_tvalue()))
    }
}

impl Op for KeyValueCacheOp {
    fn name(&self) -> StaticName {
        NAME.into()
    }

    fn mints_runtime_symbols(&self) -> bool {
        true
    }

    op_as_typed_op!();
}

impl EvalOp for KeyValueCacheOp {
    // It writes its inputs, so it is never evaluated ahead of a run.
    not_out_of_plan!();

    fn eval(&self, _: &EvalContext, inputs: TVec<TValue>) -> TractResult<TVec<TValue>> {
        match inputs[0].datum_type() {
            DatumType::F32 => self.call::<f32>(&inputs),
            DatumType::F16 => self.call::<f16>(&inputs),
            DatumType::I8 => self.call::<i8>(&inputs),
            other => bail!("current_key is of type {other:?}, expected F32, F16 or I8"),
        }
    }
}

impl TypedOp for KeyValueCacheOp {
    fn output_facts(&self, inputs: &[&TypedFact]) -> TractResult<TVec<TypedFact>> {
        let current = inputs[0];
        if current.rank() != 3 {
            bail!("current_key has rank {}, expected 3", current.rank());
        }
        let heads = current.shape[1].clone() * self.attributes.num_repeat;
        let shape = [self.tokens.clone(), heads, current.shape[2].clone()];
        let fact = current.datum_type.fact(&shape);
        Ok(tvec!(fact.clone(), fact))
    }

    fn set_symbols(
        &self,
        _: &TypedModel,
        node: &TypedNode,
        target: &mut TypedModel,
        mapping: &HashMap<OutletId, OutletId>,
        subs: &HashMap<Symbol, TDim>,
    ) -> TractResult<TVec<OutletId>> {
        let op = Self { attributes: self.attributes.clone(), tokens: self.tokens.substitute_all(subs)? };
        let inputs: TVec<OutletId> = node.inputs.iter().map(|input| mapping[input]).collect();
        target.wire_node(&node.name, op, &inputs)
    }

    as_op!();
}

/// A tensor that is read.
pub(crate) fn read<'a>(name: &str, value: &'a TValue) -> TractResult<TensorRef<'a>> {
    // SAFETY: a tensor of tract's is contiguous, initialized, and valid as long as it is borrowed.
    Ok(unsafe { TensorRef::from_raw_parts(element(name, value)?, value.shape(), value.as_bytes().as_ptr()) })
}

/// A tensor that is written in place, though tract shares it.
///
/// # Safety
/// For the lifetime, nobody else reads or writes what the call writes.
pub(crate) unsafe fn in_place<'a>(name: &str, value: &'a TValue) -> TractResult<TensorMut<'a>> {
    let data = value.as_bytes().as_ptr().cast_mut();
    // SAFETY: a tensor of tract's is contiguous, initialized, and valid as long as it is borrowed; its bytes are on the
    // heap, writable, and nobody else accesses those that the call writes.
    Ok(unsafe { TensorMut::from_raw_parts(element(name, value)?, value.shape(), data) })
}

/// A new tensor.
pub(crate) fn output<T: Datum + Element>(tensor: &mut Tensor) -> TractResult<TensorMut<'_>> {
    let shape = kvcache_op::Shape::from(tensor.shape());
    let data = tensor.as_ptr_mut::<T>()?.cast();
    // SAFETY: the tensor is borrowed, of this type and shape, and contiguous.
    Ok(unsafe { TensorMut::from_raw_parts(T::TYPE, shape, data) })
}

fn element(name: &str, value: &TValue) -> TractResult<ElementType> {
    match value.datum_type() {
        DatumType::F32 => Ok(ElementType::Float32),
        DatumType::F16 => Ok(ElementType::Float16),
        DatumType::I8 => Ok(ElementType::Int8),
        DatumType::I64 => Ok(ElementType::Int64),
        other => bail!("{name} is of type {other:?}, expected F32, F16, I8 or I64"),
    }
}
