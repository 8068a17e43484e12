//! The rows of a cache on a device: copied, read, written and rotated by kernels over whole lists, which are the
//! kernels' parameters. So nothing is allocated or uploaded for a list, and nothing waits.

mod device_rows;
mod parameters;
mod ptx;

pub use device_rows::{DeviceRows, DeviceRowsError};
pub use parameters::{Move, MoveParameters, RotateParameters, RowPlace, Turn};
pub use ptx::ROWS;
