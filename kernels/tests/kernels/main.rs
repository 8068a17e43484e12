//! The kernels by themselves: rows of a cache, rotated keys, and arithmetic. How they store and load is tested through
//! the operators, in `kvcache-op`.

mod cache_rows;
mod every_float16;
mod layer_rows;
mod rotate_keys;
