//! Access to the storage of tensors that an operation writes, under candle's own locks.

use std::cell::RefCell;

use candle_core::{CpuStorage, Error, InplaceOp1, InplaceOp3, Layout, Result, Tensor, bail};

/// Storage that is read, and which of it.
pub(crate) type Read<'a> = (&'a CpuStorage, &'a Layout);
/// Storage that is written, and which of it.
pub(crate) type Write<'a> = (&'a mut CpuStorage, &'a Layout);

/// Calls `body` with the storage of `written` to write and that of the others to read.
pub(crate) fn in_place3<R>(
    written: &Tensor,
    first: &Tensor,
    second: &Tensor,
    body: impl FnOnce(Write<'_>, Read<'_>, Read<'_>) -> Result<R>,
) -> Result<R> {
    let once = Once::new(body);
    written.inplace_op3(first, second, &once)?;
    once.result()
}

/// The same without others.
pub(crate) fn in_place1<R>(written: &Tensor, body: impl FnOnce(Write<'_>) -> Result<R>) -> Result<R> {
    let once = Once::new(body);
    written.inplace_op1(&once)?;
    once.result()
}

/// A function to be called once through a shared reference, and what it has returned.
struct Once<F, R> {
    body: RefCell<Option<F>>,
    result: RefCell<Option<R>>,
}

impl<F, R> Once<F, R> {
    fn new(body: F) -> Self {
        Self { body: RefCell::new(Some(body)), result: RefCell::new(None) }
    }

    fn call(&self, with: impl FnOnce(F) -> Result<R>) -> Result<()> {
        let Some(body) = self.body.take() else { bail!("an operation in place has been run twice") };
        self.result.replace(Some(with(body)?));
        Ok(())
    }

    fn result(self) -> Result<R> {
        self.result.into_inner().ok_or_else(|| Error::msg("an operation in place has not been run"))
    }
}

impl<R, F: FnOnce(Write<'_>) -> Result<R>> InplaceOp1 for Once<F, R> {
    fn name(&self) -> &'static str {
        "key_value_cache"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        self.call(|body| body((storage, layout)))
    }
}

impl<R, F: FnOnce(Write<'_>, Read<'_>, Read<'_>) -> Result<R>> InplaceOp3 for Once<F, R> {
    fn name(&self) -> &'static str {
        "key_value_cache"
    }

    fn cpu_fwd(
        &self,
        written: &mut CpuStorage,
        layout: &Layout,
        first: &CpuStorage,
        first_layout: &Layout,
        second: &CpuStorage,
        second_layout: &Layout,
    ) -> Result<()> {
        self.call(|body| body((written, layout), (first, first_layout), (second, second_layout)))
    }
}
