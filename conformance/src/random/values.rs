//! Tensors with the values that implementations get wrong.

use kvcache_schema::ElementType;

use super::entropy::Entropy;
use crate::difference::Value;
use crate::floats::format_of;
use crate::tensor::Tensor;

pub(super) fn indices(shape: &[usize], values: &[i64]) -> Tensor {
    let bytes: Vec<_> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    tensor(ElementType::Int64, shape, &bytes)
}

/// A tensor of random bytes. Of a float type they are any bits.
pub(super) fn bits(entropy: &mut Entropy, element: ElementType, shape: &[usize]) -> Tensor {
    let mut tensor = zeros(element, shape);
    tensor.bytes_mut().iter_mut().for_each(|byte| *byte = entropy.next() as u8);
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
pub(super) fn values(entropy: &mut Entropy, element: ElementType, shape: &[usize], choice: Choice) -> Tensor {
    if !element.is_float() {
        return bits(entropy, element, shape);
    }
    let len: usize = shape.iter().product();
    let mut values = Vec::with_capacity(len);
    while values.len() < len {
        values.append(&mut group_values(entropy, element, choice.group.max(1).min(len - values.len()), choice));
    }
    floats(element, shape, &values)
}

pub(super) fn floats(element: ElementType, shape: &[usize], values: &[f64]) -> Tensor {
    let (nearest, size) = (format_of(element).nearest, element.align());
    let bytes: Vec<u8> =
        values.iter().flat_map(|&x| nearest((x as f32).into()).to_le_bytes().into_iter().take(size)).collect();
    tensor(element, shape, &bytes)
}

/// The values of a group: of one of some sorts.
fn group_values(entropy: &mut Entropy, element: ElementType, len: usize, choice: Choice) -> Vec<f64> {
    let qmax = choice.qmax;
    let format = format_of(element);
    let (largest, tiny) = (format.max, 2f64.powi(format.least));
    let exponents = if element == ElementType::Float16 { 14 } else { 120 };
    let power = |entropy: &mut Entropy, most: i32| 2f64.powi(entropy.below(2 * most as usize) as i32 - most);
    let mut values: Vec<f64> = match if choice.moderate { 9 } else { entropy.below(10) } {
        // Quotients of exactly an integer and a half, and on and beside them.
        0 | 1 => {
            let step = power(entropy, 5);
            let beside = if entropy.one_in(3) { step * 2f64.powi(-9) } else { 0.0 };
            let half = |entropy: &mut Entropy| entropy.below(qmax as usize) as f64 + 0.5 + beside;
            let sign = |entropy: &mut Entropy| if entropy.one_in(2) { -step } else { step };
            let mut values: Vec<_> = (0..len).map(|_| half(entropy) * sign(entropy)).collect();
            let i = entropy.below(len);
            values[i] = qmax * step;
            values
        }
        // A step around 1e-5.
        2 => {
            let amax = 1e-5 * qmax * (1.0 + entropy.unit() * 0.01);
            (0..len).map(|i| if i == 0 { amax } else { amax * entropy.unit() }).collect()
        }
        // Zeros and denormals.
        3 => (0..len).map(|_| tiny * entropy.pick(&[0.0, -0.0, 1.0, -1.0, 2.0, -3.0, 100.0])).collect(),
        // The ends of the type.
        4 => (0..len).map(|_| largest * entropy.pick(&[1.0, -1.0, 0.5, -0.25, 1e-3])).collect(),
        // Any magnitude.
        5 => {
            let scale = power(entropy, exponents);
            (0..len).map(|_| scale * entropy.unit()).collect()
        }
        _ => (0..len).map(|_| 4.0 * entropy.unit()).collect(),
    };
    if choice.non_finite && entropy.one_in(3) && len > 0 {
        let i = entropy.below(len);
        values[i] = entropy.pick(&[f64::NAN, f64::INFINITY, f64::NEG_INFINITY]);
    }
    values
}

/// Scales: mostly steps as a store leaves them, some that none leaves.
pub(super) fn scales(entropy: &mut Entropy, element: ElementType, shape: &[usize]) -> Tensor {
    let scale = |_| match entropy.below(12) {
        0 => entropy.pick(&[0.0, -0.5, 2f64.powi(-24), 3.0 * 2f64.powi(-24), 2f64.powi(-140), 300.125]),
        _ => 0.001 + entropy.unit().abs(),
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
