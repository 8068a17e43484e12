//! The contents and the size of masks.

use crate::step::mask::Visibility;

/// The positions that a mask hides beside other sequences and later ones, the values of visible keys, and the least
/// size.
///
/// A key is visible to a query of the same sequence whose position is not smaller. Visible keys are 0, or a bias by
/// [`alibi`](Self::alibi); all else is -inf, rows and columns of padding included. Ignore the rows of padding: the
/// softmax of -inf alone is NaN.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MaskSpec<'a> {
    window: MaskWindow,
    slopes: Option<&'a [f32]>,
    /// The least number of rows and of columns.
    padded: [usize; 2],
}

/// The window of a mask: a query at position q sees keys at positions above q - W, and the sequence's first `sink`
/// rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MaskWindow {
    /// The window of the cache's specification, if it has one.
    #[default]
    Spec,
    /// No window: all earlier positions.
    None,
    /// This W, with the `sink` of the cache's specification.
    Some(usize),
}

impl<'a> MaskSpec<'a> {
    /// A mask with the window of the cache's specification, no biases and no padding.
    pub fn causal() -> Self {
        Self { window: MaskWindow::Spec, slopes: None, padded: [0; 2] }
    }

    /// Sets the window.
    pub fn window(self, window: MaskWindow) -> Self {
        Self { window, ..self }
    }

    /// Biases by distance (ALiBi): a plane for each slope, usually one per head, in which a visible key is
    /// -|pos_q - pos_k| * slope, computed in float32 and rounded to the mask's type.
    pub fn alibi(self, slopes: &'a [f32]) -> Self {
        Self { slopes: Some(slopes), ..self }
    }

    /// Makes the mask have at least that many rows and columns.
    pub fn padded(self, rows: usize, columns: usize) -> Self {
        Self { padded: [rows, columns], ..self }
    }

    pub(crate) fn slopes(&self) -> Option<&'a [f32]> {
        self.slopes
    }

    /// The shape (planes, rows, columns) of a mask that needs that many rows and columns.
    pub(crate) fn shape(&self, rows: usize, columns: usize) -> [usize; 3] {
        let planes = self.slopes.map_or(1, <[f32]>::len);
        [planes, rows.max(self.padded[0]), columns.max(self.padded[1])]
    }

    /// What the mask shows, with the window and the sinks of the cache's specification.
    pub(crate) fn visibility(&self, spec_window: Option<usize>, sink: usize) -> Visibility {
        let window = match self.window {
            MaskWindow::Spec => spec_window,
            MaskWindow::None => None,
            MaskWindow::Some(window) => Some(window),
        };
        let window = window.map_or(i64::MAX, |window| i64::try_from(window).unwrap_or(i64::MAX));
        Visibility { window, sink }
    }
}
