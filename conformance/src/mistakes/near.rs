//! What is said of results that no known mistake gives, and that only other roundings keep from being right: the oracle
//! cannot make them, since it does not know which roundings.

use super::mistake::Mistake;

/// Codes that are one from the right ones.
pub(crate) static CODES: Mistake = Mistake::new(
    "quantizing.ties-to-even",
    "codes-off-by-one",
    "Codes differ from the specified ones by at most one, and all else follows from that: x / s is computed otherwise, or \
     rounded otherwise, as by an approximate division or at random. It is rounded to T1, and then to the nearest \
     integer, ties to even.",
    |_| {},
);

/// Scales that are next to the right ones, and codes that come from them.
pub(crate) static SCALES: Mistake = Mistake::new(
    "quantizing.amax-quotient",
    "scales-off-by-a-unit",
    "Scales differ from the specified ones in the last place alone, and all else follows from that: amax / qmax is \
     computed or rounded otherwise, as by an approximate division.",
    |_| {},
);

/// Outputs or converted values that are next to the right ones.
pub(crate) static VALUES: Mistake = Mistake::new(
    "dequantizing.converted-to-t1",
    "values-off-by-a-unit",
    "Loaded or converted values differ from the specified ones in the last place alone: look for a rounding to T3 or T1 \
     that is left out, done twice, or is not to nearest, ties to even.",
    |_| {},
);
