//! The slots of the cache that hold blocks: which block is where, and which one goes.

use std::collections::HashMap;

use super::config::Eviction;
use crate::error::Error;

/// A block that has to be loaded, and the slot for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) block: u32,
    pub(crate) slot: usize,
}

/// A slot for a block, and what decides when the block in it goes.
#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    block: Option<u32>,
    /// The latest assignment that wanted it.
    used: u64,
    /// Its attention mass, which decays.
    mass: f32,
}

/// The slots for blocks.
#[derive(Debug, Clone)]
pub(crate) struct Residency {
    slots: Vec<Slot>,
    resident: HashMap<u32, usize>,
    eviction: Eviction,
    assignments: u64,
}

impl Residency {
    pub(crate) fn new(slots: usize, eviction: Eviction) -> Self {
        Self { slots: vec![Slot::default(); slots], resident: HashMap::new(), eviction, assignments: 0 }
    }

    /// The slot of a block.
    pub(crate) fn slot(&self, block: u32) -> Option<usize> {
        self.resident.get(&block).copied()
    }

    /// Finds a slot for each wanted block, which are different blocks and not more than slots. Those that are resident
    /// keep theirs. The others get slots of blocks that are not wanted, empty ones first; returns these in order
    /// of slots. No wanted block goes.
    pub(crate) fn assign(&mut self, wanted: &[u32]) -> Vec<Load> {
        self.assignments += 1;
        let mut new = Vec::new();
        for &block in wanted {
            match self.resident.get(&block) {
                Some(&slot) => self.slots[slot].used = self.assignments,
                None => new.push(block),
            }
        }
        if new.is_empty() {
            return Vec::new();
        }
        let mut victims: Vec<_> = (0..self.slots.len()).filter(|&i| self.slots[i].used < self.assignments).collect();
        victims.sort_by(|&a, &b| {
            let (a, b) = (&self.slots[a], &self.slots[b]);
            let worth = match self.eviction {
                Eviction::Lru => a.used.cmp(&b.used),
                Eviction::Decayed { .. } => a.mass.total_cmp(&b.mass),
            };
            a.block.is_some().cmp(&b.block.is_some()).then(worth)
        });
        victims.truncate(new.len());
        victims.sort_unstable();
        let loads: Vec<_> = victims.into_iter().zip(new).map(|(slot, block)| Load { block, slot }).collect();
        for &Load { block, slot } in &loads {
            let before = std::mem::replace(
                &mut self.slots[slot],
                Slot { block: Some(block), used: self.assignments, mass: 0.0 },
            );
            if let Some(before) = before.block {
                self.resident.remove(&before);
            }
            self.resident.insert(block, slot);
        }
        loads
    }

    /// Empties a slot, whose rows were not written.
    pub(crate) fn forget(&mut self, Load { block, slot }: Load) {
        self.resident.remove(&block);
        self.slots[slot] = Slot::default();
    }

    /// Ages the mass of all blocks, and adds a step's mass.
    pub(crate) fn observe(&mut self, masses: impl IntoIterator<Item = (u32, f32)>) {
        let Eviction::Decayed { decay } = self.eviction else { return };
        self.slots.iter_mut().for_each(|slot| slot.mass *= decay);
        for (block, mass) in masses {
            if let Some(&slot) = self.resident.get(&block) {
                self.slots[slot].mass += mass;
            }
        }
    }
}

