//! A loop that reads and writes some bytes, and does nothing else with them.

use std::hint::black_box;
use std::ops::Range;

use super::workload::Traffic;

/// The longer side of what is copied at a time, so that bytes which are written repeatedly stay in the nearest cache.
const TILE: usize = 16 << 10;

/// Memory to copy between, tile by tile. Where a tile is longer than what is written of it, its rest is summed; where it
/// is shorter, it is written repeatedly.
pub(super) struct Copying {
    from: Vec<u8>,
    to: Vec<u8>,
    sum: u64,
}

impl Copying {
    pub(super) fn new(traffic: Traffic) -> Self {
        let bytes = |count: u64| usize::try_from(count).unwrap_or(usize::MAX);
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        let from = (0..bytes(traffic.read)).map(|_| random()).collect();
        Self { from, to: vec![0; bytes(traffic.written)], sum: 0 }
    }

    /// Copies all.
    pub(super) fn run(&mut self) {
        let tiles = self.tiles();
        let mut sum = 0u64;
        for tile in 0..tiles {
            let from = &self.from[part(self.from.len(), tile, tiles)];
            let to = part(self.to.len(), tile, tiles);
            sum = sum.wrapping_add(copy(from, &mut self.to[to]));
        }
        self.sum = black_box(sum);
    }

    /// Whether all was copied and summed, when it last ran.
    pub(super) fn is_right(&self) -> bool {
        let tiles = self.tiles();
        let mut sum = 0u64;
        let copied = (0..tiles).all(|tile| {
            let from = &self.from[part(self.from.len(), tile, tiles)];
            let to = &self.to[part(self.to.len(), tile, tiles)];
            let rest = from.get(to.len()..).unwrap_or_default();
            sum = words(rest).fold(sum, u64::wrapping_add);
            from.is_empty() || to.iter().enumerate().all(|(i, &byte)| byte == from[i % from.len()])
        });
        copied && sum == self.sum
    }

    fn tiles(&self) -> usize {
        self.from.len().max(self.to.len()).div_ceil(TILE)
    }
}

/// The part of so many bytes that belongs to a tile.
fn part(len: usize, tile: usize, tiles: usize) -> Range<usize> {
    // Less than 2^63 for any memory below 2^31 tiles.
    len * tile / tiles..len * (tile + 1) / tiles
}

/// Fills `to` with what is in `from`, and gives the sum of what is left of it.
fn copy(from: &[u8], to: &mut [u8]) -> u64 {
    if from.is_empty() {
        to.fill(1);
        return 0;
    }
    for to in to.chunks_mut(from.len()) {
        to.copy_from_slice(&from[..to.len()]);
    }
    words(from.get(to.len()..).unwrap_or_default()).fold(0, u64::wrapping_add)
}

/// Whole words of the bytes.
fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.as_chunks().0.iter().map(|&word| u64::from_le_bytes(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_copied_or_summed() {
        for (read, written) in [(100_000, 100_000), (100_000, 7), (1000, 400_123), (70_000, 30_001)] {
            let mut copying = Copying::new(Traffic { read, written });
            assert!(!copying.is_right(), "{read} {written}");
            copying.run();
            assert!(copying.is_right(), "{read} {written}");
            if let Some(byte) = copying.to.last_mut() {
                *byte ^= 1;
            }
            assert!(!copying.is_right(), "{read} {written}");
        }
        for (read, written) in [(0, 0), (9, 0), (0, 9)] {
            let mut copying = Copying::new(Traffic { read, written });
            copying.run();
            assert!(copying.is_right(), "{read} {written}");
        }
    }
}
