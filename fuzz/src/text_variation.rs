//! New texts near others, most of which can still be read.

use kvcache_conformance::random::Entropy;

/// What texts break at: numbers at which types end, other types, names, and characters of several bytes.
#[rustfmt::skip]
const WORDS: [&str; 36] = [
    "0", "1", "-1", "2", "7", "255", "256", "65536", "2147483648", "4294967295", "4294967296", "9223372036854775807",
    "9223372036854775808", "18446744073709551615", "1e400", "0.5", "null", "true", "\"\"", "[]", "{}", "[0]", "~",
    ": ", "\n", "é", "\u{20ac}", "\u{1f600}", "\\u00e9", "int4", "U8", "I8", "F16", "page_size", "float16",
    "€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€€",
];

/// Some changes, of which each leaves most of the text as it is.
pub fn vary_text(input: &mut Vec<u8>, random: &mut Entropy) {
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
