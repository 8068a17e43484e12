//! A call as the caller describes it.

/// A tensor as the caller describes it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct TensorDescription {
    /// ONNX's number of the element type; 0 for a tensor that is left out.
    pub element: i32,
    /// The length of the shape.
    pub rank: i32,
    /// The shape.
    pub shape: [i64; 5],
    /// The first element.
    pub data: *mut u8,
}

/// A call as the caller describes it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct CallDescription {
    /// The attributes, in the order of [`Attributes::NAMES`](kvcache_op::Attributes::NAMES).
    pub attributes: [i64; 8],
    /// The ten inputs in the specification's order, then `key` and `value`.
    pub tensors: [TensorDescription; 12],
}
