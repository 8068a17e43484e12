//! The open step of a manager, of InfLLM and of recurrent states.

/// Opens one step at a time.
pub trait Stepped {
    /// Rolls back the open step, if there is one: for a step that was leaked instead of dropped.
    fn rollback_open_step(&mut self);
}

/// A step that is open: its `commit` ends it; dropped instead, it is rolled back.
#[derive(Debug)]
#[must_use = "a dropped step is rolled back"]
pub struct OpenStep<'m, M: Stepped>(pub(crate) &'m mut M);

impl<M: Stepped> OpenStep<'_, M> {
    /// Ends the step as if it had never begun, as dropping it does.
    pub fn rollback(self) {}

    /// Lets the step stay open without borrowing its manager, which refuses all changes meanwhile and gives it back by
    /// `open_step`. For bindings to languages without lifetimes.
    pub fn detach(self) {
        std::mem::forget(self);
    }
}

impl<M: Stepped> Drop for OpenStep<'_, M> {
    fn drop(&mut self) {
        self.0.rollback_open_step();
    }
}
