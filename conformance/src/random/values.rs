//! Tensors of the values that implementations get wrong.

use kvcache_schema::ElementType;

use super::unstructured::Unstructured;
use crate::tensor::{Tensor, Value};

/// A tensor of random bytes. Of a float type they are any bits.
pub(super) fn bits(unstructured: &mut Unstructured, element: ElementType, shape: &[usize]) -> Tensor {
    let mut tensor = zeros(element, shape);
    tensor.bytes_mut().iter_mut().for_each(|byte| *byte = unstructured.next() as u8);
    // Half a byte is left where an odd number of int4 ends.
    if element == ElementType::Int4 && shape.iter().product::<usize>() % 2 == 1 {
        tensor.bytes_mut().iter_mut().last().into_iter().for_each(|byte| *byte &= 0x0f);
    }
    tensor
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Choice {
    /// The elements that are chosen together.
    pub(super) group: usize,
    /// The largest code of their quantization, where there is one.
    pub(super) qmax: f64,
    pub(super) non_finite: bool,
    /// Whether all are of ordinary size.
    pub(super) moderate: bool,
}

/// A tensor of values of a float type, or of random bytes of another.
pub(super) fn values(unstructured: &mut Unstructured, element: ElementType, shape: &[usize], choice: Choice) -> Tensor {
    if !element.is_float() {
        return bits(unstructured, element, shape);
    }
    let len: usize = shape.iter().product();
    let mut values = Vec::with_capacity(len);
    while values.len() < len {
        values.append(&mut group_values(unstructured, element, choice.group.max(1).min(len - values.len()), choice));
    }
    floats(element, shape, &values)
}

/// A tensor of the nearest values of a float type.
pub(super) fn floats(element: ElementType, shape: &[usize], values: &[f64]) -> Tensor {
    let size = element.align();
    let nearest = |&x: &f64| Value::nearest(element, x as f32).bits.to_le_bytes().into_iter().take(size);
    tensor(element, shape, &values.iter().flat_map(nearest).collect::<Vec<u8>>())
}

/// The values of a group: of one of some sorts.
fn group_values(unstructured: &mut Unstructured, element: ElementType, len: usize, choice: Choice) -> Vec<f64> {
    let qmax = choice.qmax;
    // The largest number, the exponent of the smallest one, and exponents that are far from both.
    let (largest, least, exponents) = match element {
        ElementType::Float16 => (65504.0, -24, 14),
        ElementType::BFloat16 => (f64::from(f32::MAX) * (1.0 - 2f64.powi(-8)), -133, 120),
        _ => (f64::from(f32::MAX), -149, 120),
    };
    let tiny = 2f64.powi(least);
    let power =
        |unstructured: &mut Unstructured, most: i32| 2f64.powi(unstructured.below(2 * most as usize) as i32 - most);
    let mut values: Vec<f64> = match if choice.moderate { 9 } else { unstructured.below(10) } {
        // Quotients of exactly an integer and a half, and on and beside them.
        0 | 1 => {
            let step = power(unstructured, 5);
            let beside = if unstructured.one_in(3) { step * 2f64.powi(-9) } else { 0.0 };
            let half = |unstructured: &mut Unstructured| unstructured.below(qmax as usize) as f64 + 0.5 + beside;
            let sign = |unstructured: &mut Unstructured| if unstructured.one_in(2) { -step } else { step };
            let mut values: Vec<_> = (0..len).map(|_| half(unstructured) * sign(unstructured)).collect();
            let i = unstructured.below(len);
            values[i] = qmax * sign(unstructured);
            values
        }
        // A step around 1e-5.
        2 => {
            let amax = 1e-5 * qmax * (1.0 + unstructured.unit() * 0.01);
            (0..len).map(|i| if i == 0 { amax } else { amax * unstructured.unit() }).collect()
        }
        // Zeros and denormals.
        3 => (0..len).map(|_| tiny * unstructured.pick(&[0.0, -0.0, 1.0, -1.0, 2.0, -3.0, 100.0])).collect(),
        // The ends of the type.
        4 => (0..len).map(|_| largest * unstructured.pick(&[1.0, -1.0, 0.5, -0.25, 1e-3])).collect(),
        // Any magnitude.
        5 => {
            let scale = power(unstructured, exponents);
            (0..len).map(|_| scale * unstructured.unit()).collect()
        }
        _ => (0..len).map(|_| 4.0 * unstructured.unit()).collect(),
    };
    if choice.non_finite && unstructured.one_in(3) && len > 0 {
        let i = unstructured.below(len);
        values[i] = unstructured.pick(&[f64::NAN, f64::INFINITY, f64::NEG_INFINITY]);
    }
    values
}

/// Scales: mostly steps as a store leaves them, some that none leaves.
pub(super) fn scales(unstructured: &mut Unstructured, element: ElementType, shape: &[usize]) -> Tensor {
    let scale = |_| match unstructured.below(12) {
        0 => unstructured.pick(&[0.0, -0.5, 2f64.powi(-24), 3.0 * 2f64.powi(-24), 2f64.powi(-140), 300.125]),
        _ => 0.001 + unstructured.unit().abs(),
    };
    let values: Vec<f64> = (0..shape.iter().product()).map(scale).collect();
    floats(element, shape, &values)
}

pub(super) fn has_nan(tensor: &Tensor) -> bool {
    (0..Value::count(tensor)).any(|i| Value::at(tensor, i).is_nan())
}

/// The same bytes in another shape of as many elements, or as another type of elements of that size.
pub(super) fn tensor(element: ElementType, shape: &[usize], bytes: &[u8]) -> Tensor {
    let Some(tensor) = Tensor::new(element, shape.to_vec(), bytes) else {
        unreachable!("{} bytes for {element}{shape:?}", bytes.len());
    };
    tensor
}

/// A tensor of zeros, which is small here.
pub(super) fn zeros(element: ElementType, shape: &[usize]) -> Tensor {
    let Some(tensor) = Tensor::zeros(element, shape.to_vec()) else { unreachable!("{element}{shape:?} is small") };
    tensor
}
