//! Rotary position embeddings (RoPE): what rotates a key from one position to another.
//!
//! The first `n_rot` elements of a head are pairs. Rotated by `delta` positions, pair `i`, `(a, b)`, becomes
//! `(a*c - b*s, a*s + b*c)` with `c` and `s` the cosine and sine of `delta * f_i`. The bits are defined:
//!
//! 1. `f_i = scale * base^(-2i / n_rot)` in float64, or the number of a given list;
//! 2. `delta * f_i`, its cosine and its sine in float64, the latter two rounded to float32. Powers, cosines and sines
//!    come from the machine's C library (libm): two that differ in a last bit of float64 agree here, but for the
//!    rare number that lies so close to the middle between two float32;
//! 3. the two products of a sum are rounded to float32, then the sum: nothing is fused.
//!
//! Elements from `n_rot` on stay. A NaN's bits other than being NaN are not defined.

use thiserror::Error;

/// The elements of a head that are a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RopeStyle {
    /// Elements `i` and `i + n_rot / 2`, as in GPT-NeoX and Llama's weights in Transformers.
    Neox,
    /// Elements `2i` and `2i + 1`, as in GPT-J and the original Llama.
    Gptj,
}

/// A rotary position embedding: how many elements it rotates, which are pairs, and the frequency of each pair.
///
/// Two are equal if they rotate every head by the same bits. [`check`](Self::check) says whether it can be used.
#[derive(Debug, Clone)]
pub struct Rope {
    n_rot: usize,
    style: RopeStyle,
    frequencies: Frequencies,
}

/// The frequency of each pair, in radians a position.
#[derive(Debug, Clone)]
enum Frequencies {
    /// `scale * base^(-2i / n_rot)`
    Powers { base: f64, scale: f64 },
    /// As given.
    List(Vec<f64>),
}

/// Why a rope cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
#[non_exhaustive]
pub enum RopeError {
    /// An odd number of elements, none, or more than a head has.
    #[error("n_rot is {n_rot}, expected an even number from 2 to head_dim {head_dim}")]
    NRot {
        /// The elements that are rotated.
        n_rot: usize,
        /// Elements of a head.
        head_dim: usize,
    },
    /// A frequency that is infinite or NaN.
    #[error("the frequency of pair {pair} is {got}, expected a finite number")]
    Frequency {
        /// The pair.
        pair: usize,
        /// Its frequency.
        got: f64,
    },
}

/// How far the keys of neighboring slots are rotated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rotation {
    /// The first slot.
    pub slot: usize,
    /// The number of slots.
    pub len: usize,
    /// Positions: the new one less the old one. Keys that are rotated by 0 keep their bytes.
    pub delta: i64,
}

impl Rope {
    /// Pairs `(i, i + n_rot / 2)` with the frequencies `base^(-2i / n_rot)`.
    pub const fn neox(n_rot: usize, base: f64) -> Self {
        Self { n_rot, style: RopeStyle::Neox, frequencies: Frequencies::Powers { base, scale: 1.0 } }
    }

    /// Pairs `(2i, 2i + 1)` with the frequencies `base^(-2i / n_rot)`.
    pub const fn gptj(n_rot: usize, base: f64) -> Self {
        Self { n_rot, style: RopeStyle::Gptj, frequencies: Frequencies::Powers { base, scale: 1.0 } }
    }

    /// The frequencies of a list, as YaRN or Llama 3 compute them: `n_rot` is twice its length.
    pub fn with_frequencies(style: RopeStyle, inv_freq: Vec<f64>) -> Self {
        Self { n_rot: 2 * inv_freq.len(), style, frequencies: Frequencies::List(inv_freq) }
    }

    /// This rope with every frequency multiplied by `scale`: positions that are interpolated linearly.
    #[must_use]
    pub fn scaled(self, scale: f64) -> Self {
        let frequencies = match self.frequencies {
            Frequencies::Powers { base, scale: before } => Frequencies::Powers { base, scale: before * scale },
            Frequencies::List(list) => Frequencies::List(list.into_iter().map(|f| f * scale).collect()),
        };
        Self { frequencies, ..self }
    }

    /// The elements of a head that are rotated: the first ones.
    pub fn n_rot(&self) -> usize {
        self.n_rot
    }

    /// The elements that are a pair.
    pub fn style(&self) -> RopeStyle {
        self.style
    }

    /// The frequency of each of the `n_rot / 2` pairs, in radians a position.
    pub fn frequencies(&self) -> impl ExactSizeIterator<Item = f64> + '_ {
        (0..self.n_rot / 2).map(|pair| match &self.frequencies {
            &Frequencies::Powers { base, scale } => scale * base.powf(-2.0 * pair as f64 / self.n_rot as f64),
            Frequencies::List(list) => list[pair],
        })
    }

    /// Whether it rotates heads of `head_dim` elements.
    ///
    /// # Errors
    /// [`RopeError::NRot`], [`RopeError::Frequency`].
    pub fn check(&self, head_dim: usize) -> Result<(), RopeError> {
        let n_rot = self.n_rot;
        if n_rot == 0 || n_rot > head_dim || !n_rot.is_multiple_of(2) {
            return Err(RopeError::NRot { n_rot, head_dim });
        }
        match self.frequencies().enumerate().find(|(_, f)| !f.is_finite()) {
            Some((pair, got)) => Err(RopeError::Frequency { pair, got }),
            None => Ok(()),
        }
    }

    /// Rotates a head by `delta` positions, pair by pair: every kernel must match it bit for bit.
    ///
    /// # Panics
    /// If the head has fewer than `n_rot` elements.
    pub fn rotate(&self, delta: i64, head: &mut [f32]) {
        for (pair, f) in self.frequencies().enumerate() {
            let (i, j) = match self.style {
                RopeStyle::Neox => (pair, pair + self.n_rot / 2),
                RopeStyle::Gptj => (2 * pair, 2 * pair + 1),
            };
            let (c, s) = cos_sin(delta, f);
            let (a, b) = (head[i], head[j]);
            (head[i], head[j]) = (a * c - b * s, a * s + b * c);
        }
    }
}

/// The cosine and sine of a pair of frequency `f` that is rotated by `delta` positions.
pub(crate) fn cos_sin(delta: i64, f: f64) -> (f32, f32) {
    let angle = delta as f64 * f;
    (angle.cos() as f32, angle.sin() as f32)
}

impl PartialEq for Rope {
    fn eq(&self, other: &Self) -> bool {
        let bits = |rope: &Self| (rope.n_rot, rope.style);
        bits(self) == bits(other) && self.frequencies().map(f64::to_bits).eq(other.frequencies().map(f64::to_bits))
    }
}

impl Eq for Rope {}
