//! Selection: queries score blocks, and the best are seen by the next step.

use ndarray::{ArrayView3, Axis};

use super::config::BlockScore;
use super::scores::{bound, dot, smooth, top_k};
use super::sequence::{Layer, Sequence, Setup};
use super::sequences::InfLlm;
use crate::error::Error;
use crate::memory::block::BlockKey;

impl InfLlm {
    /// Takes the queries of the last step in a layer, shape (its tokens in order of its entries, heads of queries,
    /// head_dim), as attention multiplies them with the keys of blocks. For each sequence of the step the blocks that
    /// fit the mean of its queries best are chosen. An entry of the step whose sequence was freed is passed over.
    /// Without blocks that are compared ([`BlockScore::None`]) nothing is chosen.
    ///
    /// A block's score is the mean over heads of the dot product of query and representative, or of the bound,
    /// smoothed: `alpha` of it is new. NaN is worse than any number; of equal blocks the older is better.
    ///
    /// # Errors
    /// [`Error::Layer`], [`Error::Shape`], [`Error::SelectedTwice`].
    pub fn select(&mut self, layer: usize, queries: ArrayView3<'_, f32>) -> Result<(), Error> {
        self.check_closed()?;
        self.setup.check_layer(layer)?;
        let (heads, head_dim) = (self.setup.query_heads(), self.setup.spec.geometry.head_dim);
        let expected = [self.last.iter().map(|entry| entry.1).sum(), heads, head_dim];
        if queries.shape() != expected {
            let (expected, got) = (expected.to_vec(), queries.shape().to_vec());
            return Err(Error::Shape { name: "queries", expected, got });
        }
        if std::mem::replace(&mut self.selected[layer], true) {
            return Err(Error::SelectedTwice { layer });
        }
        let group = self.setup.group(layer);
        let mut start = 0;
        for &(seq, n) in &self.last {
            let of_entry = start..start + n;
            start += n;
            let Some(sequence) = self.sequences.get_mut(&seq).filter(|sequence| !sequence.blocks.is_empty()) else {
                continue;
            };
            let mut query = vec![0.0; heads * head_dim];
            for token in of_entry {
                let token = queries.index_axis(Axis(0), token);
                query.iter_mut().zip(token).for_each(|(sum, x)| *sum += x);
            }
            query.iter_mut().for_each(|sum| *sum /= n as f32);
            sequence.score(&self.setup, layer, &query);
            let chosen = top_k(&sequence.group_scores(&self.setup, group, &self.selected), self.setup.config.topk);
            let residency = &sequence.residency[group];
            let missing = chosen.iter().filter(|&&block| residency.slot(block).is_none());
            let keys: Vec<BlockKey> = missing.map(|&block| sequence.blocks[block as usize].keys[group]).collect();
            self.blocks.store.prefetch(&keys);
            // Fewer are all there are; when there are more, others may fit better.
            sequence.chosen[group] = Some(chosen).filter(|chosen| chosen.len() == self.setup.config.topk);
        }
        Ok(())
    }
}

impl Setup {
    /// The similarity of a query, of all heads, and a block.
    fn similarity(&self, index: &[f32], query: &[f32]) -> f32 {
        let head_dim = self.spec.geometry.head_dim;
        let sum = match self.config.score {
            BlockScore::Representatives => dot(query, index),
            BlockScore::PageBounds => {
                let heads = query.chunks_exact(head_dim).enumerate();
                let bounds = heads.map(|(h, query)| {
                    let [min, max] = [0, 1].map(|i| {
                        let start = (h / self.config.num_repeat * 2 + i) * head_dim;
                        &index[start..start + head_dim]
                    });
                    bound(query, min, max)
                });
                bounds.sum()
            }
            BlockScore::None => 0.0,
        };
        sum / self.query_heads() as f32
    }
}

impl Sequence {
    /// Scores all blocks in a layer.
    fn score(&mut self, setup: &Setup, layer: usize, query: &[f32]) {
        let Layer { scores, index, .. } = &mut self.layers[layer];
        for (i, numbers) in index.blocks(setup.index_len()).enumerate() {
            let new = setup.similarity(numbers, query);
            match scores.get_mut(i) {
                Some(score) => *score = smooth(setup.config.alpha, Some(*score), new),
                None => scores.push(smooth(setup.config.alpha, None, new)),
            }
        }
    }

    /// The scores of blocks, as the mean of those layers that have selected.
    fn group_scores(&self, setup: &Setup, group: usize, selected: &[bool]) -> Vec<f32> {
        let mut means = vec![0.0; self.blocks.len()];
        let layers: Vec<_> = setup.layers(group).filter(|&layer| selected[layer]).collect();
        for &layer in &layers {
            means.iter_mut().zip(&self.layers[layer].scores).for_each(|(sum, score)| *sum += score);
        }
        means.iter_mut().for_each(|sum| *sum /= layers.len() as f32);
        means
    }
}
