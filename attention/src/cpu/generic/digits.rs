//! Queries as whole numbers: of a group of elements, what they are multiples of, and their digits to base 256, which are
//! bytes from -128 to 127, the lowest first.

/// As precise as float32: 24 bits of the largest element of a group.
pub(crate) const DIGITS: usize = 3;

/// Numbers in the head of a group: for each digit a sum, and the group's scale.
pub(crate) const HEAD: usize = DIGITS + 1;
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "only AVX-512 has digits"))]
pub(crate) const SCALE: usize = DIGITS;

/// Elements of the largest group whose sums are exact: 256 times that of a digit is an int32.
pub(crate) const LARGEST_GROUP: usize = 256;

/// A query of `head_dim` float32, whole registers in each group, which become digits: four bytes of the same digit, and
/// four such words for each four elements, of which the last is nothing. Where they cannot, the scale of the first group
/// is NaN.
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "only AVX-512 has digits"))]
pub(crate) struct Digits {
    pub(crate) query: *mut f32,
    pub(crate) head_dim: usize,
    pub(crate) group: usize,
    /// Where the heads of the groups are written, one after the other.
    pub(crate) heads: *mut f32,
}
