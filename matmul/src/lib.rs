#![doc = include_str!("../README.md")]

mod cpu;
mod gate;
mod matrix;
mod product;
mod reference;

pub use cpu::MatmulCpu;
pub use gate::Gate;
pub use matrix::{COLUMNS, Matrix, MatrixShape, pack, pack_columns};
pub use product::{Activations, MatmulKernel, Product};
pub use reference::MatmulReference;
