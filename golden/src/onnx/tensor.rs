//! Tensors in ONNX's format.

use kvcache_schema::ElementType;

use super::messages::TensorProto;
use crate::tensor::Tensor;

/// The code of a type in `TensorProto.DataType`.
pub(super) const fn data_type(element: ElementType) -> i32 {
    match element {
        ElementType::Float32 => 1,
        ElementType::Int8 => 3,
        ElementType::Int64 => 7,
        ElementType::Float16 => 10,
        ElementType::Int4 => 22,
    }
}

impl TensorProto {
    /// The tensor under a name.
    pub fn new(name: &str, tensor: &Tensor) -> Self {
        Self {
            // No axis of a tensor in memory is longer than `isize::MAX`, unless there are no elements.
            dims: tensor.shape().iter().map(|&axis| i64::try_from(axis).unwrap_or(i64::MAX)).collect(),
            data_type: data_type(tensor.element()),
            name: name.to_owned(),
            raw_data: tensor.bytes().to_vec(),
        }
    }

    /// A tensor without elements.
    pub(super) fn empty(name: &str, element: ElementType) -> Self {
        Self { dims: vec![0], data_type: data_type(element), name: name.to_owned(), raw_data: Vec::new() }
    }

    /// The tensor without its name; `None` if it has no type of the operators, or not the bytes of its shape.
    pub fn tensor(&self) -> Option<Tensor> {
        let element = ElementType::ALL.into_iter().find(|&element| data_type(element) == self.data_type)?;
        let shape = self.dims.iter().map(|&axis| usize::try_from(axis).ok()).collect::<Option<_>>()?;
        Tensor::new(element, shape, &self.raw_data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tensor_of_any_type_comes_back() {
        for element in ElementType::ALL {
            let bytes: Vec<u8> = (0..element.bytes(15).unwrap()).map(|i| i as u8).collect();
            let tensor = Tensor::new(element, vec![3, 5], &bytes).unwrap();
            let proto = TensorProto::new("x", &tensor);
            assert_eq!((proto.name.as_str(), proto.tensor()), ("x", Some(tensor)));
            assert_eq!(TensorProto { dims: vec![3, 7], ..proto.clone() }.tensor(), None);
            assert_eq!(TensorProto { data_type: 16, ..proto }.tensor(), None);
        }
    }
}
