//! The interpreter's rules, and functions of the kernels by themselves. The kernels run in the tests of `op`.

mod arithmetic;
mod rules;