/// Where blocks go in a table: those of `last` that are still wanted keep their slots, and the others take those of the
/// ones that are not, both in order. Returns the table, and the slots that have to be loaded.
///
/// # Errors
/// [`Error::DuplicateBlock`].
pub fn slot_stable(last: &[u32], want: &[u32]) -> Result<(Vec<u32>, Vec<usize>), Error> {
    for (name, blocks) in [("last", last), ("want", want)] {
        let mut sorted = blocks.to_vec();
        sorted.sort_unstable();
        if let Some(twice) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Error::DuplicateBlock { name, block: twice[0] });
        }
    }
    let mut residency = Residency::new(last.len().max(want.len()), Eviction::Lru);
    residency.assign(last);
    let loads = residency.assign(want);
    let table = residency.slots.iter().filter_map(|slot| slot.block).collect();
    Ok((table, loads.into_iter().map(|load| load.slot).collect()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn blocks(len: impl Into<prop::collection::SizeRange>) -> impl Strategy<Value = Vec<u32>> {
        prop::collection::btree_set(0_u32..12, len).prop_map(|set| set.into_iter().collect::<Vec<_>>()).prop_shuffle()
    }

    proptest! {
        /// What goes was not wanted, makes room that is needed, and was used before, or has no more mass than, what
        /// stays.
        #[test]
        fn the_least_worthy_go(
            steps in prop::collection::vec((blocks(0..=4), prop::collection::vec((0_u32..12, 0_u8..9), 0..4)), 1..40),
            spare in 0_usize..3,
            decayed: bool,
        ) {
            let eviction = if decayed { Eviction::Decayed { decay: 0.5 } } else { Eviction::Lru };
            let mut residency = Residency::new(4 + spare, eviction);
            let mut worths: HashMap<u32, f32> = HashMap::new();
            for (step, (wanted, masses)) in (1_u16..).zip(steps) {
                let before = residency.resident.clone();
                let loads = residency.assign(&wanted);
                let new: Vec<u32> = wanted.iter().copied().filter(|block| !before.contains_key(block)).collect();
                prop_assert_eq!(loads.iter().map(|load| load.block).collect::<Vec<_>>(), new.clone());
                prop_assert!(wanted.iter().all(|&block| residency.slot(block).is_some()));
                let is_there = |block: &&u32| residency.slot(**block).is_some();
                let (stay, gone): (Vec<u32>, Vec<u32>) = before.keys().partition(is_there);
                prop_assert!(stay.iter().all(|block| residency.slot(*block) == before.get(block).copied()));
                prop_assert_eq!(gone.len(), (before.len() + new.len()).saturating_sub(4 + spare));
                prop_assert!(gone.iter().all(|block| !wanted.contains(block)));
                for other in stay.iter().filter(|block| !wanted.contains(block)) {
                    prop_assert!(gone.iter().all(|block| worths[block] <= worths[other]));
                }
                residency.observe(masses.iter().map(|&(block, mass)| (block, f32::from(mass))));
                worths.retain(|block, _| !gone.contains(block));
                worths.extend(new.iter().map(|&block| (block, 0.0)));
                if decayed {
                    worths.values_mut().for_each(|mass| *mass *= 0.5);
                    masses.iter().for_each(|(block, mass)| {
                        worths.entry(*block).and_modify(|sum| *sum += f32::from(*mass));
                    });
                } else {
                    worths.extend(wanted.iter().map(|&block| (block, f32::from(step))));
                }
            }
        }

        /// A table keeps what is wanted in its place and has just the wanted blocks.
        #[test]
        fn tables_are_stable((last, want) in (0_usize..7).prop_flat_map(|len| (blocks(len), blocks(len)))) {
            let (table, loads) = slot_stable(&last, &want)?;
            prop_assert_eq!(table.iter().collect::<BTreeSet<_>>(), want.iter().collect::<BTreeSet<_>>());
            for (slot, (before, after)) in last.iter().zip(&table).enumerate() {
                prop_assert_eq!(before == after, want.contains(before));
                prop_assert_eq!(before != after, loads.contains(&slot));
            }
        }
    }

    #[test]
    fn golden_g21() -> Result<(), Error> {
        assert_eq!(slot_stable(&[7, 3, 9, 5], &[9, 7, 2, 4])?, (vec![7, 2, 9, 4], vec![1, 3]));
        assert_eq!(slot_stable(&[3, 7, 1], &[7, 9, 3])?, (vec![3, 7, 9], vec![2]));
        assert_eq!(slot_stable(&[5], &[7, 5, 9])?, (vec![5, 7, 9], vec![1, 2]));
        let twice = slot_stable(&[1, 2], &[4, 3, 4]).unwrap_err();
        assert!(matches!(twice, Error::DuplicateBlock { name: "want", block: 4 }));
        Ok(())
    }
}
