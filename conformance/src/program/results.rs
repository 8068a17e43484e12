//! What a program writes of a case.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use kvcache_schema::ElementType;
use safetensors::SafeTensors;

use crate::implementation::Outcome;
use crate::read::read_tensor;
use crate::tensor::Tensor;

/// More than any case's results have.
const MOST_BYTES: u64 = 1 << 30;

pub(crate) struct Results {
    metadata: HashMap<String, String>,
    bytes: Vec<u8>,
}

impl Results {
    pub(super) fn read(path: &Path) -> Result<Self, String> {
        let file = fs::symlink_metadata(path).map_err(|error| format!("the program wrote no result: {error}"))?;
        // What is read may not end, like a pipe, or fit in no memory.
        if !file.is_file() || file.len() > MOST_BYTES {
            return Err(format!("the program's result is no regular file of at most {MOST_BYTES} bytes"));
        }
        let bytes = fs::read(path).map_err(|error| format!("the program's result cannot be read: {error}"))?;
        let (_, header) = SafeTensors::read_metadata(&bytes).map_err(unreadable)?;
        Ok(Self { metadata: header.metadata().clone().unwrap_or_default(), bytes })
    }

    /// How call `i` ended: with the outputs called so, or with a refusal.
    pub(super) fn outcome(&self, i: usize, outputs: &[&str]) -> Result<Outcome, String> {
        match self.metadata.get(&format!("{i}.error")) {
            Some(message) => Ok(Outcome::refused(message.clone())),
            None => outputs.iter().map(|name| self.tensor(i, name, None)).collect::<Result<_, _>>().map(Outcome::Done),
        }
    }

    /// A tensor after call `i`; if the one that it is like is int4, it is that too.
    fn tensor(&self, i: usize, name: &str, like: Option<&Tensor>) -> Result<Tensor, String> {
        let int4 = like.filter(|like| like.element() == ElementType::Int4);
        let file = SafeTensors::deserialize(&self.bytes).map_err(unreadable)?;
        let view = file.tensor(&format!("{i}.{name}")).map_err(unreadable)?;
        let is = || format!("the program's {i}.{name} is {:?} of shape {:?}", view.dtype(), view.shape());
        if let Some(like) = int4 {
            // As it lies in the case, or with the axes of the cache.
            let (whole, axes) = (vec![like.bytes().len()], packed_shape(like.shape()));
            if view.shape() != whole && Some(view.shape()) != axes.as_deref() {
                let axes = axes.map_or_else(String::new, |axes| format!(" or {axes:?}"));
                return Err(format!("{}, expected {whole:?}{axes}", is()));
            }
        }
        read_tensor(&view, int4.map(|like| like.shape().to_vec()).as_ref()).ok_or_else(is)
    }

    /// The same, if there is one that it should be like.
    pub(super) fn optional(&self, i: usize, name: &str, like: Option<&Tensor>) -> Result<Option<Tensor>, String> {
        like.map(|like| self.tensor(i, name, Some(like))).transpose()
    }
}

/// The shape of the bytes of int4 elements, two in each; none if a byte has elements of two rows.
fn packed_shape(shape: &[usize]) -> Option<Vec<usize>> {
    let (last, axes) = shape.split_last()?;
    (last % 2 == 0).then(|| [axes, &[last / 2]].concat())
}

fn unreadable(error: safetensors::SafeTensorError) -> String {
    format!("the program's result cannot be read: {error}")
}
