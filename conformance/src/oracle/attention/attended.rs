//! An output of attention as it is predicted, and how far an implementation's may be from it.

use std::rc::Rc;

use kvcache_schema::ElementType;

use crate::oracle::decisions::Conversion;
use crate::oracle::numbers::{read, rounded, write};
use crate::tensor::Tensor;

/// A tolerance beyond so many times the largest value says nothing.
const MOST_TOLERANCE: f64 = 1024.0;

/// An output, and how far each element may be from what an implementation that does the same gives.
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "described above")]
pub struct Attended {
    pub element: ElementType,
    pub shape: Vec<usize>,
    pub values: Vec<f64>,
    /// 0 where the value is not finite.
    pub tolerance: Vec<f64>,
    /// It over products of code and scale that are not rounded, where these are others: as right, for a whole output.
    pub unrounded: Option<Rc<Attended>>,
}

impl Attended {
    /// It as an implementation gives it, rounded to its type.
    pub fn tensor(&self) -> Tensor {
        let Some(mut tensor) = Tensor::zeros(self.element, self.shape.clone()) else {
            unreachable!("it has values in memory")
        };
        for (i, &x) in self.values.iter().enumerate() {
            write(Conversion::Nearest, self.element, tensor.bytes_mut(), i, x);
        }
        tensor
    }

    /// Whether a call that gave `made` did the same. What is so vague that almost everything is within its tolerance, as
    /// where errors of large scores are multiplied with weights far beyond 1, says nothing.
    pub(crate) fn fits(&self, made: &Tensor) -> bool {
        let largest = |values: &[f64]| values.iter().filter(|x| x.is_finite()).fold(0.0, |a: f64, b| a.max(b.abs()));
        let fits = |one: &Self| {
            largest(&one.tolerance) <= MOST_TOLERANCE * largest(&one.values).max(1.0)
                && one.is_near_from(0, one.values.len(), made)
        };
        self.has_form_of(made) && self.either().any(fits)
    }

    /// It, and it unrounded.
    fn either(&self) -> impl Iterator<Item = &Self> {
        [Some(self), self.unrounded.as_deref()].into_iter().flatten()
    }

    /// Whether it has the type and the shape of a tensor.
    pub(super) fn has_form_of(&self, made: &Tensor) -> bool {
        (self.element, &self.shape[..]) == (made.element(), made.shape())
    }

    /// An element as it is expected: what is too large for the type is an infinity.
    pub fn expected(&self, i: usize) -> f64 {
        let x = self.values[i];
        if rounded(Conversion::Nearest, self.element, x).is_infinite() { f64::INFINITY.copysign(x) } else { x }
    }

    /// Whether so many elements of `made`, which has the same form, are within the tolerance.
    pub(super) fn is_near_from(&self, first: usize, len: usize, made: &Tensor) -> bool {
        (first..first + len).all(|i| {
            let made = read(Conversion::Nearest, self.element, made.bytes(), i);
            passes(self.expected(i), made, self.tolerance[i])
        })
    }

    /// Whether it is farther from what is right than that allows and, so many times, its own tolerance: as it is, and
    /// rounded as implementations give it.
    pub(crate) fn differs(&self, right: &Self, own: f64) -> bool {
        self.either().all(|wrong| right.either().all(|right| wrong.is_far_from(right, own)))
    }

    fn is_far_from(&self, right: &Self, own: f64) -> bool {
        let is_near = |i: usize| {
            let (expected, allowed) = (right.values[i], right.tolerance[i] + own * self.tolerance[i]);
            let given = rounded(Conversion::Nearest, right.element, self.values[i]);
            passes(expected, self.values[i], allowed) && passes(expected, given, allowed)
        };
        self.element != right.element || self.shape != right.shape || !(0..self.values.len()).all(is_near)
    }
}

/// Whether a number is the expected one, within a tolerance; one that is not finite is the same infinity or a NaN.
fn passes(expected: f64, got: f64, tolerance: f64) -> bool {
    match expected.is_finite() {
        true => (got - expected).abs() <= tolerance,
        false => got == expected || got.is_nan() && expected.is_nan(),
    }
}
