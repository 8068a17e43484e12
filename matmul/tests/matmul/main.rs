//! Every instruction set gives the reference's bits.

mod products;
