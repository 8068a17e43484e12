//! The types of the operator's tensors.

use std::fmt;

/// The type of a tensor's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ElementType {
    /// IEEE 754 binary32.
    Float32,
    /// IEEE 754 binary16.
    Float16,
    /// bfloat16: the high half of binary32. An extension of the specification.
    BFloat16,
    /// 8-bit floats as codes (`float8e4m3fn` of ONNX): a sign, 4 bits of exponent, 3 of mantissa; no infinities, and
    /// NaN is 0x7f and 0xff. An extension of the specification.
    Float8E4M3Fn,
    /// Eight bits, two's complement.
    Int8,
    /// Four bits, two's complement; element 2i is the low nibble of byte i, as in ONNX.
    Int4,
    /// 64 bits, two's complement: the indices.
    Int64,
    /// Bytes: panels of codes of a quantized matrix.
    UInt8,
}

struct Row {
    name: &'static str,
    short_name: &'static str,
    bits: usize,
    onnx: i32,
    dlpack: u8,
}

const DLPACK_INT: u8 = 0;
const DLPACK_UINT: u8 = 1;
const DLPACK_FLOAT: u8 = 2;
const DLPACK_BFLOAT: u8 = 4;
const DLPACK_FLOAT8_E4M3FN: u8 = 10;

impl ElementType {
    /// Every type.
    pub const ALL: [Self; 8] = [
        Self::Float32,
        Self::Float16,
        Self::BFloat16,
        Self::Float8E4M3Fn,
        Self::Int8,
        Self::Int4,
        Self::Int64,
        Self::UInt8,
    ];

    /// The types that [`is_float`](Self::is_float) holds for.
    pub const FLOATS: [Self; 3] = [Self::Float32, Self::Float16, Self::BFloat16];

    /// Legal types of `current_key`, `current_value`, `key` and `value`: the specification's, then extensions.
    pub const T1: [Self; 4] = [Self::Float32, Self::Float16, Self::Int8, Self::BFloat16];

    /// Legal types of `cache`: the specification's, then extensions.
    pub const T2: [Self; 6] =
        [Self::Float32, Self::Float16, Self::Int8, Self::Int4, Self::BFloat16, Self::Float8E4M3Fn];

    /// Legal types of `scale`.
    pub const T3: [Self; 2] = [Self::Float32, Self::Float16];

    const fn row(self) -> Row {
        const fn row(name: &'static str, short_name: &'static str, bits: usize, onnx: i32, dlpack: u8) -> Row {
            Row { name, short_name, bits, onnx, dlpack }
        }
        match self {
            Self::Float32 => row("float32", "f32", 32, 1, DLPACK_FLOAT),
            Self::Float16 => row("float16", "f16", 16, 10, DLPACK_FLOAT),
            Self::BFloat16 => row("bfloat16", "bf16", 16, 16, DLPACK_BFLOAT),
            Self::Float8E4M3Fn => row("float8e4m3fn", "f8", 8, 17, DLPACK_FLOAT8_E4M3FN),
            Self::Int8 => row("int8", "i8", 8, 3, DLPACK_INT),
            Self::Int4 => row("int4", "i4", 4, 22, DLPACK_INT),
            Self::Int64 => row("int64", "i64", 64, 7, DLPACK_INT),
            Self::UInt8 => row("uint8", "u8", 8, 2, DLPACK_UINT),
        }
    }

    /// Whether the elements are numbers of a float type; codes of a quantized cache are none.
    pub const fn is_float(self) -> bool {
        matches!(self.row().dlpack, DLPACK_FLOAT | DLPACK_BFLOAT)
    }

    /// The width of an element in bits.
    pub const fn bits(self) -> usize {
        self.row().bits
    }

    /// The type's number in ONNX (`TensorProto.DataType`) and in ONNX Runtime.
    pub const fn onnx(self) -> i32 {
        self.row().onnx
    }

    /// The type's code in DLPack, which has types of several widths.
    pub const fn dlpack(self) -> u8 {
        self.row().dlpack
    }

    /// The bytes that `len` neighboring elements take, rounded up to whole bytes; `None` if that overflows.
    pub const fn bytes(self, len: usize) -> Option<usize> {
        match self {
            Self::Int4 => Some(len.div_ceil(2)),
            _ => len.checked_mul(self.bits() / 8),
        }
    }

    /// The bytes that `len` neighboring elements take, rounded up to whole bytes, where the tensor is known to fit in
    /// memory.
    pub const fn byte_len(self, len: usize) -> usize {
        match self {
            Self::Int4 => len.div_ceil(2),
            _ => len * (self.bits() / 8),
        }
    }

    /// The address that a pointer to such elements is a multiple of, in bytes.
    pub const fn align(self) -> usize {
        self.bits().div_ceil(8)
    }

    /// The type's name in the specification.
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// The type's name in the names of CUDA modules and kernels.
    pub const fn short_name(self) -> &'static str {
        self.row().short_name
    }

    /// The type of that name in the specification, if there is one.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|element| element.name() == name)
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
