//! Tensors in memory of Python's, by name.

use std::collections::HashMap;

use kvcache_op::{ElementType, IndexInputs, Inputs, TensorMut, TensorRef};

/// ONNX's number of the element type, the shape, and the address of the first element.
type Description = (i32, Vec<usize>, usize);

/// The tensors of a call by the specification's names.
///
/// Whoever makes it keeps each tensor's memory valid for its type and shape as long as the call lives, writable where
/// the operator writes, and lets nobody else use it while the call runs.
pub(crate) struct Tensors(pub(crate) HashMap<String, Description>);

impl Tensors {
    fn get(&self, name: &str) -> Result<(ElementType, &[usize], *mut u8), String> {
        let (element, shape, address) = self.0.get(name).ok_or_else(|| format!("there is no {name}"))?;
        let known = ElementType::ALL.into_iter().find(|known| known.onnx() == *element);
        let element = known.ok_or_else(|| format!("{name}: no operator has tensors of ONNX's type {element}"))?;
        Ok((element, shape, *address as *mut u8))
    }

    /// A tensor to read.
    pub(crate) fn read(&self, name: &str) -> Result<TensorRef<'static>, String> {
        let (element, shape, data) = self.get(name)?;
        // SAFETY: valid for its type and shape as long as the call lives: `Tensors`.
        Ok(unsafe { TensorRef::from_raw_parts(element, shape, data) })
    }

    /// A tensor to write.
    pub(crate) fn write(&self, name: &str) -> Result<TensorMut<'static>, String> {
        let (element, shape, data) = self.get(name)?;
        // SAFETY: valid and writable as long as the call lives, and nobody else uses it: `Tensors`.
        Ok(unsafe { TensorMut::from_raw_parts(element, shape, data) })
    }

    /// A tensor to write that may be left out.
    pub(crate) fn optional(&self, name: &str) -> Result<Option<TensorMut<'static>>, String> {
        self.0.contains_key(name).then(|| self.write(name)).transpose()
    }

    /// The bytes of a tensor that is written.
    pub(crate) fn bytes(&mut self, name: &str) -> Result<&mut [u8], String> {
        let (element, shape, data) = self.get(name)?;
        let len = element.bytes(shape.iter().product()).ok_or("too large")?;
        // SAFETY: initialized and writable as long as the call lives: `Tensors`; the slice borrows them.
        Ok(unsafe { std::slice::from_raw_parts_mut(data, len) })
    }

    /// What `KeyValueCache` and `MultiHeadCacheAttention` both take.
    pub(crate) fn inputs(&self) -> Result<Inputs<'static>, String> {
        Ok(Inputs {
            current_key: self.read("current_key")?,
            current_value: self.read("current_value")?,
            indices: IndexInputs {
                seqstarts: self.read("seqstarts")?,
                kvstarts: self.read("kvstarts")?,
                cachestarts: self.read("cachestarts")?,
                start_pos: self.read("start_pos")?,
                max_seqlen: self.read("max_seqlen")?,
                max_kvlen: self.read("max_kvlen")?,
            },
        })
    }
}
