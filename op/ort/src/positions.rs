//! The positions of inputs and outputs in a node.

/// The position of `name` in `names`, the inputs or outputs of an operator by position. For constants: an operator
/// without that input does not compile.
pub(crate) const fn position(names: &[&str], name: &str) -> usize {
    let mut index = 0;
    while index < names.len() {
        if equal(names[index].as_bytes(), name.as_bytes()) {
            return index;
        }
        index += 1;
    }
    panic!("the operator has no input or output of this name")
}

const fn equal(a: &[u8], b: &[u8]) -> bool {
    let mut index = 0;
    while index < a.len() && index < b.len() && a[index] == b[index] {
        index += 1;
    }
    index == a.len() && index == b.len()
}

/// The positions of the inputs that an operator has in common with `KeyValueCache`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StorePositions {
    pub(crate) current_key: usize,
    pub(crate) current_value: usize,
    pub(crate) seqstarts: usize,
    pub(crate) kvstarts: usize,
    pub(crate) cachestarts: usize,
    pub(crate) start_pos: usize,
    pub(crate) max_seqlen: usize,
    pub(crate) max_kvlen: usize,
    pub(crate) cache: usize,
    pub(crate) scale: usize,
}

impl StorePositions {
    /// Those of an operator with these inputs.
    pub(crate) const fn of(inputs: &[&str]) -> Self {
        Self {
            current_key: position(inputs, "current_key"),
            current_value: position(inputs, "current_value"),
            seqstarts: position(inputs, "seqstarts"),
            kvstarts: position(inputs, "kvstarts"),
            cachestarts: position(inputs, "cachestarts"),
            start_pos: position(inputs, "start_pos"),
            max_seqlen: position(inputs, "max_seqlen"),
            max_kvlen: position(inputs, "max_kvlen"),
            cache: position(inputs, "cache"),
            scale: position(inputs, "scale"),
        }
    }
}

#[cfg(test)]
mod tests {
    use kvcache_schema::{INPUTS, multi_head_cache_attention};

    use super::*;

    #[test]
    fn a_position_is_that_of_the_whole_name() {
        let names = ["key", "key_value", "", "value"];
        assert_eq!(names.map(|name| position(&names, name)), [0, 1, 2, 3]);
    }

    #[test]
    fn positions_are_those_of_the_specification() {
        let StorePositions { current_key, seqstarts, max_seqlen, cache, scale, .. } = StorePositions::of(&INPUTS);
        assert_eq!([current_key, seqstarts, max_seqlen, cache, scale], [0, 2, 6, 8, 9]);
        let fused = StorePositions::of(&multi_head_cache_attention::INPUTS);
        let StorePositions { current_key, seqstarts, max_seqlen, cache, scale, .. } = fused;
        assert_eq!([current_key, seqstarts, max_seqlen, cache, scale], [1, 3, 8, 10, 11]);
    }
}
