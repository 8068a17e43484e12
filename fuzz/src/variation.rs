//! New inputs near others, for what libFuzzer's own changes of bytes rarely make: other choices from some point on, and
//! files whose text or bytes are others.

use kvcache_conformance::random::Unstructured;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Choices, one after the other: any bytes are some.
    Choices,
    /// The length of a text, the text, and bytes.
    File,
}

impl Form {
    pub fn vary(self, input: &mut Vec<u8>, random: &mut Unstructured) {
        match self {
            Self::Choices => vary_choices(input, random),
            Self::File => vary_file(input, random),
        }
    }
}

/// Others from some point on, or in some places.
fn vary_choices(input: &mut Vec<u8>, random: &mut Unstructured) {
    let mut any = |len: usize| -> Vec<u8> { (0..len).map(|_| random.next() as u8).collect() };
    match any(1)[0] % 8 {
        0..3 => *input = any(300),
        3..5 => {
            let rest = any(input.len());
            let from = random.below(input.len() + 1);
            input.splice(from.., rest);
        }
        5 => {
            let more = any(8);
            let (at, len) = (random.below(input.len() + 1), 1 + random.below(8));
            input.splice(at..at, more.into_iter().take(len));
        }
        _ => {
            for _ in 0..1 + random.below(4) {
                let at = random.below(input.len());
                if let Some(byte) = input.get_mut(at) {
                    *byte = random.next() as u8;
                }
            }
        }
    }
}

/// The text, whose length then mostly is the one that is given, or the bytes.
fn vary_file(input: &mut Vec<u8>, random: &mut Unstructured) {
    let len = input.first_chunk().map_or(0, |&len| u64::from_le_bytes(len));
    let end = usize::try_from(len).ok().and_then(|len| len.checked_add(8)).filter(|&end| end <= input.len());
    let (Some(end), true) = (end, random.below(16) > 0) else {
        let lengths = [0, len.wrapping_sub(1), len.wrapping_add(1), 1 << 32, 1 << 63, u64::MAX - 7, u64::MAX];
        let length = lengths[random.below(lengths.len())].to_le_bytes();
        return drop(input.splice(..input.len().min(8), length));
    };
    if random.below(2) == 0 && end < input.len() {
        let mut bytes = input.split_off(end);
        for _ in 0..1 + random.below(2) {
            // Small numbers are what is in them, of four or eight bytes.
            let at = random.below(bytes.len()) & if random.below(4) > 0 { !3 } else { !0 };
            bytes[at] = match random.below(4) {
                0 => bytes[at].wrapping_add(random.below(5) as u8).wrapping_sub(2),
                1 => bytes[random.below(bytes.len()) & !3],
                2 => random.below(40) as u8,
                _ => random.next() as u8,
            };
        }
        input.extend(bytes);
        match random.below(16) {
            0 => input.truncate(input.len() - 1 - random.below(8)),
            1 => input.extend_from_slice(&random.next().to_le_bytes()[random.below(8)..]),
            _ => {}
        }
        return;
    }
    let bytes = input.split_off(end);
    let mut text = input.split_off(8);
    vary_text(&mut text, random);
    *input = [&(text.len() as u64).to_le_bytes()[..], &text, &bytes].concat();
}

/// What texts break at: numbers at which types end, other types, names, and characters of several bytes.
#[rustfmt::skip]
const WORDS: [&str; 36] = [
    "0", "1", "-1", "2", "7", "255", "256", "65536", "2147483648", "4294967295", "4294967296", "9223372036854775807",
    "9223372036854775808", "18446744073709551615", "1e400", "0.5", "null", "true", "\"\"", "[]", "{}", "[0]", "~",
    ": ", "\n", "é", "\u{20ac}", "\u{1f600}", "\\u00e9", "int4", "U8", "I8", "F16", "page_size", "float16",
    "€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€",
];

/// Some changes, of which each leaves most of the text as it is.
pub fn vary_text(input: &mut Vec<u8>, random: &mut Unstructured) {
    for _ in 0..1 + random.below(3) {
        let word = WORDS[random.below(WORDS.len())].as_bytes();
        let at = random.below(input.len() + 1);
        let most = 1 << random.below(8);
        let len = random.below(most).min(input.len() - at);
        match random.below(8) {
            // In the place of a number, or of a word.
            0..3 => {
                let word = word.to_vec();
                let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._".contains(byte);
                let start = input[at..].iter().position(is_part).map_or(at, |skipped| at + skipped);
                let end = input[start..].iter().position(|byte| !is_part(byte)).map_or(input.len(), |len| start + len);
                input.splice(start..end, word);
            }
            3 => drop(input.splice(at..at, word.iter().copied())),
            4 => drop(input.splice(at..at + len.min(4), word.iter().copied())),
            5 => drop(input.drain(at..at + len)),
            6 => {
                let copy = input[at..at + len].to_vec();
                let to = random.below(input.len() + 1);
                input.splice(to..to, copy);
            }
            _ => {
                if let Some(byte) = input.get_mut(at) {
                    *byte = random.next() as u8;
                }
            }
        }
    }
}
