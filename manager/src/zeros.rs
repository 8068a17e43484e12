//! Arrays as long as a cache has pages or slots.

use crate::error::Error;

/// So many zeros. `vec!` gets zeroed memory from the system, so what is never used costs nothing; but it aborts where
/// there is no memory, so the memory is reserved once before.
pub(crate) fn zeros<T: bytemuck::Zeroable + Clone>(len: usize) -> Result<Vec<T>, Error> {
    Vec::<T>::new().try_reserve_exact(len).map_err(|_| Error::OutOfMemory { len, size: size_of::<T>() })?;
    Ok(vec![T::zeroed(); len])
}
