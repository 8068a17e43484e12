//! The positions of the operator's inputs and outputs in a node.

pub(crate) const CURRENT_KEY: usize = 0;
pub(crate) const CURRENT_VALUE: usize = 1;
pub(crate) const SEQSTARTS: usize = 2;
pub(crate) const KVSTARTS: usize = 3;
pub(crate) const CACHESTARTS: usize = 4;
pub(crate) const START_POS: usize = 5;
pub(crate) const MAX_SEQLEN: usize = 6;
pub(crate) const MAX_KVLEN: usize = 7;
pub(crate) const CACHE: usize = 8;
pub(crate) const SCALE: usize = 9;

pub(crate) const KEY: usize = 0;
pub(crate) const VALUE: usize = 1;

#[cfg(test)]
mod tests {
    use kvcache_schema::{INPUTS, OUTPUTS};

    use super::*;

    #[test]
    fn positions_are_those_of_the_schema() {
        let positions = [
            ("current_key", CURRENT_KEY),
            ("current_value", CURRENT_VALUE),
            ("seqstarts", SEQSTARTS),
            ("kvstarts", KVSTARTS),
            ("cachestarts", CACHESTARTS),
            ("start_pos", START_POS),
            ("max_seqlen", MAX_SEQLEN),
            ("max_kvlen", MAX_KVLEN),
            ("cache", CACHE),
            ("scale", SCALE),
        ];
        assert_eq!(positions.map(|(name, _)| name), INPUTS);
        assert_eq!(positions.map(|(_, position)| position), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!([OUTPUTS[KEY], OUTPUTS[VALUE]], ["key", "value"]);
    }
}
