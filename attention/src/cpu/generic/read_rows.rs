//! Reads rows of a cache as float32, with the roundings of `KeyValueCache`: of the product of code and scale to T3,
//! then of the value to T1. Where one of them is float16, one rounding to float16 is both.

use std::marker::PhantomData;

use half::f16;

use super::elements::{Element, Float};
use super::outline::Function;
use super::simd::{MOST_LANES, Simd};

/// Rows of one head, and where they are written to.
///
/// Every row's elements and scales can be read, and `to` be written in whole registers for every row.
pub(crate) struct Rows<'a> {
    /// The head's first row, and how many bytes behind it each row begins.
    pub(crate) from: *const u8,
    pub(crate) offsets: &'a [usize],
    /// The same of the scales; not accessed without.
    pub(crate) scale: *const u8,
    pub(crate) scale_offsets: &'a [usize],
    /// Which scale each lane has.
    pub(crate) lanes: &'a ScaleLanes,
    /// Room for the scales of a row as float32, and a register more.
    pub(crate) room: *mut f32,
    /// Elements in a row.
    pub(crate) len: usize,
    /// Where the first row is written, in whole registers.
    pub(crate) to: *mut f32,
    /// Elements from one written row to the next, a multiple of a register.
    pub(crate) to_step: usize,
}

/// For each register of a row, which scales its lanes have.
#[derive(Debug, Default)]
pub(crate) struct ScaleLanes {
    /// Scales of a row.
    groups: usize,
    /// The scale of each register's first lane.
    first: Vec<usize>,
    /// For each lane of each register, how far behind the first its scale is.
    lanes: Vec<[u32; MOST_LANES]>,
}

impl ScaleLanes {
    /// For rows of `len` elements in groups of `group`, in registers of `lanes`.
    pub(crate) fn new(len: usize, group: usize, lanes: usize) -> Self {
        let starts = (0..len).step_by(lanes);
        Self {
            groups: len / group,
            first: starts.clone().map(|start| start / group).collect(),
            lanes: starts
                .map(|start| std::array::from_fn(|i| ((start + i % lanes) / group - start / group) as u32))
                .collect(),
        }
    }

    /// Scales of a row.
    pub(crate) fn groups(&self) -> usize {
        self.groups
    }
}

/// What rows are multiplied with.
pub(crate) trait Scale {
    /// Prepares the scales of a row.
    ///
    /// # Safety
    /// The instruction set is enabled, and the row has scales.
    unsafe fn prepare<S: Simd>(rows: &Rows<'_>, row: usize);

    /// A register of elements, multiplied.
    ///
    /// # Safety
    /// The instruction set is enabled, and the scales of the row have been prepared.
    unsafe fn multiply<S: Simd>(rows: &Rows<'_>, register: usize, x: S::F32) -> S::F32;
}

/// Nothing.
pub(crate) struct Unscaled;

impl Scale for Unscaled {
    #[inline(always)]
    unsafe fn prepare<S: Simd>(_: &Rows<'_>, _: usize) {}

    #[inline(always)]
    unsafe fn multiply<S: Simd>(_: &Rows<'_>, _: usize, x: S::F32) -> S::F32 {
        x
    }
}

/// Scales of type T.
pub(crate) struct Scaled<T>(PhantomData<T>);

impl<T: Float> Scale for Scaled<T> {
    #[inline(always)]
    unsafe fn prepare<S: Simd>(rows: &Rows<'_>, row: usize) {
        let groups = rows.lanes.groups;
        // SAFETY: the row's scales can be read, and the room has a register more than they take.
        unsafe {
            let from: *const T = rows.scale.add(rows.scale_offsets[row]).cast();
            let mut i = 0;
            while i + S::LANES <= groups {
                S::write_f32(rows.room.add(i), T::read::<S>(from.add(i)));
                i += S::LANES;
            }
            if i < groups {
                S::write_f32(rows.room.add(i), T::read_some::<S>(from.add(i), groups - i));
            }
        }
    }

    #[inline(always)]
    unsafe fn multiply<S: Simd>(rows: &Rows<'_>, register: usize, x: S::F32) -> S::F32 {
        // SAFETY: a register can be read from any of the scales on: the room has one more than they take.
        unsafe {
            let scales = S::read_f32(rows.room.add(rows.lanes.first[register]));
            S::mul(x, S::permute(scales, rows.lanes.lanes[register].as_ptr()))
        }
    }
}

/// Reads elements E, multiplied with scales C and, with `ROUND`, rounded to float16.
pub(crate) struct ReadRows<E, C, const ROUND: bool>(PhantomData<(E, C)>);

impl<E: Element, C: Scale, const ROUND: bool> ReadRows<E, C, ROUND> {
    /// The value of a register of elements.
    ///
    /// # Safety
    /// As for [`Scale::multiply`].
    #[inline(always)]
    unsafe fn value<S: Simd>(rows: &Rows<'_>, register: usize, x: S::F32) -> S::F32 {
        // SAFETY: see `# Safety`.
        unsafe {
            let x = C::multiply::<S>(rows, register, x);
            if ROUND { f16::round::<S>(x) } else { x }
        }
    }
}

impl<E: Element, C: Scale, const ROUND: bool> Function for ReadRows<E, C, ROUND> {
    type Arguments<'a> = Rows<'a>;
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(rows: &Rows<'_>) {
        for (i, &offset) in rows.offsets.iter().enumerate() {
            // SAFETY: see `# Safety`; a register ends inside of the row, but for the last one, of whose bytes those of
            // the row are copied.
            unsafe {
                C::prepare::<S>(rows, i);
                let (from, to) = (rows.from.add(offset), rows.to.add(i * rows.to_step));
                let mut at = 0;
                while at + S::LANES <= rows.len {
                    let x = E::read::<S>(from.add(at / E::ELEMENTS * E::BYTES));
                    S::write_f32(to.add(at), Self::value::<S>(rows, at / S::LANES, x));
                    at += S::LANES;
                }
                if at < rows.len {
                    let mut tail = [0u8; MOST_LANES * 4];
                    let bytes = (rows.len - at) / E::ELEMENTS * E::BYTES;
                    tail.as_mut_ptr().copy_from_nonoverlapping(from.add(at / E::ELEMENTS * E::BYTES), bytes);
                    let x = E::read::<S>(tail.as_ptr());
                    S::write_f32(to.add(at), Self::value::<S>(rows, at / S::LANES, x));
                }
            }
        }
    }
}
