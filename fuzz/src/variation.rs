//! New inputs near others, for what libFuzzer's own changes of bytes rarely make: other choices from some point on, and
//! files whose text or bytes are others.

use crate::text_variation::vary_text;
use kvcache_conformance::random::Entropy;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Choices, one after the other: any bytes are some.
    Choices,
    /// The length of a text, the text, and bytes.
    File,
}

impl Form {
    pub fn vary(self, input: &mut Vec<u8>, random: &mut Entropy) {
        match self {
            Self::Choices => vary_choices(input, random),
            Self::File => vary_file(input, random),
        }
    }
}

/// Others from some point on, or in some places.
fn vary_choices(input: &mut Vec<u8>, random: &mut Entropy) {
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
fn vary_file(input: &mut Vec<u8>, random: &mut Entropy) {
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
