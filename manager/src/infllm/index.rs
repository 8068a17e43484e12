//! The numbers that queries are compared with, of all blocks of a layer.

use std::sync::Arc;

/// Blocks whose numbers are contiguous: memory is read fastest so, and a fork copies no more than these.
const CHUNK: usize = 64;

/// The numbers of blocks, equally many of each. Clones share them.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Index {
    chunks: Vec<Arc<Vec<f32>>>,
    blocks: usize,
}

impl Index {
    /// Adds a block.
    pub(crate) fn push(&mut self, numbers: &[f32]) {
        if self.blocks.is_multiple_of(CHUNK) {
            self.chunks.push(Arc::new(Vec::with_capacity(CHUNK * numbers.len())));
        }
        if let Some(chunk) = self.chunks.last_mut() {
            Arc::make_mut(chunk).extend_from_slice(numbers);
        }
        self.blocks += 1;
    }

    /// The blocks in order, `len` numbers of each.
    pub(crate) fn blocks(&self, len: usize) -> impl Iterator<Item = &[f32]> {
        self.chunks.iter().flat_map(move |chunk| chunk.chunks_exact(len.max(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clone_keeps_its_blocks() {
        let numbers = |block: usize| [block as f32, 0.5];
        let mut index = Index::default();
        (0..100).for_each(|block| index.push(&numbers(block)));
        let mut clone = index.clone();
        (100..200).for_each(|block| index.push(&numbers(block)));
        clone.push(&[-1.0, -2.0]);
        let all = |index: &Index| index.blocks(2).map(<[f32]>::to_vec).collect::<Vec<_>>();
        assert_eq!(all(&index), (0..200).map(|block| numbers(block).to_vec()).collect::<Vec<_>>());
        assert_eq!((all(&clone).len(), &all(&clone)[..100]), (101, &all(&index)[..100]));
        assert_eq!(all(&clone)[100], [-1.0, -2.0]);
    }
}
