//! Choices: numbers from a seed, or the bytes of a fuzzer's input one after the other; and tensors of
//! the values that implementations get wrong.

use kvcache_schema::ElementType;

use crate::difference::Value;
use crate::floats::format_of;
use crate::tensor::Tensor;

/// Where choices come from. The same seed, or the same bytes, always make the same ones, on every machine and whatever
/// version of a library is used.
#[derive(Debug, Clone)]
pub struct Entropy(Source);

#[derive(Debug, Clone)]
enum Source {
    Seed(u64),
    /// The bytes, from the last one to the first.
    Bytes(Vec<u8>),
}

impl Entropy {
    /// The choices of a seed.
    pub const fn seed(seed: u64) -> Self {
        Self(Source::Seed(seed))
    }

    /// The choices that bytes make: each takes as many as it needs from the front. Behind their end each is the first.
    pub fn bytes(bytes: &[u8]) -> Self {
        Self(Source::Bytes(bytes.iter().rev().copied().collect()))
    }

    pub(super) fn case(seed: u64, case: usize) -> Self {
        Self::seed(Self::seed(seed).next() ^ (case as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// Whether no byte is left. A seed has no end.
    pub fn is_empty(&self) -> bool {
        matches!(&self.0, Source::Bytes(bytes) if bytes.is_empty())
    }

    /// Other choices, of a seed that this one gives: for the many numbers of a tensor, which are not worth bytes.
    pub fn fork(&mut self) -> Self {
        Self::seed(match &self.0 {
            Source::Seed(_) => self.next(),
            Source::Bytes(_) => self.below(1 << 16) as u64,
        })
    }

    /// Any number.
    #[expect(clippy::should_implement_trait, reason = "there is no end")]
    pub fn next(&mut self) -> u64 {
        match &mut self.0 {
            Source::Seed(state) => {
                *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                z ^ (z >> 31)
            }
            Source::Bytes(bytes) => (0..8).fold(0, |number, _| number << 8 | u64::from(bytes.pop().unwrap_or(0))),
        }
    }

    /// A number below `end`; 0 if there is none.
    pub fn below(&mut self, end: usize) -> usize {
        let end = end.max(1);
        let Source::Bytes(bytes) = &mut self.0 else { return (self.next() % end as u64) as usize };
        let (mut number, mut most) = (0, end - 1);
        while most > 0 {
            number = number << 8 | usize::from(bytes.pop().unwrap_or(0));
            most >>= 8;
        }
        number % end
    }

    /// A number from `first` to `last`.
    pub fn within(&mut self, first: usize, last: usize) -> usize {
        first + self.below(last - first + 1)
    }

    /// Whether something happens that happens once in so many times.
    pub fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == times - 1
    }

    /// One of these.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// Brings items into another order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        (1..items.len()).rev().for_each(|i| items.swap(i, self.below(i + 1)));
    }

    /// A number from -1 up to 1.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }
}

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
