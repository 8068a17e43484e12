//! A decoded kernel: registers are numbers, and labels are places.

use std::fmt;

use crate::arithmetic::{Compute, Lanes, Type};

/// A register, or a constant: see [`CONSTANT`].
pub(crate) type Register = u32;

/// The bit that says that a register's other bits are the number of a constant.
pub(crate) const CONSTANT: Register = 1 << 31;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Space {
    Param,
    Shared,
    Global,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Access {
    pub(crate) space: Space,
    pub(crate) base: Register,
    pub(crate) offset: u64,
    /// The type of each element.
    pub(crate) of: Type,
    /// Through the read-only cache.
    pub(crate) nc: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shuffle {
    Up,
    Down,
    Xor,
    Index,
}

pub(crate) enum Kind {
    Compute(Compute, Register, [Register; 4]),
    Load(Access, Vec<Register>),
    Store(Access, Vec<Register>),
    /// `atom.cas`: the result, and which number is replaced by which.
    CompareAndSwap(Access, Register, [Register; 2]),
    /// The value, the argument, the clamp and the mask of the lanes; the result, and whether it is another lane's.
    Shuffle(Shuffle, [Register; 4], [Register; 2]),
    /// With the mask of the lanes.
    SyncWarp(Register),
    /// A barrier of the block; with `red.or` whether a predicate holds in any thread, and the predicate.
    SyncBlock(Option<[Register; 2]>),
    Branch(u32),
    Exit,
}

pub(crate) struct Instruction {
    pub(crate) line: u32,
    /// The name with all its parts, by its number in [`Code::names`].
    pub(crate) name: u32,
    /// The predicate, and whether it is negated.
    pub(crate) guard: Option<(Register, bool)>,
    pub(crate) kind: Kind,
}

/// A kernel that can be run.
#[derive(Default)]
pub struct Code {
    pub kernel: String,
    pub(crate) instructions: Vec<Instruction>,
    pub(crate) names: Vec<String>,
    /// The names of registers.
    pub(crate) registers: Vec<String>,
    pub(crate) constants: Vec<Lanes>,
    pub parameter_bytes: usize,
    pub(crate) shared_bytes: usize,
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.kernel)
    }
}
