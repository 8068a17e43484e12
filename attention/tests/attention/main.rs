//! The attention kernels by themselves. Golden cases reach them through the operators, in the tests of `kvcache-op`.

mod invariance;
mod kernels;
mod mass;
mod prompts;
mod threads;
