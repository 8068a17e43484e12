//! The size of a tensor by its shape, computed with checks.

use crate::ElementType;

/// The number of elements of a tensor of this shape; `None` if it overflows.
#[inline]
pub fn elements(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1usize, |len, &axis| len.checked_mul(axis))
}

/// The bytes of a row-major tensor of this type and shape; `None` if they are more than `isize::MAX`, which is the most
/// that a pointer can be moved by.
#[inline]
pub fn bytes(element: ElementType, shape: &[usize]) -> Option<usize> {
    element.bytes(elements(shape)?).filter(|&bytes| isize::try_from(bytes).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HUGE: usize = 1 << (usize::BITS - 2);

    #[test]
    fn a_scalar_has_one_element_and_an_empty_axis_makes_none() {
        assert_eq!(elements(&[]), Some(1));
        assert_eq!(elements(&[3, 0, 5]), Some(0));
        assert_eq!(elements(&[3, 4, 5]), Some(60));
        assert_eq!(bytes(ElementType::Float16, &[3, 5]), Some(30));
        assert_eq!(bytes(ElementType::Int4, &[3, 5]), Some(8));
    }

    #[test]
    fn what_overflows_has_no_size() {
        assert_eq!(elements(&[HUGE, 4]), None);
        assert_eq!(elements(&[HUGE, 2]), Some(2 * HUGE));
        assert_eq!(bytes(ElementType::Int8, &[HUGE, 2]), None);
        assert_eq!(bytes(ElementType::Int8, &[HUGE]), Some(HUGE));
        assert_eq!(bytes(ElementType::Float32, &[HUGE]), None);
        assert_eq!(bytes(ElementType::Int4, &[HUGE, 2]), Some(HUGE));
    }
}
