//! An open step: planned, then applied, then committed or rolled back.

use kvcache_op::IndexInputs;
use ndarray::ArrayViewD;

use crate::append::Append;
use crate::batch::{Batch, batch_tensors};
use crate::error::Error;
use crate::manager::Manager;
use crate::mask::MaskElement;
use crate::mask_spec::MaskSpec;
use crate::memory::CacheMemory;
use crate::tensors::Tensors;

/// Rolls back what is open when it is dropped.
#[derive(Debug)]
pub(crate) struct Guard<'m>(pub(crate) &'m mut Manager);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.rollback_open_step();
    }
}

/// A step whose rows have their slots. [`apply`](Self::apply) makes its copies; dropped instead, it is rolled back.
#[derive(Debug)]
#[must_use = "a dropped step is rolled back"]
pub struct Planned<'m>(Guard<'m>);

/// A step that is ready to be run: its tensors are the operator's inputs. [`commit`](Self::commit) ends it; dropped
/// instead, it is rolled back.
#[derive(Debug)]
#[must_use = "a dropped step is rolled back"]
pub struct Step<'m>(Guard<'m>);

impl Manager {
    /// Plans a step that appends rows to sequences: all of them, or none. No appends are a legal step.
    ///
    /// # Errors
    /// [`Error::StepOpen`], [`Error::UnknownSeq`], [`Error::EmptyAppend`], [`Error::DuplicateSeq`],
    /// [`Error::PositionOrder`], [`Error::PositionOverflow`], [`Error::TooManyPages`], [`Error::OutOfPages`],
    /// [`Error::OutOfMemory`]: `max_pages` columns for each append are more than there is memory for.
    pub fn begin_step(&mut self, appends: &[Append<'_>]) -> Result<Planned<'_>, Error> {
        self.plan_step(appends)?;
        Ok(Planned(Guard(self)))
    }

    /// The step that was [detached](Step::detach), or leaked, after it was applied.
    pub fn open_step(&mut self) -> Option<Step<'_>> {
        if self.is_applied() { Some(Step(Guard(self))) } else { None }
    }
}

impl<'m> Planned<'m> {
    /// Runs the copies that the step needs before it writes: shared pages are copied.
    ///
    /// # Errors
    /// [`Error::Memory`]; the step is then rolled back; cached pages that a copy was to write are free.
    ///
    /// # Panics
    /// If the memory does. The step is then rolled back; all cached pages that it took are free.
    pub fn apply(self, memory: &mut (impl CacheMemory + ?Sized)) -> Result<Step<'m>, Error> {
        self.0.0.apply(memory)?;
        Ok(Step(self.0))
    }
}

batch_tensors!(Step<'_>);

impl Step<'_> {
    fn tensors(&self) -> &Tensors {
        &self.0.0.tensors
    }

    fn batch(&self) -> &Batch {
        &self.tensors().batch
    }

    /// The inputs of `KeyValueCache::check_layers`, and the index inputs of a single call.
    pub fn layers_inputs(&self) -> IndexInputs<'_> {
        self.tensors().index_inputs()
    }

    /// With pages shape (B, MaxP): the first slot of each page; -1 after the last one. Else shape (B): the first slot.
    pub fn cachestarts(&self) -> ArrayViewD<'_, i64> {
        self.tensors().cachestarts.view()
    }

    /// Shape (`seqstarts[B]`): the tokens to compute; -1 where they are not known.
    pub fn token_ids(&self) -> &[i64] {
        &self.tensors().token_ids
    }

    /// Shape (B): by entry, the tokens of its append that were found in the prefix index. They are not in `seqlen`.
    pub fn cached(&self) -> &[i64] {
        &self.tensors().cached
    }

    /// Replaces what is in `positions` by the positions of all rows, in the order of `key` and `value`: shape
    /// (`kvstarts[B]`).
    pub fn key_positions_into(&self, positions: &mut Vec<i64>) {
        self.0.0.key_positions_into(positions);
    }

    /// The planes, rows and columns of a mask. In the mode `cells` the rows are the tokens, rounded up to a multiple of
    /// 32, and the columns the cells of the second entry; else they are the tokens and the rows of `key` and `value`.
    pub fn mask_shape(&self, mask: &MaskSpec<'_>) -> [usize; 3] {
        self.0.0.mask_shape(mask)
    }

    /// Writes a mask of the shape [`mask_shape`](Self::mask_shape), float32 or float16, for attention over `key` and
    /// `value`; in the mode `cells` over those of the second entry. A visible key is 0 or a bias, all else is -inf.
    ///
    /// # Errors
    /// [`Error::MaskLength`].
    pub fn mask_into<T: MaskElement>(&self, spec: &MaskSpec<'_>, mask: &mut [T]) -> Result<(), Error> {
        self.0.0.mask_into(spec, mask)
    }

    /// Ends the step: its rows are stored.
    pub fn commit(self) {
        self.0.0.commit();
    }

    /// Ends the step as if it had never begun, as dropping it does.
    pub fn rollback(self) {}

    /// Lets the step stay open without borrowing the manager, which refuses all changes meanwhile:
    /// [`Manager::open_step`] gives it back. For bindings to languages without lifetimes.
    pub fn detach(self) {
        std::mem::forget(self.0);
    }
}
