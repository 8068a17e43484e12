//! Which blocks are in which slots of the device.

use std::collections::HashMap;

use super::config::Eviction;
use super::error::InfLlmError;

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
    /// keep theirs. The others get slots of blocks that are not wanted, empty ones first; gives them in ascending order
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

    /// Ages the mass of all blocks, and adds that of a step.
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
/// ones that are not, both in order. Gives the table, and the slots that have to be loaded.
///
/// # Errors
/// [`InfLlmError::DuplicateBlock`].
pub fn slot_stable(last: &[u32], want: &[u32]) -> Result<(Vec<u32>, Vec<usize>), InfLlmError> {
    for (name, blocks) in [("last", last), ("want", want)] {
        let mut sorted = blocks.to_vec();
        sorted.sort_unstable();
        if let Some(twice) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(InfLlmError::DuplicateBlock { name, block: twice[0] });
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
        /// Loads are wanted less resident; a naive list in order of use, or of mass, says what goes.
        #[test]
        fn residency_is_that_of_a_list(
            steps in prop::collection::vec((blocks(0..=4), prop::collection::vec((0_u32..12, 0_u8..9), 0..4)), 1..40),
            spare in 0_usize..3,
            decayed: bool,
        ) {
            let eviction = if decayed { Eviction::Decayed { decay: 0.5 } } else { Eviction::Lru };
            let mut residency = Residency::new(4 + spare, eviction);
            let mut naive: Vec<(u32, u64, f32)> = Vec::new(); // block, last use, mass
            for (step, (wanted, masses)) in (1..).zip(steps) {
                let before: BTreeSet<u32> = naive.iter().map(|entry| entry.0).collect();
                let loads = residency.assign(&wanted);
                let new: Vec<u32> = wanted.iter().copied().filter(|block| !before.contains(block)).collect();
                prop_assert_eq!(loads.iter().map(|load| load.block).collect::<Vec<_>>(), new.clone());
                for entry in naive.iter_mut().filter(|entry| wanted.contains(&entry.0)) {
                    entry.1 = step;
                }
                for block in new {
                    if naive.len() == 4 + spare {
                        let unwanted = naive.iter().filter(|entry| !wanted.contains(&entry.0));
                        let worth = |entry: &(u32, u64, f32)| {
                            (if decayed { entry.2.to_bits() } else { 0 }, if decayed { 0 } else { entry.1 })
                        };
                        let goes = unwanted.min_by_key(|entry| worth(entry)).unwrap().0;
                        naive.retain(|entry| entry.0 != goes);
                    }
                    naive.push((block, step, 0.0));
                }
                // Among equals the lower slot goes, which the list does not know.
                let resident: BTreeSet<u32> = residency.resident.keys().copied().collect();
                prop_assert_eq!(resident.len(), naive.len());
                prop_assert!(wanted.iter().all(|block| resident.contains(block)));
                let worths = |blocks: &mut dyn Iterator<Item = &(u32, u64, f32)>| {
                    let worth = |e: &(u32, u64, f32)| if decayed { u64::from(e.2.to_bits()) } else { e.1 };
                    let mut worths: Vec<_> = blocks.map(worth).collect();
                    worths.sort_unstable();
                    worths
                };
                let kept: Vec<(u32, u64, f32)> = residency
                    .slots
                    .iter()
                    .filter_map(|slot| slot.block.map(|block| (block, slot.used, slot.mass)))
                    .collect();
                prop_assert_eq!(worths(&mut kept.iter()), worths(&mut naive.iter()));
                naive = kept;
                residency.observe(masses.iter().map(|&(block, mass)| (block, f32::from(mass))));
                for entry in &mut naive {
                    if decayed {
                        entry.2 *= 0.5;
                        masses.iter().filter(|mass| mass.0 == entry.0).for_each(|mass| entry.2 += f32::from(mass.1));
                    }
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
    fn golden_g21() -> Result<(), InfLlmError> {
        assert_eq!(slot_stable(&[7, 3, 9, 5], &[9, 7, 2, 4])?, (vec![7, 2, 9, 4], vec![1, 3]));
        assert_eq!(slot_stable(&[3, 7, 1], &[7, 9, 3])?, (vec![3, 7, 9], vec![2]));
        assert_eq!(slot_stable(&[5], &[7, 5, 9])?, (vec![5, 7, 9], vec![1, 2]));
        let twice = slot_stable(&[1, 2], &[4, 3, 4]).unwrap_err();
        assert!(matches!(twice, InfLlmError::DuplicateBlock { name: "want", block: 4 }));
        Ok(())
    }
}
