//! How the kernel reads rows of keys and rows of values: chosen once for a call, for each of the two.

use kvcache_kernels::{Quant, RowLoader};
use kvcache_schema::ElementType::{self, Float32};
use kvcache_simd::InstructionSet;

use super::dispatch::{CodeFunctions, IntegerFunctions, QuantFunctions, ReadFunction, code_functions};
use super::generic::panel::WORDS;
use super::generic::rows::BLOCK;
use super::generic::softmax::SUMS;

/// Bytes of rows that are loaded at once: they stay in the first-level cache until they are used.
const LOADED_BYTES: usize = 16 << 10;

/// Groups of that many codes, or whole times as many, are whole registers with all instruction sets.
const WHOLE: usize = 16;

/// How rows become numbers.
#[expect(clippy::large_enum_variant, reason = "a call has two")]
pub(super) enum Read {
    /// Floats, which functions read where they are.
    InPlace,
    /// Integer codes, which functions read where they are: scales enter sums.
    Integers(Integers),
    /// Rows that are converted or dequantized into memory, a few at a time.
    Loaded(Loaded),
}

/// Integer codes: their functions, the codes that share a scale, and how many scales a row has.
#[derive(Clone, Copy)]
pub(super) struct Integers {
    pub(super) functions: IntegerFunctions,
    pub(super) group: usize,
    pub(super) groups: usize,
}

/// Rows that are loaded.
#[derive(Clone)]
pub(super) struct Loaded {
    pub(super) loader: RowLoader,
    /// The bytes from the first loaded row to each row.
    pub(super) offsets: [usize; BLOCK],
    /// Rows that are loaded at once.
    pub(super) at_once: usize,
    /// The functions with which few queries dequantize the codes in registers instead: more queries use a value more
    /// than once.
    pub(super) in_registers: Option<CodeFunctions>,
}

/// Scales that are converted into memory first, which stay there as float32.
pub(super) struct Scales {
    pub(super) read: ReadFunction,
    /// Scales of a row.
    pub(super) len: usize,
    /// The bytes from the first row to each row.
    pub(super) offsets: [usize; BLOCK],
}

impl Scales {
    /// The bytes from the first of rows of `len` scales to each.
    pub(super) fn offsets(len: usize) -> [usize; BLOCK] {
        std::array::from_fn(|t| t * len * size_of::<f32>())
    }
}

impl Read {
    /// How keys and values of float type `t2` are read as numbers of type `floats`, in rows of `width` in memory.
    pub(super) fn floats(
        instructions: InstructionSet,
        [t2, floats]: [ElementType; 2],
        head_dim: usize,
        width: usize,
    ) -> [Self; 2] {
        let loader = || RowLoader::new(instructions, (floats, t2, None), head_dim, 1).filter(|_| t2 != floats);
        [(); 2].map(|()| loader().map_or(Self::InPlace, |loader| Self::Loaded(Loaded::new(loader, floats, width))))
    }

    /// How keys and values of a quantized cache are read as float32, and scales that are not read where they are.
    pub(super) fn codes(
        instructions: InstructionSet,
        (t2, quant): (ElementType, Quant),
        functions: &QuantFunctions,
        head_dim: usize,
        width: usize,
    ) -> ([Self; 2], Option<Scales>) {
        let Quant { bits, group, t3, .. } = quant;
        let groups = head_dim / group;
        let integers = functions.integers.map(|functions| Integers { functions, group, groups });
        let in_registers = code_functions(instructions, bits, head_dim, group);
        // Functions read whole registers of scales, which would end after the tensor where they are.
        let parts = integers.is_some() && !groups.is_multiple_of(WORDS)
            || in_registers.is_some_and(|functions| !functions.is_wide);
        let scales = (t3 != Float32 || parts).then(|| Scales {
            read: functions.read_scales,
            len: groups,
            offsets: Scales::offsets(groups),
        });
        let loaded = || {
            let loader = RowLoader::new(instructions, (Float32, t2, Some(Float32)), head_dim, group);
            let loader = loader.expect("codes are no float32");
            Self::Loaded(Loaded { in_registers, ..Loaded::new(loader, Float32, width) })
        };
        let [keys, values] = [integers, integers.filter(|_| group.is_multiple_of(WHOLE))];
        ([keys, values].map(|integers| integers.map_or_else(loaded, Self::Integers)), scales)
    }

    pub(super) fn integers(&self) -> Option<&Integers> {
        match self {
            Self::Integers(integers) => Some(integers),
            _ => None,
        }
    }

    pub(super) fn loaded(&self) -> Option<&Loaded> {
        match self {
            Self::Loaded(loaded) => Some(loaded),
            _ => None,
        }
    }

    /// The functions for that many queries that dequantize codes in registers.
    pub(super) fn in_registers(&self, queries: usize) -> Option<&CodeFunctions> {
        self.loaded()?.in_registers.as_ref().filter(|_| queries <= 4)
    }
}

impl Loaded {
    fn new(loader: RowLoader, floats: ElementType, width: usize) -> Self {
        let row = width * floats.byte_len(1);
        let at_once = (LOADED_BYTES / row.max(1) / SUMS * SUMS).clamp(SUMS, BLOCK);
        Self { loader, offsets: std::array::from_fn(|t| t * row), at_once, in_registers: None }
    }
}
