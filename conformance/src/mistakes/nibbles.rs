//! Mistakes of how codes lie in memory: the nibbles of int4, and the signs of codes.

use super::mistake::Mistake;
use crate::oracle::arithmetic::Arithmetic;

pub(super) const MISTAKES: &[Mistake] = &[
    Mistake::new(
        "int4.nibbles",
        "nibbles-swapped",
        "The first of two codes is in the high nibble: element 2i belongs in the low nibble of byte i.",
        |behavior| {
            behavior.arithmetic.nibble = swapped;
            behavior.arithmetic.loaded_nibble = swapped;
        },
    ),
    Mistake::new(
        "int4.nibbles",
        "nibbles-swapped-in-stores",
        "Stores put the first of two codes in the high nibble, loads take it from the low one: element 2i belongs in \
         the low nibble of byte i.",
        |behavior| behavior.arithmetic.nibble = swapped,
    ),
    Mistake::new(
        "int4.nibbles",
        "nibbles-swapped-in-loads",
        "Loads take the first of two codes from the high nibble, stores put it in the low one: element 2i belongs in \
         the low nibble of byte i.",
        |behavior| behavior.arithmetic.loaded_nibble = swapped,
    ),
    Mistake::new(
        "int4.nibbles",
        "nibbles-in-halves",
        "The first half of a head is in the low nibbles, the second in the high ones: neighbors 2i and 2i + 1 share \
         byte i.",
        |behavior| {
            behavior.arithmetic.nibble = |i, len| (i % (len / 2), i >= len / 2);
            behavior.arithmetic.loaded_nibble = |i, len| (i % (len / 2), i >= len / 2);
        },
    ),
    Mistake::new(
        "int4.nibbles",
        "unsigned-nibbles",
        "Nibbles are loaded as 0 to 15: they are two's complement, extend the sign of the fourth bit.",
        |behavior| behavior.arithmetic.from_nibble = |nibble, _| nibble as i8,
    ),
    Mistake::new(
        "int4.nibbles",
        "high-nibbles-unsigned",
        "High nibbles are loaded as 0 to 15: they are two's complement like the low ones, so shift a signed byte.",
        |behavior| behavior.arithmetic.from_nibble = |nibble, high| if high { nibble as i8 } else { signed(nibble) },
    ),
    Mistake::new(
        "int4.nibbles",
        "low-nibbles-unsigned",
        "Low nibbles are loaded as 0 to 15: they are two's complement like the high ones, extend the sign of the \
         fourth bit.",
        |behavior| behavior.arithmetic.from_nibble = |nibble, high| if high { signed(nibble) } else { nibble as i8 },
    ),
    Mistake::new(
        "int4.nibbles",
        "nibbles-offset-by-8",
        "Nibbles hold the code plus 8: they are two's complement.",
        |behavior| {
            behavior.arithmetic.to_nibble = |code| (code + 8) as u8;
            behavior.arithmetic.from_nibble = |nibble, _| nibble as i8 - 8;
        },
    ),
    Mistake::new(
        "int4.nibbles",
        "nibbles-offset-by-8-in-loads",
        "8 is subtracted from nibbles when they are loaded, as if they held the code plus 8: they are two's complement.",
        |behavior| behavior.arithmetic.from_nibble = |nibble, _| nibble as i8 - 8,
    ),
    Mistake::new(
        "int4.nibbles",
        "nibbles-offset-by-8-in-stores",
        "Nibbles are stored as the code plus 8: they are two's complement, as loads take them.",
        |behavior| behavior.arithmetic.to_nibble = |code| (code + 8) as u8,
    ),
    Mistake::new(
        "int4.nibbles",
        "nibbles-with-a-sign-bit",
        "Nibbles hold a sign and a magnitude: they are two's complement.",
        |behavior| {
            behavior.arithmetic.to_nibble = |code| code.unsigned_abs() | if code < 0 { 8 } else { 0 };
            behavior.arithmetic.from_nibble = |nibble, _| {
                let magnitude = (nibble & 7) as i8;
                if nibble & 8 == 0 { magnitude } else { -magnitude }
            };
        },
    ),
    Mistake::new(
        "int4.nibbles",
        "high-nibbles-not-stored",
        "The second of two codes is not stored, and the high nibble becomes 0: element 2i + 1 belongs there.",
        |behavior| behavior.arithmetic.with_nibble = |byte, nibble, high| if high { byte & 0x0f } else { nibble },
    ),
    Mistake::new(
        "int4.nibbles",
        "low-nibbles-not-stored",
        "The second of two codes overwrites the byte of the first, and the low nibble becomes 0: element 2i belongs \
         there.",
        |behavior| behavior.arithmetic.with_nibble = |_, nibble, high| if high { nibble << 4 } else { nibble },
    ),
    Mistake::new(
        "int4.nibbles",
        "low-nibbles-with-their-sign",
        "A negative code of the low nibble sets all bits of the high one: mask it with 15 before the two are joined.",
        |behavior| {
            behavior.arithmetic.with_nibble = |byte, nibble, high| match high {
                true => byte | nibble << 4,
                false => signed(nibble) as u8,
            };
        },
    ),
    Mistake::new(
        "int4.nibbles",
        "nibbles-joined-with-old-ones",
        "Codes are joined by OR with the bits that are in their byte: clear a nibble before it is written.",
        |behavior| {
            behavior.arithmetic.with_nibble = |byte, nibble, high| byte | if high { nibble << 4 } else { nibble };
        },
    ),
    Mistake::new(
        "quantizing.qmax",
        "codes-offset-by-128",
        "A byte of int8 holds the code plus 128: codes are two's complement, without a zero point.",
        |behavior| {
            behavior.arithmetic.code = |group, x, rounded| {
                let code = (Arithmetic::default().code)(group, x, rounded);
                if group.quant_bit == 8 { code ^ i8::MIN } else { code }
            };
            behavior.arithmetic.value = |group, code, scale| {
                let code = if group.quant_bit == 8 { code ^ i8::MIN } else { code };
                group.to_t1(group.to_t3(f64::from(code) * scale))
            };
        },
    ),
    Mistake::new(
        "dequantizing.rounded-to-t3",
        "codes-loaded-unsigned",
        "Codes of int8 are loaded as 0 to 255: they are two's complement, convert from a signed byte.",
        |behavior| {
            behavior.arithmetic.value = |group, code, scale| {
                let code = if group.quant_bit == 8 { f64::from(code as u8) } else { f64::from(code) };
                group.to_t1(group.to_t3(code * scale))
            };
        },
    ),
    Mistake::new(
        "dequantizing.rounded-to-t3",
        "lowest-code-clamped-in-loads",
        "A code of -128, or -8, that the cache holds is loaded as -127, or -7: no code is clamped when it is loaded.",
        |behavior| {
            behavior.arithmetic.value =
                |group, code, scale| group.to_t1(group.to_t3(f64::from(code).max(-group.qmax()) * scale));
        },
    )
    .static_rule("quantizing.groups"),
];

/// The first of two codes in the high nibble.
fn swapped(i: usize, _: usize) -> (usize, bool) {
    (i / 2, i.is_multiple_of(2))
}

/// The code of four bits.
fn signed(nibble: u8) -> i8 {
    (nibble << 4) as i8 >> 4
}
